"""The one training loop: batches, chunks, history, progress, early stopping, checkpoints.

The loop drives any algorithm that is a function ``step(state, batch) -> (state, info)`` whose state
has ``particles``, and knows nothing of what the step computes. The steps between two looks from
outside run as one compiled loop, and the numbers do not depend on when those looks are taken: each
step sees only the state, the step number and the key. Files are in :mod:`s2vgd.checkpoints`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from s2vgd import checkpoints, files
from s2vgd.errors import DivergedError
from s2vgd.loop import MAX_STEPS, compiled_loop, count_rows
from s2vgd.progress import progress_bar

Callback = Callable[[int, Any, Any], bool | None]
"""``callback(step, state, info)``: called after each chunk; True ends the training."""


class Algorithm(Protocol):
    """Anything with a pure ``step(state, batch) -> (state, info)``."""

    @property
    def step(self) -> Callable[[Any, Any], tuple[Any, Any]]:
        """Advance the state, which has ``particles``, by one step on one batch."""


class TrainResult(NamedTuple):
    """What :func:`train` returns.

    Parameters
    ----------
    state : State
        The last state, or with validation the best one.
    history : dict of str to array
        ``"step"`` (counted from 1) and each field of ``info`` at those steps, thinned evenly to at
        most 1024 of them; with validation also ``"validation_step"`` and ``"validation_score"``.
    stopped_at : int
        The number of steps that were run.
    """

    state: Any
    history: dict[str, np.ndarray]
    stopped_at: int


class Training(NamedTuple):
    """A training that somebody else is asked to make, see :func:`made_by`.

    Parameters
    ----------
    algorithm : Algorithm
        Like the next three, as for :func:`train`.
    state : State
        Where to start.
    data : pytree of arrays, or None
        All rows.
    key : key
        Decides their order.
    steps : int
        To make.
    batch_size : int or None
        None for all rows.
    """

    algorithm: Algorithm
    state: Any
    data: Any
    key: jax.Array
    steps: int
    batch_size: int | None


_in_this_thread = threading.local()


@contextlib.contextmanager
def made_by(make: Callable[[Training], TrainResult]) -> Iterator[None]:
    """Leave the trainings of this thread to somebody else, such as :mod:`s2vgd.together`.

    Those with callbacks, validation or checkpoints are made here all the same.
    """
    _in_this_thread.make = make
    try:
        yield
    finally:
        del _in_this_thread.make


def cosine_adam(learning_rate: float = 1e-2, steps: int = 4000) -> optax.GradientTransformation:
    """Adam whose learning rate falls to zero along a cosine: the default optimiser.

    Equal arguments give the same object, so that what was compiled with it is found again.
    """
    if not learning_rate > 0:
        raise ValueError(f"learning_rate must be positive, got {learning_rate}.")
    return _cosine_adam(float(learning_rate), _positive_integer("steps", steps))


@functools.lru_cache(maxsize=128)
def _cosine_adam(learning_rate: float, steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(learning_rate, steps))


def train(
    algorithm: Algorithm,
    state: Any,
    data: Any,
    *,
    key: jax.Array,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    chunk: int = 100,
    progress: bool | None = False,
    description: str = "training",
    callbacks: Iterable[Callback] = (),
    validation: Callable[[Any], float] | None = None,
    validate_every: int = 100,
    patience: int | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = True,
    brief: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Run an algorithm on data.

    Parameters
    ----------
    algorithm : Algorithm
        Its ``step(state, batch) -> (state, info)``. What is compiled for it is kept, so training
        again with the same ``step`` and shapes does not compile again. With a field ``carried``,
        see :class:`s2vgd.svgd.Algorithm`, the loop may run that form of the step.
    state : State
        Where to start; it is not changed. ``state.particles`` is a pytree of arrays.
    data : pytree of arrays, or None
        All leaves have the same leading axis N (leaves may be None). With None, for a density that
        needs no data, every batch is None.
    key : key
        Decides the order of the rows; unused when every batch is the whole of the data.
    steps, epochs : int
        How long to train; exactly one of the two. ``steps`` counts from the first start of the
        training, also when it is resumed.
    batch_size : int, optional
        Rows in a batch; None, or N or more, for all of them. Each epoch goes through the rows in a
        new order, in ``N // batch_size`` full batches; the few rows that are left over are not used
        in that epoch.
    chunk : int
        Steps between two looks: progress, callbacks, and whether everything is finite.
    progress : bool or None
        Show a progress bar; None shows it only on a terminal.
    description : str
        The text before the progress bar.
    callbacks : iterable of callables
        Each is called as ``callback(step, state, info)`` after each chunk and at the end, with a
        state of its own to keep and the info of the last step; True ends the training.
    validation : callable, optional
        ``validation(particles) -> float``, a score of held-out data, higher being better. The best
        state seen is then returned, rather than the last.
    validate_every : int
        Steps between two validations; there is always one after the last step.
    patience : int, optional
        End the training after this many validations in a row without a new best score.
    checkpoint_dir : path-like, optional
        A directory for the checkpoint, which is always replaced as a whole.
    checkpoint_every : int, optional
        Steps between two checkpoints; a tenth of the training by default. There is always one
        after the last step.
    resume : bool
        Go on from the checkpoint, if there is one; the result is that of an uninterrupted run, to
        the last bit on the same machine. More steps than before make the training longer.
    brief : bool
        On a CPU, compile the loop in two thirds of the time, for steps that take up to a quarter
        longer: worth it where training takes a second or two.
    settings : mapping, optional
        Anything else, as JSON, that identifies the run, such as the learning rate. A checkpoint
        made with other settings, data, key, shapes or first state is refused.

    Returns
    -------
    result : TrainResult
        The state, the history and the number of steps run.

    Raises
    ------
    DivergedError
        If particles, log density or validation score become NaN or infinite.
    ModelFileError
        If the checkpoint cannot be read, or belongs to another run.
    """
    if not callable(getattr(algorithm, "step", None)):
        raise TypeError("algorithm must have a function step(state, batch).")
    if not hasattr(state, "particles"):
        raise TypeError(f"state must have particles, got a {type(state).__name__}.")
    if not jnp.issubdtype(getattr(key, "dtype", np.uint32), jax.dtypes.prng_key):
        raise TypeError("key must be a JAX key, as made by jax.random.key(seed).")
    if patience is not None and validation is None:
        raise ValueError("patience needs a validation function.")
    # NumPy's alone: what lies on devices of several processes cannot be put anywhere.
    data = jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jax.device_put(x), data)
    n_rows = count_rows(data)
    batch_size = _check_batch_size(batch_size, n_rows)
    steps = _count_steps(steps, epochs, n_rows, batch_size)
    chunk = _positive_integer("chunk", chunk)
    validate_every = _positive_integer("validate_every", validate_every)
    patience = None if patience is None else _positive_integer("patience", patience)
    if checkpoint_every is None:
        checkpoint_every = max(1, steps // 10)
    checkpoint_every = _positive_integer("checkpoint_every", checkpoint_every)
    callbacks = tuple(callbacks)
    make: Callable[[Training], TrainResult] | None = getattr(_in_this_thread, "make", None)
    if make is not None and validation is None and checkpoint_dir is None and not callbacks:
        return make(Training(algorithm, state, data, key, steps, batch_size))

    run = checkpoints.Run(_own(state))
    store = None
    if checkpoint_dir is not None:
        known = {
            "batch_size": batch_size,
            "validate_every": None if validation is None else validate_every,
            "patience": patience,
        }
        identity = checkpoints.identify(
            {**(settings or {}), **known}, data=data, key=key, first_state=run.state
        )
        store = checkpoints.Store(Path(checkpoint_dir), identity)
        if resume:
            run = store.resume(run)
    if run.step > steps:
        raise ValueError(
            f"the checkpoint in {checkpoint_dir} is of step {run.step}, beyond the {steps} wanted."
        )

    periods = [chunk]
    periods += [validate_every] if validation is not None else []
    periods += [checkpoint_every] if store is not None else []
    carried = getattr(algorithm, "carried", None)
    run_steps = compiled_loop(algorithm.step, batch_size, brief, carried)
    order = _beside(run.state, np.zeros(0 if batch_size is None else n_rows, np.int32))
    shuffled = stopped = False
    with progress_bar(progress, steps, description=description, done=run.step) as show:
        while run.step < steps and not stopped and not _is_exhausted(run, patience):
            first, last = run.step, _next_stop(run.step, steps, periods)
            run.state, order, infos, finite = run_steps(
                run.state, order, data, key, np.int32(first), np.int32(last), shuffled
            )
            shuffled = True
            infos = jax.tree.map(lambda column, n=last - first: np.asarray(column)[:n], infos)
            values = _named_columns(infos)
            _raise_if_diverged(first, last, values, finite, run.state.particles, store)
            run.history.record(np.arange(first + 1, last + 1), values)
            run.step = last
            show(last, float(values["log_density"].mean()) if "log_density" in values else None)
            if last % chunk == 0 or last == steps:
                info = jax.tree.map(operator.itemgetter(-1), infos)
                stopped = any([callback(last, _own(run.state), info) for callback in callbacks])
            if validation is not None and last % validate_every == 0:
                _validate(run, validation, store)
            is_over = last == steps or stopped or _is_exhausted(run, patience)
            if store is not None and (last % checkpoint_every == 0 or is_over):
                store.save(run)

    history = dict(run.history.columns)
    if validation is None:
        return TrainResult(run.state, history, run.step)
    if run.step not in run.stopping.steps[-1:]:
        # Off the schedule, and after the checkpoint: it must not count when the run goes on.
        _validate(run, validation, store)
    history["validation_step"] = np.asarray(run.stopping.steps)
    history["validation_score"] = np.asarray(run.stopping.scores)
    return TrainResult(run.stopping.best_state, history, run.step)


@jax.jit
def _own(tree: Any) -> Any:
    """Copy a tree of arrays, without the weak types that a checkpoint could not give back.

    One program for all of them: a program for each shape would take longer to compile than many
    fits take.
    """
    return jax.tree.map(lambda leaf: jnp.array(leaf, leaf.dtype), tree)


def _beside(state: Any, array: np.ndarray) -> jax.Array:
    """Put an array on all devices of the state, where the first chunk will leave it too."""
    shardings = {leaf.sharding for leaf in jax.tree.leaves(state)}
    meshes = {s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)}
    if len(meshes) != 1:
        return jax.device_put(array)
    return jax.device_put(
        array, jax.sharding.NamedSharding(meshes.pop(), jax.sharding.PartitionSpec())
    )


def _named_columns(infos: Any) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/") or "info": column
        for path, column in jax.tree_util.tree_leaves_with_path(infos)
    }


def _next_stop(step: int, steps: int, periods: Iterable[int]) -> int:
    ends = [(step // period + 1) * period for period in periods]
    return min(steps, step + MAX_STEPS, *ends)


def _is_exhausted(run: checkpoints.Run, patience: int | None) -> bool:
    return patience is not None and run.stopping.failures >= patience


def _validate(
    run: checkpoints.Run, validation: Callable[[Any], float], store: checkpoints.Store | None
) -> None:
    state = _own(run.state)
    score = float(validation(state.particles))
    if not math.isfinite(score):
        raise _diverged(run.step, "validation score", f"is {score}", store)
    run.stopping.record(run.step, score, state)


def _raise_if_diverged(
    first: int,
    last: int,
    values: Mapping[str, np.ndarray],
    finite: jax.Array,
    particles: Any,
    store: checkpoints.Store | None,
) -> None:
    """Look at the steps first + 1 ... last, that were just run, for anything that is not finite."""
    log_density = values.get("log_density", np.zeros(last - first))
    bad = np.flatnonzero(~np.isfinite(log_density).reshape(last - first, -1).all(axis=1))
    if bad.size:
        found = f"became {log_density[bad[0]]}"
        raise _diverged(first + 1 + int(bad[0]), "log density", found, store)
    if not np.asarray(finite).all():  # of an array of JAX it would be a program
        names = list(files.tree_to_arrays(particles, "particles"))
        culprits = [name for name, good in zip(names, np.asarray(finite), strict=True) if not good]
        found = f"became non-finite in {', '.join(culprits[:3])}"
        raise _diverged(last, "particles", found, store)


def _diverged(
    step: int, quantity: str, what: str, store: checkpoints.Store | None
) -> DivergedError:
    kept = store.last_good if store is not None else None
    advice = "A smaller learning rate often helps."
    if kept is not None:
        advice += f" The last good checkpoint is in {kept}."
    message = f"training diverged at step {step}: the {quantity} {what}. {advice}"
    return DivergedError(message, step=step, quantity=quantity, checkpoint=kept)


def _positive_integer(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ValueError(f"{name} must be a positive integer, got {value!r}.")
    return number


def _check_batch_size(batch_size: int | None, n_rows: int) -> int | None:
    if batch_size is None:
        return None
    batch_size = _positive_integer("batch_size", batch_size)
    if n_rows == 0:
        raise ValueError("batch_size needs data, but data is None.")
    return batch_size if batch_size < n_rows else None


def _count_steps(steps: int | None, epochs: int | None, n_rows: int, batch_size: int | None) -> int:
    if (steps is None) == (epochs is None):
        raise ValueError(f"give either steps or epochs, got steps={steps!r}, epochs={epochs!r}.")
    if steps is not None:
        return _positive_integer("steps", steps)
    if n_rows == 0:
        raise ValueError("epochs needs data, but data is None; give steps.")
    return _positive_integer("epochs", epochs) * (n_rows // (batch_size or n_rows))
