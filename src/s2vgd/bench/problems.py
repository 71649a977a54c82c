"""The regression that all implementations of SVGD are given: one log joint, one start, one layout.

Particles pass between implementations as one matrix (M, D) that holds, layer after layer, the
kernel (in, out) and then the bias of each network.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol

import jax
import numpy as np

Optimizer = Literal["adam", "sgd"]

LEARNING_RATE = 1e-3
"""Of Adam. Descent without moments ("sgd") has 1, so that a step is the direction itself."""


@dataclass(frozen=True)
class Regression:
    """A network with standard normal prior and Gaussian noise of known size, on one batch.

    Parameters
    ----------
    widths : tuple of int
        Numbers of units, inputs and outputs included.
    rows : int
        B, rows of the batch.
    total : int
        N, rows that the batch stands for.
    noise : float
        Standard deviation of the noise.
    """

    widths: tuple[int, ...]
    rows: int = 100
    total: int = 455
    noise: float = 0.3

    @property
    def name(self) -> str:
        """Such as ``"13-50-1"``."""
        return "-".join(map(str, self.widths))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of kernel, bias, kernel, bias, ... of one network."""
        return [shape for l1, l2 in pairwise(self.widths) for shape in ((l1, l2), (l2,))]

    @property
    def size(self) -> int:
        """D, the number of parameters."""
        return sum(map(math.prod, self.shapes))

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs (B, F) and targets (B, T)."""
        rng = np.random.default_rng(0)
        x = rng.normal(size=(self.rows, self.widths[0])).astype(np.float32)
        y = rng.normal(size=(self.rows, self.widths[-1])).astype(np.float32)
        return x, y

    def start(self, particles: int) -> np.ndarray:
        """Return the particles (M, D) to start from."""
        rng = np.random.default_rng(1)
        parts = []
        for shape in self.shapes:
            scale = shape[0] ** -0.5 if len(shape) == 2 else 0.1
            parts.append(scale * rng.standard_normal((particles, math.prod(shape)), np.float32))
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def split(self, flat: np.ndarray) -> list[np.ndarray]:
        """Return kernel, bias, kernel, ... with a leading axis, from a matrix (M, D)."""
        sizes = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        parts = np.split(np.asarray(flat), sizes, axis=1)
        pairs = zip(parts, self.shapes, strict=True)
        return [part.reshape(len(flat), *shape) for part, shape in pairs]

    def join(self, parts: list[np.ndarray]) -> np.ndarray:
        """Return the matrix (M, D) of kernels and biases with a leading axis."""
        return np.concatenate([np.asarray(part).reshape(len(part), -1) for part in parts], axis=1)


class Contender(Protocol):
    """An implementation of SVGD at work on a `Regression`, compiled for it."""

    needs: int
    """Bytes of memory that it takes."""

    def steps(self, n: int) -> None:
        """Make n steps, and return when they are done."""

    def particles(self) -> np.ndarray:
        """Return the particles (M, D)."""


class TooLarge(Exception):
    """More memory is needed than there is.

    Parameters
    ----------
    needed, free : float
        Bytes.
    """

    def __init__(self, needed: float, free: float) -> None:
        super().__init__(
            f"would need {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
        )
        self.needed = needed


def check_memory(needed: float) -> int:
    """Return the bytes, or raise unless three quarters of the free memory are enough."""
    free = free_bytes()
    if needed > 0.75 * free:
        raise TooLarge(needed, free)
    return int(needed)


def on_gpu() -> bool:
    """Whether JAX computes on a GPU, and so does whoever is compared with it."""
    return jax.default_backend() == "gpu"


def free_bytes() -> int:
    """Return how much memory can be had now, on the device that computes."""
    if on_gpu():
        stats = jax.devices()[0].memory_stats() or {}
        return int(stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0))
    try:
        text = Path("/proc/meminfo").read_text()
        return 1024 * int(text.split("MemAvailable:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
