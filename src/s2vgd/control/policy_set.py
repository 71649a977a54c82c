"""A set of policies: acting with it, scoring it, and its files.

How the policies were learned does not matter here. A set is saved as one directory of
:mod:`s2vgd.files`, which says what the network is and for which task; nothing is pickled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd import files
from s2vgd._description import Vocabulary
from s2vgd.control.environments import Box, Discrete
from s2vgd.control.exploration import Exploration, explore
from s2vgd.control.policies import Particle, Policy
from s2vgd.control.rollouts import act_of_each, act_of_mixture, first_episodes
from s2vgd.control.tasks import Task, play, resolve
from s2vgd.errors import ModelFileError
from s2vgd.networks import MLP
from s2vgd.priors import check_count
from s2vgd.structure import Structure

KIND = "policy-set"
VERSION = 1

VOCABULARY = Vocabulary(
    Policy, MLP, Structure, Box, Discrete, advice="build the same policy and pass it"
)


@dataclass(frozen=True)
class Evaluation:
    """Returns of complete episodes.

    Parameters
    ----------
    returns, discounted_returns : array, shape (M, N)
        Of N episodes of each particle.
    mixture, discounted_mixture : array, shape (N,)
        Of N episodes of all particles acting as one policy.
    deterministic : bool
        Whether the modes were taken rather than draws.
    """

    returns: np.ndarray
    discounted_returns: np.ndarray
    mixture: np.ndarray
    discounted_mixture: np.ndarray
    deterministic: bool

    @property
    def mean(self) -> float:
        """Mean return over particles."""
        return float(self.returns.mean())

    @property
    def best_particle(self) -> int:
        """The particle with the largest mean return."""
        return int(self.returns.mean(axis=1).argmax())

    @property
    def best(self) -> float:
        """Return of the best particle, as the published figures count it.

        It is chosen by the very episodes it is scored on, and hence optimistic; see `best_fresh`.
        """
        return float(self.returns.mean(axis=1).max())

    @property
    def best_fresh(self) -> float:
        """Return of the best particle, scored on the half of the episodes that did not choose it.

        Mean over both ways; the same as `best` for a single episode.
        """
        halves = np.array_split(self.returns, 2, axis=1)
        if not halves[1].size:
            return self.best
        one, other = (half.mean(axis=1) for half in halves)
        return float((other[one.argmax()] + one[other.argmax()]) / 2)

    def summary(self) -> dict[str, float]:
        """Return the figures of a report by name."""
        return {
            "mean": self.mean,
            "best": self.best,
            "best_fresh": self.best_fresh,
            "mixture": float(self.mixture.mean()),
            "discounted_mean": float(self.discounted_returns.mean()),
            "discounted_best": float(self.discounted_returns.mean(axis=1).max()),
            "discounted_mixture": float(self.discounted_mixture.mean()),
        }


@dataclass(frozen=True, eq=False)
class PolicySet:
    """M policies for one task.

    Parameters
    ----------
    policy : Policy
        What a particle is.
    particles : pytree
        Leaves of shape (M, ...).
    task : str
        Name of the task, for `evaluate` and for whoever reads the file.
    task_settings : mapping
        Its settings.
    """

    policy: Policy
    particles: Particle
    task: str = ""
    task_settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the particles can be policies of this kind."""
        sizes = {leaf.shape[:1] for leaf in jax.tree.leaves(self.particles)}
        if len(sizes) != 1 or sizes <= {(), (0,)}:
            raise ValueError(f"particles must have one leading axis M, got sizes {sorted(sizes)}")

    def __len__(self) -> int:
        """Return M, the number of policies."""
        return jax.tree.leaves(self.particles)[0].shape[0]

    def act(
        self,
        observation: Any,
        key: Array | None = None,
        particle: int | Literal["mixture"] | None = "mixture",
        deterministic: bool = False,
    ) -> np.ndarray:
        """Choose actions, in the units of the environment.

        Parameters
        ----------
        observation : array, shape (O,) or (N, O)
            What is seen.
        key : Array, optional
            Of ``jax.random.key``; needed unless `deterministic`.
        particle : int, "mixture" or None
            Which policy acts; all of them as one, drawn anew for each action, by default; each of
            them with None.
        deterministic : bool
            Take the mode: the mean, or the likeliest action. Of the mixture, the mean of the
            means, or the action with the largest mean probability.

        Returns
        -------
        array, shape (A,) or (N, A), without A for discrete actions
            With a leading axis M if `particle` is None.
        """
        seen = np.asarray(observation, np.float32)
        size = self.policy.network.n_inputs
        if seen.ndim not in (1, 2) or seen.shape[-1] != size:
            raise ValueError(f"observation must be ({size},) or (N, {size}), got {seen.shape}")
        if not deterministic and key is None:
            raise ValueError("key must be a jax.random.key, unless deterministic=True")
        who = None
        if particle is not None and particle != "mixture":
            if isinstance(particle, bool) or not -len(self) <= int(particle) < len(self):
                raise ValueError(f"particle must be below {len(self)}, got {particle!r}")
            who = np.int32(int(particle) % len(self))
        rows = np.atleast_2d(seen)
        key = None if deterministic else key
        mixture = particle == "mixture"
        actions = np.asarray(_act(self.policy, self.particles, rows, key, who, mixture))
        if seen.ndim == 1:
            actions = actions[:, 0]
        return actions if particle is None else actions[0]

    def evaluate(
        self,
        environment: str | Task | None = None,
        episodes: int = 20,
        seed: int = 0,
        *,
        deterministic: bool = False,
        discount: float = 0.99,
    ) -> Evaluation:
        """Play episodes to their end and return what they gave.

        Parameters
        ----------
        environment : str or task, optional
            Where; the task of the set by default.
        episodes : int
            N, for each particle, and for the mixture of them.
        seed : int
            Of everything random.
        deterministic : bool
            Take the modes.
        discount : float
            γ of the discounted returns.
        """
        check_count("episodes", episodes, 1)
        task = self._task(environment)
        particle_key, mixture_key = jax.random.split(jax.random.key(seed))
        m = len(self)
        each = _episodes(
            task,
            self.policy,
            self.particles,
            particle_key,
            episodes,
            deterministic,
            False,
            discount,
        )
        per_particle = -(-episodes // m)
        together = _episodes(
            task,
            self.policy,
            self.particles,
            mixture_key,
            per_particle,
            deterministic,
            True,
            discount,
        )
        return Evaluation(
            returns=each[0],
            discounted_returns=each[1],
            mixture=together[0].ravel()[:episodes],
            discounted_mixture=together[1].ravel()[:episodes],
            deterministic=deterministic,
        )

    def explore(
        self,
        environment: str | Task | None = None,
        episodes: int = 10,
        seed: int = 0,
        cell: float = 0.5,
    ) -> Exploration:
        """Measure where the policies go and how they differ, see `Exploration`."""
        check_count("episodes", episodes, 1)
        task, key = self._task(environment), jax.random.key(seed)
        made = play(task, self.policy, self.particles, key, environments=episodes)
        return explore(self.policy, self.particles, made.observations, cell=cell, seed=seed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the set to a directory, atomically."""
        metadata = {
            "policy": VOCABULARY.describe(self.policy),
            "task": self.task,
            "task_settings": dict(self.task_settings),
        }
        arrays = files.tree_to_arrays(self.particles, "particles")
        files.save_directory(path, arrays, metadata, kind=KIND, version=VERSION)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PolicySet:
        """Read what :meth:`save` wrote.

        Raises
        ------
        ModelFileError
            If the directory is damaged, foreign, or of a newer version.
        """
        arrays, metadata, _ = files.load_directory(path, kind=KIND, max_version=VERSION)
        try:
            described, task, settings = (
                metadata["policy"],
                metadata["task"],
                dict(metadata["task_settings"]),
            )
        except (KeyError, TypeError, ValueError):
            raise ModelFileError(f"the policies in {path} do not say what they are") from None
        policy = VOCABULARY.rebuild(described)
        if not isinstance(policy, Policy):
            raise ModelFileError(f"the policies in {path} do not say what they are")
        return cls(policy, restore_particles(policy, arrays, "particles"), task, settings)

    def _task(self, environment: str | Task | None) -> Task:
        if environment is not None:
            return resolve(environment)
        if not self.task:
            raise ValueError("environment must be given: the set does not say what its task is")
        return resolve(self.task, self.task_settings)


def restore_particles(policy: Policy, arrays: Mapping[str, np.ndarray], prefix: str) -> Particle:
    """Return the particles of a policy whose leaves were saved under a prefix.

    Raises
    ------
    ModelFileError
        If they are not particles of this policy.
    """
    saved = [array for name, array in arrays.items() if name.startswith(f"{prefix}/")]
    if not saved or saved[0].ndim == 0 or not len(saved[0]):
        raise ModelFileError(f"the saved policies have no {prefix!r}")
    one = jax.eval_shape(policy.init, jax.random.key(0))
    example = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((len(saved[0]), *leaf.shape), leaf.dtype), one
    )
    return files.arrays_to_tree(arrays, example, prefix)


@partial(jax.jit, static_argnums=(0, 5))
def _act(
    policy: Policy,
    particles: Particle,
    rows: Array,
    key: Array | None,
    who: Any,
    mixture: bool,
) -> Array:
    """Return actions (M, N, ...), or (1, N, ...) of one particle or of the mixture."""
    if who is not None:
        particles = jax.tree.map(lambda leaf: leaf[who][None], particles)
    stacked = policy.stacked(particles)
    m = jax.tree.leaves(stacked)[0].shape[-1]
    width = 1 if mixture else m
    seen = jnp.broadcast_to(rows.T[:, :, None], (rows.shape[1], rows.shape[0], width))
    noise = chosen = None
    if key is not None:
        noise_key, choice_key = jax.random.split(key)
        noise = policy.noise(noise_key, (1, len(rows), width))[0]
        chosen = jax.random.randint(choice_key, (len(rows), width), 0, m)
    if mixture:
        actions = act_of_mixture(policy, stacked, seen, noise, chosen)
    else:
        actions = act_of_each(policy, stacked, seen, noise)
    return jnp.moveaxis(policy.to_environment(actions), (-1, -2), (0, 1))


def _episodes(
    task: Task,
    policy: Policy,
    particles: Particle,
    key: Array,
    environments: int,
    deterministic: bool,
    mixture: bool,
    discount: float,
) -> tuple[np.ndarray, np.ndarray]:
    made = play(
        task,
        policy,
        particles,
        key,
        environments=environments,
        deterministic=deterministic,
        mixture=mixture,
    )
    episodes = _first_episodes(made, discount)
    return np.asarray(episodes.returns), np.asarray(episodes.discounted_returns)


_first_episodes = jax.jit(first_episodes)
