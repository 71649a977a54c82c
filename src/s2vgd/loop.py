"""Many steps of an algorithm as one compiled program, with batches drawn inside it.

The number of steps is an argument and not a constant of the program, and the infos come back in a
buffer of fixed size. Any number of steps therefore runs the very same machine code: nothing is
compiled twice, and how a training is cut into calls cannot change a single bit of its result. The
order of the rows in an epoch depends only on the key and the number of the epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from s2vgd import _compiled
from s2vgd._packed import Carried
from s2vgd._random import random_order

MAX_STEPS = 256
"""Most steps of one call."""


def compiled_loop(
    step: Callable[[Any, Any], tuple[Any, Any]],
    batch_size: int | None,
    brief: bool = False,
    carried: Carried | None = None,
) -> Callable[..., tuple[Any, jax.Array, Any, jax.Array]]:
    """Compile ``run_steps(state, order, data, key, first, last, shuffled)``.

    Equal arguments give the same function, which keeps what it compiled.

    Parameters
    ----------
    step : callable
        ``step(state, batch) -> (state, info)``.
    batch_size : int or None
        Rows in a batch, or None for all of them.
    brief : bool
        Compile in less time what then takes a little longer; on a CPU.
    carried : Carried, optional
        The same step in a form for loops, see :func:`carried_by`.

    Returns
    -------
    run_steps : callable
        Runs the steps ``first`` to ``last - 1`` (counted from 0), at most ``MAX_STEPS``. ``order``
        (N,) is the permutation of the rows in the current epoch, to be drawn if ``shuffled`` is
        False; with state it is used up. Returns the state, the order, the infos with a leading axis
        ``MAX_STEPS`` of which the first ``last - first`` count, and whether each leaf of the
        particles is finite.
    """
    return _compiled_loop(carried_by(step, carried), batch_size, bool(brief))


def carried_by(
    step: Callable[[Any, Any], tuple[Any, Any]], carried: Carried | None = None
) -> Carried:
    """Return which of two forms of a step a loop is best to run here.

    On a CPU it is `carried`, if there is one. An accelerator would have to copy each weight out of
    the matrix in which particles lie side by side, in every step.
    """
    if carried is None or jax.default_backend() != "cpu":
        return Carried(_same, step, _same)
    return carried


def _same(state: Any) -> Any:
    return state


@functools.lru_cache(maxsize=32)
def _compiled_loop(
    carried: Carried, batch_size: int | None, brief: bool
) -> Callable[..., tuple[Any, jax.Array, Any, jax.Array]]:
    step = jax.jit(carried.step)  # so that it is traced once, for its shapes and for the loop

    def run_steps(
        state: Any, order: Any, data: Any, key: Any, first: Any, last: Any, shuffled: Any
    ) -> tuple[Any, Any, Any, Any]:
        n_rows = count_rows(data)
        per_epoch = n_rows // (batch_size or n_rows or 1)

        def batch_of(order: Any, i: Any) -> Any:
            if batch_size is None:
                return data
            rows = jax.lax.dynamic_slice_in_dim(order, i % per_epoch * batch_size, batch_size)
            return jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), data)

        def steps(order: Any, start: Any, stop: Any, state: Any, infos: Any) -> tuple[Any, Any]:
            def one_step(i: Any, carry: Any) -> tuple[Any, Any]:
                state, info = step(carry[0], batch_of(order, i))
                keep = jax.tree.map(lambda rows, row: rows.at[i - first].set(row), carry[1], info)
                return state, keep

            state, infos = jax.lax.fori_loop(start, stop, one_step, (state, infos))
            return state, infos

        def steps_of_one_epoch(carry: Any) -> tuple[Any, ...]:
            i, order, shuffled, state, infos = carry
            epoch = i // per_epoch
            order = jax.lax.cond(
                shuffled & (i % per_epoch != 0),
                lambda: order,
                lambda: random_order(jax.random.fold_in(key, epoch), n_rows),
            )
            stop = jnp.minimum(last, (epoch + 1) * per_epoch)
            return stop, order, jnp.array(True), *steps(order, i, stop, state, infos)

        state = carried.pack(state)
        _, info = jax.eval_shape(step, state, jax.eval_shape(batch_of, order, first))
        infos = jax.tree.map(lambda leaf: jnp.zeros((MAX_STEPS, *leaf.shape), leaf.dtype), info)
        if batch_size is None:
            state, infos = steps(order, first, last, state, infos)
        else:
            _, order, _, state, infos = jax.lax.while_loop(
                lambda carry: carry[0] < last,
                steps_of_one_epoch,
                (first, order, shuffled, state, infos),
            )
        state = carried.unpack(state)
        leaves = jax.tree.leaves(state.particles)
        return state, order, infos, jnp.array([jnp.isfinite(leaf).all() for leaf in leaves])

    options = _compiled.effort("brief" if brief else "loop")
    return jax.jit(run_steps, donate_argnums=(0, 1), compiler_options=options)


def lower(
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    data: Any,
    key: jax.Array,
    batch_size: int | None,
    brief: bool = False,
    carried: Carried | None = None,
) -> None:
    """Trace the loop that :func:`s2vgd.training.train` will run, and leave only its compilation.

    Tracing is Python, of which one thread at a time can run; compiling is not. Whatever another
    thread has to compile is best begun in between.
    """
    n_rows = count_rows(data)
    if batch_size is not None and batch_size >= n_rows:
        batch_size = None
    order = np.zeros(0 if batch_size is None else n_rows, np.int32)
    run_steps: Any = compiled_loop(step, batch_size, brief, carried)
    run_steps.lower(state, order, data, key, np.int32(0), np.int32(1), False)


class Several(NamedTuple):
    """R networks or trainings side by side, as a step of all of them carries them to the next.

    Attributes
    ----------
    states : NamedTuple
        Of the algorithm that each follows, leaves (R, ...).
    order : Array, shape (R, N)
        In which each goes through its rows in this epoch; (R, 0) where a batch is all of them.
    step : Array, scalar int32
        How many steps were made.
    key : Array
        Decides the orders: one for all, or (R,) of them.
    """

    states: Any
    order: jax.Array
    step: jax.Array
    key: jax.Array

    @property
    def particles(self) -> Any:
        """Of all, leaves (R, ...)."""
        return self.states.particles


def rows_of_step(
    order: jax.Array, step: jax.Array, batch_size: int, draw: Callable[[], jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Return which rows each of R networks sees, where each has an order of its own.

    Parameters
    ----------
    order : Array, shape (R, N)
        The orders of the epoch that the last step belonged to.
    step : Array
        The number of this step, from 0.
    batch_size : int
        B, fewer than N.
    draw : callable
        Returns the orders of a new epoch.

    Returns
    -------
    order, rows : Array, shapes (R, N) and (R, B)
        The orders of this epoch, and the rows of this step.
    """
    per_epoch = order.shape[1] // batch_size
    order = jax.lax.cond(step % per_epoch == 0, draw, lambda: order)
    start = step % per_epoch * batch_size
    return order, jax.lax.dynamic_slice_in_dim(order, start, batch_size, axis=1)


def count_rows(data: Any) -> int:
    """Return the length N of the leading axis of all arrays in ``data``, or 0 if it is None."""
    if data is None:
        return 0
    rows: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        name = "data" + jax.tree_util.keystr(path)
        if leaf.ndim == 0:
            raise ValueError(f"{name} must have a leading axis of rows, but it is a scalar.")
        rows[name] = leaf.shape[0]
    if len(set(rows.values())) > 1:
        raise ValueError(f"all of data must have the same number of rows, got {rows}.")
    if not rows or 0 in rows.values():
        raise ValueError("data must have at least one row, but it is empty.")
    return next(iter(rows.values()))
