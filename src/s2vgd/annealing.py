"""Schedules of the driving term of SVGD: it is weak at first, or in turns, and whole in the end.

What is scheduled is the factor of the first term of eq. (svgd_update). The step that multiplies by
it is in :mod:`s2vgd.svgd`, where these schedules can be had as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

Schedule = Callable[[Array], Any]
"""``schedule(step) -> scalar``, with the step counted from 0."""


def linear_annealing(steps: int, start: float = 0.0) -> Schedule:
    """Factor of the driving term that rises from ``start`` to 1 over ``steps`` steps, then stays.

    While it is small the particles mostly repel one another and spread out before the log density
    gathers them (D'Angelo and Fortuin, 2021).
    """
    check_positive(steps=steps)
    return lambda step: start + (1 - start) * jnp.minimum(step / steps, 1.0)


def cyclical_annealing(steps: int, cycles: int = 4, power: float = 1.0) -> Schedule:
    """Factor of the driving term that rises from 0 to 1 in each of ``cycles`` cycles, then stays.

    In a cycle of length T it is ``(t / T)^power``, so that particles can leave a mode several times
    (D'Angelo and Fortuin, 2021). After ``steps`` steps, the cycles together, it is 1.
    """
    check_positive(steps=steps, cycles=cycles, power=power)
    length = steps / cycles
    return lambda step: jnp.where(step < steps, (step % length / length) ** power, 1.0)


def check_positive(**arguments: float) -> None:
    """Raise an error that names the first argument that is not positive and finite."""
    for name, value in arguments.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value!r}")
