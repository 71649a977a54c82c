"""Rollouts of environments that run on the host: any task of Gymnasium, stepped in Python.

Policies are evaluated for all particles by one compiled function a step, and what comes back is the
same `Trajectories` as from a compiled rollout. The adapter to Gymnasium itself is in `gym`.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd.control.environments import Box, Discrete
from s2vgd.control.policies import Particle, Policy
from s2vgd.control.rollouts import Trajectories, act_of_each, act_of_mixture


class Vector(Protocol):
    """Several copies of one environment that are stepped together and reset themselves."""

    @property
    def num_envs(self) -> int:
        """Number of copies."""
        ...

    @property
    def observation_size(self) -> int:
        """Number of coordinates of an observation."""
        ...

    @property
    def action(self) -> Box | Discrete:
        """What can be done."""
        ...

    def reset(self, seed: int) -> np.ndarray:
        """Begin a fresh episode in every copy; return observations (num_envs, O)."""
        ...

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return observation, reward, terminated, truncated and the observation before resets."""
        ...


def rollout(
    vector: Vector,
    policy: Policy,
    particles: Particle,
    key: Array,
    *,
    horizon: int,
    deterministic: bool = False,
    mixture: bool = False,
) -> Trajectories:
    """Let every particle act for a while; see :func:`s2vgd.control.rollouts.rollout`.

    Parameters
    ----------
    vector : Vector
        M times E environments.
    policy, particles, key, horizon, deterministic, mixture
        As there. All environments are reset with a seed made from the key, so that a rollout
        depends on nothing that came before.
    """
    m = len(jax.tree.leaves(particles)[0])
    environments = vector.num_envs // m
    stacked = _stacked(policy, particles)
    seed_key, key = jax.random.split(key)
    seed = int(jax.random.randint(seed_key, (), 0, np.iinfo(np.int32).max))
    noise, chosen = _noise(policy, key, (horizon, environments, m), deterministic, mixture)
    observations = np.asarray(vector.reset(seed), np.float32)
    times = np.zeros(vector.num_envs, np.int32)
    steps = []
    for t in range(horizon):
        actions, given = _act(policy, stacked, observations, noise, chosen, t)
        following, reward, terminated, truncated, last = vector.step(np.asarray(given))
        ended = terminated | truncated
        steps.append(
            (observations, actions, reward, terminated, truncated & ~terminated, last, times)
        )
        observations = np.asarray(following, np.float32)
        times = np.where(ended, 0, times + 1).astype(np.int32)
    columns = [np.stack([np.asarray(row) for row in rows]) for rows in zip(*steps, strict=True)]
    shaped = [c.reshape(horizon, m, environments, *c.shape[2:]) for c in columns]
    types = (jnp.float32, None, jnp.float32, bool, bool, jnp.float32, jnp.int32)
    return Trajectories(*(jnp.asarray(c, t) for c, t in zip(shaped, types, strict=True)))


@functools.partial(jax.jit, static_argnums=0)
def _stacked(policy: Policy, particles: Particle) -> Particle:
    return policy.stacked(particles)


@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4))
def _noise(
    policy: Policy, key: Array, shape: tuple[int, int, int], deterministic: bool, mixture: bool
) -> tuple[Array | None, Array | None]:
    noise_key, choice_key = jax.random.split(key)
    noise = None if deterministic else policy.noise(noise_key, shape)
    chosen = jax.random.randint(choice_key, shape, 0, shape[-1]) if mixture else None
    return noise, chosen


@functools.partial(jax.jit, static_argnums=0)
def _act(
    policy: Policy,
    stacked: Particle,
    observations: Any,
    noises: Array | None,
    chosen: Array | None,
    t: Any,
) -> tuple[Array, Array]:
    """Return actions for rows of observations, in the units of policy and environment."""
    m = jax.tree.leaves(stacked)[0].shape[-1]
    seen = observations.reshape(m, -1, observations.shape[-1]).transpose(2, 1, 0)
    noise = None if noises is None else noises[t]
    if chosen is None:
        actions = act_of_each(policy, stacked, seen, noise)
    else:
        actions = act_of_mixture(policy, stacked, seen, noise, chosen[t])
    given = policy.to_environment(actions)
    return _as_rows(actions), _as_rows(given)


def _as_rows(columns: Array) -> Array:
    """Turn (A, E, M) into (M * E, A), and (E, M) into (M * E,)."""
    rows = jnp.moveaxis(columns, (-1, -2), (0, 1))
    return rows.reshape(-1, *rows.shape[2:])
