"""More worlds than the paper's: agents side by side, as in the showdown of Riquelme et al. (2018).

Three tables as classification bandits, a reward of 1 for naming the class; the wheel, where the
best action pays rarely and only those who look find it; a smooth synthetic world with known truth;
and the mushrooms. Settings are those of :mod:`~s2vgd.experiments.mushroom` with the noise of each
world put in, and were chosen on none of the other worlds. As there, the number of a split is the
seed of a simulation, and seeds from 2000 on have been used for no choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from s2vgd import bandits
from s2vgd.bandits import World
from s2vgd.experiments import bandit_agents, mushroom
from s2vgd.experiments.harness import Grid, NotRun, Outcome, as_json, load
from s2vgd.experiments.mushroom import FRESH, Settings
from s2vgd.experiments.records import Run

NAME = "worlds"
TABLES = ("shuttle", "adult", "covertype")
MADE = ("wheel-0.95", "wheel-0.5", "nonlinear")
STD = {
    # The most that a reward of 0 or 1 can scatter.
    **dict.fromkeys(TABLES, 0.5),
    # The wheel's own noise of 0.01 would make one reward outweigh the whole prior.
    **{"wheel-0.95": 1.0, "wheel-0.5": 1.0},
    "nonlinear": 0.5,
    "mushroom": mushroom.STD["mushroom"],
}
"""The noise that agents with fixed noise suppose, in each world's own units of reward."""


@dataclass(frozen=True, kw_only=True)
class Config(Grid):
    """Who decides where, for how long.

    Parameters
    ----------
    steps : int
        T, the number of decisions.
    settings : mapping of str to mapping
        Settings of the methods, by world.
    """

    methods: tuple[str, ...] = tuple(bandit_agents.BUILDERS)
    datasets: tuple[str, ...] = tuple(STD)
    splits: tuple[int, int] | None = (FRESH, FRESH + 5)
    steps: int = 5000
    settings: Mapping[str, Settings] = field(
        default_factory=lambda: {name: mushroom.settings(std) for name, std in STD.items()}
    )


CONFIG = Config()
QUICK = Config(
    quick=True,
    methods=("s2vgd", "linucb", "uniform"),
    datasets=("wheel-0.5", "nonlinear"),
    splits=(0, 2),
    steps=300,
)


def grid(config: Config) -> list[Run]:
    """Return the runs, one seed each, world after world."""
    first, last = config.splits or (FRESH, FRESH + 5)
    return [
        Run(NAME, method, name, split, seed, _settings(config, name, method))
        for name in config.datasets
        for method in config.methods
        for split in range(first, last)
        for seed in range(config.seeds)
    ]


def needs(run: Run) -> tuple[str, ...]:
    """Return the data sets that a run reads."""
    return () if run.dataset in MADE else (run.dataset,)


def execute(run: Run) -> Outcome:
    """Let an agent decide T times, and beside it chance, on the same contexts."""
    return execute_together([run])[0]


def execute_together(runs: Sequence[Run]) -> list[Outcome]:
    """Do that for several seeds side by side."""
    steps, seeds = runs[0].config["steps"], [run.random_state for run in runs]
    played = world(runs[0].dataset)
    agent = bandit_agents.build(runs[0].method, played.shape, runs[0].config["agent"])
    regrets, of_chance = (
        bandits.simulate(who, played, steps, seeds=seeds).curve(1)[1][:, -1]
        for who in (agent, bandits.uniform())
    )
    return [
        Outcome({"regret": float(regret), "relative": float(100 * regret / chance)})
        for regret, chance in zip(regrets, of_chance, strict=True)
    ]


@lru_cache(maxsize=1)
def world(name: str) -> World:
    """Return the world of that name.

    Columns of tables are standardised by the whole table, except those of 0 and 1 alone, which
    would become huge where a 1 is rare.
    """
    kind, _, number = name.partition("-")
    if kind == "wheel":
        return bandits.wheel(float(number))
    if name == "nonlinear":
        return bandits.nonlinear()
    if name == "mushroom":
        return mushroom.world(name)
    if name not in TABLES:
        raise NotRun(f"world missing: none is named {name}")
    data = load(name)
    return bandits.classification(standardised(data.x), data.y)


def standardised(x: np.ndarray) -> np.ndarray:
    """Return a table (N, F) whose columns have mean 0 and variance 1, unless they are 0 and 1."""
    is_binary = ((x == 0) | (x == 1)).all(axis=0)
    spread = x.std(axis=0)
    scale = np.where(is_binary | (spread == 0), 1.0, spread)
    return (x - np.where(is_binary, 0.0, x.mean(axis=0))) / scale


def _settings(config: Config, name: str, method: str) -> dict[str, Any]:
    agent = config.settings.get(name, {}).get(method, {})
    chosen = {"steps": config.steps, "agent": agent}
    return as_json(chosen | ({"quick": True} if config.quick else {}))
