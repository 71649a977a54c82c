"""Point estimates against the closed form of a linear model; RMSspectral against NumPy's SVD."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd.baselines._base import Problem
from s2vgd.baselines.point import SGD, RMSprop
from s2vgd.baselines.spectral import EXACT_SIDE, RMSSpectral, scale_by_rms_spectral, sharp
from s2vgd.bnn import Batch
from s2vgd.errors import DivergedError
from s2vgd.likelihoods import Gaussian
from s2vgd.networks import MLP

ROWS, NOISE, VARIANCE = 60, 0.5, 0.05

rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 2))
Y = X @ [1.0, -0.5] + 0.3 + NOISE * rng.normal(size=ROWS)
DATA = Batch(jnp.asarray(X, jnp.float32), jnp.asarray(Y[:, None], jnp.float32))
DESIGN = np.column_stack([X, np.ones(ROWS)])

METHODS = [(SGD, 0.03), (RMSprop, 0.03), (RMSSpectral, 0.03)]


def mode(method, likelihood, **settings) -> tuple[np.ndarray, dict]:
    """Return weights and bias of the most probable linear model, and its noise parameters."""
    model = method(steps=3000, batch_size=None, prior_variance=VARIANCE, **settings)
    posterior = model._learn(Problem(DATA, likelihood, MLP(2, (), 1)), jax.random.key(0))
    assert len(posterior) == 1
    particle = jax.tree.map(lambda leaf: np.asarray(leaf[0], float), posterior.particles)
    layer = particle["weights"][0]
    return np.append(layer["kernel"][:, 0], layer["bias"]), particle["likelihood"]


@pytest.mark.parametrize(("method", "rate"), METHODS)
def test_the_mode_of_a_linear_model_is_that_of_ridge_regression(method, rate):
    """Gaussian likelihood and prior: (D'D / noise^2 + I / variance)^-1 D'y / noise^2."""
    exact = np.linalg.solve(
        DESIGN.T @ DESIGN / NOISE**2 + np.eye(3) / VARIANCE, DESIGN.T @ Y / NOISE**2
    )
    found, _ = mode(method, Gaussian(fixed_std=NOISE), learning_rate=rate)
    np.testing.assert_allclose(found, exact, atol=2e-3)
    least_squares = np.linalg.lstsq(DESIGN, Y)[0]
    assert np.abs(least_squares - exact).max() > 0.03  # the prior is felt


@pytest.mark.parametrize(("method", "rate"), METHODS)
def test_the_noise_is_learned_with_the_weights(method, rate):
    """Given the weights, the most probable precision is (N / 2 + a) / (b + SS / 2)."""
    found, noise = mode(method, Gaussian(), learning_rate=rate)
    squares = np.sum((Y - DESIGN @ found) ** 2)
    exact = (ROWS / 2 + 1.0) / (0.1 + squares / 2)
    np.testing.assert_allclose(np.exp(noise["log_precision"]), exact, rtol=0.01)


# -- the #-operator -------------------------------------------------------------------------------


def by_svd(x: np.ndarray) -> np.ndarray:
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    return s.sum() * u @ vt


@pytest.mark.parametrize("shape", [(13, 50), (50, 1), (EXACT_SIDE, 130), (120, 150), (150, 120)])
def test_sharp_is_that_of_numpys_svd(shape):
    """Decomposed exactly or not: the smaller side decides. Singular values from 0.02 to 1."""
    draws = np.random.default_rng(1)
    side = min(shape)
    u, _ = np.linalg.qr(draws.normal(size=(shape[0], side)))
    v, _ = np.linalg.qr(draws.normal(size=(shape[1], side)))
    x = (u * np.geomspace(0.02, 1.0, side)) @ v.T
    exact = by_svd(x)
    error = np.abs(np.asarray(sharp(jnp.asarray(x, jnp.float32))) - exact).max()
    assert error < 1e-4 * np.abs(exact).max()


@pytest.mark.parametrize("shape", [(5, 7), (EXACT_SIDE + 1, 110)])
def test_sharp_of_rank_one_is_the_matrix_itself(shape):
    """Directions that the gradient does not have are not made up."""
    draws = np.random.default_rng(2)
    x = np.outer(draws.normal(size=shape[0]), draws.normal(size=shape[1]))
    error = np.abs(np.asarray(sharp(jnp.asarray(x, jnp.float32))) - x).max()
    assert error < 0.01 * np.abs(x).max()
    np.testing.assert_array_equal(sharp(jnp.zeros(shape)), np.zeros(shape))


def test_small_directions_of_large_matrices_fade_as_documented():
    """Factors 1, 0.997 and a quarter at 3e-4, 1e-4 and 1e-5 of the Frobenius norm."""
    draws = np.random.default_rng(3)
    u, _ = np.linalg.qr(draws.normal(size=(120, 120)))
    v, _ = np.linalg.qr(draws.normal(size=(130, 120)))
    s = np.zeros(120)
    s[:4] = 1.0, 3e-4, 1e-4, 1e-5
    polar = np.asarray(sharp(jnp.asarray((u * s) @ v.T, jnp.float32))) / s.sum()
    factors = np.diag(u.T @ polar @ v)[:4]
    np.testing.assert_allclose(factors, [1.0, 1.0, 0.997, 0.25], atol=0.02)


def test_rmsspectral_is_the_formula_of_carlson_et_al():
    """Three updates in NumPy: the #-operator between two divisions, or RMSprop for biases."""
    decay, floor = 0.9, 0.01
    draws = np.random.default_rng(4)
    optimizer = scale_by_rms_spectral(decay, floor)
    state = optimizer.init({"bias": jnp.zeros(4), "kernel": jnp.zeros((3, 4))})
    square = {"bias": np.zeros(4), "kernel": np.zeros((3, 4))}
    for t in range(1, 4):
        gradient = {name: draws.normal(size=v.shape) for name, v in square.items()}
        updates, state = optimizer.update(jax.tree.map(jnp.asarray, gradient), state)
        square = {k: decay * v + (1 - decay) * gradient[k] ** 2 for k, v in square.items()}
        d = {k: floor + np.sqrt(v / (1 - decay**t)) for k, v in square.items()}
        root = np.sqrt(d["kernel"])
        exact = {
            "bias": gradient["bias"] / d["bias"],
            "kernel": by_svd(gradient["kernel"] / root) / root,
        }
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4), updates, exact)


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (SGD, {"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        (SGD, {"prior_variance": 0.0}, "prior_variance must be positive"),
        (SGD, {"learning_rate": float("nan")}, "learning_rate must be positive"),
        (SGD, {"steps": 0}, "steps must be at least 1"),
        (RMSprop, {"decay": -0.1}, "decay must be at least 0 and below 1"),
        (RMSSpectral, {"decay": 1.0}, "decay must be at least 0 and below 1"),
        (RMSSpectral, {"floor": 0.0}, "floor must be positive"),
    ],
)
def test_bad_settings_are_named(method, settings, message):
    with pytest.raises(ValueError, match=message):
        method(**settings)


def test_rows_that_are_not_finite_or_do_not_match_are_refused():
    with pytest.raises(ValueError, match="x and y must be finite"):
        SGD().fit(X, np.full(ROWS, np.nan))
    with pytest.raises(ValueError, match="x must be"):
        SGD().fit(X, Y[:-1])


def test_a_step_that_is_too_long_is_an_error_and_not_nan():
    with pytest.raises(DivergedError, match="diverged"):
        mode(RMSprop, Gaussian(fixed_std=NOISE), learning_rate=1e30)
