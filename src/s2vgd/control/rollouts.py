"""Rollouts: all particles in all their environments, step after step, as one compiled scan.

Here are what a rollout holds and the returns of its first episodes. Environments that compile are
rolled out here, those of Gymnasium in `host`; what is learned from a rollout is in `gradients`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.control.environments import Environment
from s2vgd.control.policies import Particle, Policy

# Fresh episodes are drawn before the scan, where they cost next to nothing; an environment that
# ends an episode at step t goes on from the start number t modulo this.
_STARTS = 64


class Trajectories(NamedTuple):
    """T steps of M particles in E environments each; episodes follow one another without a gap.

    Attributes
    ----------
    observations : Array, shape (T, M, E, O)
        Before each step.
    actions : Array, shape (T, M, E, A) or (T, M, E)
        In the units of the policy.
    rewards : Array, shape (T, M, E)
        For each step.
    terminated, truncated : Array of bool, shape (T, M, E)
        Whether the step ended the episode, for a reason of the task or by the time limit.
    last_observations : Array, shape (T, M, E, O)
        After each step and before any reset: the end of an episode is not lost.
    times : Array of int32, shape (T, M, E)
        Steps since the episode began, before each step.
    """

    observations: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    last_observations: Array
    times: Array


class Episodes(NamedTuple):
    """The first episode of each environment, which no reset has chosen.

    Attributes
    ----------
    returns, discounted_returns : Array, shape (M, E)
        Sums of rewards, the second with weights 1, γ, γ², ...
    lengths : Array of int32, shape (M, E)
        Steps.
    complete : Array of bool, shape (M, E)
        Whether the episode ended within the rollout. Always so if that is as long as the time
        limit; a shorter rollout is itself a time limit.
    """

    returns: Array
    discounted_returns: Array
    lengths: Array
    complete: Array


def rollout(
    environment: Environment,
    policy: Policy,
    particles: Particle,
    key: Array,
    *,
    environments: int,
    horizon: int,
    deterministic: bool = False,
    mixture: bool = False,
) -> Trajectories:
    """Let every particle act for a while, in environments of its own.

    Parameters
    ----------
    environment : Environment
        Without automatic resets.
    policy : Policy
        What the particles are.
    particles : pytree
        Leaves of shape (M, ...).
    key : Array
        Decides everything: starts, actions, and the environment's own chance.
    environments : int
        E, for each particle; all begin a fresh episode.
    horizon : int
        T, the number of steps.
    deterministic : bool
        Take the mode of each distribution.
    mixture : bool
        Let all particles act as one policy, π(a | o) = 1/M Σ_m π_m(a | o): in each step the action
        is that of a particle drawn afresh; with `deterministic`, the mean of the means, or the
        largest mean probability. The axis M then holds that many more environments.

    Returns
    -------
    Trajectories
    """
    stacked = policy.stacked(particles)
    m = jax.tree.leaves(stacked)[0].shape[-1]
    size = environments * m
    start_key, noise_key, choice_key, step_key = jax.random.split(key, 4)
    n_starts = min(_STARTS, horizon)
    start_keys = jax.random.split(start_key, (n_starts + 1, size))
    reset = jax.vmap(jax.vmap(environment.reset, (0, None), -1), (0, None))
    starts = reset(start_keys, environment.params)
    first = jax.tree.map(lambda leaf: leaf[-1], starts)

    def step(carry: Any, now: Any) -> tuple[Any, Trajectories]:
        observation, state, times = carry
        t, noise, chosen = now
        seen = observation.reshape(-1, environments, m)
        if mixture:
            actions = act_of_mixture(policy, stacked, seen, noise, chosen)
        else:
            actions = act_of_each(policy, stacked, seen, noise)
        given = policy.to_environment(actions)
        keys = jax.random.split(jax.random.fold_in(step_key, t), size)  # removed where unused
        after = jax.vmap(environment.step, (0, -1, -1, None), -1)(
            keys, state, given.reshape(*given.shape[:-2], size), environment.params
        )
        ended = after.terminated | after.truncated
        fresh = jax.tree.map(lambda leaf: leaf[t % n_starts], starts)
        following = jax.tree.map(
            lambda new, old: jnp.where(ended, new, old), fresh, (after.observation, after.state)
        )
        made = Trajectories(
            observations=observation,
            actions=actions.reshape(*actions.shape[:-2], size),
            rewards=after.reward,
            terminated=after.terminated,
            truncated=after.truncated & ~after.terminated,
            last_observations=after.observation,
            times=times,
        )
        return (*following, jnp.where(ended, 0, times + 1)), made

    shape = (horizon, environments, m)
    # Random numbers are drawn all at once: in the scan they would take most of the time.
    noise = None if deterministic else policy.noise(noise_key, shape)
    chosen = jax.random.randint(choice_key, shape, 0, m) if mixture else None
    carry = (*first, jnp.zeros(size, jnp.int32))
    _, made = jax.lax.scan(step, carry, (jnp.arange(horizon), noise, chosen))
    return jax.tree.map(lambda leaf: _unfold(leaf, environments, m), made)


def first_episodes(trajectories: Trajectories, discount: float) -> Episodes:
    """Return what the first episode of each environment gave."""
    rewards, times = trajectories.rewards, trajectories.times
    t = jnp.arange(len(rewards))[:, None, None]
    in_first = times == t  # after any reset the clock of an episode lags behind
    weights = (discount ** jnp.arange(len(rewards)))[:, None, None]
    ended = trajectories.terminated | trajectories.truncated
    return Episodes(
        returns=jnp.sum(jnp.where(in_first, rewards, 0.0), axis=0),
        discounted_returns=jnp.sum(jnp.where(in_first, weights * rewards, 0.0), axis=0),
        lengths=jnp.sum(in_first, axis=0, dtype=jnp.int32),
        complete=jnp.any(ended, axis=0),
    )


def act_of_each(policy: Policy, stacked: Particle, seen: Array, noise: Array | None) -> Array:
    """Return the actions of M particles on observations (O, E, M) of their own.

    Parameters
    ----------
    policy, stacked
        The particles, as `Policy.stacked` gives them.
    seen : Array, shape (O, E, M)
        Observations.
    noise : Array, shape (n_outputs, E, M), or None
        None for the modes.

    Returns
    -------
    Array, shape (A, E, M) or (E, M)
    """
    log_std = None if policy.is_discrete else stacked["log_std"][:, None]
    return policy.sample(policy.outputs_of_all(stacked, seen), log_std, noise)


def act_of_mixture(
    policy: Policy, stacked: Particle, seen: Array, noise: Array | None, chosen: Array | None
) -> Array:
    """Return the actions of the mixture of all particles on observations (O, E, M).

    As `act_of_each`, but for every environment the particle `chosen`, (E, M), acts; without noise
    it is the mean of the means, or the largest mean probability.
    """
    m = jax.tree.leaves(stacked)[0].shape[-1]
    # Every particle looks at every environment: (O, all environments, M).
    rows = jnp.broadcast_to(seen.reshape(len(seen), -1, 1), (len(seen), seen[0].size, m))
    outputs = policy.outputs_of_all(stacked, rows)
    if noise is None:
        if policy.is_discrete:
            outputs = jax.nn.softmax(outputs, axis=0)
        return policy.sample(jnp.mean(outputs, axis=-1).reshape(-1, *seen.shape[1:]), None, None)
    assert chosen is not None, "actions that are drawn need particles that are drawn"
    is_chosen = jnp.arange(m) == chosen.reshape(-1, 1)

    def of_chosen(values: Array) -> Array:
        picked = jnp.sum(jnp.where(is_chosen, values, 0.0), axis=-1)
        return picked.reshape(-1, *seen.shape[1:])

    log_std = None if policy.is_discrete else of_chosen(stacked["log_std"][:, None])
    return policy.sample(of_chosen(outputs), log_std, noise)


def _unfold(leaf: Array, environments: int, m: int) -> Array:
    """Turn (T, ..., E * M) into (T, M, E, ...)."""
    leaf = leaf.reshape(*leaf.shape[:-1], environments, m)
    return jnp.moveaxis(leaf, (-1, -2), (1, 2))
