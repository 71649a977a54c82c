"""What S²VGD reduces to, according to section 3.2 of the paper: SVGD and MAP.

The two reductions of the prior (K = 0, and K = 1 with Λ = I) are in `test_structure`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from s2vgd import svgd
from s2vgd.bnn import BNN, Batch
from s2vgd.likelihoods import Gaussian
from s2vgd.networks import MLP
from s2vgd.priors import FixedPrior
from s2vgd.structure import Structure, StructuredWeight, structure_weights

# Two programs have to agree in every bit.
pytestmark = pytest.mark.optimised

N, FEATURES, STD, VARIANCE = 30, 5, 0.5, 2.0
LIKELIHOOD, PRIOR = Gaussian(fixed_std=STD), FixedPrior(variance=VARIANCE)
NETWORK = MLP(FEATURES, (6,), 1, "tanh")
PLAIN = Structure(reflections=0, scales=None)


def _data() -> Batch:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, FEATURES))
    y = x @ rng.normal(size=(FEATURES, 1)) + STD * rng.normal(size=(N, 1))
    return Batch(jnp.asarray(x), jnp.asarray(y))


def _bnn(structure: Structure, network: MLP = NETWORK) -> BNN:
    return BNN(network, LIKELIHOOD, structure, PRIOR)


def _plain_log_density(weights: Any, batch: Batch) -> jax.Array:
    """Log joint of an ordinary network with independent Gaussian weights, no structure in sight."""
    log_likelihood = LIKELIHOOD.log_prob({}, NETWORK.apply(weights, batch.x), batch.y)
    return PRIOR.log_prob(weights, {}) + jnp.sum(log_likelihood)


def _run(log_density: Any, particles: Any, steps: int, optimizer: Any) -> Any:
    algorithm = svgd.build(log_density, optimizer)
    batch = _data()

    @jax.jit
    def run(particles: Any) -> Any:
        state = algorithm.init(particles)
        return jax.lax.scan(lambda s, _: (algorithm.step(s, batch)[0], None), state, None, steps)[0]

    return run(particles).particles


def _naive_svgd(particles: Any, steps: int, step_size: float) -> np.ndarray:
    """Eq. (svgd_update) with its double sum, h = med² / log M, and the density by hand."""
    batch = _data()
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], particles))

    @jax.jit
    @jax.grad
    def gradient(theta: jax.Array) -> jax.Array:
        residuals = batch.y - NETWORK.apply(unravel(theta), batch.x)
        return -jnp.sum(theta**2) / (2 * VARIANCE) - jnp.sum(residuals**2) / (2 * STD**2)

    theta = _flat(particles)
    m = len(theta)
    for _ in range(steps):
        distances = np.linalg.norm(theta[:, None] - theta[None], axis=-1)
        h = np.median(distances[~np.eye(m, dtype=bool)]) ** 2 / np.log(m)
        gradients = [np.asarray(gradient(row)) for row in theta]
        phi = np.zeros_like(theta)
        for i in range(m):
            for j in range(m):
                kernel = np.exp(-(distances[i, j] ** 2) / h)
                phi[i] += kernel * gradients[j] - 2 / h * (theta[j] - theta[i]) * kernel
        theta = theta + step_size / m * phi
    return theta


def _flat(particles: Any) -> np.ndarray:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(particles)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def test_without_structure_it_is_svgd_bit_for_bit() -> None:
    """P = Q = Λ = I, M > 1: the particles are those of SVGD on the plain network, exactly.

    Plain SVGD is run by the same update on a density that was written without structure, and by the
    paper's double sum.
    """
    with jax.enable_x64(True):
        bnn = _bnn(PLAIN)
        particles = bnn.init_particles(jax.random.key(0), 4)
        weights = particles["weights"]
        plain = _run(_plain_log_density, weights, 20, optax.sgd(1e-3))
        ours = _run(partial(bnn.log_joint, n_total=N), particles, 20, optax.sgd(1e-3))
        jax.tree.map(np.testing.assert_array_equal, ours["weights"], plain)
        expected = _naive_svgd(weights, 20, 1e-3)
        np.testing.assert_allclose(_flat(ours), expected, rtol=1e-9, atol=1e-12)
        assert np.abs(expected - _flat(weights)).max() > 0.1


def test_identity_factors_leave_the_gradient_of_svgd() -> None:
    """Factors that are present but held at the identity: C is driven as a plain weight would be."""

    def at_identity(layer: dict[str, Any]) -> dict[str, Any]:
        kernel: StructuredWeight = layer["kernel"]
        zeros = jax.tree.map(jnp.zeros_like, kernel)  # v = 0 gives H = I, and s = 0 gives Λ = I
        return layer | {"kernel": replace(zeros, c=kernel.c)}

    with jax.enable_x64(True):
        plain = NETWORK.init(jax.random.key(0))
        structured = structure_weights(jax.random.key(1), plain, Structure(reflections=2))
        bnn, batch = _bnn(Structure(reflections=2)), _data()

        @jax.jit
        @jax.grad
        def gradient(weights: Any) -> jax.Array:
            particle = {"weights": weights, "prior": {}, "likelihood": {}}
            return bnn.log_joint(particle, batch, N)

        ours = gradient(tuple(map(at_identity, structured)))
        expected = jax.jit(jax.grad(_plain_log_density))(plain, batch)
        for layer, expected_layer in zip(ours, expected, strict=True):
            np.testing.assert_allclose(layer["kernel"].c, expected_layer["kernel"], rtol=1e-12)
            np.testing.assert_allclose(layer["bias"], expected_layer["bias"], rtol=1e-12)


@pytest.mark.parametrize("structure", [PLAIN, Structure(1), Structure(3, "gaussian")], ids=str)
def test_one_particle_is_gradient_ascent_on_the_log_joint(structure: Structure) -> None:
    """M = 1: no repulsion, and the path is that of the optimiser climbing the log joint."""
    with jax.enable_x64(True):
        bnn = _bnn(structure)
        optimizer = optax.adam(1e-2)
        particles = bnn.init_particles(jax.random.key(0), 1)
        ours = _run(partial(bnn.log_joint, n_total=N), particles, 50, optimizer)

        def ascend(carry: Any, _: None) -> tuple[Any, None]:
            particle, state = carry
            gradient = jax.grad(lambda p: -bnn.log_joint(p, _data(), N))(particle)
            updates, state = optimizer.update(gradient, state)
            return (optax.apply_updates(particle, updates), state), None

        first = jax.tree.map(lambda leaf: leaf[0], particles)
        climb = jax.jit(lambda p: jax.lax.scan(ascend, (p, optimizer.init(p)), None, 50)[0][0])
        expected = jax.tree.map(lambda leaf: leaf[None], climb(first))
        np.testing.assert_allclose(_flat(ours), _flat(expected), rtol=1e-9, atol=1e-11)
        assert np.abs(_flat(ours) - _flat(particles)).max() > 0.1


def test_one_particle_finds_the_map_solution_exactly() -> None:
    """M = 1 on a linear model ends at the ridge regression that is its MAP; M = 5 does not."""
    with jax.enable_x64(True):
        bnn = _bnn(PLAIN, MLP(FEATURES, (), 1))
        data = _data()
        design = np.hstack([data.x, np.ones((N, 1))])
        penalty = STD**2 / VARIANCE * np.eye(FEATURES + 1)
        expected = np.linalg.solve(design.T @ design + penalty, design.T @ data.y)

        def fit(m: int) -> np.ndarray:
            particles = bnn.init_particles(jax.random.key(0), m)
            log_density = partial(bnn.log_joint, n_total=N)
            (layer,) = _run(log_density, particles, 1500, optax.sgd(3e-3))["weights"]
            return np.concatenate([layer["kernel"][..., 0], layer["bias"]], axis=1)

        np.testing.assert_allclose(fit(1)[0], expected[:, 0], rtol=1e-10)
        assert np.abs(fit(5) - expected[:, 0]).max() > 1e-2
