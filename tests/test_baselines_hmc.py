"""Hamiltonian Monte Carlo from random starts: an exact posterior, and what a rival has to do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd import baselines, datasets, metrics
from s2vgd.baselines._base import Problem
from s2vgd.baselines.hmc import HMC, NUTS
from s2vgd.bnn import BNN, Batch
from s2vgd.likelihoods import Gaussian
from s2vgd.networks import MLP
from s2vgd.refine import RefinementWarning

NOISE, VARIANCE = 0.5, 2.0
SHORT = {"hidden": (8,), "chains": 2, "warmup": 50, "draws": 8, "thin": 2}


def fit(name: str, x, y, **settings):
    with pytest.warns(RefinementWarning):  # so few draws are worth less than twenty
        return baselines.methods()[name](**{**SHORT, **settings}).fit(x, y)


def test_draws_are_those_of_bayesian_linear_regression():
    """Mean within 0.12 standard deviations and covariance within 15 %, from 4,000 draws.

    By NUTS alone: in three dimensions trajectories of one length, as those of HMC, come back near
    where they began. Both are held to exact answers in the tests of refinement.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)) @ np.array([[1.0, 0.5], [0.0, 0.8]])
    y = x @ [1.0, -0.5] + 0.3 + NOISE * rng.normal(size=60)
    design = np.column_stack([x, np.ones(60)])
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(3) / VARIANCE)
    mean = covariance @ design.T @ y / NOISE**2
    data = Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y[:, None], jnp.float32))
    problem = Problem(data, Gaussian(fixed_std=NOISE), MLP(2, (), 1))

    model = NUTS(prior=VARIANCE, chains=4, warmup=200, draws=1000, thin=1)
    posterior = model._learn(problem, jax.random.key(0))
    assert len(posterior) == 4000 and posterior.n_chains == 4
    layer = posterior.particles["weights"][0]
    draws = np.concatenate([layer["kernel"][:, :, 0], layer["bias"]], axis=1).astype(float)
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 0.12 * np.sqrt(np.diag(covariance)))
    assert np.abs(np.cov(draws.T) - covariance).max() < 0.15 * covariance.max()
    assert np.median(model.diagnostics.r_hat) < 1.05


@pytest.mark.parametrize("name", ["hmc", "nuts"])
def test_it_beats_the_mean_repeats_itself_and_compiles_once(name, monkeypatch):
    yacht = datasets.load("yacht")
    train, test = yacht.splits[0]
    x, y = yacht.x[train], yacht.y[train]
    says = fit(name, x, y).predict_dist(yacht.x[test])
    errors = yacht.y[test] - y.mean()
    constant = -0.5 * np.mean(np.log(2 * np.pi * y.var()) + errors**2 / y.var())
    assert metrics.rmse(says, yacht.y[test]) < 0.3 * np.sqrt(np.mean(errors**2))
    assert metrics.log_likelihood(says, yacht.y[test]) > constant + 1

    def refuse(*_):
        raise AssertionError("the log density was traced again")

    monkeypatch.setattr(BNN, "log_joint", refuse)
    again = fit(name, x, y).predict_dist(yacht.x[test])
    np.testing.assert_array_equal(again.mean, says.mean)


def test_classes_are_learned_with_a_hierarchical_prior():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    labels = np.digitize(x[:, 0], [-0.5, 0.5])
    model = fit("hmc", x, labels, prior="hierarchical", hidden=(4,))
    assert np.mean(model.predict_dist(x).mean.argmax(axis=1) == labels) > 0.8
    assert set(model._posterior.particles["prior"]) == {"0", "1"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prior": "flat"}, "prior must be one of"),
        ({"prior": 0.0}, "prior must be one of"),
        ({"chains": 0}, "chains must be at least 1"),
        ({"warmup": 0}, "warmup must be at least 1"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"thin": 0}, "thin must be at least 1"),
    ],
)
def test_bad_settings_are_named(settings, message):
    for method in (HMC, NUTS):
        with pytest.raises(ValueError, match=message):
            method(**settings)
    with pytest.raises(TypeError, match="prior"):
        HMC(prior=None)
