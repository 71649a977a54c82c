"""The front: train a set of policies on a task in three lines, save it, load it, watch it.

    >>> from s2vgd.control import SteinPolicyGradient
    >>> agents = SteinPolicyGradient("swing-up", particles=16, reflections=1, seed=0)
    >>> agents.train(iterations=500).save("swing-up")  # doctest: +SKIP

What happens in an iteration is in `stein`, in the loop around it in `training`; here are the
settings, how they fit together, and the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from s2vgd import _compiled, files
from s2vgd._description import Vocabulary
from s2vgd.checkpoints import KIND, VERSION, Run, Store, identify
from s2vgd.control import training
from s2vgd.control.critics import LinearCritic, NetworkCritic
from s2vgd.control.environments import Environment
from s2vgd.control.gradients import A2C, Estimator, Reinforce
from s2vgd.control.policies import Policy
from s2vgd.control.policy_set import PolicySet
from s2vgd.control.stein import Algorithm, Info, State, build, halving_adam
from s2vgd.control.tasks import Task, play, resolve
from s2vgd.control.temperature import Adapted, Temperature
from s2vgd.errors import ModelFileError
from s2vgd.kernels import Kernel, imq, rbf
from s2vgd.priors import FixedPrior, check_count, check_positive
from s2vgd.structure import Scales, Structure

_ESTIMATORS: dict[str, Estimator] = {"a2c": A2C(), "reinforce": Reinforce()}
# With the usual bandwidth a particle in these few hundred dimensions hears as much of the others
# as of itself; half of it leaves them to explore.
_KERNELS: dict[str, Kernel] = {"rbf": rbf(factor=0.5), "imq": imq()}
_VOCABULARY = Vocabulary(
    A2C,
    Reinforce,
    LinearCritic,
    NetworkCritic,
    Adapted,
    advice="pass the same object to load, by the name of the setting",
)


class SteinPolicyGradient:
    """Policies that learn together, by the Stein policy gradient, eq. (SVGD).

    Parameters
    ----------
    environment : str or Environment
        One of :func:`s2vgd.control.names`, which run compiled, or the id of any Gymnasium task.
    particles : int
        M, the number of policies.
    reflections : int
        K, the Householder reflections on each side of every weight matrix.
    scales : {"lognormal", "gaussian"} or None
        The diagonals. ``reflections=0, scales=None`` is SVGD without structure.
    hidden : sequence of int
        Widths of the layers.
    activation : str
        Of the layers.
    estimator : {"a2c", "reinforce"} or Estimator
        How the gradient of the return is estimated.
    kernel : {"rbf", "imq"}, Kernel or None
        None for agents that know nothing of one another.
    environments : int
        For each policy.
    horizon : int, optional
        Steps in each environment an iteration; the time limit of the task by default.
    temperature : float, Adapted or callable
        α of eq. (rlobjective).
    prior_variance : float or None
        Of N(0, variance) on all parameters but the structure's; None is a flat prior on everything.
    learning_rate : float
        Of Adam.
    halve_every : int, optional
        Halve the learning rate after every so many iterations.
    clip : float or None
        Largest length of a policy's gradient, before it is divided by α.
    updates : int
        Moves of the policies with each rollout; the paper's method has one. More of them learn more
        from as many steps of the environments.
    trust : float
        With several, how far they may change the probability of an action, relatively.
    entropy : float
        Weight of the entropy of the actions beside the standardised return. A little of it keeps
        policies from settling on the first thing that works.
    log_std : float
        Where the logarithm of the standard deviation of actions starts.
    observation_scales : sequence of float, optional
        Fixed numbers by which observations are divided, those of the task by default.
    settings : mapping, optional
        Of the environment, ``{"tip": "rllab"}``.
    seed : int
        Of everything random. The same seed gives the same policies.

    Attributes
    ----------
    policies : PolicySet
        The policies as they are now.
    history : dict of str to array
        Scalars of the iterations so far, see :func:`s2vgd.control.training.summary`.
    iterations : int
        How many there were.
    algorithm : Algorithm
        The functions that train them, the same object for equal settings.
    run : Run
        State and history, for whoever trains them in another way.
    """

    def __init__(
        self,
        environment: str | Environment,
        *,
        particles: int = 16,
        reflections: int = 1,
        scales: Scales | None = "lognormal",
        hidden: Sequence[int] = (25, 10),
        activation: str = "tanh",
        estimator: str | Estimator = "a2c",
        kernel: str | Kernel | None = "rbf",
        environments: int = 10,
        horizon: int | None = None,
        temperature: Temperature = 1.0,
        prior_variance: float | None = None,
        learning_rate: float = 1e-2,
        halve_every: int | None = None,
        clip: float | None = 0.2,
        updates: int = 1,
        trust: float = 0.2,
        entropy: float = 0.0,
        log_std: float = 0.0,
        observation_scales: Sequence[float] | None = None,
        settings: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self._given = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        check_count("particles", particles, 1)
        check_count("seed", seed, 0)
        _compiled.keep()
        check_positive("learning_rate", learning_rate)
        if halve_every is not None:
            check_count("halve_every", halve_every, 1)
        check_count("updates", updates, 1)
        self.task: Task = resolve(environment, settings)
        self.policy = Policy.of(
            self.task,
            hidden,
            activation,
            Structure(reflections, scales),
            observation_scales,
            log_std=log_std,
        )
        self.particles, self.environments = particles, environments
        self.horizon = horizon or self.task.time_limit
        self.algorithm: Algorithm = build(
            self.task if isinstance(self.task, Environment) else None,
            self.policy,
            _named("estimator", estimator, _ESTIMATORS),
            halving_adam(float(learning_rate), halve_every and halve_every * updates),
            None if kernel is None else _named("kernel", kernel, _KERNELS),
            environments=environments,
            horizon=self.horizon,
            temperature=temperature,
            prior=None if prior_variance is None else FixedPrior(prior_variance),
            clip=clip,
            updates=updates,
            trust=trust,
            entropy=entropy,
        )
        self.run = Run(_init(self.algorithm.init, jax.random.key(seed), particles))
        self._identity = identify(self._described(), first_state=self.run.state)

    @property
    def policies(self) -> PolicySet:
        """The policies as they are now."""
        settings = self._given["settings"] or {}
        return PolicySet(self.policy, self.run.state.particles, self.task.name, settings)

    @property
    def iterations(self) -> int:
        """How many iterations were made."""
        return self.run.step

    @property
    def history(self) -> dict[str, np.ndarray]:
        """Scalars of the iterations so far, thinned evenly to at most 1024 of them."""
        columns = self.run.history.columns
        if not columns:
            return {}
        return training.summary(columns["step"], columns, self.steps_per_iteration)

    @property
    def steps_per_iteration(self) -> int:
        """Steps of environments in an iteration, of all particles together."""
        return self.particles * self.environments * self.horizon

    def train(
        self,
        iterations: int,
        *,
        progress: bool | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 50,
        log: str | os.PathLike[str] | None = None,
        tensorboard: str | os.PathLike[str] | None = None,
        callback: Callable[[int, dict[str, np.ndarray]], bool | None] | None = None,
        chunk: int = 10,
    ) -> SteinPolicyGradient:
        """Train until there were so many iterations in all.

        Parameters
        ----------
        iterations : int
            In all: a second call with the same number does nothing, with a larger one goes on.
        progress : bool or None
            Show a progress bar; None shows it only on a terminal.
        checkpoint : path-like, optional
            A directory to save to now and then. If it holds a checkpoint of this very run that is
            further on, the training goes on from there: a program that was killed is simply
            started again.
        checkpoint_every : int
            Iterations between two checkpoints.
        log : path-like, optional
            A file of JSON lines, one an iteration.
        tensorboard : path-like, optional
            A directory for TensorBoard.
        callback : callable, optional
            ``callback(iteration, columns)`` after each chunk; True ends the training.
        chunk : int
            Iterations between two looks.

        Returns
        -------
        SteinPolicyGradient
            This object.

        Raises
        ------
        DivergedError
            If a gradient is not finite.
        ModelFileError
            If the checkpoint is damaged, or of another run.
        """
        for name, value in (("iterations", iterations), ("checkpoint_every", checkpoint_every)):
            check_count(name, value, 1)
        check_count("chunk", chunk, 1)
        store = None
        if checkpoint is not None:
            store = Store(Path(checkpoint), self._identity)
            found = store.resume(self.run)
            self.run = found if found.step > self.run.step else self.run
        self.run = training.train(
            self._advance(),
            self.run,
            iterations=iterations,
            steps_per_iteration=self.steps_per_iteration,
            chunk=chunk,
            progress=progress,
            description=self.task.name,
            store=store,
            checkpoint_every=checkpoint_every,
            log=log,
            tensorboard=tensorboard,
            callback=callback,
        )
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a directory, atomically: settings, policies, and how to go on.

        For the policies alone there is ``agents.policies.save(path)``.
        """
        Store(Path(path), self._identity).save(self.run)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **objects: Any) -> SteinPolicyGradient:
        """Read what :meth:`save`, or a checkpoint of :meth:`train`, wrote.

        Parameters
        ----------
        path : path-like
            The directory.
        **objects
            Settings that were objects of your own, which no file can hold: an environment, a
            kernel, a schedule.

        Raises
        ------
        ModelFileError
            If the directory is damaged, foreign, or of a newer version.
        """
        _, metadata, _ = files.load_directory(path, kind=KIND, max_version=VERSION)
        try:
            described = dict(metadata["identity"]["settings"]["stein_policy_gradient"])
        except (KeyError, TypeError, ValueError):
            raise ModelFileError(f"{path} holds no policies that were being trained") from None
        settings = described.pop("settings", None)
        given = {
            name: _VOCABULARY.rebuild(value)
            for name, value in described.items()
            if name not in objects
        }
        try:
            agents = cls(**given, **objects, settings=settings)
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{path} does not describe a training: {error}") from None
        agents.run = Store(Path(path), agents._identity).resume(agents.run)
        return agents

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], iterations: int, **training_settings: Any
    ) -> SteinPolicyGradient:
        """Load a checkpoint and train on, with checkpoints to the same place, see :meth:`train`."""
        return cls.load(path).train(iterations, checkpoint=path, **training_settings)

    def watch(
        self,
        path: str | os.PathLike[str],
        *,
        particle: int | None = None,
        seed: int = 0,
        deterministic: bool = True,
        **rendering: Any,
    ) -> Path:
        """Play one episode and write it as a moving picture.

        Parameters
        ----------
        path : path-like
            Ends in ``.gif`` or ``.mp4``.
        particle : int, optional
            Whose episode; by default that of the policy with the best returns in the last
            iteration, or of the first if there was none.
        seed : int
            Of the episode.
        deterministic : bool
            Take the modes.
        **rendering
            For :func:`s2vgd.control.watching.watch`.
        """
        from s2vgd.control.watching import watch

        columns = self.run.history.columns
        if particle is None:
            particle = int(columns["returns"][-1].argmax()) if columns else 0
        return watch(
            self.policies, self.task, path, particle, seed, deterministic=deterministic, **rendering
        )

    def _advance(self) -> training.Advance:
        if isinstance(self.task, Environment):
            return training.compiled(self.algorithm)

        def iterate(state: State) -> tuple[State, Info]:
            key, rollout_key = jax.random.split(state.key)
            made = play(
                self.task,
                self.policy,
                state.particles,
                rollout_key,
                environments=self.environments,
                horizon=self.horizon,
            )
            return self.algorithm.learn(state._replace(key=key), made)

        return training.stepped(iterate)

    def _described(self) -> dict[str, Any]:
        """Return the settings as JSON; what is not, by its kind."""
        described = {
            name: _VOCABULARY.describe(value)
            for name, value in self._given.items()
            if name != "settings"
        }
        settings = self._given["settings"]
        described["settings"] = None if settings is None else dict(settings)
        return {"stein_policy_gradient": described}


def _named(name: str, value: Any, known: Mapping[str, Any]) -> Any:
    if not isinstance(value, str):
        return value
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    return known[value]


_init = jax.jit(lambda init, key, m: init(key, m), static_argnums=(0, 2))
