"""Particles as vectors and back: where each leaf of a pytree lies in one flat array.

Samplers are faster on one array than on twenty small ones. A layout is hashable, so that compiled
functions can be kept per layout; it knows shapes only, nothing of what the leaves mean.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class Layout(NamedTuple):
    """Structure and shapes of one particle.

    Parameters
    ----------
    treedef : PyTreeDef
        Structure of the particle.
    shapes : tuple of tuple of int
        Shape of each leaf, without any leading axes.
    """

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, particles: Any, leading: int = 1) -> Layout:
        """Read the layout off a tree whose leaves carry `leading` axes of particles."""
        leaves, treedef = jax.tree.flatten(particles)
        return cls(treedef, tuple(tuple(leaf.shape[leading:]) for leaf in leaves))

    @property
    def size(self) -> int:
        """D, the length of a flat particle."""
        return sum(map(math.prod, self.shapes))

    def flatten(self, tree: Any) -> Any:
        """Return the tree as one array (..., D), leading axes kept; of NumPy if the leaves are."""
        parts = [
            leaf.reshape(*leaf.shape[: leaf.ndim - len(shape)], math.prod(shape))
            for leaf, shape in zip(self.treedef.flatten_up_to(tree), self.shapes, strict=True)
        ]
        # NumPy's need no program, of which there would be one to compile for each set of shapes.
        if all(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate(parts, axis=-1)
        return jnp.concatenate(parts, axis=-1)

    def unflatten(self, flat: Array | np.ndarray) -> Any:
        """Return the tree whose leaves have the leading axes of `flat` (..., D)."""
        leaves, start = [], 0
        for shape in self.shapes:
            stop = start + math.prod(shape)
            leaves.append(flat[..., start:stop].reshape(*flat.shape[:-1], *shape))
            start = stop
        return self.treedef.unflatten(leaves)
