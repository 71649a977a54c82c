"""The step of MCLMC: equal to BlackJAX's, of which it is a form that compiles faster."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.integrators import IntegratorState, isokinetic_mclachlan

from s2vgd.samplers._mclmc import _integrate, _turned


def density(x):
    return -jnp.sum(jnp.cosh(x) * jnp.arange(1.0, 1.0 + x.shape[0]))


@pytest.mark.parametrize("step_size", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("dimension", [2, 7, 300])
def test_a_step_is_blackjaxs(dimension, step_size):
    """Position, momentum, density, gradient and energy, in float64."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(dimension)
        position, momentum = rng.normal(size=(2, dimension))
        momentum /= np.linalg.norm(momentum)
        state = IntegratorState(
            position, momentum, *jax.value_and_grad(density)(jnp.asarray(position))
        )
        wanted, change = isokinetic_mclachlan(density, 1.0)(state, step_size)
        found, mine = jax.jit(_integrate, static_argnums=0)(density, state, jnp.asarray(step_size))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(mine, change, rtol=1e-7, atol=1e-9)


def test_no_gradient_turns_nothing():
    momentum = jnp.array([0.6, 0.8], jnp.float32)
    state = IntegratorState(jnp.ones(2), momentum, jnp.float32(0.0), jnp.zeros(2))
    found, change = _integrate(lambda x: 0.0 * x.sum(), state, jnp.float32(0.5))
    np.testing.assert_allclose(found.momentum, momentum, rtol=1e-6)
    np.testing.assert_allclose(found.position, 1.0 + 0.5 * momentum, rtol=1e-6)
    np.testing.assert_allclose(change, 0.0, atol=1e-6)


@pytest.mark.parametrize("dimension", [2, 33, 100])
def test_direction_is_lost_after_decoherence(dimension):
    """Unit vectors stay unit, and after `decoherence` turns the mean cosine has fallen to 1 / e."""
    chains, decoherence = 2000, 50.0
    start = jnp.zeros((chains, dimension)).at[:, 0].set(1.0)
    keys = jax.random.split(jax.random.key(0), int(decoherence))
    end, _ = jax.lax.scan(lambda u, key: (_turned(key, u, decoherence), None), start, keys)
    np.testing.assert_allclose(np.linalg.norm(end, axis=1), 1.0, rtol=1e-5)
    # Of n random signs a share (n - 1) / n turns the vector, the rest makes it longer.
    expected = np.exp(-(1.0 - 1.0 / dimension))
    np.testing.assert_allclose(end[:, 0].mean(), expected, atol=4 / chains**0.5)
    others = np.asarray(end[:, 1:])
    np.testing.assert_allclose(others.mean(axis=0), 0.0, atol=5 / chains**0.5)
