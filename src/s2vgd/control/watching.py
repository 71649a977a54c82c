"""Watching a policy: one episode, played and written as a moving picture.

The pictures themselves are drawn by `rendering`, or by Gymnasium for tasks of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import Array

from s2vgd.control import rendering
from s2vgd.control.environments import Discrete, Environment
from s2vgd.control.policy_set import PolicySet
from s2vgd.control.tasks import GymTask, Task

_FORMATS = {".gif": rendering.gif, ".mp4": rendering.mp4}
Act: TypeAlias = Callable[[np.ndarray, int], np.ndarray]

# Viewers of GIFs slow down above this.
_MOST_FRAMES_A_SECOND = 25


def watch(
    policies: PolicySet,
    task: Task,
    path: str | os.PathLike[str],
    particle: int = 0,
    seed: int = 0,
    *,
    deterministic: bool = True,
    max_steps: int | None = None,
) -> Path:
    """Play one episode and write it to a file.

    Parameters
    ----------
    policies : PolicySet
        Who can act.
    task : Environment or GymTask
        Where.
    path : path-like
        Ends in ``.gif`` or ``.mp4``.
    particle : int
        Who acts.
    seed : int
        Of the episode.
    deterministic : bool
        Take the modes rather than draws.
    max_steps : int, optional
        Stop there if the episode has not ended; its time limit by default.

    Returns
    -------
    Path
        Of the file.
    """
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise ValueError(f"path must end in {' or '.join(_FORMATS)}, got {path.name!r}")
    max_steps = max_steps or task.time_limit
    key = jax.random.key(seed)

    def act(observation: np.ndarray, t: int) -> np.ndarray:
        return policies.act(observation, jax.random.fold_in(key, t), particle, deterministic)

    if isinstance(task, Environment):
        rate = 1 / getattr(task.params, "dt", 1 / 30)
        frames = list(_frames(task, act, jax.random.fold_in(key, max_steps), max_steps))
    else:
        rate, frames = _gym_frames(task, act, seed, max_steps)
    every = max(1, round(rate / _MOST_FRAMES_A_SECOND))
    shown = [frame for i, frame in enumerate(frames) if i % every == 0]
    _FORMATS[path.suffix.lower()](shown, path, fps=rate / every)
    return path


def _frames(task: Environment, act: Act, key: Array, max_steps: int) -> Iterator[np.ndarray]:
    reset = jax.jit(lambda key: task.reset(key, task.params))
    step = jax.jit(lambda key, state, action: task.step(key, state, action, task.params))
    observation, state = reset(key)
    yield rendering.draw(task, state)
    for t in range(max_steps):
        after = step(jax.random.fold_in(key, t), state, act(np.asarray(observation), t))
        observation, state = after.observation, after.state
        yield rendering.draw(task, state)
        if after.terminated or after.truncated:
            return


def _gym_frames(
    task: GymTask, act: Act, seed: int, max_steps: int
) -> tuple[float, list[np.ndarray]]:
    import gymnasium

    single = gymnasium.make(task.name, render_mode="rgb_array", **dict(task.settings))
    try:
        found, _ = single.reset(seed=seed)
        frames: list[Any] = [single.render()]
        for t in range(max_steps):
            seen: Any = gymnasium.spaces.flatten(single.observation_space, found)
            found, _, terminated, truncated, _ = single.step(_given(task, single, act(seen, t)))
            frames.append(single.render())
            if terminated or truncated:
                break
        return float(single.metadata.get("render_fps", 30)), frames
    finally:
        single.close()


def _given(task: GymTask, single: Any, action: np.ndarray) -> Any:
    """Return an action as the environment itself wants it."""
    space = single.action_space
    if isinstance(task.action, Discrete):
        return int(action) + int(space.start)
    return np.clip(action.reshape(space.shape), space.low, space.high).astype(space.dtype)
