"""Figure 4 of the paper: sets of policies on three tasks, with REINFORCE and with A2C gradients.

Each method trains 16 policies of 25-10 tanh units (SVGD* has 25-16, and the single agent is one
policy with the whole batch), all on as many steps of the environments. Every rollout is used for
ten updates, where the paper makes one. Returns are of complete first episodes, played apart from
training. How policies are trained is in :mod:`s2vgd.control`.

The number of a split is the seed. Learning rates are to be chosen on seeds below :data:`FRESH`,
from the same values for every method::

    s2vgd reproduce control --splits 0:5 --set learning_rates=[0.001,0.003,0.01]

What is reported is on seeds from there on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from s2vgd.control import SteinPolicyGradient, train_together
from s2vgd.control.critics import LinearCritic
from s2vgd.control.gradients import A2C, Estimator, Reinforce
from s2vgd.experiments.harness import Grid, NotRun, Outcome, as_json
from s2vgd.experiments.records import Run

NAME = "control"
FRESH = 3000
"""The first seed that nothing was chosen on."""
ITERATIONS = {"cartpole": 100, "swing-up": 500, "double-pendulum": 300}
DISSIPATIVE = {"integrator": "projection"}
TASK_SETTINGS: dict[str, dict[str, Any]] = {
    "cartpole": DISSIPATIVE,
    "swing-up": DISSIPATIVE,
    "double-pendulum": {**DISSIPATIVE, "tip": "rllab"},
}
"""The published curves are about rllab's engine, which dissipates energy, and about its tip."""
DECAYS = {"cartpole": 1.0, "swing-up": 1.0, "double-pendulum": 0.97}
"""λ of A2C, the same for all methods; chosen on seeds 0 and 1."""
HALVINGS = 3
"""How often the learning rate is halved while training."""
AGENTS = ("s2vgd", "svgd", "svgd_star", "independent", "single")
ESTIMATORS = ("a2c", "reinforce")
METHODS = tuple(f"{agent}_{estimator}" for estimator in ESTIMATORS for agent in AGENTS)
RATES = (1e-3, 3e-3, 1e-2)
"""What learning rates are chosen from."""
_OTHERS = {
    "cartpole": {
        **{f"{agent}_reinforce": 1e-3 for agent in AGENTS},
        **dict.fromkeys(("svgd_star_a2c", "single_a2c"), 3e-3),
    },
    "swing-up": {
        **dict.fromkeys(("s2vgd_a2c", "svgd_a2c", "svgd_star_reinforce"), 3e-3),
        **dict.fromkeys(("s2vgd_reinforce", "svgd_reinforce"), 1e-3),
    },
    "double-pendulum": {"single_reinforce": 3e-3},
}
LEARNING_RATES = {name: dict.fromkeys(METHODS, 1e-2) | _OTHERS[name] for name in ITERATIONS}
"""The learning rates chosen: of `RATES`, with the best mean return at the end on seeds 0 to 4."""
# Apart from the numbers that training with the same seed begins with.
_EVALUATION = 1_000_000


def settings(
    particles: int = 16,
    environments: int = 10,
    hidden: Sequence[int] = (25, 10),
    wider: Sequence[int] = (25, 16),
    updates: int = 10,
    entropy: float = 0.01,
) -> dict[str, dict[str, Any]]:
    """Return all settings of all methods but the learning rate.

    Parameters
    ----------
    particles : int
        M; the single agent has as many environments as all of them together.
    environments : int
        For each particle.
    hidden, wider : sequence of int
        Widths of the layers, and those of SVGD*.
    updates : int
        With each rollout.
    entropy : float
        Weight of the entropy of the actions.
    """
    common = {
        **{"particles": particles, "environments": environments},
        **{"hidden": list(hidden), "activation": "tanh", "log_std": -0.7},
        **{"temperature": 1.0, "prior_variance": None, "clip": 0.2},
        **{"updates": updates, "entropy": entropy},
    }
    plain = {"reflections": 0, "scales": None}
    agents: dict[str, dict[str, Any]] = {
        "s2vgd": {"reflections": 1, "scales": "lognormal", "kernel": "rbf"},
        "svgd": {**plain, "kernel": "rbf"},
        "svgd_star": {**plain, "kernel": "rbf", "hidden": list(wider)},
        "independent": {**plain, "kernel": None},
        "single": {
            **{**plain, "kernel": None},
            **{"particles": 1, "environments": particles * environments},
        },
    }
    return {
        f"{agent}_{estimator}": {**common, **agents[agent], "estimator": estimator}
        for estimator in ESTIMATORS
        for agent in AGENTS
    }


@dataclass(frozen=True, kw_only=True)
class Config(Grid):
    """Who learns what, for how long.

    Parameters
    ----------
    iterations : int or mapping of str to int
        Of training, for all tasks or by task; a task that is not named has that of `ITERATIONS`.
    checkpoints : tuple of int
        Iterations after which policies are scored, those before the last.
    episodes : int
        For each particle, to score it.
    points : int
        At most so many of the curve that is drawn.
    settings : mapping of str to mapping
        Of the methods, see :func:`settings`.
    chosen : mapping of str to mapping of str to float
        Learning rates, by task and method.
    learning_rates : tuple of float
        Run every method with each of these in place of the chosen one.
    """

    methods: tuple[str, ...] = METHODS
    datasets: tuple[str, ...] = tuple(ITERATIONS)
    splits: tuple[int, int] | None = (FRESH, FRESH + 5)
    iterations: int | Mapping[str, int] = field(default_factory=lambda: ITERATIONS)
    checkpoints: tuple[int, ...] = (25, 100, 300, 500)
    episodes: int = 20
    points: int = 200
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=settings)
    chosen: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: LEARNING_RATES)
    learning_rates: tuple[float, ...] = ()


CONFIG = Config()
QUICK = Config(
    quick=True,
    methods=("s2vgd_a2c", "svgd_a2c", "s2vgd_reinforce"),
    datasets=("cartpole",),
    splits=(0, 2),
    iterations=3,
    checkpoints=(1,),
    episodes=2,
    settings=settings(particles=4, environments=2, hidden=(5,), wider=(8,)),
)


def grid(config: Config) -> list[Run]:
    """Return the runs, one seed each; the number of the split is the seed."""
    first, last = config.splits or (FRESH, FRESH + 5)
    return [
        Run(NAME, method, name, split, seed, _settings(config, name, method, rate))
        for name in config.datasets
        for method in config.methods
        for rate in config.learning_rates or (config.chosen.get(name, {}).get(method, 1e-2),)
        for split in range(first, last)
        for seed in range(config.seeds)
    ]


def needs(run: Run) -> tuple[str, ...]:
    """Return the data sets that a run reads: none."""
    return ()


def execute(run: Run) -> Outcome:
    """Train a set of policies; score it now and then, and write down how its returns grew."""
    return execute_together([run])[0]


def execute_together(runs: Sequence[Run]) -> list[Outcome]:
    """Do that for several seeds side by side."""
    config = runs[0].config
    sets = [build(run) for run in runs]
    last = config["iterations"]
    metrics: list[dict[str, float]] = [{} for _ in runs]
    for n in (*(c for c in sorted(config["checkpoints"]) if c < last), last):
        if len(sets) > 1:
            train_together(sets, n)
        else:
            sets[0].train(n, progress=False)
        for run, agents, kept in zip(runs, sets, metrics, strict=True):
            found = scores(agents, config["episodes"], _EVALUATION + run.random_state)
            kept |= {f"{name}_{n}": value for name, value in found.items()}
            if n == last:
                kept |= found
    for agents, kept in zip(sets, metrics, strict=True):
        kept["parameters"] = float(_parameters(agents))
        kept["environment_steps"] = float(last * agents.steps_per_iteration)
    return [
        Outcome(kept, _curve(agents, config["points"]))
        for agents, kept in zip(sets, metrics, strict=True)
    ]


def build(run: Run) -> SteinPolicyGradient:
    """Return the policies of a run, before any training."""
    if not run.config["agent"]:
        raise NotRun(f"method missing: no policies are trained by the name of {run.method}")
    chosen = dict(run.config["agent"])
    estimator: Estimator = A2C(decay=run.config["decay"])
    if chosen.pop("estimator") == "reinforce":
        estimator = Reinforce(baseline=LinearCritic())
    return SteinPolicyGradient(
        run.dataset,
        settings=run.config["task"],
        seed=run.random_state,
        estimator=estimator,
        **chosen,
    )


def scores(agents: SteinPolicyGradient, episodes: int, seed: int) -> dict[str, float]:
    """Score policies as they are now.

    Returns
    -------
    dict
        The figures of :meth:`s2vgd.control.Evaluation.summary`, once as they are and once, as
        ``deterministic_...``, with the modes taken; ``area``, the mean return over particles in
        the mean over all iterations so far; and the measures of
        :class:`s2vgd.control.exploration.Exploration`.
    """
    policies = agents.policies
    drawn, modes = (
        policies.evaluate(episodes=episodes, seed=seed, deterministic=deterministic).summary()
        for deterministic in (False, True)
    )
    explored = policies.explore(episodes=episodes, seed=seed)
    return {
        **drawn,
        **{f"deterministic_{name}": value for name, value in modes.items()},
        "area": float(np.mean(agents.history["return"], dtype=np.float64)),
        **{name: float(value) for name, value in explored._asdict().items()},
    }


def _parameters(agents: SteinPolicyGradient) -> int:
    """Count the parameters of one policy."""
    leaves = jax.tree.leaves(agents.policies.particles)
    return sum(leaf.size for leaf in leaves) // agents.particles


def _curve(agents: SteinPolicyGradient, points: int) -> dict[str, Any]:
    """Return the returns while training, thinned evenly; the last iteration is always there."""
    history = agents.history
    n = len(history["iteration"])
    kept = np.unique(np.linspace(0, n - 1, min(points, n)).round().astype(int))
    return {
        "iterations": history["iteration"][kept].tolist(),
        "mean": np.round(history["return"][kept].astype(float), 2).tolist(),
        "best": np.round(history["best_return"][kept].astype(float), 2).tolist(),
        "steps_per_iteration": agents.steps_per_iteration,
    }


def _settings(config: Config, name: str, method: str, rate: float) -> dict[str, Any]:
    given = config.iterations
    last = given if isinstance(given, int) else {**ITERATIONS, **given}[name]
    agent = config.settings.get(method)
    rates = {"learning_rate": rate, "halve_every": max(1, last // HALVINGS)}
    chosen = {
        "iterations": last,
        "checkpoints": config.checkpoints,
        "episodes": config.episodes,
        "points": config.points,
        "task": TASK_SETTINGS.get(name, {}),
        "decay": DECAYS.get(name, 1.0),
        "agent": {**agent, **rates} if agent else {},
    }
    return as_json(chosen | ({"quick": True} if config.quick else {}))
