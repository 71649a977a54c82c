"""Several trainings that differ in their seed alone, side by side in one program.

On an accelerator a rollout waits for the launch of its many small steps, whatever their size: five
seeds take little longer than one. On a single core there is nothing to gain. How one set of
policies is trained, with logs and checkpoints, is in `training`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from s2vgd.control import training
from s2vgd.control.agents import SteinPolicyGradient
from s2vgd.control.environments import Environment
from s2vgd.control.stein import Algorithm, Info, State
from s2vgd.loop import MAX_STEPS
from s2vgd.priors import check_count


def train_together(
    agents: Sequence[SteinPolicyGradient], iterations: int, *, chunk: int = 10
) -> None:
    """Train sets of policies until each has made so many iterations.

    Parameters
    ----------
    agents : sequence of SteinPolicyGradient
        With equal settings but for the seed, and as many iterations behind them; they are changed.
        Each becomes what it would have become alone, up to rounding.
    iterations : int
        In all, counted from the first start.
    chunk : int
        Iterations between two looks.

    Raises
    ------
    DivergedError
        If a gradient of any of them is not finite.
    """
    check_count("iterations", iterations, 1)
    check_count("chunk", chunk, 1)
    if not agents:
        raise ValueError("agents must hold at least one, got none")
    first = agents[0]
    if not isinstance(first.task, Environment):
        raise ValueError(f"agents must act in our own environments, not in {first.task.name}")
    # Equal settings have the very same algorithm.
    if any(other.algorithm is not first.algorithm for other in agents):
        raise ValueError("agents must have equal settings, but for the seed")
    if len({other.iterations for other in agents}) > 1:
        raise ValueError("agents must have as many iterations behind them")
    advance = training.compiled(_side_by_side(first.algorithm))
    runs = [other.run for other in agents]
    state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(run.state for run in runs))
    while (done := first.iterations) < iterations:
        last = min(iterations, done + chunk, done + MAX_STEPS)
        state, infos = advance(state, done, last)
        for i, run in enumerate(runs):
            run.state = jax.tree.map(lambda leaf, i=i: leaf[i], state)
            training.note(run, jax.tree.map(lambda leaf, i=i: leaf[:, i], infos))


@functools.lru_cache(maxsize=8)
def _side_by_side(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm for states with one more leading axis."""
    step: Callable[[State], tuple[State, Info]] = jax.vmap(lambda state: algorithm.step(state))

    def all_steps(state: State, batch: Any = None) -> tuple[State, Info]:
        return step(state)

    return algorithm._replace(step=all_steps)
