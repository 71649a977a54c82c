"""A point on a line, for the tests of control: a task small enough to be written twice."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from s2vgd.control.environments import Box, Discrete, Environment, Step


@dataclass(frozen=True)
class Params:
    max_steps: int = 7
    edge: float = 1.0


class State(NamedTuple):
    x: Any
    t: Any


def reset(key, params):
    x = jax.random.uniform(key, (), minval=-0.5, maxval=0.5)
    return jnp.stack([x, x**2]), State(x, jnp.zeros((), jnp.int32))


def _moved(state, push, params):
    x, t = state.x + push, state.t + 1
    out = jnp.abs(x) > params.edge
    reward = jnp.where(out, -1.0, 1.0 - x**2)
    return Step(jnp.stack([x, x**2]), State(x, t), reward, out, t >= params.max_steps, {})


def step(key, state, action, params):
    return _moved(state, 0.3 * jnp.clip(action[0], -2, 2), params)


def discrete_step(key, state, action, params):
    return _moved(state, 0.2 * (action - 1.0), params)


@functools.cache
def line(**settings):
    everywhere = Box((-np.inf,) * 2, (np.inf,) * 2)
    box = Box((-2.0,), (2.0,))
    return Environment("line", Params(**settings), everywhere, box, (1.0, 0.5), reset, step)


@functools.cache
def discrete_line(**settings):
    everywhere = Box((-np.inf,) * 2, (np.inf,) * 2)
    return Environment(
        "line", Params(**settings), everywhere, Discrete(3), (1.0, 0.5), reset, discrete_step
    )


@dataclass(frozen=True)
class BanditParams:
    max_steps: int = 1


def _bandit_reset(key, params):
    return jnp.ones(1), State(jnp.zeros(()), jnp.zeros((), jnp.int32))


def _bandit_step(key, state, action, params):
    """One step an episode with the reward -(a - 1)², whose expectation is known."""
    after = State(state.x, state.t + 1)
    return Step(jnp.ones(1), after, -((action[0] - 1) ** 2), jnp.array(True), jnp.array(False), {})


@functools.cache
def bandit():
    unbounded = Box((-np.inf,), (np.inf,))
    return Environment(
        "bandit", BanditParams(), unbounded, unbounded, (1.0,), _bandit_reset, _bandit_step
    )
