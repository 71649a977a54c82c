"""How much a set of policies explores: where it goes, how it acts, and how its members differ.

These are measures to set beside returns, not objectives. All take what `PolicySet` has at hand.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd.control.policies import Particle, Policy
from s2vgd.kernels import squared_distances
from s2vgd.layout import Layout
from s2vgd.structure import materialise


class Exploration(NamedTuple):
    """Measures of exploration.

    Attributes
    ----------
    coverage : int
        Cells of a grid of scaled observations that any particle visited.
    coverage_of_each : float
        The same for one particle by itself, mean over particles.
    entropy : float
        Of a particle's actions, in nats, mean over the states visited.
    parameter_distance : float
        Euclidean distance of the plain weights (and log_std) of two particles, mean over pairs.
    behaviour_distance : float
        Distance of the action distributions of two particles, mean over pairs and over states that
        any of them visited: 2-Wasserstein for Gaussian, total variation for discrete actions.
    """

    coverage: int
    coverage_of_each: float
    entropy: float
    parameter_distance: float
    behaviour_distance: float


def coverage(observations: np.ndarray, cell: float) -> int:
    """Return how many cells of side `cell` the rows of scaled observations (N, O) fall in."""
    cells = np.floor(np.asarray(observations) / cell).astype(np.int64)
    return len(np.unique(cells, axis=0))


def explore(
    policy: Policy,
    particles: Particle,
    observations: Array,
    *,
    cell: float = 0.5,
    states: int = 500,
    seed: int = 0,
) -> Exploration:
    """Measure a set of policies on where it went.

    Parameters
    ----------
    policy, particles
        The policies.
    observations : Array, shape (T, M, E, O)
        Of a rollout of them.
    cell : float
        Side of a cell of the grid, in units of the policy's scales.
    states : int
        Where behaviour is compared: that many observations, drawn from all of them.
    seed : int
        Of that draw.
    """
    scaled = np.moveaxis(np.asarray(observations), 1, 0) / np.array(policy.scales)
    scaled = scaled.reshape(len(scaled), -1, scaled.shape[-1])
    pooled = np.asarray(observations).reshape(-1, scaled.shape[-1])
    rows = np.random.default_rng(seed).choice(len(pooled), min(states, len(pooled)), replace=False)
    entropy, parameters, behaviour = _measures(policy, particles, jnp.asarray(pooled[rows]))
    return Exploration(
        coverage=coverage(scaled.reshape(len(pooled), -1), cell),
        coverage_of_each=float(np.mean([coverage(one, cell) for one in scaled])),
        entropy=float(entropy),
        parameter_distance=float(parameters),
        behaviour_distance=float(behaviour),
    )


@partial(jax.jit, static_argnums=0)
def _measures(policy: Policy, particles: Particle, states: Array) -> tuple[Array, Array, Array]:
    entropy = jnp.mean(jax.vmap(policy.entropy, (0, None))(particles, states))
    plain = {**particles, "weights": jax.vmap(materialise)(particles["weights"])}
    flat = Layout.of(plain).flatten(plain)
    outputs = jax.vmap(policy.outputs, (0, None))(particles, states)  # (M, N, n_outputs)
    if policy.is_discrete:
        p = jax.nn.softmax(outputs)
        between = jax.lax.map(lambda one: 0.5 * jnp.sum(jnp.abs(one - p), axis=-1).mean(-1), p)
    else:
        std = jnp.broadcast_to(jnp.exp(particles["log_std"])[:, None], outputs.shape)
        moments = jnp.concatenate([outputs, std], axis=-1)
        between = jax.lax.map(
            lambda one: jnp.sqrt(jnp.sum((one - moments) ** 2, axis=-1)).mean(-1), moments
        )
    return entropy, _mean_of_pairs(_distances(flat)), _mean_of_pairs(between)


def _distances(flat: Array) -> Array:
    return jnp.sqrt(squared_distances(flat - jnp.mean(flat, axis=0)))


def _mean_of_pairs(matrix: Array) -> Array:
    """Return the mean off the diagonal of (M, M), 0 for a single particle."""
    m = len(matrix)
    off = jnp.where(jnp.eye(m, dtype=bool), 0.0, matrix)
    return jnp.sum(off) / max(m * (m - 1), 1)
