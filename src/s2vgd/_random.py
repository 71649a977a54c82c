"""Normal arrays of many shapes in one draw, for the initial values of structures and networks.

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


def normals(key: Array, shapes: Sequence[tuple[int, ...]], dtype: Any = float) -> list[Array]:
    """Draw one array of independent N(0, 1) entries a shape."""
    if not shapes:
        return []
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    flat = jax.random.normal(key, (ends[-1],), dtype)
    parts = jnp.split(flat, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
