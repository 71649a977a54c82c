"""Langevin dynamics, plain and preconditioned, against exact Gaussian posteriors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd.baselines._base import Problem
from s2vgd.baselines._descent import side_by_side
from s2vgd.baselines.sgld import PSGLD, SGLD, Preconditioner, build, polynomial_decay
from s2vgd.bnn import Batch
from s2vgd.errors import DivergedError
from s2vgd.likelihoods import Gaussian
from s2vgd.networks import MLP

# Long chains of short steps.
pytestmark = pytest.mark.optimised

NOISE, VARIANCE = 0.5, 2.0

# -- the step, on a Gaussian that is known --------------------------------------------------------

PRECISION = np.array([[4.0, 1.0, 0.5], [1.0, 2.0, 0.0], [0.5, 0.0, 1.0]])
MEAN = np.array([1.0, -2.0, 0.5])


def log_density(particle, batch):
    centred = jnp.concatenate([particle["a"], particle["b"].ravel()]) - MEAN
    return -0.5 * centred @ jnp.asarray(PRECISION, centred.dtype) @ centred


def last_states(algorithm, steps: int, chains: int) -> np.ndarray:
    """Run independent chains from N(0, I) and return where they end, (chains, 3)."""
    together = side_by_side(algorithm, None)
    start = jax.random.normal(jax.random.key(0), (chains, 3))
    particles = {"a": start[:, :1], "b": start[:, 1:].reshape(chains, 1, 2)}
    state = together.init(particles, jax.random.key(1), 0)
    run = jax.jit(
        lambda state: jax.lax.scan(lambda s, _: together.step(s, None), state, length=steps)[0]
    )
    particles = run(state).particles
    return np.concatenate([particles["a"], particles["b"].reshape(chains, 2)], axis=1)


def test_constant_steps_have_the_stationary_covariance_of_the_discretisation():
    """It is (A - eps A^2 / 4)^-1 exactly; 10,000 chains know it to 1.5 %, held to 6 %."""
    epsilon = 0.5
    ends = last_states(build(log_density, polynomial_decay(epsilon, 1.0, 0.0)), 60, 10_000)
    exact = np.linalg.inv(PRECISION - epsilon / 4 * PRECISION @ PRECISION)
    np.testing.assert_allclose(ends.mean(axis=0), MEAN, atol=0.05)
    np.testing.assert_allclose(np.var(ends, axis=0), np.diag(exact), rtol=0.06)
    assert np.abs(np.cov(ends.T) - exact).max() < 0.06 * exact.max()
    # Far enough from the posterior itself for the test to see the difference.
    assert np.all(np.diag(exact) > 1.1 * np.diag(np.linalg.inv(PRECISION)))


@pytest.mark.parametrize(
    "preconditioner", [None, Preconditioner(0.999, 1e-3)], ids=["sgld", "psgld"]
)
def test_small_steps_sample_the_gaussian(preconditioner):
    """Mean within 0.06, variances within 8 %; 4,000 chains know them to 0.016 and 2.2 %."""
    algorithm = build(log_density, polynomial_decay(0.04, 1.0, 0.0), preconditioner)
    ends = last_states(algorithm, 600 if preconditioner is None else 1500, 4000)
    exact = np.linalg.inv(PRECISION)
    np.testing.assert_allclose(ends.mean(axis=0), MEAN, atol=0.06)
    np.testing.assert_allclose(np.var(ends, axis=0), np.diag(exact), rtol=0.08)
    assert np.abs(np.cov(ends.T) - exact).max() < 0.08 * exact.max()


def test_a_short_memory_widens_the_draws_as_documented():
    """The price of the term that is left out, when gradients are exact: 15 to 27 % of variance."""
    algorithm = build(log_density, polynomial_decay(0.04, 1.0, 0.0), Preconditioner(0.99, 1e-3))
    ends = last_states(algorithm, 800, 4000)
    excess = np.var(ends, axis=0) / np.diag(np.linalg.inv(PRECISION))
    assert np.all((excess > 1.08) & (excess < 1.34))


def test_the_preconditioned_step_is_the_formula_of_li_et_al():
    """Two steps written out in NumPy, with the noise the step draws."""
    memory, floor, schedule = 0.9, 0.1, polynomial_decay(0.3, 2.0, 0.5)
    algorithm = build(lambda x, _: -jnp.sum(jnp.cosh(x)), schedule, Preconditioner(memory, floor))
    key, x = jax.random.key(3), np.array([0.3, -1.0])
    state = algorithm.init(jnp.asarray(x), key)
    square = np.zeros(2)
    for t in range(2):
        state, info = algorithm.step(state, None)
        np.testing.assert_allclose(info.log_density, -np.cosh(x).sum(), rtol=1e-5)
        gradient, epsilon = -np.sinh(x), 0.3 * (1 + t / 2.0) ** -0.5
        square = memory * square + (1 - memory) * gradient**2
        g = 1 / (floor + np.sqrt(square / (1 - memory ** (t + 1))))
        noise = np.asarray(jax.random.normal(jax.random.fold_in(key, t), (2,)))
        x = x + epsilon / 2 * g * gradient + np.sqrt(epsilon * g) * noise
        np.testing.assert_allclose(state.particles, x, rtol=1e-5)


# -- the methods, on a linear model with known noise ----------------------------------------------


def linear_problem(rows: int = 100) -> tuple[Problem, np.ndarray, np.ndarray]:
    """Return a problem whose posterior is Gaussian, its mean and covariance; the bias is last."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2)) @ np.array([[1.0, 0.5], [0.0, 0.8]])
    y = x @ [1.0, -0.5] + 0.3 + NOISE * rng.normal(size=rows)
    design = np.column_stack([x, np.ones(rows)])
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(3) / VARIANCE)
    mean = covariance @ design.T @ y / NOISE**2
    data = Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y[:, None], jnp.float32))
    return Problem(data, Gaussian(fixed_std=NOISE), MLP(2, (), 1)), mean, covariance


def moments(posterior) -> tuple[np.ndarray, np.ndarray]:
    layer = posterior.particles["weights"][0]
    draws = np.concatenate([layer["kernel"][:, :, 0], layer["bias"]], axis=1).astype(float)
    return draws.mean(axis=0), np.cov(draws.T)


@pytest.mark.parametrize(("method", "rate"), [(SGLD, 5e-3), (PSGLD, 1e-2)])
def test_langevin_draws_are_those_of_bayesian_linear_regression(method, rate):
    """From batches: mean within 0.08 standard deviations, covariance within 12 %."""
    problem, mean, covariance = linear_problem()
    model = method(
        **{"steps": 2000, "batch_size": 25, "learning_rate": rate, "power": 0.0},
        **{"chains": 300, "draws": 10, "prior_variance": VARIANCE},
    )
    posterior = model._learn(problem, jax.random.key(0))
    assert len(posterior) == 300 * 10 and posterior.n_chains == 300
    found_mean, found_covariance = moments(posterior)
    assert np.all(np.abs(found_mean - mean) < 0.08 * np.sqrt(np.diag(covariance)))
    np.testing.assert_allclose(np.diag(found_covariance), np.diag(covariance), rtol=0.12)
    assert np.abs(found_covariance - covariance).max() < 0.12 * covariance.max()


# -- what is kept of the chains -------------------------------------------------------------------


@pytest.mark.parametrize("steps", [40, 47])
def test_draws_are_spread_evenly_over_the_second_half(steps, monkeypatch):
    """Of 10 draws, those of steps 22, 24, ..., 40, and the like when nothing divides evenly."""
    monkeypatch.setattr(
        "s2vgd.baselines.sgld.build",
        lambda *_: build(
            lambda particle, _: 0.0 * particle["weights"][0]["bias"][0], jnp.ones_like
        ),
    )
    monkeypatch.setattr("s2vgd.baselines.sgld._normals_like", lambda key, tree: ones_like(tree))
    problem, _, _ = linear_problem()
    model = SGLD(steps=steps, draws=10, prior_variance=float(steps))
    posterior = model._learn(problem, jax.random.key(0))
    seen = np.asarray(posterior.particles["weights"][0]["bias"])[:, 0]  # one is added at each step
    last = steps - steps % 2
    np.testing.assert_array_equal(seen, np.arange(last - 18, last + 1, 2))


def ones_like(tree):
    return jax.tree.map(jnp.ones_like, tree)


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (SGLD, {"steps": 100, "draws": 51}, "steps must be at least 102"),
        (SGLD, {"learning_rate": 0.0}, "learning_rate must be positive"),
        (SGLD, {"power": 1.0}, "power must be at least 0 and below 1"),
        (SGLD, {"offset": 0.0}, "offset must be positive"),
        (SGLD, {"chains": 0}, "chains must be at least 1"),
        (SGLD, {"draws": 0}, "draws must be at least 1"),
        (SGLD, {"batch_size": 0}, "batch_size must be at least 1"),
        (SGLD, {"prior_variance": -1.0}, "prior_variance must be positive"),
        (PSGLD, {"memory": 1.5}, "memory must be at least 0 and below 1"),
        (PSGLD, {"floor": 0.0}, "floor must be positive"),
    ],
)
def test_bad_settings_are_named(method, settings, message):
    with pytest.raises(ValueError, match=message):
        method(**settings)


def test_a_step_that_is_too_long_is_an_error_and_not_nan():
    problem, _, _ = linear_problem()
    model = SGLD(learning_rate=100.0, steps=200, draws=10)
    with pytest.raises(DivergedError, match="diverged"):
        model._learn(problem, jax.random.key(0))
