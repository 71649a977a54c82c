"""Table 2 of the paper: MNIST with two hidden layers, and what the networks say of other images.

The 60,000 training and 10,000 test images as published (the paper's text speaks of 50,000), pixels
divided by 126, no augmentation. Nothing is chosen on the test images: learning rates and numbers of
epochs (the paper: 150, or 100 in its text) were chosen with ``--set validation_rows=10000``, see
``results/selection``, and are the same for both networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from s2vgd import baselines, datasets
from s2vgd.experiments import scores
from s2vgd.experiments.harness import Grid, NotRun, Outcome, as_json, load
from s2vgd.experiments.records import Run
from s2vgd.predictive import CategoricalPredictive

NAME = "table2"
OTHERS = {"fashion": "fashion-mnist", "notmnist": "notmnist"}

Settings = Mapping[str, Mapping[str, Any]]
Widths = tuple[int, ...]

# As many parameters as 400-400 has with K = 10: the paper's control, for SVGD alone.
CONTROL: Widths = (415, 415)

# Rows of the table that are variants of one method in `s2vgd.baselines`.
VARIANTS = {"s2vgd_k10": "s2vgd", "s2vgd_k1": "s2vgd"}


@dataclass(frozen=True, kw_only=True)
class Config(Grid):
    """Who learns what, and how.

    Parameters
    ----------
    networks : tuple of tuple of int
        Widths of the hidden layers.
    controls : tuple of tuple of int
        Widths that only SVGD is run with.
    epochs, batch_size : int
        Of every method whose settings do not say otherwise.
    train_rows, test_rows : int
        Images to use, from the first on.
    validation_rows : int
        To choose settings: learn from that many training images less, and score those, the last
        ones, in place of the test images.
    pixel_scale : float
        What pixels, 0 to 255, are divided by.
    settings : mapping of str to mapping
        Settings of the methods; variance 1 of the prior is the default of all.
    """

    methods: tuple[str, ...] = (
        *("s2vgd_k10", "s2vgd_k1", "svgd", "sgld", "rmsprop", "rmsspectral", "sgd"),
        *("vmg_dropout", "bbb_gaussian", "bbb_scale_mixture", "dropout", "deep_ensemble"),
    )
    datasets: tuple[str, ...] = ("mnist",)
    networks: tuple[Widths, ...] = ((400, 400), (800, 800))
    controls: tuple[Widths, ...] = (CONTROL,)
    seeds: int = 3
    epochs: int = 30
    batch_size: int = 100
    train_rows: int = 60_000
    test_rows: int = 10_000
    validation_rows: int = 0
    pixel_scale: float = 126.0
    settings: Settings = field(
        default_factory=lambda: {
            "s2vgd_k10": {"reflections": 10, "particles": 20, "learning_rate": 2e-3},
            "s2vgd_k1": {"reflections": 1, "particles": 20, "learning_rate": 2e-3},
            "svgd": {"particles": 20, "learning_rate": 2e-3},
            "sgld": {"learning_rate": 0.5, "epochs": 100},
            "rmsprop": {"learning_rate": 1e-3},
            "rmsspectral": {"learning_rate": 1e-4},
            "sgd": {"learning_rate": 0.1, "epochs": 50},
            "vmg_dropout": {
                "learning_rate": 3e-3,
                "epochs": 60,
                "pseudo_rows": 50,
                "max_alpha": 1e-4,
            },
            "bbb_gaussian": {"learning_rate": 1e-3, "epochs": 100},
            "bbb_scale_mixture": {"learning_rate": 1e-3, "epochs": 100},
            "dropout": {
                "learning_rate": 0.1,
                "epochs": 150,
                "optimizer": "sgd",
                "rate": 0.5,
                "input_rate": 0.2,
            },
            "deep_ensemble": {"learning_rate": 1e-3},
        }
    )


CONFIG = Config()
QUICK = Config(
    quick=True,
    methods=("s2vgd_k1", "svgd", "sgd", "dropout"),
    networks=((100, 100),),
    controls=(),
    seeds=1,
    epochs=2,
    train_rows=5000,
    test_rows=2000,
    settings={
        name: {key: value for key, value in settings.items() if key != "epochs"}
        for name, settings in CONFIG.settings.items()
    },
)

# Table 2 of the paper (label tab:fnn) and its text: test errors in per cent, by method and widths.
PAPER: dict[str, dict[Widths, float]] = {
    "s2vgd_k10": {(400, 400): 1.36, (800, 800): 1.30},
    "s2vgd_k1": {(400, 400): 1.43, (800, 800): 1.39},
    "svgd": {(400, 400): 1.53, (800, 800): 1.47, CONTROL: 1.49},
    "sgld": {(400, 400): 1.64, (800, 800): 1.41},
    "rmsprop": {(400, 400): 1.59, (800, 800): 1.43},
    "rmsspectral": {(400, 400): 1.65, (800, 800): 1.56},
    "sgd": {(400, 400): 1.72, (800, 800): 1.47},
    "vmg_dropout": {(400, 400): 1.15},
    "bbb_gaussian": {(400, 400): 1.82, (800, 800): 1.99},
    "bbb_scale_mixture": {(400, 400): 1.32, (800, 800): 1.34},
    "dropout": {(400, 400): 1.51, (800, 800): 1.33},
}


def grid(config: Config) -> list[Run]:
    """Return the runs, network after network."""
    controlled = tuple(method for method in config.methods if method == "svgd")
    pairs = [(widths, config.methods) for widths in config.networks]
    pairs += [(widths, controlled) for widths in config.controls]
    return [
        Run(NAME, method, name, 0, seed, _settings(config, method, widths))
        for name in config.datasets
        for widths, methods in pairs
        for method in methods
        for seed in range(config.seeds)
    ]


def needs(run: Run) -> tuple[str, ...]:
    """Return the data sets that a run reads."""
    return (run.dataset, *OTHERS.values())


def execute(run: Run) -> Outcome:
    """Learn the digits; score test digits, and how well they are told from other images."""
    settings = {name: value for name, value in run.config.items() if name != "quick"}
    train_rows, test_rows = settings.pop("train_rows"), settings.pop("test_rows")
    pixel_scale, epochs = settings.pop("pixel_scale"), settings.pop("epochs")
    digits = load(run.dataset)
    train, test = digits.splits[0]
    train, test = train[:train_rows], test[:test_rows]
    if held_out := settings.pop("validation_rows", 0):
        train, test = train[:-held_out], train[-held_out:]
    rivals, method = baselines.methods(), VARIANTS.get(run.method, run.method)
    if method not in rivals:
        raise NotRun(f"method missing: nothing in s2vgd.baselines is named {method}")
    model = rivals[method](
        hidden=tuple(settings.pop("hidden")),
        activation="relu",
        standardise=False,
        steps=epochs * (len(train) // settings["batch_size"]),
        seed=run.random_state,
        **settings,
    )
    model.fit(digits.x[train] / np.float32(pixel_scale), digits.y[train])
    inside = predict(model, digits.x[test], pixel_scale)
    metrics = scores.classification(inside, digits.y[test])
    for short, name in OTHERS.items():
        if datasets.info(name).where != "not present":
            outside = predict(model, load(name).x[:test_rows], pixel_scale)
            metrics |= scores.out_of_distribution(inside, outside, short)
    return Outcome(metrics)


def predict(model: Any, pixels: np.ndarray, pixel_scale: float) -> CategoricalPredictive:
    """Return what a model says about images (N, 784) of pixels 0 to 255."""
    predictive = model.predict_dist(pixels.astype(np.float32) / np.float32(pixel_scale))
    return cast(CategoricalPredictive, predictive)


def _settings(config: Config, method: str, widths: Widths) -> dict[str, Any]:
    chosen = {
        "hidden": widths,
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "train_rows": config.train_rows,
        "test_rows": config.test_rows,
        "pixel_scale": config.pixel_scale,
        **config.settings.get(method, {}),
    }
    if config.validation_rows:
        chosen["validation_rows"] = config.validation_rows
    return as_json(chosen | ({"quick": True} if config.quick else {}))
