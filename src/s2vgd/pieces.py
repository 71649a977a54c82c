"""Particles as a few matrices: wide leaves as they are, narrow ones side by side.

A step treats the particles as one (M, D) matrix, but writing that matrix down would be a second
copy of all parameters. A wide leaf therefore stays a matrix of its own, which costs nothing, and
only narrow ones are copied next to each other, so that there are few products and few messages.
Nothing is computed here; :class:`s2vgd.layout.Layout` is the same for a single matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.layout import side_by_side

WIDE = 2**16
"""Columns from which on a leaf is a matrix of its own."""


class Pieces(NamedTuple):
    """Where each leaf of M particles lies.

    Parameters
    ----------
    treedef : PyTreeDef
        Structure of the particle.
    shapes : tuple of tuple of int
        Shape of each leaf, without the axis of particles.
    members : tuple of tuple of int
        The numbers of the leaves in each piece.
    layers : tuple of int
        The layer that each piece belongs to, from 0; all 0 unless leaves are labelled.
    multiple : int
        Columns are filled up with zeros to a multiple of this.
    """

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    members: tuple[tuple[int, ...], ...]
    layers: tuple[int, ...]
    multiple: int

    @classmethod
    def of(
        cls,
        particles: Any,
        label: Callable[[str], str] | None = None,
        *,
        multiple: int = 1,
        wide: float | None = None,
    ) -> Pieces:
        """Read the layout off particles whose leaves have a leading axis M.

        Parameters
        ----------
        particles : pytree
            Of arrays, or of whatever has their shapes.
        label : callable, optional
            The layer of a leaf, from its path; leaves of two layers do not share a piece.
        multiple : int
            See above.
        wide : float, optional
            Columns from which on a leaf is a piece of its own; `WIDE` by default.
        """
        leaves, treedef = jax.tree_util.tree_flatten_with_path(particles)
        shapes = tuple(tuple(leaf.shape[1:]) for _, leaf in leaves)
        layers: dict[str, int] = {}
        narrow: dict[int, list[int]] = {}
        found: list[tuple[int, list[int]]] = []
        for i, (path, _) in enumerate(leaves):
            width = math.prod(shapes[i])
            if not width:
                continue
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            layer = layers.setdefault(label(name) if label else "", len(layers))
            if width >= (WIDE if wide is None else wide):
                found.append((layer, [i]))
            elif layer in narrow:
                narrow[layer].append(i)
            else:
                narrow[layer] = [i]
                found.append((layer, narrow[layer]))
        return cls(
            treedef,
            shapes,
            tuple(tuple(members) for _, members in found),
            tuple(layer for layer, _ in found),
            multiple,
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each piece, with those that only fill up."""
        return tuple(
            math.ceil(sum(math.prod(self.shapes[i]) for i in members) / self.multiple)
            * self.multiple
            for members in self.members
        )

    @property
    def n_layers(self) -> int:
        """How many layers there are."""
        return max(self.layers) + 1

    def flatten(self, tree: Any) -> tuple[Array, ...]:
        """Return the pieces (M, C) of a tree with leaves (M, ...)."""
        leaves = self.treedef.flatten_up_to(tree)
        pieces = []
        for members, width in zip(self.members, self.widths, strict=True):
            parts = side_by_side([leaves[i] for i in members])
            short = width - sum(part.shape[1] for part in parts)
            if short:
                parts.append(jnp.zeros((len(parts[0]), short), parts[0].dtype))
            pieces.append(parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1))
        return tuple(pieces)

    def unflatten(self, pieces: Sequence[Array]) -> Any:
        """Return the tree whose pieces these are."""
        m, dtype = len(pieces[0]), pieces[0].dtype
        leaves = [jnp.zeros((m, *shape), dtype) if 0 in shape else None for shape in self.shapes]
        for piece, members in zip(pieces, self.members, strict=True):
            start = 0
            for i in members:
                stop = start + math.prod(self.shapes[i])
                leaves[i] = piece[:, start:stop].reshape(m, *self.shapes[i])
                start = stop
        return self.treedef.unflatten(leaves)
