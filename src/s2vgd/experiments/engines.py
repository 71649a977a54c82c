"""Where the runs of a grid are made: in this process, in several, or on a Ray cluster.

An engine is a function ``engine(work, tasks)`` that calls ``work`` with each task, wherever that
may be, and yields the answers as they are ready. It neither reads nor writes result files: that is
done by whoever calls it, in one process, which is why every engine leaves the same files behind.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from s2vgd._threads import n_cores
from s2vgd.errors import S2VGDError
from s2vgd.experiments.workers import MODEST, Lost, map_in_processes, stay_on_core

try:
    import fcntl
except ImportError:  # Windows, where processes are not kept to cores either
    fcntl = None  # type: ignore[assignment]

Work = Callable[[Any], Any]
Engine = Callable[[Work, Sequence[Any]], Iterator[tuple[int, Any | Lost]]]
"""``engine(work, tasks)`` yields ``(index of the task, answer)``; the work must not raise."""

_HOW_TO_INSTALL = "--engine ray needs Ray, which is not installed: pip install 's2vgd[ray]'"


class EngineError(S2VGDError):
    """An engine that cannot be used here; the message says why."""


def engine_of(workers: int) -> Engine:
    """Return the engine that needs nothing installed: this process, or so many of one core each."""
    if workers == 1:
        return in_this_process
    return partial(map_in_processes, n_workers=workers)


def in_this_process(work: Work, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Do one task after the other, on all cores of this process."""
    for index, task in enumerate(tasks):
        yield index, work(task)


@dataclass(frozen=True)
class Ray:
    """An engine on a Ray cluster: each task a process of one core, on whichever machine has one.

    The machines need this package in the same version, and the data sets that are not part of it.
    A task whose process or machine dies is begun again elsewhere, a few times; then it is lost.

    Parameters
    ----------
    address : str, optional
        Of the cluster, such as ``"ray://host:10001"`` or ``"auto"``. By default a Ray of this
        machine's cores is started, and stopped at the end.
    workers : int, optional
        How many tasks at a time at most; by default as many as the cluster has room for.
    gpus : float
        GPUs that a task asks for; a fraction shares one.
    retries : int
        How often a task is begun again whose process died.
    """

    address: str | None = None
    workers: int | None = None
    gpus: float = 0.0
    retries: int = 3

    def __post_init__(self) -> None:
        """Validate the settings, and that there is a Ray to use them with."""
        _import_ray()
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if not 0 <= self.gpus < float("inf"):
            raise ValueError(f"gpus must be a finite number, at least 0, got {self.gpus}")
        if self.retries < 0:
            raise ValueError(f"retries must be at least 0, got {self.retries}")

    def __call__(self, work: Work, tasks: Sequence[Any]) -> Iterator[tuple[int, Any | Lost]]:
        """Do the tasks on the cluster."""
        if not tasks:
            return
        ray = _import_ray()
        with self._connected(ray):
            begin = ray.remote(_on_own_core).options(
                num_cpus=1,
                num_gpus=self.gpus,
                max_retries=self.retries,
                runtime_env={"env_vars": MODEST},
            )
            waiting, running = list(enumerate(tasks))[::-1], dict[Any, int]()
            while waiting or running:
                while waiting and len(running) < (self.workers or len(tasks)):
                    index, task = waiting.pop()
                    running[begin.remote(work, task)] = index
                (ready,), _ = ray.wait(list(running), num_returns=1)
                yield running.pop(ready), _answer(ray, ready)

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        if ray.is_initialized():  # somebody else's, who will also end it
            yield
            return
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address is None:
            # Rows are small, and the machine's memory is for the runs.
            settings |= {"num_cpus": n_cores(), "object_store_memory": 10**8}
            settings |= {"include_dashboard": False}
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(address=self.address or "local", **settings)
        except Exception as error:  # Ray raises bare ones, such as when it starts too slowly
            where = f"Ray at {self.address}" if self.address else "a local Ray"
            raise EngineError(f"cannot use {where}: {error}") from error
        try:
            yield
        finally:
            ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise EngineError(_HOW_TO_INSTALL) from error
    return ray


def _answer(ray: Any, reference: Any) -> Any | Lost:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        *_, last = str(error).strip().splitlines() or ["no reason given"]  # after a traceback
        return Lost(f"{type(error).__name__}: {last}")


_core: Any = None


def _on_own_core(work: Work, task: Any) -> Any:
    """Do a task in a worker process of Ray, which counts cores but does not assign them."""
    global _core
    if _core is None:
        _core = _claim_core()
    return work(task)


def _claim_core() -> Any:
    """Stay on a core that no other worker on this machine has claimed, for as long as we live.

    The claim is a lock on a file, which ends with the process that holds it, however that ends. A
    process that comes too late shares a core.
    """
    if fcntl is None:
        return "any"
    folder = Path(tempfile.gettempdir()) / f"s2vgd-cores-{os.getuid()}"
    for core in range(n_cores()):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            claim = open(folder / str(core), "w")  # noqa: SIM115  (held open on purpose)
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        stay_on_core(core)
        return claim
    stay_on_core(os.getpid())
    return "shared"
