"""The temperature α of eq. (rlobjective): fixed, scheduled, or adapted while training.

It weighs the return against the prior and the repulsion between particles. Where it enters the
update is in `stein`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array

from s2vgd.priors import check_positive


@dataclass(frozen=True)
class Adapted:
    """A temperature that keeps the repulsion at a given share of the drive.

    After each iteration log α moves by `rate` times log(drive · share / repulsion): up where the
    returns have pushed the repulsion aside, down where it has got the better of them.

    Parameters
    ----------
    share : float
        Length of the repulsion wanted, in lengths of the drive.
    rate : float
        How fast, per iteration.
    start, low, high : float
        First value, and bounds.
    """

    share: float = 0.1
    rate: float = 0.05
    start: float = 1.0
    low: float = 0.01
    high: float = 100.0

    def __post_init__(self) -> None:
        """Validate the settings."""
        for name in ("share", "rate", "start", "low", "high"):
            check_positive(name, getattr(self, name))
        if not self.low <= self.start <= self.high:
            raise ValueError(f"start must lie between low and high, got {self.start!r}")

    def next(self, alpha: Array, drive: Array, repulsion: Array) -> Array:
        """Return the temperature after an iteration whose terms had these lengths."""
        step = self.rate * jnp.log((drive * self.share + 1e-12) / (repulsion + 1e-12))
        return jnp.clip(alpha * jnp.exp(step), self.low, self.high)


Temperature: TypeAlias = float | Adapted | Callable[[Array], Array]
"""A number, an `Adapted`, or a schedule of optax: a function of the iteration, from 0."""


def check(temperature: Temperature) -> None:
    """Raise unless it is one of the three."""
    if isinstance(temperature, Adapted) or callable(temperature):
        return
    check_positive("temperature", temperature)


def first(temperature: Temperature) -> float:
    """Return what the state of a training starts with."""
    if isinstance(temperature, Adapted):
        return temperature.start
    return 0.0 if callable(temperature) else float(temperature)


def at(temperature: Temperature, held: Array, iteration: Array) -> Array:
    """Return α of an iteration, given what the state holds."""
    if callable(temperature) and not isinstance(temperature, Adapted):
        return jnp.asarray(temperature(iteration), held.dtype)
    return held
