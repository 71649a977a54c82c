"""Figure 1 of the paper: how many reflections K and particles M are worth, on Covertype.

Class 2 (Lodgepole Pine) against the rest, as in the SVGD paper. The paper says 5 runs a setting and
nothing of network or split: here a random fifth of the rows is for testing, another one in each
run, and the network has one hidden layer of 50 units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from s2vgd import baselines, metrics
from s2vgd.experiments.harness import Grid, Outcome, as_json, load
from s2vgd.experiments.records import Run

NAME = "hyper"


@dataclass(frozen=True, kw_only=True)
class Config(Grid):
    """Who learns what, and how.

    Parameters
    ----------
    reflections, particles : tuple of int
        The values of K and M. K = 0 is SVGD, without scales either.
    hidden : tuple of int
        Widths of the hidden layers.
    epochs, batch_size, learning_rate
        The same for all, fixed beforehand.
    rows : int
        Rows to draw the split from; all by default.
    test_share : float
        Of the rows.
    """

    methods: tuple[str, ...] = ("svgd", "s2vgd")
    datasets: tuple[str, ...] = ("covertype",)
    splits: tuple[int, int] | None = (0, 5)
    reflections: tuple[int, ...] = (0, 1, 2, 4, 8)
    particles: tuple[int, ...] = (1, 2, 5, 10, 20, 50)
    hidden: tuple[int, ...] = (50,)
    epochs: int = 3
    batch_size: int = 100
    learning_rate: float = 1e-2
    rows: int = 581_012
    test_share: float = 0.2


CONFIG = Config()
QUICK = Config(
    quick=True, splits=(0, 1), reflections=(0, 1), particles=(1, 5), epochs=1, rows=20_000
)


def grid(config: Config) -> list[Run]:
    """Return the runs; the number of the split decides which rows are for testing."""
    first, last = config.splits or (0, 5)
    return [
        Run(NAME, method, name, split, seed, _settings(config, k, m))
        for name in config.datasets
        for m in config.particles
        for k in config.reflections
        for method in config.methods
        if method == ("s2vgd" if k else "svgd")
        for split in range(first, last)
        for seed in range(config.seeds)
    ]


def needs(run: Run) -> tuple[str, ...]:
    """Return the data sets that a run reads."""
    return (run.dataset,)


def execute(run: Run) -> Outcome:
    """Learn from four fifths of the rows, and score the rest."""
    settings = {name: value for name, value in run.config.items() if name != "quick"}
    rows, share, epochs = (settings.pop(name) for name in ("rows", "test_share", "epochs"))
    data = load(run.dataset)
    order = np.random.default_rng(run.split).permutation(len(data.y))[:rows]
    test, train = np.split(order, [round(share * len(order))])
    y = (data.y == 1).astype(np.int64)  # counted from 0: class 2 of 7
    if run.method == "svgd":
        settings.pop("reflections")
    model = baselines.methods()[run.method](
        hidden=tuple(settings.pop("hidden")),
        steps=epochs * (len(train) // settings["batch_size"]),
        seed=run.random_state,
        **settings,
    )
    model.fit(data.x[train], y[train])
    predictive = model.predict_dist(data.x[test])
    return Outcome(
        {
            "accuracy": metrics.accuracy(predictive, y[test]),
            "log_likelihood": metrics.log_likelihood(predictive, y[test]),
        }
    )


def _settings(config: Config, reflections: int, particles: int) -> dict[str, Any]:
    chosen = {
        "reflections": reflections,
        "particles": particles,
        "hidden": config.hidden,
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "learning_rate": config.learning_rate,
        "rows": config.rows,
        "test_share": config.test_share,
    }
    return as_json(chosen | ({"quick": True} if config.quick else {}))
