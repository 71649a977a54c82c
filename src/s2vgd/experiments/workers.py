"""Several processes that take one task each at a time, and whose death costs one task only.

A pool of the standard library loses all that is under way when one of its processes is killed, say
for want of memory. Here the task is reported as lost, and a new process takes the place.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

Work = Callable[[Any], Any]


class Lost(NamedTuple):
    """The answer of a process that died over its task."""

    reason: str


def map_in_processes(
    work: Work, tasks: Sequence[Any], n_workers: int
) -> Iterator[tuple[int, Any | Lost]]:
    """Apply a function to tasks in processes of one core each.

    Parameters
    ----------
    work : callable
        A function of a module, so that it can be sent to another process. It must not raise.
    tasks : sequence
        What it is called with, one after the other.
    n_workers : int
        How many processes.

    Yields
    ------
    index : int
        Which of the tasks.
    answer : object or Lost
        What `work` returned; answers come as they are ready.
    """
    waiting = list(enumerate(tasks))[::-1]
    crew: list[_Worker] = []
    try:
        with _modest():
            for core in range(min(n_workers, len(tasks))):
                crew.append(_Worker.start(work, core))
        idle, busy = list(crew), dict[Any, tuple[_Worker, int]]()
        while waiting or busy:
            while waiting and idle:
                worker = idle.pop()
                index, task = waiting.pop()
                worker.connection.send(task)
                busy[worker.connection] = worker, index
            for connection in wait(list(busy)):
                worker, index = busy.pop(connection)
                try:
                    answer = worker.connection.recv()
                except (EOFError, ConnectionError):
                    worker.process.join()
                    answer = Lost(f"the process ended with code {worker.process.exitcode}")
                    crew.remove(worker)
                    with _modest():
                        worker = _Worker.start(work, worker.core)
                    crew.append(worker)
                idle.append(worker)
                yield index, answer
    finally:
        for worker in crew:
            worker.process.terminate()
        for worker in crew:
            worker.process.join()


class _Worker(NamedTuple):
    process: BaseProcess
    connection: Connection
    core: int

    @classmethod
    def start(cls, work: Work, core: int) -> _Worker:
        # Forking a process in which JAX has threads would deadlock.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(work, theirs, core), daemon=True)
        process.start()
        theirs.close()  # so that its death is the end of the file for us
        return cls(process, ours, core)


def stay_on_core(core: int) -> None:
    """Keep this process, and the threads that it will start, to one of the cores it may use."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


def _serve(work: Work, connection: Connection, core: int) -> None:
    stay_on_core(core)
    while True:
        try:
            task = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        connection.send(work(task))


# Libraries look here when they are loaded, and nowhere else: one thread a process, and none of them
# takes a whole accelerator for itself.
MODEST = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


@contextmanager
def _modest() -> Iterator[None]:
    """Let processes that are started in this block share the machine."""
    before = {name: os.environ.get(name) for name in MODEST}
    os.environ.update(MODEST)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
