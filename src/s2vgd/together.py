"""Trainings of several tasks side by side in one program.

Repetitions of an experiment, on other splits or with other seeds, ask :func:`s2vgd.training.train`
for the same trainings on other numbers. On an accelerator a small network leaves most of the device
idle, and many such trainings take little longer than one; on a single core there is nothing to
gain. :func:`side_by_side` runs the repetitions as they are, and makes as one what they ask for.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd import training
from s2vgd._random import random_order
from s2vgd._threads import with_same_precision
from s2vgd.errors import DivergedError
from s2vgd.loop import Several, rows_of_step
from s2vgd.training import Training, TrainResult

T = TypeVar("T")


def side_by_side(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run tasks, and make those of their trainings together that are alike.

    Each task has a thread, but only one of them runs at a time: until it wants to train, or is
    done. When all wait, trainings with the same algorithm, shapes and number of steps become one
    program, and every task goes on with its own result, which is what it would have been alone, up
    to rounding. Where one of them diverges, or the device has too little memory for all at once,
    they are made one by one. Trainings with callbacks, validation or checkpoints always are.

    Parameters
    ----------
    tasks : sequence of callables
        Without arguments.

    Returns
    -------
    list
        What they returned.

    Raises
    ------
    Exception
        The first that a task raised, when all of them are done.
    """
    threads = [_Thread(task) for task in tasks]
    try:
        waiting = {thread: thread.start() for thread in threads}
        while waiting := {thread: asked for thread, asked in waiting.items() if asked is not None}:
            alike: dict[Any, list[_Thread[T]]] = {}
            for thread, asked in waiting.items():
                alike.setdefault(asked.kind, []).append(thread)
            answers: dict[_Thread[T], TrainResult | Exception] = {}
            for group in alike.values():
                wanted = [waiting[thread].training for thread in group]
                made = waiting[group[0]].make(wanted, len(tasks))
                answers |= zip(group, made, strict=True)
            waiting = {thread: thread.go_on(answers[thread]) for thread in waiting}
    except BaseException as error:  # such as an interrupt: nobody must wait for ever
        for thread in threads:
            thread.give_up(error)
        raise
    for thread in threads:
        if thread.error is not None:
            raise thread.error
    return [thread.result for thread in threads]


class _Asked(NamedTuple):
    training: Training
    kind: Any
    make: Callable[[Sequence[Training], int], list[TrainResult | Exception]]


class _Thread(Generic[T]):
    """A task that runs only while somebody waits for what it asks for next."""

    def __init__(self, task: Callable[[], T]) -> None:
        self._task = task
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[TrainResult | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.result: T
        self.error: BaseException | None = None

    def start(self) -> _Asked | None:
        """Run the task until it wants to train; None if it is done."""
        self._thread.start()
        return self._asked.get()

    def go_on(self, answer: TrainResult | Exception) -> _Asked | None:
        """Do the same from where it waits, with the result of its training or what went wrong."""
        self._answers.put(answer)
        return self._asked.get()

    def give_up(self, error: BaseException) -> None:
        """Let it end, wherever it waits."""
        self._answers.put(error)

    def _run(self) -> None:
        try:
            with training.made_by(self._ask):
                self.result = self._task()
        except BaseException as error:
            self.error = error
        self._asked.put(None)

    def _ask(self, wanted: Training) -> TrainResult:
        # Precision is a setting of each thread, and this one has that of the task.
        self._asked.put(_Asked(wanted, _kind(wanted), with_same_precision(_made)))
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _kind(wanted: Training) -> Any:
    """Return what trainings must have in common to be made together."""
    leaves, treedef = jax.tree.flatten((wanted.state, wanted.data, wanted.key))
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    products = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009
    return wanted.algorithm.step, wanted.steps, wanted.batch_size, treedef, shapes, products


def _made(alike: Sequence[Training], room: int) -> list[TrainResult | Exception]:
    """Make trainings that are alike, in one program if that is possible.

    The program has room for as many as there are tasks, or each number of them that happens to be
    alike would be compiled anew. What is free is filled with the first of them again.
    """
    if len(alike) > 1:
        try:
            filled = [*alike, *[alike[0]] * (room - len(alike))]
            return [*_made_as_one(filled)[: len(alike)]]
        except (DivergedError, jax.errors.JaxRuntimeError):
            pass  # of one of them, or of all together: find out which
    return [_made_alone(wanted) for wanted in alike]


def _made_alone(wanted: Training) -> TrainResult | Exception:
    try:
        return training.train(
            wanted.algorithm,
            wanted.state,
            wanted.data,
            key=wanted.key,
            steps=wanted.steps,
            batch_size=wanted.batch_size,
        )
    except Exception as error:  # which is its task's to handle
        return error


def _made_as_one(alike: Sequence[Training]) -> list[TrainResult]:
    first, r = alike[0], len(alike)
    n_rows = 0 if first.batch_size is None else len(jax.tree.leaves(first.data)[0])
    result = training.train(
        _merged(first.algorithm.step, first.batch_size),
        Several(
            _stacked([wanted.state for wanted in alike]),
            jnp.zeros((r, n_rows), jnp.int32),
            jnp.zeros((), jnp.int32),
            jnp.stack([wanted.key for wanted in alike]),
        ),
        _stacked([wanted.data for wanted in alike]),
        key=first.key,  # not used: each training has an order of its own
        steps=first.steps,
    )

    def of_one(i: int) -> TrainResult:
        state = jax.tree.map(lambda leaf: leaf[i], result.state.states)
        history = {
            name: column if name == "step" else column[:, i]
            for name, column in result.history.items()
        }
        return TrainResult(state, history, result.stopped_at)

    return [of_one(i) for i in range(r)]


class _Merged(NamedTuple):
    step: Callable[[Several, Any], tuple[Several, Any]]


@functools.lru_cache(maxsize=32)
def _merged(step: Callable[[Any, Any], tuple[Any, Any]], batch_size: int | None) -> _Merged:
    """Return an algorithm that makes a step of each of R trainings.

    Its batch is all rows of all of them, leaves (R, N, ...), since each has an order of its own:
    that in which :mod:`s2vgd.loop` would draw them.
    """

    def steps(several: Several, data: Any) -> tuple[Several, Any]:
        states, order, count, keys = several
        if batch_size is not None:
            epoch = count // (order.shape[1] // batch_size)
            draw = functools.partial(_orders, keys, epoch, order.shape[1])
            order, chosen = rows_of_step(order, count, batch_size, draw)
            data = jax.vmap(_taken)(data, chosen)
        states, infos = jax.vmap(step)(states, data)
        return Several(states, order, count + 1, keys), infos

    return _Merged(steps)


def _orders(keys: Array, epoch: Array, n_rows: int) -> Array:
    return jax.vmap(lambda key: random_order(jax.random.fold_in(key, epoch), n_rows))(keys)


def _taken(data: Any, rows: Array) -> Any:
    return jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), data)


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
