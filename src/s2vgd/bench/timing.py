"""Timing things against one another: taken in turns, compared round by round.

A machine is never quiet. Contenders are therefore timed in turns, and what counts is the ratio of
the times within a round, of which the median and the quartiles are kept. What is timed is none of
this module's business.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Timed = Callable[[], float]
"""Does a piece of work and returns its seconds (or seconds a unit of it)."""

LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Spread:
    """The middle of some measurements: median, quartiles, and how many there were."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Spread:
        """Return the spread of one or more numbers."""
        low, median, high = np.quantile(np.asarray(values, float), [0.25, 0.5, 0.75])
        return cls(float(median), float(low), float(high), len(values))

    @classmethod
    def read(cls, found: Mapping[str, Any] | None) -> Spread | None:
        """Return what was written as a mapping, or None."""
        return None if found is None else cls(**found)


def in_turns(
    contenders: Mapping[str, Timed], rounds: int, *, budget: float = float("inf")
) -> dict[str, np.ndarray]:
    """Time contenders in turns, each round in another order.

    Parameters
    ----------
    contenders : mapping of str to callable
        What is timed; already compiled and warm.
    rounds : int
        How often each is timed.
    budget : float
        Seconds after which no new round begins, once there are three.

    Returns
    -------
    dict of str to array, shape (R,)
        The times of each contender; the i-th of all of them belong to the same round.
    """
    names = list(contenders)
    taken: dict[str, list[float]] = {name: [] for name in names}
    began = time.perf_counter()
    # The collector of garbage would stop one contender for what another has left behind.
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for i in range(rounds):
            if i >= LEAST_ROUNDS and time.perf_counter() - began > budget:
                break
            shift = i % len(names)
            for name in names[shift:] + names[:shift]:
                taken[name].append(contenders[name]())
    finally:
        if was_enabled:
            gc.enable()
    return {name: np.asarray(times) for name, times in taken.items()}


def ratio(over: np.ndarray, under: np.ndarray) -> Spread:
    """Return the spread of the ratios within the rounds."""
    return Spread.of(np.asarray(over) / np.asarray(under))


def repeated(work: Callable[[], Any], times: int = 1) -> Timed:
    """Return a function that does some work several times and returns the seconds of one time.

    ``work`` returns when it is done: what runs in the background must be waited for in it.
    """

    def timed() -> float:
        began = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - began) / times

    return timed


def lasting(work: Callable[[], Any], seconds: float, most: int = 10_000) -> Timed:
    """Return ``repeated(work, n)`` with an n such that a timing takes about so many seconds.

    The first call, which may compile, is not counted.
    """
    work()
    once = repeated(work)()
    return repeated(work, max(1, min(most, round(seconds / max(once, 1e-9)))))
