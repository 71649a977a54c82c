"""Calibration plots of ``s2vgd evaluate``: is what was called 90 % right 90 % of the time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from s2vgd.cli.scores import Rows, coverage
from s2vgd.tabular import TableCodec

_BINS = 10


def plot_calibration(codec: TableCodec, rows: Rows, path: Path) -> None:
    """Write a PNG: intervals against coverage for regression, a reliability diagram for classes."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    if codec.classes:
        _plot_reliability(left, right, rows["proba"], rows["y"])
    else:
        _plot_coverage(left, right, codec.targets, rows["pit"])
    left.plot([0, 1], [0, 1], color="0.6", linewidth=1, zorder=0)
    left.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    figure.savefig(path, dpi=150, format="png")


def _plot_coverage(left: Axes, right: Axes, targets: tuple[str, ...], pit: np.ndarray) -> None:
    levels = np.linspace(0.02, 0.98, 49)
    for i, name in enumerate(targets):
        observed = [coverage(pit[:, i], level) for level in levels]
        left.plot(levels, observed, label=name)
        right.hist(pit[:, i], bins=_BINS, range=(0, 1), density=True, histtype="step", label=name)
    left.set(xlabel="probability of the interval", ylabel="share of outcomes inside")
    left.set_title("above the diagonal: too cautious", fontsize="medium")
    right.axhline(1, color="0.6", linewidth=1, zorder=0)
    right.set(xlim=(0, 1), xlabel="predicted probability of a lower outcome", ylabel="density")
    right.set_title("flat when calibrated", fontsize="medium")
    if len(targets) > 1:
        left.legend()


def _plot_reliability(left: Axes, right: Axes, proba: np.ndarray, y: np.ndarray) -> None:
    confidence, correct = proba.max(axis=1), proba.argmax(axis=1) == y
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    used = np.unique(bins)
    mean_confidence = [confidence[bins == b].mean() for b in used]
    accuracy = [correct[bins == b].mean() for b in used]
    left.plot(mean_confidence, accuracy, marker="o", clip_on=False)
    left.set(xlabel="probability of the predicted class", ylabel="share that was right")
    left.set_title("above the diagonal: too cautious", fontsize="medium")
    right.bar(
        (np.arange(_BINS) + 0.5) / _BINS, np.bincount(bins, minlength=_BINS), width=0.9 / _BINS
    )
    right.set(xlim=(0, 1), xlabel="probability of the predicted class", ylabel="rows")
