"""Many agents on the cores of a CPU: in several threads, and in each a few at a time.

XLA shares out one product among cores, not a hundred small operations, and a product for a hundred
agents at once is over when the first of them have left the cache. Here is how runs are divided, and
how their arrays are cut up and put together again; what a run is, others know. On accelerators
there is one lane, and all its runs go at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from s2vgd._threads import n_cores, with_same_precision
from s2vgd.bandits.buffer import Buffer

CACHE = 8_000_000
"""Bytes that the agents of one group may have, their buffers not counted."""


class Lanes(NamedTuple):
    """How runs are divided.

    Attributes
    ----------
    number : int
        Of lanes, each of which has a thread.
    group : int
        How many runs of a lane go at once.
    """

    number: int
    group: int

    @classmethod
    def of(cls, states: Any, n_runs: int) -> Lanes:
        """Divide runs by their states, the leaves of which have a leading axis of them."""
        if jax.default_backend() != "cpu":
            return cls(1, n_runs)
        number = _largest_divisor(n_runs, n_cores())
        fit = max(1, CACHE * n_runs // max(1, _n_bytes(states)))
        return cls(number, _largest_divisor(n_runs // number, fit))

    def cut(self, tree: Any) -> list[Any]:
        """Return the part of each lane of arrays with an axis of runs."""
        if self.number == 1:
            return [tree]
        cut = jax.tree.map(lambda leaf: _in_rows(leaf, self.number), tree)
        return [jax.tree.map(lambda leaf, i=i: leaf[i], cut) for i in range(self.number)]

    def joined(self, parts: Sequence[Any], axis: int = 0) -> Any:
        """Put the parts of the lanes together again."""
        if self.number == 1:
            return parts[0]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *parts)

    def each(self, function: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
        """Call a function for each lane, in threads; return when all have finished."""
        if self.number == 1:
            return [function(*(argument[0] for argument in arguments))]
        with ThreadPoolExecutor(self.number) as pool:
            return list(pool.map(with_same_precision(_awaited(function)), *arguments))


def in_groups(
    function: Callable[[Any], Any], tree: Any, group: int, axes: Sequence[int]
) -> tuple[Any, ...]:
    """Call a function of arrays with an axis of runs for one group of them after another.

    Parameters
    ----------
    function : callable
        Returns a tuple of pytrees.
    tree : pytree
        Its argument, for all runs.
    group : int
        How many go at once; a divisor of their number.
    axes : sequence of int
        The axis of runs in each of the results.
    """
    n_runs = len(jax.tree.leaves(tree)[0])
    if group == n_runs:
        return function(tree)
    cut = jax.tree.map(lambda leaf: _in_rows(leaf, n_runs // group), tree)
    results = jax.lax.map(function, cut)

    def join(leaf: Any, axis: int) -> Any:
        leaf = jnp.moveaxis(leaf, 0, axis)
        return leaf.reshape(*leaf.shape[:axis], n_runs, *leaf.shape[axis + 2 :])

    return tuple(
        jax.tree.map(lambda leaf, axis=axis: join(leaf, axis), result)
        for result, axis in zip(results, axes, strict=True)
    )


def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: jax.block_until_ready(function(*arguments))


def _in_rows(leaf: Any, number: int) -> Any:
    """Return an array with its first axis, of runs, in so many rows."""
    return leaf.reshape(number, len(leaf) // number, *leaf.shape[1:])


def _largest_divisor(number: int, limit: int) -> int:
    return max(d for d in range(1, min(number, limit) + 1) if number % d == 0)


def _n_bytes(states: Any) -> int:
    """Return the bytes of all that a step reads: not those of the buffers, of which it samples."""
    leaves = jax.tree.leaves(states, is_leaf=lambda node: isinstance(node, Buffer))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if not isinstance(leaf, Buffer))
