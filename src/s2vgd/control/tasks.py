"""Tasks by name: our own environments, which compile, or those of Gymnasium, which do not.

`play` rolls policies out in either. Everything above this module is the same for both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
from jax import Array

from s2vgd.control import environments as catalogue
from s2vgd.control import host, rollouts
from s2vgd.control.environments import Box, Discrete, Environment
from s2vgd.control.policies import Particle, Policy
from s2vgd.control.rollouts import Trajectories

_DEFAULT_LIMIT = 500


@dataclass(frozen=True)
class GymTask:
    """A task of Gymnasium, by its id.

    Parameters
    ----------
    name : str
        As ``gymnasium.make`` knows it.
    settings : tuple of (str, value)
        Its keyword arguments.
    vectorization : {"sync", "async"}
        Whether the copies run one after another, or in processes of their own.
    """

    name: str
    settings: tuple[tuple[str, Any], ...] = ()
    vectorization: str = "sync"

    @property
    def observation_size(self) -> int:
        """Number of coordinates of an observation."""
        return self.vector(1).observation_size

    @property
    def action(self) -> Box | Discrete:
        """What can be done."""
        return self.vector(1).action

    @property
    def observation_scales(self) -> tuple[float, ...]:
        """Ones: Gymnasium says nothing about the sizes of observations."""
        return (1.0,) * self.observation_size

    @property
    def time_limit(self) -> int:
        """Steps after which an episode is truncated; 500 where the task has no limit."""
        import gymnasium

        return gymnasium.spec(self.name).max_episode_steps or _DEFAULT_LIMIT

    def vector(self, num_envs: int) -> Any:
        """Return so many copies; the same ones for the same number."""
        return _vector(self, num_envs)


Task: TypeAlias = Environment | GymTask


def resolve(task: str | Task, settings: Mapping[str, Any] | None = None) -> Task:
    """Return the task of a name; anything that is none of ours is an id of Gymnasium.

    Parameters
    ----------
    task : str, Environment or GymTask
        One of :func:`s2vgd.control.names`, an id, or a task itself.
    settings : mapping, optional
        Of the task; only with a name.
    """
    settings = dict(settings or {})
    if isinstance(task, Environment | GymTask):
        if settings:
            raise ValueError("settings go with the name of a task, not with a task that is made")
        return task
    if not isinstance(task, str):
        raise TypeError(f"environment must be a name or an Environment, got {task!r}")
    if task in catalogue.names():
        return catalogue.make(task, **settings)
    known = ", ".join(catalogue.names())
    try:
        import gymnasium

        import s2vgd.control.gym  # noqa: F401  (our own ids)
    except ImportError:
        raise ValueError(
            f"environment {task!r} is not one of ours ({known}), and Gymnasium is not installed: "
            "pip install s2vgd[gym]"
        ) from None
    try:
        gymnasium.spec(task)
    except gymnasium.error.Error as error:
        raise ValueError(
            f"environment {task!r} is neither one of ours ({known}) nor known to Gymnasium: {error}"
        ) from None
    return GymTask(task, tuple(sorted(settings.items())))


def play(
    task: Task,
    policy: Policy,
    particles: Particle,
    key: Array,
    *,
    environments: int,
    horizon: int | None = None,
    deterministic: bool = False,
    mixture: bool = False,
) -> Trajectories:
    """Roll policies out in a task; see :func:`s2vgd.control.rollouts.rollout`."""
    horizon = horizon or task.time_limit
    if isinstance(task, Environment):
        return _compiled(
            task,
            policy,
            particles,
            key,
            environments=environments,
            horizon=horizon,
            deterministic=deterministic,
            mixture=mixture,
        )
    m = len(jax.tree.leaves(particles)[0])
    return host.rollout(
        task.vector(m * environments),
        policy,
        particles,
        key,
        horizon=horizon,
        deterministic=deterministic,
        mixture=mixture,
    )


_compiled = jax.jit(
    rollouts.rollout,
    static_argnums=(0, 1),
    static_argnames=("environments", "horizon", "deterministic", "mixture"),
)


@functools.lru_cache(maxsize=4)
def _vector(task: GymTask, num_envs: int) -> Any:
    from s2vgd.control.gym import GymVector

    return GymVector(task.name, num_envs, task.vectorization, **dict(task.settings))
