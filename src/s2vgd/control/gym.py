"""Gymnasium, both ways: our environments as its own, and any of its environments for training.

`JaxEnv` is one of our environments behind Gymnasium's interface; `register`, which importing this
module calls, gives all of them ids. `GymVector` is the other direction: several copies of
any environment of Gymnasium, stepped together, with one meaning of an episode's end. The module
needs Gymnasium (``pip install s2vgd[gym]``) and nothing else of the library imports it eagerly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, SupportsFloat

import jax
import numpy as np

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode
except ImportError as error:
    raise ImportError(
        "s2vgd.control.gym needs Gymnasium 1.1 or later: pip install s2vgd[gym]"
    ) from error

from s2vgd.control.environments import Box, Discrete, Environment, make
from s2vgd.errors import DataError
from s2vgd.priors import check_count

IDS = {
    "s2vgd/Cartpole-v0": "cartpole",
    "s2vgd/SwingUp-v0": "swing-up",
    "s2vgd/DoublePendulum-v0": "double-pendulum",
    "s2vgd/CartPoleV1-v0": "cartpole-v1",
    "s2vgd/Pendulum-v0": "pendulum",
    "s2vgd/Acrobot-v0": "acrobot",
    "s2vgd/MountainCar-v0": "mountain-car",
}
"""Ids of our environments in Gymnasium, and their names here."""

VECTORIZATIONS = ("sync", "async")


def register() -> None:
    """Make our environments known to ``gymnasium.make`` under `IDS`; twice does no harm.

    The time limit is the environment's own (``max_steps``), so Gymnasium adds none.
    """
    for gym_id, name in IDS.items():
        if gym_id not in gymnasium.registry:
            gymnasium.register(
                gym_id, entry_point="s2vgd.control.gym:JaxEnv", kwargs={"name": name}
            )


# -- ours as Gymnasium's -------------------------------------------------------------------------


class JaxEnv(gymnasium.Env[np.ndarray, Any]):
    """One of our environments as a ``gymnasium.Env``.

    The same seed gives the same episodes. Actions and observations are NumPy; the step itself is
    compiled once for all copies with the same settings.

    Parameters
    ----------
    name : str
        As in :func:`s2vgd.control.make`.
    render_mode : {"rgb_array"}, optional
        Lets `render` return pictures.
    **settings
        As in :func:`s2vgd.control.make`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, name: str, *, render_mode: str | None = None, **settings: Any) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be 'rgb_array' or None, got {render_mode!r}")
        self.environment = make(name, **settings)
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": _frames_a_second(self.environment)}
        self.observation_space = _to_gym(self.environment.observation)
        self.action_space = _to_gym(self.environment.action)
        self.state: Any = None
        self._reset, self._step = _compiled(self.environment)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode; see ``gymnasium.Env.reset``. There are no options."""
        super().reset(seed=seed)
        observation, self.state = self._reset(self._draw_key())
        return np.array(observation, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step; see ``gymnasium.Env.step``."""
        if self.state is None:
            raise RuntimeError("reset must be called before the first step")
        value = np.asarray(action)
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            if not self.action_space.contains(action):
                raise ValueError(
                    f"action must be one of 0 to {self.action_space.n - 1}: {action!r}"
                )
        elif value.shape != self.action_space.shape or not np.isfinite(value).all():
            raise ValueError(f"action must be {self.action_space.shape} finite numbers: {action!r}")
        after = self._step(self._draw_key(), self.state, value)
        self.state = after.state
        info = {key: np.asarray(entry) for key, entry in after.info.items()}
        observation = np.array(after.observation, np.float32)
        reward = float(after.reward)
        return observation, reward, bool(after.terminated), bool(after.truncated), info

    def render(self) -> np.ndarray | None:
        """Return a picture of the state, of shape (height, width, 3), in the mode "rgb_array"."""
        if self.render_mode is None:
            return None
        from s2vgd.control import rendering

        if self.state is None:
            raise RuntimeError("reset must be called before render")
        return rendering.draw(self.environment, self.state)

    def _draw_key(self) -> jax.Array:
        return jax.random.key(int(self.np_random.integers(2**32)))


@functools.lru_cache(maxsize=32)
def _compiled(environment: Environment) -> tuple[Callable[..., Any], Callable[..., Any]]:
    params = environment.params
    return (
        jax.jit(lambda key: environment.reset(key, params)),
        jax.jit(lambda key, state, action: environment.step(key, state, action, params)),
    )


def _frames_a_second(environment: Environment) -> int:
    """Show a step in the time it stands for; of the mountain car that is not known."""
    return max(1, round(1 / getattr(environment.params, "dt", 1 / 30)))


def _to_gym(space: Box | Discrete) -> gymnasium.Space:
    if isinstance(space, Discrete):
        return gymnasium.spaces.Discrete(space.n)
    low, high = np.array(space.low, np.float32), np.array(space.high, np.float32)
    return gymnasium.spaces.Box(low, high, dtype=np.float32)


# -- Gymnasium's for training --------------------------------------------------------------------


class GymVector:
    """Copies of an environment of Gymnasium that are stepped together, as NumPy.

    Whatever the environment has, observations are rows of float32 (flattened if they have
    another form) and actions are rows of a `Box`, clipped to its bounds, or integers from 0.

    Where a step ends an episode, its observation is already the first of the next one, and the
    last observation of the old one is given beside it: Gymnasium's mode ``SAME_STEP``, which is
    asked for. A vector environment that is given ready-made keeps its own mode; in the mode
    ``NEXT_STEP`` the step after an end only resets, takes no notice of the action and gives no
    reward. `valid` says so, and nothing may be learned from it.

    Parameters
    ----------
    env_id : str, EnvSpec or VectorEnv
        As ``gymnasium.make`` takes it, or a vector environment to be used as it is.
    num_envs : int
        How many copies; that of a ready-made one if it is given.
    vectorization : {"sync", "async"}
        One after another in this process, or each in a process of its own, which pays where a
        step takes longer than passing its result along. The processes are spawned, not forked
        (JAX has threads, which do not survive that), so a script that asks for them must begin
        its work under ``if __name__ == "__main__"``.
    observation_scales : sequence of float, optional
        Fixed sizes of the observations, for policies to divide by; ones by default.
    **kwargs
        To ``gymnasium.make``.

    Attributes
    ----------
    name : str
        The id.
    num_envs : int
        Number of copies, N.
    observation_size : int
        Length of an observation, O.
    action : Box or Discrete
        What can be done.
    observation_scales : tuple of float
        One a coordinate.
    time_limit : int or None
        Steps after which Gymnasium truncates, if it does.
    valid : bool array of shape (N,)
        Whether the last step was one to learn from.
    """

    def __init__(
        self,
        env_id: Any,
        num_envs: int = 1,
        vectorization: str = "sync",
        *,
        observation_scales: tuple[float, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(env_id, gymnasium.vector.VectorEnv):
            self._envs = env_id
        else:
            check_count("num_envs", num_envs, 1)
            if vectorization not in VECTORIZATIONS:
                raise ValueError(
                    f"vectorization must be one of {VECTORIZATIONS}, got {vectorization!r}"
                )
            vector_settings: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
            if vectorization == "async":
                vector_settings["context"] = "spawn"
            self._envs = gymnasium.make_vec(
                env_id,
                num_envs=int(num_envs),
                vectorization_mode=vectorization,
                vector_kwargs=vector_settings,
                **kwargs,
            )
        spec = self._envs.spec
        self.name = spec.id if spec is not None else type(self._envs).__name__
        self.time_limit = spec.max_episode_steps if spec is not None else None
        self.num_envs = self._envs.num_envs
        self._mode = self._envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._single = self._envs.single_observation_space
        if not self._single.is_np_flattenable:
            raise DataError(f"{self.name}: observations {self._single} have no fixed size")
        self.observation_size = int(gymnasium.spaces.flatdim(self._single))
        self._space: Any = self._envs.single_action_space
        self.action = _from_gym(self._space, self.name)
        scales = (
            (1.0,) * self.observation_size if observation_scales is None else observation_scales
        )
        self.observation_scales = tuple(float(scale) for scale in scales)
        if len(self.observation_scales) != self.observation_size:
            raise ValueError(
                f"observation_scales must have {self.observation_size} entries, "
                f"got {len(self.observation_scales)}"
            )
        self.valid = np.ones(self.num_envs, bool)
        self._ended = np.zeros(self.num_envs, bool)

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Begin an episode in each copy.

        Parameters
        ----------
        seed : int, optional
            The copies are seeded with it and the numbers that follow; without one they go on
            with the random numbers they have.

        Returns
        -------
        observation : float32 array of shape (N, O)
        """
        observations, _ = self._envs.reset(seed=None if seed is None else int(seed))
        self.valid[:] = True
        self._ended[:] = False
        return self._rows(observations)

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Take a step in each copy.

        Parameters
        ----------
        actions : array of shape (N, A), or of int and shape (N,)
            For a `Box` or a `Discrete` space.

        Returns
        -------
        observation : float32 array of shape (N, O)
            To act on next: of a fresh episode where one has ended (but see `valid`).
        reward : float32 array of shape (N,)
            Of the step.
        terminated, truncated : bool array of shape (N,)
            How the episode has ended, if it has.
        last_observation : float32 array of shape (N, O)
            What the step led to, before any reset.
        """
        given = self._checked(np.asarray(actions))
        found, reward, terminated, truncated, info = self._envs.step(given)
        ended = terminated | truncated
        observation = self._rows(found)
        last = observation
        self.valid = np.ones(self.num_envs, bool)
        if self._mode is AutoresetMode.NEXT_STEP:
            self.valid = ~self._ended
        elif ended.any():
            last = observation.copy()
            if self._mode is AutoresetMode.SAME_STEP:
                for i in np.flatnonzero(ended):
                    last[i] = gymnasium.spaces.flatten(self._single, info["final_obs"][i])
            else:
                found, _ = self._envs.reset(options={"reset_mask": ended})
                observation = self._rows(found)
        self._ended = ended
        return (
            observation,
            np.asarray(reward, np.float32),
            np.asarray(terminated, bool),
            np.asarray(truncated, bool),
            last,
        )

    def close(self) -> None:
        """End the copies, and the processes they may have."""
        self._envs.close()

    def __enter__(self) -> GymVector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, observations: Any) -> np.ndarray:
        if isinstance(observations, np.ndarray) and isinstance(self._single, gymnasium.spaces.Box):
            rows = np.array(observations, np.float32).reshape(self.num_envs, -1)
        else:
            each = gymnasium.vector.utils.iterate(self._envs.observation_space, observations)
            flat = [gymnasium.spaces.flatten(self._single, one) for one in each]
            rows = np.array(flat, np.float32)
        if not np.isfinite(rows).all():
            raise DataError(f"{self.name} gave an observation that is not finite")
        return rows

    def _checked(self, actions: np.ndarray) -> np.ndarray:
        if isinstance(self.action, Discrete):
            if actions.shape != (self.num_envs,) or not np.issubdtype(actions.dtype, np.integer):
                raise ValueError(
                    f"actions must be {self.num_envs} integers, "
                    f"got {actions.dtype}{list(actions.shape)}"
                )
            if actions.min() < 0 or actions.max() >= self.action.n:
                raise ValueError(f"actions must be from 0 to {self.action.n - 1}")
            return (actions + self._space.start).astype(self._space.dtype)
        if actions.shape != (self.num_envs, self.action.size):
            raise ValueError(
                f"actions must have shape {(self.num_envs, self.action.size)}, got {actions.shape}"
            )
        if not np.isfinite(actions).all():
            raise ValueError("actions must be finite")
        clipped = np.clip(actions, self.action.low, self.action.high).astype(self._space.dtype)
        return clipped.reshape(self.num_envs, *self._space.shape)


def _from_gym(space: gymnasium.Space, name: str) -> Box | Discrete:
    if isinstance(space, gymnasium.spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, gymnasium.spaces.Box):
        return Box(
            tuple(float(x) for x in space.low.ravel()), tuple(float(x) for x in space.high.ravel())
        )
    raise DataError(f"{name}: actions {space} are neither a Box nor Discrete")


register()
