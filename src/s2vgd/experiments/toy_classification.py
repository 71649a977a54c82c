"""The toy classification of the paper's supplement: two clusters, and who is sure of what between.

Ten points uniform on each of two squares, one hidden layer of 30 units, and for PBP_MV
the paper's 200 epochs; the Stein methods go on until they have settled. The paper draws a "ground
truth" that it does not define; here it is long HMC chains on an ordinary network. The picture gets
a number: how far each method's probabilities are from those of the reference, over the plane that
is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from s2vgd import datasets
from s2vgd.experiments import scores
from s2vgd.experiments.contenders import build
from s2vgd.experiments.harness import Grid, Outcome, as_json
from s2vgd.experiments.records import Run

NAME = "toy-classification"
REFERENCE = "hmc"

# Weights have variance 1 under all methods, so that the reference samples the same posterior.
_STEIN: dict[str, Any] = {"prior": 1.0, "particles": 20}


@dataclass(frozen=True, kw_only=True)
class Config(Grid):
    """Who learns what, and how.

    Parameters
    ----------
    hidden : tuple of int
        Widths of the hidden layers.
    reach : float
        The plane is drawn from ``-reach`` to ``reach`` in both directions.
    points : int
        Inputs drawn along each direction, over which distances are averaged.
    settings : mapping of str to mapping
        Settings of the methods.
    """

    methods: tuple[str, ...] = ("svgd", "pbp_mv", "s2vgd", "s2vgd_refined", REFERENCE)
    datasets: tuple[str, ...] = ("toy_classification",)
    seeds: int = 5
    hidden: tuple[int, ...] = (30,)
    reach: float = 6.0
    points: int = 41
    settings: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {
            "pbp_mv": {"epochs": 200},
            "svgd": _STEIN,
            "s2vgd": _STEIN,
            "s2vgd_refined": {"prior": 1.0, "refine": "hmc"},
            REFERENCE: {"prior": 1.0, "chains": 8, "warmup": 2000, "draws": 500, "thin": 10},
        }
    )


CONFIG = Config()
QUICK = Config(
    quick=True,
    seeds=1,
    settings={
        "pbp_mv": {"epochs": 40},
        "svgd": {**_STEIN, "steps": 300},
        "s2vgd": {**_STEIN, "steps": 300},
        "s2vgd_refined": {
            **{"prior": 1.0, "refine": "hmc"},
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
    """Learn from twenty points; score others, and write down the probabilities over the plane."""
    settings = {name: value for name, value in run.config.items() if name not in ("quick", "plane")}
    reach, points = run.config["plane"]
    data = datasets.toy_classification(run.seed)
    test = datasets.toy_classification(10_000 + run.seed, 250)
    model = build(run.method, "classification", settings, run.random_state)
    model.fit(data.x, data.y)
    line = np.linspace(-reach, reach, points)
    plane = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    predictive = model.predict_dist(plane)
    found = scores.classification(model.predict_dist(test.x), test.y)
    # Between the squares and far away, where the data say little, this is small if it should be.
    found["confidence"] = float(np.mean(predictive.proba.max(axis=1)))
    drawn = {
        "line": line,
        "probability": predictive.proba[:, 1],
        "data_x": data.x,
        "data_y": data.y,
    }
    return Outcome(found, {name: np.round(values, 4).tolist() for name, values in drawn.items()})


def _settings(config: Config, method: str) -> dict[str, Any]:
    chosen = {
        "hidden": config.hidden,
        "plane": (config.reach, config.points),
        **config.settings.get(method, {}),
    }
    return as_json(chosen | ({"quick": True} if config.quick else {}))
