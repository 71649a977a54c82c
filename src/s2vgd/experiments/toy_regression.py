"""The toy regression of the paper's supplement: twenty points, and error bars around them.

One hidden layer of 100 units, and for PBP_MV the paper's 1500 epochs; the Stein methods go on until
they have settled. The picture gets a number: how far the predictive distribution of
each method is from that of long HMC chains on an ordinary network, over the inputs that are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from s2vgd import datasets, metrics
from s2vgd.experiments import scores
from s2vgd.experiments.contenders import build
from s2vgd.experiments.harness import Grid, Outcome, as_json
from s2vgd.experiments.records import Run

NAME = "toy-regression"
REFERENCE = "hmc"

# Twenty points say too little about the variance of three hundred weights: it is 1 for all methods
# that have one, so that the reference samples the same posterior.
_STEIN: dict[str, Any] = {"prior": 1.0, "particles": 20}


@dataclass(frozen=True, kw_only=True)
class Config(Grid):
    """Who learns what, and how.

    Parameters
    ----------
    hidden : tuple of int
        Widths of the hidden layers.
    grid_from, grid_to, grid_points
        The inputs that are drawn, and over which distances are averaged.
    levels : int
        Quantiles kept for each input.
    settings : mapping of str to mapping
        Settings of the methods.
    """

    methods: tuple[str, ...] = ("pbp_mv", "svgd", "s2vgd", "s2vgd_refined", REFERENCE)
    datasets: tuple[str, ...] = ("toy_regression",)
    seeds: int = 5
    hidden: tuple[int, ...] = (100,)
    grid_from: float = -0.25
    grid_to: float = 1.25
    grid_points: int = 61
    levels: int = 40
    settings: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {
            "pbp_mv": {"epochs": 1500},
            "svgd": _STEIN,
            "s2vgd": _STEIN,
            "s2vgd_refined": {"prior": 1.0, "noise": "constant", "refine": "hmc"},
            REFERENCE: {"prior": 1.0, "chains": 8, "warmup": 2000, "draws": 500, "thin": 10},
        }
    )


CONFIG = Config()
QUICK = Config(
    quick=True,
    seeds=1,
    settings={
        "pbp_mv": {"epochs": 100},
        "svgd": {**_STEIN, "steps": 500},
        "s2vgd": {**_STEIN, "steps": 500},
        "s2vgd_refined": {
            **{"prior": 1.0, "noise": "constant", "refine": "hmc"},
            **{"steps": 300, "chains": 4, "warmup": 200, "draws": 50},
        },
        REFERENCE: {"prior": 1.0, "chains": 4, "warmup": 300, "draws": 50, "thin": 2},
    },
)


def grid(config: Config) -> list[Run]:
    """Return the runs; each seed has points of its own."""
    return [
        Run(NAME, method, name, 0, seed, _settings(config, method))
        for name in config.datasets
        for seed in range(config.seeds)
        for method in config.methods
    ]


def needs(run: Run) -> tuple[str, ...]:
    """Return the data sets that a run reads: none that has to be there."""
    return ()


def execute(run: Run) -> Outcome:
    """Learn from twenty points; score others, and write down what is predicted along the grid."""
    settings = {name: value for name, value in run.config.items() if name not in ("quick", "grid")}
    first, last, points, levels = run.config["grid"]
    data, test = datasets.toy_regression(run.seed), datasets.toy_regression(10_000 + run.seed, 500)
    model = build(run.method, "regression", settings, run.random_state)
    model.fit(data.x, data.y)
    x = np.linspace(first, last, points)
    predictive = model.predict_dist(x[:, None])
    found = scores.regression(model.predict_dist(test.x), test.y)
    drawn = {
        "x": x,
        "mean": predictive.mean,
        "std": predictive.std,
        "truth": datasets.toy_function(x),
        "quantiles": predictive.quantile(scores.midpoints(levels)),
        "data_x": data.x[:, 0],
        "data_y": data.y,
    }
    found["width_90"] = metrics.interval_width(predictive, 0.9)
    return Outcome(found, {name: np.round(values, 5).tolist() for name, values in drawn.items()})


def _settings(config: Config, method: str) -> dict[str, Any]:
    chosen = {
        "hidden": config.hidden,
        "grid": (config.grid_from, config.grid_to, config.grid_points, config.levels),
        **config.settings.get(method, {}),
    }
    return as_json(chosen | ({"quick": True} if config.quick else {}))
