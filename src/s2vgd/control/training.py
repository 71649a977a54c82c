"""Many iterations: compiled in chunks or stepped on the host, watched, logged and checkpointed.

The loop knows neither policies nor environments, only that an iteration gives `stein.Info`. The
numbers do not depend on when it looks, so a run that was killed and goes on from its checkpoint
ends with the very same bits.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from s2vgd import files
from s2vgd.checkpoints import Run, Store
from s2vgd.control.stein import Algorithm, Info, State
from s2vgd.errors import DataError, DivergedError
from s2vgd.loop import MAX_STEPS, compiled_loop
from s2vgd.progress import progress_bar

Advance = Callable[[State, int, int], tuple[State, Info]]
"""``advance(state, first, last)``: run these iterations; infos have a leading axis of them."""

Columns = dict[str, np.ndarray]


def compiled(algorithm: Algorithm) -> Advance:
    """Return the function that runs iterations as one compiled loop."""
    loop = compiled_loop(algorithm.step, None)
    nothing = jax.random.key(0)  # there are no rows to shuffle

    def advance(state: State, first: int, last: int) -> tuple[State, Info]:
        own = jax.tree.map(jnp.copy, state)  # the loop uses up what it is given
        state, _, infos, _ = loop(
            own, jnp.zeros(0, jnp.int32), None, nothing, np.int32(first), np.int32(last), True
        )
        return state, jax.tree.map(lambda column: np.asarray(column)[: last - first], infos)

    return advance


def stepped(iterate: Callable[[State], tuple[State, Info]]) -> Advance:
    """Return the function that runs iterations one by one, for environments on the host."""

    def advance(state: State, first: int, last: int) -> tuple[State, Info]:
        infos = []
        for _ in range(first, last):
            state, info = iterate(state)
            infos.append(jax.tree.map(np.asarray, info))
        return state, jax.tree.map(lambda *rows: np.stack(rows), *infos)

    return advance


def train(
    advance: Advance,
    run: Run,
    *,
    iterations: int,
    steps_per_iteration: int,
    chunk: int = 10,
    progress: bool | None = None,
    description: str = "training",
    store: Store | None = None,
    checkpoint_every: int = 50,
    log: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    callback: Callable[[int, Columns], bool | None] | None = None,
) -> Run:
    """Go on with a run until it has made so many iterations.

    Parameters
    ----------
    advance : callable
        From `compiled` or `stepped`.
    run : Run
        Where it is; it is changed.
    iterations : int
        In all, counted from the first start.
    steps_per_iteration : int
        Steps of environments, of all particles together.
    chunk : int
        Iterations between two looks.
    progress : bool or None
        Show a progress bar; None shows it only on a terminal.
    description : str
        The text before it.
    store : Store, optional
        Where checkpoints go, after every `checkpoint_every` iterations and at the end.
    checkpoint_every : int
        See there.
    log : path-like, optional
        A file of JSON lines, one an iteration. Lines that a run which goes on from a checkpoint
        makes again are dropped first.
    tensorboard : path-like, optional
        A directory for TensorBoard; needs tensorboardX.
    callback : callable
        ``callback(iteration, columns)`` after each chunk, with the columns of `summary`; True
        ends the training.

    Returns
    -------
    Run
        The same run, further on.

    Raises
    ------
    DivergedError
        If the gradient of any particle is not finite. Nothing is set to zero, and the last
        checkpoint is from before.
    """
    periods = [chunk] + ([checkpoint_every] if store is not None else [])
    with (
        progress_bar(progress, iterations, description=description, done=run.step) as show,
        _writers(log, tensorboard, run.step) as writers,
    ):
        stopped = False
        while run.step < iterations and not stopped:
            first = run.step
            last = min(iterations, first + MAX_STEPS, *((first // p + 1) * p for p in periods))
            began = time.perf_counter()
            run.state, infos = advance(run.state, first, last)
            seconds = (time.perf_counter() - began) / (last - first)
            note(run, infos, store)
            numbers = np.arange(first + 1, last + 1)
            columns = summary(numbers, infos._asdict(), steps_per_iteration)
            columns["seconds"] = np.full(len(numbers), seconds)
            for write in writers:
                write(columns)
            show(last, f"return {columns['return'][-1]:.4g}, best {columns['best_return'][-1]:.4g}")
            if callback is not None:
                stopped = bool(callback(last, columns))
            if store is not None and (
                last % checkpoint_every == 0 or last == iterations or stopped
            ):
                store.save(run)
    return run


def note(run: Run, infos: Info, store: Store | None = None) -> None:
    """Write down iterations that led to the run's state, unless they diverged.

    Parameters
    ----------
    run : Run
        Its state is already the one after them; it is changed.
    infos : Info
        With a leading axis of the iterations.
    store : Store, optional
        Where its last good checkpoint is.

    Raises
    ------
    DivergedError
        If the gradient of any particle is not finite.
    """
    first = run.step
    _raise_if_diverged(first, infos, run.state, store)
    run.step = first + len(infos.non_finite)
    run.history.record(np.arange(first + 1, run.step + 1), infos._asdict())


def summary(iterations: np.ndarray, infos: Columns, steps_per_iteration: int) -> Columns:
    """Return scalars of each iteration, by name, as they are logged.

    Parameters
    ----------
    iterations : array of int, shape (n,)
        Counted from 1.
    infos : dict of arrays
        The fields of `stein.Info`, each with a leading axis n.
    steps_per_iteration : int
        Steps of environments.
    """
    columns = {
        "iteration": iterations,
        "environment_steps": iterations * steps_per_iteration,
        "return": infos["returns"].mean(axis=1),
        "best_return": infos["returns"].max(axis=1),
        "discounted_return": infos["discounted_returns"].mean(axis=1),
        "best_discounted_return": infos["discounted_returns"].max(axis=1),
        "length": infos["lengths"].mean(axis=1),
        "gradient_norm": infos["gradient_norm"].mean(axis=1),
    }
    scalars = ("objective", "entropy", "temperature", "bandwidth", "drive_norm", "repulsion_norm")
    return columns | {name: infos[name] for name in (*scalars, "min_distance")}


def _raise_if_diverged(first: int, infos: Info, state: State, store: Store | None) -> None:
    bad = np.flatnonzero(infos.non_finite)
    finite = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.particles))
    if not bad.size and finite:
        return
    kept = store.last_good if store is not None else None
    advice = "A smaller learning rate often helps."
    if kept is not None:
        advice += f" The last good checkpoint is in {kept}."
    if bad.size:
        step, count = first + 1 + int(bad[0]), int(infos.non_finite[bad[0]])
        m = infos.returns.shape[1]
        quantity, found = "gradients", f"the gradients of {count} of {m} particles are not finite"
    else:
        step, quantity, found = first + len(infos.non_finite), "particles", "particles overflowed"
    message = f"training diverged at iteration {step}: {found}. {advice}"
    raise DivergedError(message, step=step, quantity=quantity, checkpoint=kept)


@contextlib.contextmanager
def _writers(
    log: str | os.PathLike[str] | None, tensorboard: str | os.PathLike[str] | None, done: int
) -> Iterator[list[Callable[[Columns], None]]]:
    """Open what was asked for, and close it whatever happens."""
    with contextlib.ExitStack() as stack:
        writers: list[Callable[[Columns], None]] = []
        if log is not None:
            _drop_lines_after(Path(log), done)
            file = stack.enter_context(open(log, "a", encoding="utf-8"))

            def write_lines(columns: Columns) -> None:
                for row in zip(*columns.values(), strict=True):
                    values = {name: _plain(value) for name, value in zip(columns, row, strict=True)}
                    file.write(json.dumps(values) + "\n")
                file.flush()

            writers.append(write_lines)
        if tensorboard is not None:
            try:
                from tensorboardX import SummaryWriter
            except ImportError as error:
                raise ImportError(
                    "tensorboard needs tensorboardX: pip install tensorboardX"
                ) from error
            board = stack.enter_context(SummaryWriter(str(tensorboard), purge_step=done + 1))

            def write_scalars(columns: Columns) -> None:
                for i, iteration in enumerate(columns["iteration"]):
                    for name, column in columns.items():
                        if name != "iteration":
                            board.add_scalar(name, column[i], int(iteration))

            writers.append(write_scalars)
        yield writers


def _drop_lines_after(path: Path, done: int) -> None:
    """Keep the lines of a log up to an iteration; a torn last line goes too."""
    if not path.exists():
        if not path.parent.is_dir():
            raise DataError(f"log: there is no directory {path.parent} to write {path.name} to")
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            iteration = json.loads(line)["iteration"]
        except (ValueError, KeyError, TypeError):
            break
        if iteration <= done:
            kept.append(line + "\n")
    with files.replacing(path) as temporary:
        temporary.write_text("".join(kept), encoding="utf-8")


def _plain(value: Any) -> float | int | None:
    """Return a number as JSON has it: a distance of a single particle to nobody is null."""
    number = value.item()
    return number if np.isfinite(number) else None
