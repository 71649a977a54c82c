"""Gradient ascent for one network, and any algorithm for several networks side by side.

Two builders of `init` and `step`, to be driven by :func:`s2vgd.training.train`: :func:`build`
climbs an objective with an optimiser of optax; :func:`side_by_side` runs an algorithm for one
network on many that know nothing of one another. Which objective and which optimiser is said in the
files of the rivals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from s2vgd._random import random_order
from s2vgd.bnn import BNN, Batch
from s2vgd.loop import Several, count_rows, rows_of_step

Objective = Callable[[Any, Batch, Array], Array]
"""``objective(particle, batch, key) -> scalar``, to be made large."""


class State(NamedTuple):
    """What a step of :func:`build` carries to the next.

    Attributes
    ----------
    particles : pytree
        One network: no leading axis.
    opt_state : optax.OptState
        Of the optimiser.
    step : Array, scalar int32
        How many steps were made.
    key : Array
        Decides what the objective draws; the same in every state of a run.
    """

    particles: Any
    opt_state: optax.OptState
    step: Array
    key: Array


class Info(NamedTuple):
    """The objective before the step; over several networks, its mean."""

    log_density: Array


class Algorithm(NamedTuple):
    """A pair of pure functions.

    Attributes
    ----------
    init : callable
        ``init(particles, key) -> state``.
    step : callable
        ``step(state, batch) -> (state, Info)``.
    """

    init: Callable[..., Any]
    step: Callable[[Any, Any], tuple[Any, Info]]


def build(objective: Objective, optimizer: optax.GradientTransformation) -> Algorithm:
    """Climb an objective.

    Parameters
    ----------
    objective : callable
        See :data:`Objective`. It gets a fresh key at every step.
    optimizer : optax.GradientTransformation
        Sees the particle as a pytree.
    """

    def init(particle: Any, key: Array) -> State:
        return State(particle, optimizer.init(particle), jnp.zeros((), jnp.int32), key)

    def step(state: State, batch: Batch) -> tuple[State, Info]:
        particle, opt_state, count, key = state
        value, gradient = jax.value_and_grad(objective)(
            particle, batch, jax.random.fold_in(key, count)
        )
        descent = jax.tree.map(jnp.negative, gradient)
        updates, opt_state = optimizer.update(descent, opt_state, particle)
        moved = optax.apply_updates(particle, updates)
        return State(moved, opt_state, count + 1, key), Info(value)

    return Algorithm(init, step)


@functools.lru_cache(maxsize=64)
def to_the_mode(bnn: BNN, n_total: float, optimizer: optax.GradientTransformation) -> Algorithm:
    """Climb the log joint of one network, divided by the number of rows.

    The division leaves the mode where it is, and makes a learning rate mean the same for small and
    for large data. Equal arguments give the same algorithm, so that nothing is compiled twice.
    """
    return build(
        lambda particle, batch, _: bnn.log_joint(particle, batch, n_total) / n_total, optimizer
    )


@functools.lru_cache(maxsize=64)
def side_by_side(algorithm: Algorithm, batch_size: int | None) -> Algorithm:
    """Run an algorithm for one network on M of them, each with batches of its own.

    The step of the result takes all rows as its batch, so that each network can go through them in
    an order of its own: train it with ``batch_size=None``.

    Parameters
    ----------
    algorithm : Algorithm
        For one network.
    batch_size : int or None
        Rows in a batch of one network. None, or as many as there are, for all; otherwise each
        network makes ``N // batch_size`` steps an epoch, as :func:`s2vgd.training.train` would.

    Returns
    -------
    Algorithm
        ``init(particles, key, n_rows)``, with leaves (M, ...), and ``step(state, data)``.
    """

    def is_whole(n_rows: int) -> bool:
        return batch_size is None or batch_size >= n_rows

    def init(particles: Any, key: Array, n_rows: int) -> Several:
        n_members = len(jax.tree.leaves(particles)[0])
        states_key, order_key = jax.random.split(key)
        states = jax.vmap(algorithm.init)(particles, jax.random.split(states_key, n_members))
        order = jnp.zeros((n_members, 0 if is_whole(n_rows) else n_rows), jnp.int32)
        return Several(states, order, jnp.zeros((), jnp.int32), order_key)

    def step(members: Several, data: Batch) -> tuple[Several, Info]:
        states, order, count, key = members
        n_rows = count_rows(data)
        if batch_size is None or is_whole(n_rows):
            states, info = jax.vmap(algorithm.step, in_axes=(0, None))(states, data)
        else:
            shuffled = functools.partial(_shuffled, jax.random.fold_in(key, count), order)
            order, rows = rows_of_step(order, count, batch_size, shuffled)
            batches = jax.tree.map(lambda leaf: leaf[rows], data)
            states, info = jax.vmap(algorithm.step)(states, batches)
        return Several(states, order, count + 1, key), Info(jnp.mean(info.log_density))

    return Algorithm(init, step)


def _shuffled(key: Array, order: Array) -> Array:
    """Return a permutation of 0, ..., N - 1 in each of the rows (M, N)."""
    m, n = order.shape
    return jax.vmap(lambda key: random_order(key, n))(jax.random.split(key, m))
