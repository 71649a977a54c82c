"""Figure 3(c) of the paper: how many particles M are worth, on the first day of the news.

Logs, agents and scores are those of Figure 3(b), :mod:`~s2vgd.experiments.news`. The paper repeats
ten times on the first day; here each repetition on simulated data has a world of its own, the same
for all M and both methods, and on the real log only the agents' randomness differs.
"""

from __future__ import annotations

from dataclasses import dataclass

from s2vgd.experiments import news
from s2vgd.experiments.harness import Outcome
from s2vgd.experiments.mushroom import FRESH
from s2vgd.experiments.news import SIMULATED, needs
from s2vgd.experiments.records import Run

__all__ = ["CONFIG", "NAME", "QUICK", "Config", "execute", "grid", "needs"]

NAME = "particles"


@dataclass(frozen=True, kw_only=True)
class Config(news.Config):
    """Who recommends from which log, with how many particles.

    Parameters
    ----------
    particles : tuple of int
        The values of M.
    """

    methods: tuple[str, ...] = ("s2vgd", "svgd")
    splits: tuple[int, int] | None = (FRESH, FRESH + 10)
    events: int = 420_000
    days: int = 1
    particles: tuple[int, ...] = (1, 2, 5, 10, 20, 50)


CONFIG = Config()
QUICK = Config(
    quick=True,
    datasets=(SIMULATED,),
    splits=(0, 1),
    events=20_000,
    every=200,
    particles=(1, 5),
)


def grid(config: Config) -> list[Run]:
    """Return the runs; those on one log follow each other, so that it is simulated once."""
    first, last = config.splits or (FRESH, FRESH + 10)
    return [
        Run(NAME, method, name, split, seed, news.row_settings(config, name, method, particles=m))
        for name in config.datasets
        for split in range(first, last)
        for seed in range(config.seeds)
        for m in config.particles
        for method in config.methods
    ]


def execute(run: Run) -> Outcome:
    """Replay an agent of M particles and score its clicks."""
    return news.play(run)
