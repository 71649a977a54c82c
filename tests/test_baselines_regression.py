"""What every trained rival owes an experiment, on the yacht data; HMC has a file of its own."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from s2vgd import baselines, datasets, metrics, posterior
from s2vgd.bnn import BNN

SHORT = {"hidden": (10,), "steps": 400}
SETTINGS = {
    "sgd": {"learning_rate": 0.1},
    "rmsprop": {},
    "rmsspectral": {},
    "dropout": {},
    "mc_dropout": {"draws": 20},
    "deep_ensemble": {"members": 3},
    "deep_ensemble_input": {"members": 3},
    "sgld": {"draws": 20, "steps": 2000},
    "psgld": {"draws": 20, "learning_rate": 1e-2},
    "svgd": {"particles": 5},
    "s2vgd": {"particles": 5},
}


@functools.cache
def split():
    yacht = datasets.load("yacht")
    train, test = yacht.splits[0]
    return yacht.x[train], yacht.y[train], yacht.x[test], yacht.y[test]


def fit(name: str, **settings):
    x, y, _, _ = split()
    return baselines.methods()[name](**{**SHORT, **SETTINGS[name], **settings}).fit(x, y)


@functools.cache
def fitted(name: str):
    return fit(name)


@pytest.fixture
def traced(monkeypatch) -> list[int]:
    """Note each time that the log density is traced, which is each time that it is compiled."""
    seen = []
    log_joint = BNN.log_joint

    def counted(self, particle, batch, n_total):
        seen.append(len(batch.x))
        return log_joint(self, particle, batch, n_total)

    monkeypatch.setattr(BNN, "log_joint", counted)
    return seen


def test_all_rivals_of_these_files_are_found_by_name():
    assert {*SETTINGS, "hmc", "nuts", "gp", "ngboost"} <= set(baselines.methods())


@pytest.mark.parametrize("name", SETTINGS)
def test_it_beats_the_mean(name):
    """Half the error of the mean of the training rows, and 0.5 more log-likelihood."""
    _, y, test_x, test_y = split()
    errors = test_y - y.mean()
    constant = -0.5 * np.mean(np.log(2 * np.pi * y.var()) + errors**2 / y.var())
    says = fitted(name).predict_dist(test_x)
    assert metrics.rmse(says, test_y) < 0.5 * np.sqrt(np.mean(errors**2))
    assert metrics.log_likelihood(says, test_y) > constant + 0.5


@pytest.mark.parametrize("name", SETTINGS)
def test_a_second_fit_compiles_nothing_and_depends_on_the_seed_alone(name, traced):
    _, _, test_x, _ = split()
    first = fitted(name).predict_dist(test_x)
    traced.clear()
    before = posterior._components._cache_size()
    again = fit(name).predict_dist(test_x)
    other = fit(name, seed=1).predict_dist(test_x)
    assert traced == []
    assert posterior._components._cache_size() == before
    np.testing.assert_array_equal(again.mean, first.mean)
    np.testing.assert_array_equal(again.std, first.std)
    assert not np.array_equal(other.mean, first.mean)


def test_a_fit_of_another_shape_is_seen_to_compile(traced):
    """Otherwise the test above could not fail."""
    x, y, _, _ = split()
    baselines.methods()["sgd"](steps=1).fit(x[:17], y[:17])
    assert traced


@pytest.mark.parametrize("name", ["rmsprop", "deep_ensemble", "sgld", "svgd"])
def test_bad_settings_of_the_loop_are_named(name):
    for settings, message in (
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
        ({"steps": 0}, "steps must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"hidden": (0,)}, r"hidden\[0\] must be at least 1"),
        ({"activation": "sine"}, "activation must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(name, **settings)


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("svgd", {"particles": 0}, ValueError, "particles must be at least 1"),
        ("svgd", {"prior": "flat"}, ValueError, "prior must be one of"),
        ("svgd", {"prior": None}, TypeError, "prior must be a name or a variance"),
        ("s2vgd", {"reflections": -1}, ValueError, "reflections must be at least 0"),
        ("s2vgd", {"scales": "linear"}, ValueError, "scales must be"),
    ],
)
def test_bad_settings_of_stein_methods_are_named(name, settings, error, message):
    with pytest.raises(error, match=message):
        baselines.methods()[name](**settings)


def test_structure_is_what_sets_s2vgd_apart():
    kernel = fitted("s2vgd")._posterior.particles["weights"][0]["kernel"]
    assert kernel.v_right.shape == (5, 1, 10)
    assert np.all(np.asarray(kernel.s_right) != 0.0)
    assert fitted("svgd")._posterior.particles["weights"][0]["kernel"].shape == (5, 6, 10)


def test_the_prior_of_stein_methods_is_the_one_asked_for():
    """Hierarchical for numbers unless a variance is given."""
    assert set(fitted("svgd")._posterior.particles["prior"]) == {"0", "1"}
    fixed = fit("svgd", prior=0.5, steps=2)._posterior
    assert fixed.particles["prior"] == {}
    assert fixed.bnn.prior.variance == 0.5
