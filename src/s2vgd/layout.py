"""Particles as vectors and back: where each leaf of a pytree lies in one flat array.

Samplers are faster on one array than on twenty small ones. A layout is hashable, so that compiled
functions can be kept per layout; it knows shapes only, nothing of what the leaves mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
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
        leaves = self.treedef.flatten_up_to(tree)
        parts = side_by_side(leaves, leaves[0].ndim - len(self.shapes[0]))
        return _library_of(leaves).concatenate(parts, axis=-1)

    def unflatten(self, flat: Array | np.ndarray) -> Any:
        """Return the tree whose leaves have the leading axes of `flat` (..., D)."""
        leaves, start = [], 0
        for shape in self.shapes:
            stop = start + math.prod(shape)
            leaves.append(flat[..., start:stop].reshape(*flat.shape[:-1], *shape))
            start = stop
        return self.treedef.unflatten(leaves)


def side_by_side(leaves: Sequence[Any], leading: int = 1) -> list[Any]:
    """Return arrays (..., D_i) that hold the leaves one after the other, to be concatenated.

    Neighbours of one width, as a bias and the weight next to it, are joined as rows of that width
    and only then read as vectors: XLA puts what computes a leaf into one loop with a change of its
    shape, and would find the row and column of each number by division.
    """

    def width_of(leaf: Any) -> int:
        return leaf.shape[-1] if leaf.ndim > leading else 1

    parts: list[Any] = []
    for width, members in groupby(leaves, width_of):
        run = list(members)
        shape = run[0].shape[:leading]
        if len(run) > 1 and width:
            rows = [leaf.reshape(*shape, -1, width) for leaf in run]
            run = [_library_of(rows).concatenate(rows, axis=leading)]
        parts += [leaf.reshape(*shape, math.prod(leaf.shape[leading:])) for leaf in run]
    return parts


def _library_of(arrays: Sequence[Any]) -> Any:
    """Return NumPy if all arrays are its own: a program need not be compiled for their shapes."""
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp
