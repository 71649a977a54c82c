"""When an agent with a network learns, from which rows, and what they count: settings of one kind.

The loop here calls a step that the agents bring along; it knows nothing of what is learned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import Array

from s2vgd.bandits.buffer import Buffer, mass, sample
from s2vgd.priors import check_count, check_positive

Step = Callable[[Any, Any, Array, Array], Any]
"""``step(learner, rows, n_total, key) -> learner``: one gradient step on a batch of rows."""


@dataclass(frozen=True)
class Learning:
    """How an agent learns from what it has seen.

    Parameters
    ----------
    batch_size : int
        B, the rows of a gradient step, drawn with replacement from the buffer.
    learning_rate : float
        Of Adam.
    decay : float, optional
        Gradient steps after which the learning rate is half what it was: step n is made at
        ``learning_rate / (1 + n / decay)``. The more was seen, the less a step should change; where
        the world drifts it should not, and by default the rate stays what it is.
    every : int
        Rewards between two times of learning.
    eager : int
        So many rewards at the start are each learned from at once, whatever `every` says.
    steps : int
        Gradient steps each time.
    capacity : int
        The most rows that are held: a ring, in which a new row takes the place of the oldest.
    count : {"seen", "held"}
        N, to which the likelihood of a batch is scaled up: all rows ever seen, or those held.
        While nothing was dropped they are the same; afterwards "seen" lets the held rows stand for
        the dropped ones as well, which is right where the world does not change.
    half_life : float, optional
        Forgetting, for worlds that drift: a row that is this many rewards old is drawn half as
        often as the newest, and N is the sum of these weights. Nothing is forgotten by default.
    """

    batch_size: int = 64
    learning_rate: float = 1e-3
    decay: float | None = None
    every: int = 1
    eager: int = 0
    steps: int = 1
    capacity: int = 50_000
    count: Literal["seen", "held"] = "seen"
    half_life: float | None = None

    def __post_init__(self) -> None:
        """Validate the settings."""
        for name in ("batch_size", "every", "steps", "capacity"):
            check_count(name, getattr(self, name), 1)
        check_count("eager", self.eager, 0)
        check_positive("learning_rate", self.learning_rate)
        if self.decay is not None:
            check_positive("decay", self.decay)
        if self.count not in ("seen", "held"):
            raise ValueError(f"count must be 'seen' or 'held', got {self.count!r}")
        if self.half_life is not None:
            check_positive("half_life", self.half_life)
            if not math.exp(-math.log(2.0) / self.half_life) < 1.0:
                raise ValueError(f"half_life is too long to matter, got {self.half_life!r}")

    def optimizer(self) -> optax.GradientTransformation:
        """Return Adam, the same object for the same settings."""
        return _adam(self.learning_rate, self.decay)

    def n_total(self, buffer: Buffer) -> Array:
        """Return N, the number of observations that the likelihood is scaled to, a scalar."""
        return mass(buffer.seen if self.count == "seen" else buffer.held, self.half_life)

    def learn(self, key: Array, buffer: Buffer, step: Step, learner: Any) -> Any:
        """Make the gradient steps that are due after the newest row of the buffer."""
        due = (buffer.seen <= self.eager) | (buffer.seen % self.every == 0)
        n_total = self.n_total(buffer)

        def one(i: Array, learner: Any) -> Any:
            rows = sample(jax.random.fold_in(key, 2 * i), buffer, self.batch_size, self.half_life)
            return step(learner, rows, n_total, jax.random.fold_in(key, 2 * i + 1))

        # A loop of no steps and not a branch: under vmap over seeds a branch would always be taken.
        return jax.lax.fori_loop(0, jnp.where(due, self.steps, 0), one, learner)


# Cached, because what is compiled is kept by the identity of an agent's functions.
@functools.lru_cache(maxsize=64)
def _adam(learning_rate: float, decay: float | None) -> optax.GradientTransformation:
    if decay is None:
        return optax.adam(learning_rate)
    return optax.adam(lambda n: learning_rate / (1.0 + n / decay))
