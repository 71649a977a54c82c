"""The estimators as scikit-learn sees them: its own checks, and the tools people combine."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from s2vgd import S2VGDClassifier, S2VGDRegressor

# Cheap: what the checks look at does not depend on how good the fit is, and each of the many shapes
# of data is compiled. They compare to 1e-7, hence double precision.
CHEAP = {
    "hidden": (6,),
    "particles": 3,
    "reflections": 0,
    "scales": None,
    "refine": None,
    "steps": 40,
    "learning_rate": 0.05,
    "dtype": "float64",
    "random_state": 0,
}


@parametrize_with_checks(
    [S2VGDRegressor(noise="constant", **CHEAP), S2VGDClassifier(**CHEAP)],
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
