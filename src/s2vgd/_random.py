"""Random arrays, quickly: normal ones of many shapes in one draw, and orders of rows.

XLA compiles every use of the random generator anew, and slowly: drawing the parts of a network one
by one takes longer to compile than a short training run takes to finish.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

_WORTH_MIXING = 4096
"""Numbers from which on sorting takes longer than mixing them does."""
_ROUNDS = 8


def normals(key: Array, shapes: Sequence[tuple[int, ...]], dtype: Any = float) -> list[Array]:
    """Draw one array of independent N(0, 1) entries a shape."""
    if not shapes:
        return []
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    flat = jax.random.normal(key, (ends[-1],), dtype)
    parts = jnp.split(flat, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def random_order(key: Array, n: int) -> Array:
    """Return the numbers 0, ..., n - 1 in random order, (n,) int32.

    ``jax.random.permutation`` sorts random numbers, which on a CPU takes a quarter of the time of
    training on many rows. Many numbers therefore go through a Feistel network, a one-to-one map of
    0, ..., 4^b - 1 onto itself, of which what is not below n is left out. Batches need no more than
    that; what has to be a uniform draw of all n! orders is not this function's business.
    """
    if n < _WORTH_MIXING:
        return jax.random.permutation(key, jnp.arange(n, dtype=jnp.int32))
    half = -(-(n - 1).bit_length() // 2)
    mask = jnp.uint32(2**half - 1)
    numbers = jnp.arange(4**half, dtype=jnp.uint32)
    left, right = numbers >> half, numbers & mask
    for first, second in jax.random.bits(key, (_ROUNDS, 2), jnp.uint32):
        left, right = right, (left ^ _hashed(right, first, second)) & mask
    mixed = ((left << half) | right).astype(jnp.int32)
    kept = mixed < n
    place = jnp.where(kept, jnp.cumsum(kept) - 1, n)
    order = jnp.zeros(n, jnp.int32)
    return order.at[place].set(mixed, mode="drop", unique_indices=True)


def _hashed(numbers: Array, first: Array, second: Array) -> Array:
    """Mix the bits of unsigned integers, each of which a key changes in its own way."""
    numbers = (numbers + first) * jnp.uint32(0x9E3779B1)
    numbers = (numbers ^ (numbers >> 15)) * (second | 1)
    return numbers ^ (numbers >> 13)
