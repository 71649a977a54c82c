"""What a run costs and where it ran: compile time, memory, versions, machine, revision.

Nothing here knows what is being run.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

import s2vgd

_COMPILED = "/jax/core/compile/backend_compile_duration"
_PACKAGES = ("jax", "jaxlib", "numpy", "optax", "blackjax", "scikit-learn")


class Cost:
    """Filled by :func:`measured`.

    Attributes
    ----------
    seconds : float
        Wall time.
    compile_seconds : float
        Time that XLA spent on compiling, part of it perhaps in other threads.
    peak_memory_mb : float
        Most memory that the process, or on an accelerator its arrays, took during the run. On an
        accelerator, and on systems without ``/proc``, it is the peak of the process so far.
    """

    seconds: float = 0.0
    compile_seconds: float = 0.0
    peak_memory_mb: float = 0.0


@contextmanager
def measured() -> Iterator[Cost]:
    """Measure a ``with`` block; the numbers are there when it is left, also by an exception."""
    cost = Cost()
    began = time.perf_counter()
    _reset_peak()
    with _listening(_COMPILED) as durations:
        try:
            yield cost
        finally:
            cost.seconds = time.perf_counter() - began
            cost.compile_seconds = sum(durations, 0.0)
            cost.peak_memory_mb = _peak_bytes() / 2**20


@contextmanager
def _listening(wanted: str) -> Iterator[list[float]]:
    durations: list[float] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == wanted:
            durations.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield durations
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # no such file here: the peak is that of the whole process


def _peak_bytes() -> int:
    stats = jax.devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return _peak_of_process()


def _peak_of_process() -> int:
    import resource  # only Unix has it

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of what it computes with."""
    found = {"s2vgd": s2vgd.__version__, "python": platform.python_version()}
    return found | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"  # on the path, but not installed; no reason to lose a result


def device() -> dict[str, Any]:
    """Describe the machine without naming it."""
    cores: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return {
        "kind": jax.devices()[0].device_kind,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(cores(0)) if cores else os.cpu_count(),
    }


def revision() -> str:
    """Return the commit of this source tree, with ``+`` if it was changed since; or "unknown"."""
    source = Path(s2vgd.__file__).parent

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", os.fspath(source), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    # An installed package may lie inside somebody else's repository.
    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return "unknown"
    commit = git("rev-parse", "--short", "HEAD")
    return f"{commit}+" if git("status", "--porcelain", "--", ".") else f"{commit}"
