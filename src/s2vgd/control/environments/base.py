"""What an environment is: pure functions, the spaces around them, and the reset that is automatic.

An environment is a pair of pure functions on an explicit state, ``reset`` and ``step``, with its
constants in a frozen dataclass. The tasks themselves are in the modules beside this one, their
names in `catalogue`; policies and learning know nothing but what is here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

Info = dict[str, Array]
"""What else a step tells, by name."""


@dataclass(frozen=True)
class Box:
    """Vectors between two bounds, which may be infinite.

    Parameters
    ----------
    low, high : tuple of float
        Bounds of each coordinate.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        """Validate the bounds."""
        if len(self.low) != len(self.high) or not self.low:
            raise ValueError(
                f"low and high must be of one length, got {len(self.low)} and {len(self.high)}"
            )
        for low, high in zip(self.low, self.high, strict=True):
            if math.isnan(low) or math.isnan(high) or low >= high:
                raise ValueError(f"low must be below high, got {low!r} and {high!r}")

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.low)


@dataclass(frozen=True)
class Discrete:
    """The integers 0, 1, ..., n - 1.

    Parameters
    ----------
    n : int
        How many there are.
    """

    n: int

    def __post_init__(self) -> None:
        """Validate the number."""
        if isinstance(self.n, bool) or not isinstance(self.n, int):
            raise TypeError(f"n must be an integer, got {self.n!r}")
        if self.n < 2:
            raise ValueError(f"n must be at least 2, got {self.n!r}")


class Params(Protocol):
    """Constants of an environment: a frozen dataclass and a pytree.

    Numbers are leaves, so that they may be traced, batched or differentiated; what decides which
    program is compiled (the integrator, say) is static.
    """

    @property
    def max_steps(self) -> int:
        """Steps after which an episode is truncated."""
        ...


class Step(NamedTuple):
    """What a step gives.

    Attributes
    ----------
    observation : array of shape (observation_size,)
        What is seen after the step.
    state : NamedTuple of arrays
        Where the environment is after the step.
    reward : scalar
        For the step.
    terminated : bool scalar
        Whether the episode ended for a reason of the task: nothing follows.
    truncated : bool scalar
        Whether the time limit was reached: the task would have gone on. Both may be true at
        once, as in Gymnasium; a critic bootstraps where ``terminated`` is false.
    info : dict of arrays
        What else there is to say.
    """

    observation: Array
    state: Any
    reward: Array
    terminated: Array
    truncated: Array
    info: Info


@dataclass(frozen=True)
class Environment:
    """A task: two pure functions and what one must know to call them. Hashable.

    Everything jits, vmaps and scans. Numbers are float32, or float64 under ``jax_enable_x64``.

    Parameters
    ----------
    name : str
        Its name in the catalogue.
    params : dataclass
        Its constants, to be given to `reset` and `step`.
    observation : Box
        Bounds of what is observed.
    action : Box or Discrete
        What can be done. Actions beyond a box are clipped inside the environment.
    observation_scales : tuple of float
        Fixed sizes of the observations; policies and critics divide by them.
    reset : callable
        ``reset(key, params) -> (observation, state)``.
    step : callable
        ``step(key, state, action, params) -> Step``, with `action` a float array of shape
        (action.size,) for a box and an integer scalar for a discrete space.
    """

    name: str
    params: Any
    observation: Box
    action: Box | Discrete
    observation_scales: tuple[float, ...]
    reset: Callable[[Array, Any], tuple[Array, Any]]
    step: Callable[[Array, Any, Array, Any], Step]

    def __post_init__(self) -> None:
        """Check that there is one scale a coordinate."""
        if len(self.observation_scales) != self.observation.size:
            raise ValueError(
                f"observation_scales must have {self.observation.size} entries, "
                f"got {len(self.observation_scales)}"
            )

    @property
    def observation_size(self) -> int:
        """Number of coordinates of an observation."""
        return self.observation.size

    @property
    def time_limit(self) -> int:
        """Steps after which an episode is truncated."""
        return self.params.max_steps


def restart(after: Step, fresh: tuple[Array, Any]) -> Step:
    """Put a fresh start in the place of an episode that a step has ended.

    Parameters
    ----------
    after : Step
        What the step gave.
    fresh : (observation, state)
        What ``reset`` gave.

    Returns
    -------
    step : Step
        The same where the episode goes on; otherwise with the observation and the state of the
        start. ``info["last_observation"]`` is the observation of `after` in any case.
    """
    ended = after.terminated | after.truncated
    observation, state = jax.tree.map(
        lambda new, old: jnp.where(ended, new, old), fresh, (after.observation, after.state)
    )
    info = {**after.info, "last_observation": after.observation}
    return after._replace(observation=observation, state=state, info=info)


@functools.lru_cache(maxsize=64)
def auto_reset(environment: Environment) -> Environment:
    """Return the environment whose episodes follow one another without end.

    Where a step ends an episode, the observation and the state that it returns are those of a
    fresh one. ``info["last_observation"]`` is what was observed before any reset: the end of the
    old episode there, and the same as the observation everywhere else.

    Parameters
    ----------
    environment : Environment
        With episodes that end.

    Returns
    -------
    environment : Environment
        The same object for the same environment, so that nothing is compiled twice.

    Notes
    -----
    Every step draws a start, needed or not, and inside a loop random numbers are dear: they take
    longer than the step. A long rollout does better to draw all its starts at once, before its
    loop, and to call `restart` inside it.
    """

    def step(key: Array, state: Any, action: Array, params: Any) -> Step:
        step_key, reset_key = jax.random.split(key)
        after = environment.step(step_key, state, action, params)
        return restart(after, environment.reset(reset_key, params))

    return dataclasses.replace(environment, step=step)
