"""What the samplers share: their result, and how their runs are cut into compiled calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from s2vgd.layout import Layout

LogDensity = Callable[[Any, Any], Array]
Tick = Callable[[int], None]

# Steps between two looks from outside. Also the length of the buffer that draws are collected in.
CHUNK = 100


class Chains(NamedTuple):
    """What a sampler returns, in NumPy: what happens to it is not compiled.

    Parameters
    ----------
    draws : array, shape (C, S, D)
        S draws of each of C chains, as flat particles.
    log_density : array, shape (C, S)
        Of each draw; NaN for a sampler that never sees all of the data.
    acceptance : array, shape (C,)
        Mean acceptance probability; NaN for a sampler without an acceptance step.
    divergences : array, shape (C,)
        Transitions after warm-up that were refused because the numbers left the representable.
    step_size : array, shape (C,)
        What the tuning arrived at.
    """

    draws: np.ndarray
    log_density: np.ndarray
    acceptance: np.ndarray
    divergences: np.ndarray
    step_size: np.ndarray


def flat_density(log_density: LogDensity, layout: Layout, data: Any, flat: Array) -> Array:
    """Return the log density of a flat particle (D,).

    Its gradient is that of the leaves side by side: what is derived of slices is a sum of as many
    vectors (D,), zero but for one leaf.
    """

    @jax.custom_vjp
    def density(flat: Array) -> Array:
        return log_density(layout.unflatten(flat), data)

    def forward(flat: Array) -> tuple[Array, Array]:
        value, gradient = jax.value_and_grad(log_density)(layout.unflatten(flat), data)
        return value, layout.flatten(gradient)

    density.defvjp(forward, lambda gradient, cotangent: (cotangent * gradient,))
    return density(flat)


def spans(start: int, stop: int, width: int) -> list[tuple[int, int]]:
    """Cut start, ..., stop - 1 into pieces of at most `width`, each (first, last + 1)."""
    return [(first, min(first + width, stop)) for first in range(start, stop, width)]
