"""A replay buffer of bounded size: the newest rows are held, and batches are drawn from them.

The policy is a ring: once the buffer is full, each new row takes the place of the oldest. Batches
are drawn with replacement, uniformly over what is held, or with forgetting in favour of new rows. A
row is any pytree of arrays; nothing here knows what it means.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Buffer(NamedTuple):
    """The newest rows.

    Attributes
    ----------
    rows : pytree
        Leaves of shape (capacity, ...). Row t, counted from 0, lies in slot t mod capacity.
    seen : Array, scalar int32
        How many rows were ever added.
    """

    rows: Any
    seen: Array

    @property
    def capacity(self) -> int:
        """The most rows that are held."""
        return jax.tree.leaves(self.rows)[0].shape[0]

    @property
    def held(self) -> Array:
        """How many rows are held, a scalar."""
        return jnp.minimum(self.seen, self.capacity)


def empty(row: Any, capacity: int) -> Buffer:
    """Return a buffer for rows that look like `row` (arrays or ``jax.ShapeDtypeStruct``)."""
    rows = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), row)
    return Buffer(rows, jnp.zeros((), jnp.int32))


def add(buffer: Buffer, row: Any) -> Buffer:
    """Add a row, in the place of the oldest if the buffer is full."""
    slot = buffer.seen % buffer.capacity
    rows = jax.tree.map(lambda held, new: held.at[slot].set(new), buffer.rows, row)
    return Buffer(rows, buffer.seen + 1)


def sample(key: Array, buffer: Buffer, size: int, half_life: float | None = None) -> Any:
    """Draw rows with replacement.

    Parameters
    ----------
    key : Array
        Decides which.
    buffer : Buffer
        With at least one row.
    size : int
        B, the number of rows.
    half_life : float, optional
        The age at which a row is half as likely as the newest; all held rows are equally likely by
        default.

    Returns
    -------
    pytree
        Leaves of shape (B, ...).
    """
    held = jnp.maximum(buffer.held, 1)
    if half_life is None:
        # One call of the generator where randint makes three; the remainder favours some rows by
        # less than held / 2^32, far less than any batch could show.
        ages = jax.random.bits(key, (size,), jnp.uint32) % held.astype(jnp.uint32)
        ages = ages.astype(jnp.int32)
    else:
        # The inverse of the distribution function of a geometric law cut off at the oldest row.
        log_keep = -math.log(2.0) / half_life
        u = jax.random.uniform(key, (size,))
        ages = jnp.floor(jnp.log1p(u * jnp.expm1(held * log_keep)) / log_keep).astype(jnp.int32)
        ages = jnp.clip(ages, 0, held - 1)
    slots = (buffer.seen - 1 - ages) % buffer.capacity
    return jax.tree.map(lambda leaf: leaf.at[slots].get(mode="promise_in_bounds"), buffer.rows)


def mass(count: Array, half_life: float | None = None) -> Array:
    """Return how many rows the newest `count` are worth, a float.

    Parameters
    ----------
    count : Array, scalar int32
        How many rows: those seen, or those held.
    half_life : float, optional
        With forgetting, a row of age a counts 2^(-a / half_life); the sum tends to about 1.44 times
        the half-life.
    """
    if half_life is None:
        return count.astype(jnp.float32)
    log_keep = -math.log(2.0) / half_life
    return jnp.expm1(count * log_keep) / math.expm1(log_keep)
