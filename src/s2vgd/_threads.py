"""Precision of JAX, and work in other threads, each of which has a setting of its own for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def n_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def with_same_precision(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function as it is to be called in another thread."""
    x64 = bool(jax.config.read("jax_enable_x64"))
    products = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009

    def call(*arguments: Any) -> T:
        with jax.enable_x64(x64), jax.default_matmul_precision(products):
            return function(*arguments)

    return call


def in_background(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Start calling the function in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(with_same_precision(function), *arguments)
    finally:
        pool.shutdown(wait=False)
