"""What a loop carries from one step of SVGD to the next: the particles as a few matrices.

A step needs the particles side by side, the network needs each weight by itself. A loop that
carried the weights would put them together and take them apart again in every step; this way they
are put together once, and what a step moves is already as the next one wants it. The step is in
:mod:`s2vgd.svgd`, the layout in :mod:`s2vgd.pieces`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from s2vgd.pieces import Pieces


class Carried(NamedTuple):
    """An algorithm as a loop of many steps is best to run it.

    Attributes
    ----------
    pack : callable
        ``pack(state) -> packed``, before the first step.
    step : callable
        ``step(packed, batch) -> (packed, info)``, any number of times.
    unpack : callable
        ``unpack(packed) -> state``, after the last.
    """

    pack: Callable[[Any], Any]
    step: Callable[[Any, Any], tuple[Any, Any]]
    unpack: Callable[[Any], Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """A state of :mod:`s2vgd.svgd`, with its particles side by side.

    Parameters
    ----------
    theta : tuple of Array, shapes (M, D_i)
        The particles.
    opt_state, step, key
        As they are in the state.
    layout : Pieces
        Where each leaf lies.
    dtypes : tuple
        Of the leaves.
    """

    theta: tuple[Array, ...]
    opt_state: optax.OptState
    step: Array
    key: Array | None
    layout: Pieces = field(metadata={"static": True})
    dtypes: tuple[Any, ...] = field(metadata={"static": True})

    @classmethod
    def of(
        cls, layout: Pieces, particles: Any, opt_state: optax.OptState, step: Array, key: Any
    ) -> Packed:
        """Put the particles of a state into this layout."""
        dtypes = tuple(leaf.dtype for leaf in jax.tree.leaves(particles))
        return cls(layout.flatten(particles), opt_state, step, key, layout, dtypes)

    @property
    def particles(self) -> Any:
        """The particles leaf by leaf, each of its own type."""
        dtypes = self.layout.treedef.unflatten(self.dtypes)
        return jax.tree.map(jnp.asarray, self.layout.unflatten(self.theta), dtypes)

    def rounded(self) -> tuple[Array, ...]:
        """Return `theta` with no more digits than the leaves have, where their types differ."""
        if len(set(self.dtypes)) == 1:
            return self.theta
        return self.layout.flatten(self.particles)
