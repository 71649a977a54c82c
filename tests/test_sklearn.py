"""The estimators as scikit-learn sees them: its own checks, and the tools people combine."""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from s2vgd import S2VGDClassifier, S2VGDRegressor

# Cheap: what the checks look at does not depend on how good the fit is, and each of the many shapes
# of data is compiled, which takes half of the time without structure. Two fits are compared to
# 1e-7, hence double precision.
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
REFINED = {"refine": "mclmc", "warmup": 60, "draws": 5, "thin": 2}


def regressor(**parameters) -> S2VGDRegressor:
    return S2VGDRegressor(**{**CHEAP, "noise": "constant", **parameters})


def classifier(**parameters) -> S2VGDClassifier:
    return S2VGDClassifier(**{**CHEAP, **parameters})


@parametrize_with_checks([regressor(), classifier()], expected_failed_checks=lambda _: {})
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::s2vgd.refine.RefinementWarning")
@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_estimators_pickle,
        estimator_checks.check_dict_unchanged,
    ],
)
@pytest.mark.parametrize(
    "estimator",
    [regressor(noise="input", **REFINED), classifier(**REFINED)],
    ids=["regressor", "classifier"],
)
def test_checks_that_refinement_could_fail(estimator, check):
    check(type(estimator).__name__, estimator)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = 2 * X[:, 0] - X[:, 1] + 0.1 * RNG.normal(size=60)
LABELS = np.where(Y > 0, "high", "low")


# -- meta-estimators -----------------------------------------------------------------------------


def test_pipeline_and_what_it_passes_on():
    pipeline = make_pipeline(StandardScaler(), regressor())
    weight = np.linspace(0.5, 1.5, 60)
    pipeline.fit(X, Y, s2vgdregressor__sample_weight=weight)
    mean, std = pipeline.predict(X, return_std=True)
    assert mean.shape == std.shape == (60,)
    assert pipeline.score(X, Y) > 0.8


def test_grid_search_over_the_classifiers_parameters():
    search = GridSearchCV(classifier(), {"activation": ["relu", "tanh"]}, cv=2)
    search.fit(X, LABELS)
    assert search.best_score_ > 0.7
    assert search.best_estimator_.activation == search.best_params_["activation"]
    assert search.predict_proba(X).shape == (60, 2)


def test_grid_search_inside_a_pipeline():
    pipeline = make_pipeline(StandardScaler(), regressor())
    grid = {"s2vgdregressor__learning_rate": [1e-6, 0.05]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, Y)
    assert search.best_params_ == {"s2vgdregressor__learning_rate": 0.05}


@pytest.mark.parametrize(("estimator", "target"), [(regressor(), Y), (classifier(), LABELS)])
def test_cross_validation(estimator, target):
    scores = cross_val_score(estimator, X, target, cv=2, error_score="raise")
    assert np.all(scores > 0.7)
    assert cross_val_predict(estimator, X, target, cv=2).shape == (60,)


def test_transformed_targets():
    model = TransformedTargetRegressor(regressor(), func=np.log, inverse_func=np.exp)
    assert model.fit(X, np.exp(Y)).predict(X).min() > 0


@pytest.mark.parametrize("estimator", [regressor(), classifier()])
def test_a_clone_is_unfitted_and_equal(estimator):
    target = Y if isinstance(estimator, S2VGDRegressor) else LABELS
    copy = clone(clone(estimator).fit(X, target))
    assert copy.get_params() == estimator.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(X)


def test_arrays_that_need_no_conversion_are_taken_as_they_are_and_checked_all_the_same():
    model = regressor().fit(X, Y)
    expected = model.predict(X)
    for same in (X.tolist(), np.asfortranarray(X), X[::1], np.ma.array(X)):
        np.testing.assert_array_equal(model.predict(same), expected)
    wrong = X.copy()
    for value, words in ((np.nan, "contains NaN"), (np.inf, "contains infinity")):
        wrong[1, 0] = value
        with pytest.raises(ValueError, match=words):
            model.predict(wrong)
    with pytest.raises(ValueError, match="expecting 3 features"):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match="minimum of 1 is required"):
        model.predict(X[:0])
    named = regressor().fit(pd.DataFrame(X, columns=["a", "b", "c"]), Y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        named.predict(X)


# -- frames --------------------------------------------------------------------------------------

FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}


@pytest.mark.parametrize("library", FRAMES)
def test_frames_are_as_good_as_arrays_and_their_names_are_kept(library):
    columns = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}
    frame = FRAMES[library](columns)
    target = pd.Series(Y) if library == "pandas" else pl.Series(Y)
    model = regressor().fit(frame, target)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    np.testing.assert_array_equal(model.predict(frame), regressor().fit(X, Y).predict(X))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(FRAMES[library]({"b": X[:, 1], "a": X[:, 0], "c": X[:, 2]}))
    with pytest.raises(ValueError, match="feature names should match"):
        model.partial_fit(FRAMES[library]({"z": X[:, 0], "b": X[:, 1], "c": X[:, 2]}), target)


@pytest.mark.parametrize("library", FRAMES)
def test_labels_in_frames(library):
    frame = FRAMES[library]({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
    labels = pd.Series(LABELS) if library == "pandas" else pl.Series(LABELS)
    model = classifier().fit(frame, labels)
    assert list(model.classes_) == ["high", "low"]
    assert model.score(frame, labels) > 0.8


@pytest.mark.parametrize("library", FRAMES)
def test_set_output_of_a_pipeline_reaches_the_estimator_as_a_frame(library):
    """Only transformers have ``set_output`` themselves; the others must not stand in its way."""
    assert not hasattr(regressor(), "set_output")
    pipeline = make_pipeline(StandardScaler(), regressor()).set_output(transform=library)
    frame = FRAMES[library]({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
    pipeline.fit(frame, Y)
    assert list(pipeline[-1].feature_names_in_) == ["a", "b", "c"]
    assert isinstance(pipeline.predict(frame), np.ndarray)


# -- what a user gets wrong ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"hidden": 50}, "hidden must be a sequence of layer widths, got 50"),
        ({"hidden": "50"}, "hidden must be a sequence of layer widths, got '50'"),
        ({"hidden": (5, 0)}, r"hidden\[1\] must be an integer of at least 1, got 0"),
        ({"hidden": (5.5,)}, r"hidden\[0\] must be an integer of at least 1, got 5.5"),
        ({"particles": 0}, "particles must be an integer of at least 1, got 0"),
        ({"particles": True}, "particles must be an integer of at least 1, got True"),
        ({"reflections": -1}, "reflections must be an integer of at least 0, got -1"),
        ({"scales": "log"}, "scales must be 'lognormal', 'gaussian' or None, got 'log'"),
        ({"noise": "pink"}, "noise must be one of .* got 'pink'"),
        ({"prior": "flat"}, "prior must be 'auto', 'hierarchical' or a positive variance"),
        ({"prior": -1.0}, "prior must be 'auto', 'hierarchical' or a positive variance"),
        ({"refine": "gibbs"}, "refine must be one of .* got 'gibbs'"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"batch_size": "all"}, "batch_size must be an integer of at least 1, got 'all'"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive number, got 0.0"),
        ({"learning_rate": "fast"}, "learning_rate must be a positive number, got 'fast'"),
        ({"activation": "step"}, "activation must be one of .* got 'step'"),
        ({"chains": 0}, "chains must be an integer of at least 1, got 0"),
        ({"warmup": 0}, "warmup must be an integer of at least 1, got 0"),
        ({"draws": 2.5}, "draws must be an integer of at least 1, got 2.5"),
        ({"thin": 0}, "thin must be an integer of at least 1, got 0"),
        ({"dtype": "float16"}, "dtype must be 'float32' or 'float64', got 'float16'"),
        ({"products": "int8"}, "products must be one of .* got 'int8'"),
        ({"products": "tf32", "dtype": "float64"}, "products='tf32' needs dtype='float32'"),
        ({"random_state": "lucky"}, "'lucky' cannot be used to seed"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_wrong_parameter_is_named_by_fit(parameters, message):
    with pytest.raises(ValueError, match=message):
        regressor(**parameters).fit(X, Y)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_products_are_rounded_on_a_gpu_as_asked_and_nowhere_else(monkeypatch, backend):
    """What JAX is told; a GPU is not needed for that."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    told = {"float32": "highest", "tf32": "default", "bfloat16": "BF16_BF16_F32"}
    for products, expected in told.items():
        with regressor(dtype="float32", products=products)._precision():
            found = jax.config.jax_default_matmul_precision
        assert found == (expected if backend == "gpu" else "highest")


def replaced(value: float) -> np.ndarray:
    x = X.copy()
    x[3, 1] = value
    return x


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (replaced(np.nan), Y, "Input X contains NaN"),
        (replaced(np.inf), Y, "Input X contains infinity"),
        (X, np.where(Y > 1, np.nan, Y), "Input y contains NaN"),
        (X, np.where(Y > 1, np.inf, Y), "Input y contains infinity"),
        (X[:1], Y[:1], r"Found array with 1 sample\(s\) .* minimum of 2 is required"),
        (X[:0], Y[:0], r"Found array with 0 sample\(s\)"),
        (X[:, :0], Y, r"Found array with 0 feature\(s\)"),
        (X, Y[:-1], "inconsistent numbers of samples"),
        (X[:, 0], Y, "Expected 2D array, got 1D array"),
        (X, np.full(60, "a"), "could not convert string to float"),
        (X, None, "requires y to be passed"),
    ],
)
def test_wrong_rows_are_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        regressor().fit(x, y)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.full(60, -1.0), "Negative values in data passed to `sample_weight`"),
        (np.zeros(60), "[Ss]ample.weights? must"),
        (np.eye(60)[0], "sample_weight must be positive for two rows or more"),
        (np.ones(59), r"sample_weight.shape == \(59,\), expected \(60,\)"),
        (np.full(60, np.nan), "Input sample_weight contains NaN"),
    ],
)
def test_wrong_weights_are_refused(weight, message):
    with pytest.raises(ValueError, match=message):
        regressor().fit(X, Y, sample_weight=weight)


def test_a_classifier_wants_two_classes():
    with pytest.raises(ValueError, match=r"y must hold at least two classes, got one .* 'high'"):
        classifier().fit(X, np.full(60, "high"))
    with pytest.raises(ValueError, match="y must hold at least two classes"):
        classifier().fit(X, LABELS, sample_weight=(LABELS == "low") * 1.0)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        classifier().fit(X, Y)


def test_rows_to_predict_must_be_like_those_of_the_fit():
    model = regressor().fit(X, Y)
    with pytest.raises(ValueError, match="X has 2 features, but S2VGDRegressor is expecting 3"):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.predict_interval(replaced(np.nan))
    with pytest.raises(ValueError, match="level must be a number strictly between 0 and 1"):
        model.predict_interval(X, level=90)
    with pytest.raises(ValueError, match="q must lie strictly between 0 and 1"):
        model.predict_quantiles(X, [0.5, 1.0])
    with pytest.raises(ValueError, match="n must be an integer of at least 1, got 0"):
        model.sample(X, n=0)
