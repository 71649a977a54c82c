"""Rivals of other libraries: what they say, in whose units, and what happens without them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from s2vgd import datasets, metrics
from s2vgd.baselines.outside import GaussianProcess, NGBoost

yacht = datasets.load("yacht")
TRAIN, TEST = yacht.splits[0]
TRAIN = TRAIN[:80]
X, Y = yacht.x[TRAIN], yacht.y[TRAIN]


@pytest.fixture(scope="module")
def process() -> GaussianProcess:
    return GaussianProcess().fit(X, Y)


def test_the_process_beats_the_mean(process):
    says = process.predict_dist(yacht.x[TEST])
    errors = yacht.y[TEST] - Y.mean()
    constant = -0.5 * np.mean(np.log(2 * np.pi * Y.var()) + errors**2 / Y.var())
    assert metrics.rmse(says, yacht.y[TEST]) < 0.3 * np.sqrt(np.mean(errors**2))
    assert metrics.log_likelihood(says, yacht.y[TEST]) > constant + 1


def test_the_process_predicts_by_the_closed_form_noise_included(process):
    """Mean k' K^-1 y and variance k - k' K^-1 k + noise, with the kernel that was learned."""
    signal, white = process._model.kernel_.k1, process._model.kernel_.k2
    inputs = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = (yacht.x[TEST] - X.mean(axis=0)) / X.std(axis=0)
    gram = signal(inputs) + (white.noise_level + 1e-10) * np.eye(len(X))
    cross = signal(rows, inputs)
    mean = cross @ np.linalg.solve(gram, (Y - Y.mean()) / Y.std())
    explained = np.sum(cross * np.linalg.solve(gram, cross.T).T, axis=1)
    variance = signal.diag(rows) - explained + white.noise_level
    says = process.predict_dist(yacht.x[TEST])
    np.testing.assert_allclose(says.mean, Y.mean() + Y.std() * mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(says.std, Y.std() * np.sqrt(variance), rtol=1e-2)
    assert signal.k2.nu == 2.5 and len(signal.k2.length_scale) == 6


def test_rows_beyond_the_cap_are_a_random_subset_that_the_seed_decides():
    kept = [GaussianProcess(max_rows=20, seed=seed).fit(X, Y) for seed in (0, 0, 1)]
    rows = [model._model.X_train_ for model in kept]
    assert rows[0].shape == (20, 6)
    np.testing.assert_array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])
    says = [model.predict_dist(X[:5]) for model in kept]
    np.testing.assert_array_equal(says[0].mean, says[1].mean)
    np.testing.assert_array_equal(says[0].std, says[1].std)
    # A random subset, not the first rows; all of them standardised with the moments of all.
    first = ((X - X.mean(axis=0)) / X.std(axis=0))[:20]
    assert not np.allclose(rows[0], first)


def test_process_searches_on_some_rows_and_conditions_on_all():
    """Hyperparameters are those of the rows searched on; predictions are the exact ones of all."""
    searched = GaussianProcess(max_rows=20, seed=3).fit(X, Y)
    found = GaussianProcess(search_rows=20, seed=3).fit(X, Y)
    assert found._model.kernel_ == searched._model.kernel_
    assert len(found._model.X_train_) == len(X)
    x, new = found._inputs(X), found._inputs(X[:5] + 0.1)
    mean, deviation = Y.mean(), Y.std()
    weights = np.linalg.solve(
        found._model.kernel_(x) + 1e-10 * np.eye(len(x)), (Y - mean) / deviation
    )
    expected = mean + deviation * found._model.kernel_(new, x) @ weights
    np.testing.assert_allclose(found.predict_dist(X[:5] + 0.1).mean, expected, rtol=1e-4)


def test_without_its_package_boosting_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ngboost", None)
    with pytest.raises(ImportError, match="pip install ngboost"):
        NGBoost().fit(X, Y)


def test_what_boosting_says_is_handed_on_in_the_units_of_the_target(monkeypatch):
    """A stand-in with the interface of the package: settings go in, loc and scale come out."""
    given = {}

    class NGBRegressor:
        def __init__(self, **settings):
            given.update(settings)

        def fit(self, x, y):
            self.moments = y.mean(), y.std()
            given["columns"] = x.mean(axis=0), x.std(axis=0)
            return self

        def pred_dist(self, x):
            mean, deviation = self.moments
            loc, scale = np.full(len(x), mean), np.full(len(x), deviation)
            return SimpleNamespace(params={"loc": loc, "scale": scale})

    module = ModuleType("ngboost")
    module.NGBRegressor = NGBRegressor
    monkeypatch.setitem(sys.modules, "ngboost", module)
    says = NGBoost(estimators=7, learning_rate=0.2, seed=5).fit(X, Y).predict_dist(X[:4])
    np.testing.assert_allclose(says.mean, np.full(4, Y.mean()))
    np.testing.assert_allclose(says.std, np.full(4, Y.std()))
    np.testing.assert_allclose(given.pop("columns"), [[0] * 6, [1] * 6], atol=1e-5)
    expected = {"n_estimators": 7, "learning_rate": 0.2, "random_state": 5, "verbose": False}
    assert given == expected


@pytest.mark.parametrize("method", [GaussianProcess, NGBoost])
def test_bad_rows_are_refused(method):
    with pytest.raises(ValueError, match="y must be real numbers"):
        method().fit(X, np.arange(len(X)))
    with pytest.raises(ValueError, match="x must be"):
        method().fit(X, Y[:-1])
    with pytest.raises(ValueError, match="x and y must be finite"):
        method().fit(X, np.full(len(X), np.inf))


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (GaussianProcess, {"max_rows": 1}, "max_rows must be at least 2"),
        (GaussianProcess, {"search_rows": 1}, "search_rows must be at least 2"),
        (GaussianProcess, {"restarts": -1}, "restarts must be at least 0"),
        (NGBoost, {"estimators": 0}, "estimators must be at least 1"),
        (NGBoost, {"learning_rate": 0.0}, "learning_rate must be positive"),
    ],
)
def test_bad_settings_are_named(method, settings, message):
    with pytest.raises(ValueError, match=message):
        method(**settings)
