"""Drawing: predictions of several methods side by side, and how far they can be believed.

Functions take numbers and return a Matplotlib figure; :func:`to_svg` writes it, for a file or for
a page whose text colour it then takes on. Nothing is fitted here, and Matplotlib's global settings
are left as they were.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from s2vgd import metrics
from s2vgd.predictive import MixturePredictive, Predictive

INK = "#24292f"
# Of Okabe and Ito: told apart by readers with any colour vision, on white and on black.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "font.family": "sans-serif",
    "font.size": 10,
    "legend.frameon": False,
    "legend.fontsize": "small",
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
_LEVELS = np.linspace(0.02, 0.98, 49)


@contextmanager
def style(extra: dict[Any, Any] | None = None) -> Iterator[None]:
    """Draw in the manner of this module, in a ``with`` block or as a decorator."""
    with matplotlib.rc_context({**_STYLE, **(extra or {})}):
        yield


def to_svg(figure: Figure, name: str, *, inline: bool = False) -> str:
    """Write a figure as SVG; the same figure gives the same text.

    Parameters
    ----------
    figure : Figure
        One of this module's.
    name : str
        Told apart from other figures on the same page by it.
    inline : bool
        Return an element for an HTML page, transparent and drawn in the page's text colour, in
        place of a file on white ground.
    """
    buffer = io.StringIO()
    keys = ("Date", "Creator", "Format", "Type")
    with style({"svg.hashsalt": name}):
        figure.savefig(
            buffer,
            format="svg",
            metadata=dict.fromkeys(keys),
            **({"transparent": True} if inline else {"facecolor": "white"}),
        )
    text = buffer.getvalue()
    if not inline:
        return text
    # Names such as "axes_1" are for programs, and would be there once for every figure of a page.
    text = re.sub(r'<g id="[\w.]+_\d+">', "<g>", text[text.index("<svg") :])
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return text.replace(INK, "currentColor")


@style()
def curves(
    x: np.ndarray,
    y: np.ndarray,
    grid: np.ndarray,
    truth: np.ndarray,
    methods: Mapping[str, Predictive],
) -> Figure:
    """Draw predictions along one input, a panel a method.

    Parameters
    ----------
    x, y : array, shape (N,)
        Training points.
    grid : array, shape (G,)
        Inputs of the predictions.
    truth : array, shape (G,)
        The noise-free answer there.
    methods : mapping of str to Predictive
        Predictions on the grid, by method.
    """
    figure, axes = panels(len(methods), height=3.2)
    for (name, predictive), axis, colour in zip(methods.items(), axes, COLOURS, strict=False):
        mean, std = predictive.mean, predictive.std
        lower, upper = predictive.interval(0.9)
        wide = {"alpha": 0.18, "linewidth": 0, "color": colour}
        axis.fill_between(grid, mean - 3 * std, mean + 3 * std, **wide, label="±3 sd")
        axis.fill_between(grid, lower, upper, **(wide | {"alpha": 0.3}), label="90 % interval")
        axis.plot(grid, mean, color=colour, label="mean")
        axis.plot(grid, truth, color=INK, linewidth=1, linestyle="--", label="truth")
        axis.plot(x, y, "o", color=INK, markersize=3.5, label="data")
        axis.set(title=name, xlabel="x", xlim=(grid[0], grid[-1]))
    reach = np.ptp(truth)
    axes[0].set(ylabel="y", ylim=(truth.min() - reach, truth.max() + reach))
    axes[0].legend(loc="lower left", ncols=2, handlelength=1.4, columnspacing=1)
    return figure


@style()
def parity(y: np.ndarray, methods: Mapping[str, Predictive], unit: str) -> Figure:
    """Draw predictions against outcomes, and below them the errors, with their 90 % intervals.

    Parameters
    ----------
    y : array, shape (N,)
        Outcomes.
    methods : mapping of str to Predictive
        Predictions of the same rows, by method.
    unit : str
        What is predicted, for the axes.
    """
    figure, axes = panels(len(methods), height=5.2, rows=2)
    for i, (name, predictive) in enumerate(methods.items()):
        mean, colour = predictive.mean, COLOURS[i]
        lower, upper = predictive.interval(0.9)
        # The mean of a skewed prediction may lie outside its central interval.
        bars = np.maximum([mean - lower, upper - mean], 0)
        style = {"fmt": "o", "markersize": 3, "linewidth": 1, "color": colour}
        axes[0, i].errorbar(y, mean, bars, **style)
        axes[0, i].plot([y.min(), y.max()], [y.min(), y.max()], color=INK, linewidth=0.8)
        axes[1, i].errorbar(y, mean - y, bars, **style)
        axes[1, i].axhline(0, color=INK, linewidth=0.8)
        axes[0, i].set_title(name)
        axes[1, i].set_xlabel(f"true {unit}")
    axes[0, 0].set_ylabel("predicted")
    axes[1, 0].set_ylabel("predicted − true")
    return figure


@style()
def calibration(
    problems: Mapping[str, Mapping[str, MixturePredictive]], outcomes: Mapping[str, np.ndarray]
) -> Figure:
    """Draw how many outcomes fall inside the intervals of each level, a panel a problem.

    Parameters
    ----------
    problems : mapping of str to mapping of str to MixturePredictive
        Predictions by problem and method.
    outcomes : mapping of str to array, shape (N,)
        What happened, by problem.
    """
    figure, axes = panels(len(problems), height=3.8, width=3.8)
    for (problem, methods), axis in zip(problems.items(), axes, strict=True):
        y = outcomes[problem]
        chance = 1.96 * np.sqrt(_LEVELS * (1 - _LEVELS) / len(y))
        band = np.clip([_LEVELS - chance, _LEVELS + chance], 0, 1)
        axis.fill_between(_LEVELS, *band, color=INK, alpha=0.12, linewidth=0, label="by chance")
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8)
        for (name, predictive), colour in zip(methods.items(), COLOURS, strict=False):
            observed = metrics.coverage_table(predictive, y, _LEVELS)
            axis.plot(observed.keys(), observed.values(), color=colour, label=name)
        axis.set(
            title=f"{problem}, {len(y)} outcomes",
            xlabel="probability of the interval",
            xlim=(0, 1),
            ylim=(0, 1),
            aspect="equal",
        )
    axes[0].set_ylabel("share of outcomes inside")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


@style()
def panels(
    columns: int,
    height: float,
    rows: int = 1,
    width: float = 3.2,
    share: Literal["row", "col"] = "row",
) -> tuple[Figure, np.ndarray]:
    """Return an empty figure and its axes, (columns,) or (rows, columns).

    Parameters
    ----------
    columns, rows : int
        Panels across and down.
    height, width : float
        Of the figure, and of one column, in inches.
    share : {"row", "col"}
        Which panels have the same limits.
    """
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False)
    return figure, axes if rows > 1 else axes[0]
