"""What XLA compiles: kept on disk for the next process, and in haste where it runs only once.

JAX has the store; here is where it lies, and that it is on without being asked for. Whoever has
named a directory to JAX keeps theirs, and ``S2VGD_COMPILED=off`` keeps nothing. What is compiled in
the first place is the affair of everybody else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")

VARIABLE = "S2VGD_COMPILED"
LIMIT = 500_000_000
"""Bytes; beyond that, what was used longest ago is deleted at the next start."""
# Reading a program back takes some milliseconds; those that compile faster are not worth a file.
_WORTH_SECONDS = 0.1

# How to compile for a CPU. A fit of a small table waits longer for the compiler than for anything
# else: optimising less costs the loops nothing that can be measured, and what runs once in a fit is
# not worth optimising at all. Loops of a second or two ("brief") are ready in two thirds of the
# time if operations are fused by an older and simpler part of XLA; steps take up to a quarter
# longer then, those of chains on small networks 3 %. (JAX 0.11 has no such part.) All loops are to
# use registers of 512 bits where there are such, which compilers avoid, since the first processors
# that had them ran slower with them. The networks of bandits, live or simulated, are small: there,
# XLA's library is left to products, because for sums over a short axis it takes several times as
# long as a loop does.
_WIDTH = "xla_cpu_prefer_vector_width"
_LOOP: dict[str, Any] = {"xla_backend_optimization_level": 1, _WIDTH: 512}
_EFFORTS: dict[str, dict[str, Any]] = {
    "loop": _LOOP,
    "brief": {**_LOOP, "xla_cpu_use_fusion_emitters": False},
    "once": {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
    "live": {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"},
}


def jit(runs: str, **options: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return ``jax.jit`` with as much optimisation as pays.

    Parameters
    ----------
    runs : {"loop", "brief", "once"}
        Whether the program is one of many steps, of steps for a second or two, or runs once in a
        fit. Each compiles sooner than the one before, and then runs slower.
    **options
        As ``jax.jit`` takes them.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @functools.cache
        def compiled() -> Callable[..., T]:
            return jax.jit(function, compiler_options=effort(runs), **options)

        @functools.wraps(function)
        def call(*arguments: Any) -> T:
            leaves = jax.tree.leaves(arguments)
            if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                return function(*arguments)  # a part of another program, compiled with it
            return compiled()(*arguments)

        return call

    return decorate


@functools.cache
def effort(runs: str) -> dict[str, Any] | None:
    """Return the ``compiler_options`` of :func:`jit`; None where they are not up to us."""
    if jax.default_backend() != "cpu" or "optimization_level" in os.environ.get("XLA_FLAGS", ""):
        return None
    left_out = _unknown() if _is_wide() else _unknown() | {_WIDTH}
    return {name: value for name, value in _EFFORTS[runs].items() if name not in left_out} or None


@functools.cache
def _unknown() -> frozenset[str]:
    """Return the options that XLA does not have: they come and go with its versions."""
    options = {name: value for effort in _EFFORTS.values() for name, value in effort.items()}
    if _are_known(options):  # as a rule, and asking takes a compilation
        return frozenset()
    return frozenset(name for name, value in options.items() if not _are_known({name: value}))


def _are_known(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: np.int32(0), compiler_options=options)()
    except jax.errors.JaxRuntimeError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def keep() -> Path | None:
    """Keep compiled programs from now on; return where, or None if that is not up to us.

    The directory is ``S2VGD_COMPILED``, or ``compiled`` in the cache of
    :func:`s2vgd.datasets.storage.cache_dir`, with a part of its own for each kind of processor:
    programs for one may not run on another, and home directories are shared.
    """
    named = os.environ.get(VARIABLE, "")
    if named.lower() in ("off", "0", "no") or getattr(
        jax.config, "jax_compilation_cache_dir", None
    ):
        return None
    try:
        from s2vgd.datasets.storage import cache_dir

        root = Path(named).expanduser() if named else cache_dir() / "compiled"
        folder = root / _processor()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, ImportError):
        return None  # neither a read-only home nor a bare installation keeps us from computing
    _forget(folder, LIMIT)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_SECONDS)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder


def _processor() -> str:
    """Return a short name of what this processor can do."""
    known = platform.machine() + platform.processor() + _cpuinfo()
    return hashlib.sha256(known.encode()).hexdigest()[:12]


def _is_wide() -> bool:
    """Whether it computes with 512 bits at full speed; bfloat16 came after those that do not."""
    return "avx512_bf16" in _cpuinfo()


@functools.cache
def _cpuinfo() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        return "".join(line for line in lines if line.startswith(("model name", "flags")))[:8192]
    return ""


def _forget(folder: Path, limit: int) -> None:
    """Delete the oldest files until the others fit; another process may be doing the same."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            stat = path.stat()
            found.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found, key=lambda item: item[0]):
        if total <= limit:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
