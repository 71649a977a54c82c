"""LinUCB with a hybrid model (Li et al., 2010, algorithm 2): some weights shared, some not.

The mean reward of action a is ``z_a . beta + x . theta_a``. As x serve [1, shared features], as z_a
all products of [1, shared features] with [1, features of the action]. The agent keeps what it needs
to solve the one large ridge regression behind this, block by block, in float64 as in
:mod:`s2vgd.bandits.regression`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.bandits.agents import Agent, Choice, choose
from s2vgd.bandits.contexts import Context, ContextShape
from s2vgd.bandits.regression import inverted, sherman_morrison, split, whole


class Hybrid(NamedTuple):
    """The blocks of the regression; d features x, k features z, and the last axis that of pairs.

    Attributes
    ----------
    precision : Array, shape (k, k, 2)
        A_0 of the paper: precision of beta, all theta integrated out.
    moment : Array, shape (k, 2)
        b_0 of the paper.
    inverse : Array, shape (A, d, d, 2)
        Inverses of A_a, the precision of theta_a for known beta.
    cross : Array, shape (A, d, k, 2)
        B_a, sums of x zᵀ.
    own : Array, shape (A, d, 2)
        b_a, sums of reward times x.
    """

    precision: Array
    moment: Array
    inverse: Array
    cross: Array
    own: Array


@functools.lru_cache(maxsize=64)
def hybrid_lin_ucb(shape: ContextShape, alpha: float, ridge: float, epsilon: float) -> Agent:
    """Build the agent; see :func:`s2vgd.bandits.linear.lin_ucb` for the parameters."""
    d, k = 1 + shape.shared, (1 + shape.shared) * (1 + shape.per_action)

    def init(key: Array) -> Hybrid:
        with jax.enable_x64(True):
            one = jnp.eye(d, dtype=jnp.float64) / ridge
            return Hybrid(
                precision=split(ridge * jnp.eye(k, dtype=jnp.float64)),
                moment=jnp.zeros((k, 2), jnp.float32),
                inverse=split(jnp.broadcast_to(one, (shape.actions, d, d))),
                cross=jnp.zeros((shape.actions, d, k, 2), jnp.float32),
                own=jnp.zeros((shape.actions, d, 2), jnp.float32),
            )

    def act(state: Hybrid, key: Array, context: Context) -> Choice:
        x, z = _features(context)
        mean, variance = estimate(state, x, z)
        return choose(key, (mean + alpha * jnp.sqrt(variance))[None], context.available, epsilon)

    def update(state: Hybrid, key: Array, context: Context, action: Array, reward: Array) -> Hybrid:
        x, z = _features(context)
        return add(state, action, x, z[action], reward)

    return Agent(init, act, update)


def estimate(state: Hybrid, x: Array, z: Array) -> tuple[Array, Array]:
    """Return mean and variance (A,) of the rewards of all actions, for x (d,) and z (A, k)."""
    with jax.enable_x64(True):
        x, z = x.astype(jnp.float64), z.astype(jnp.float64)
        turned = whole(state.inverse) @ x
        rest = z - jnp.einsum("adk,ad->ak", whole(state.cross), turned)
        joint = inverted(whole(state.precision))
        mean = rest @ (joint @ whole(state.moment)) + jnp.sum(turned * whole(state.own), axis=1)
        variance = turned @ x + jnp.einsum("ak,kl,al->a", rest, joint, rest)
        return mean.astype(jnp.float32), jnp.maximum(variance, 0.0).astype(jnp.float32)


def add(state: Hybrid, action: Array, x: Array, z: Array, reward: Array) -> Hybrid:
    """Show the reward of one action, with its x (d,) and z (k,)."""
    with jax.enable_x64(True):
        x, z, y = (part.astype(jnp.float64) for part in (x, z, reward))
        before = [whole(part[action]) for part in (state.inverse, state.cross, state.own)]
        inverse, cross, own = before
        after = [sherman_morrison(inverse, x), cross + x[:, None] * z, own + y * x]
        precision = whole(state.precision) + z[:, None] * z
        moment = whole(state.moment) + y * z
        for sign, (inverse, cross, own) in ((1, before), (-1, after)):
            precision = precision + sign * cross.T @ inverse @ cross
            moment = moment + sign * cross.T @ inverse @ own
        inverse, cross, own = map(split, after)
        return Hybrid(
            split(precision),
            split(moment),
            state.inverse.at[action].set(inverse),
            state.cross.at[action].set(cross),
            state.own.at[action].set(own),
        )


def _features(context: Context) -> tuple[Array, Array]:
    x = jnp.concatenate([jnp.ones(1, context.shared.dtype), context.shared])
    n_actions = len(context.available)
    actions = jnp.concatenate(
        [jnp.ones((n_actions, 1), context.actions.dtype), context.actions], axis=1
    )
    return x, (x[:, None] * actions[:, None, :]).reshape(n_actions, -1)
