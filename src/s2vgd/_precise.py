"""Products of matrices in full precision, for everything that ten bits would spoil."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


def matmul(a: Array, b: Array) -> Array:
    """Return a @ b; accelerators round the factors of float32 to ten bits unless told not to."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
