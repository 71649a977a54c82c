"""Figures of the report, drawn from the numbers in result files.

The manner of drawing is that of :mod:`~s2vgd.experiments.figures`, which draws predictive
distributions while they are at hand; here there are only the numbers that were written down.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from s2vgd.experiments.figures import COLOURS, INK, panels, style
from s2vgd.experiments.summary import Estimate

# The rest of the colours of Okabe and Ito, and a grey.
PALETTE = (*COLOURS, "#56b4e9", "#e69f00", "#8c8c8c")
_MARKERS = ("o", "s", "^", "D")
_DASHES = ("-", "--", ":")
_DIVERGING, _SEQUENTIAL = "RdBu_r", "viridis"


def to_png(figure: Figure) -> bytes:
    """Write a figure as PNG on white ground."""
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format="png", dpi=150, facecolor="white", metadata={"Software": ""})
    return buffer.getvalue()


@style()
def dots(
    series: Mapping[str, Mapping[str, Estimate]],
    label: str,
    marked: float | None = None,
    band: tuple[float, float] | None = None,
    linear: float | None = None,
) -> Figure:
    """Draw an estimate for each name and method, with two standard errors to either side.

    Parameters
    ----------
    series : mapping of str to mapping of str to Estimate
        By method, then by name; a name may be missing.
    label : str
        What is drawn.
    marked : float, optional
        Where to draw a line.
    band : pair of float, optional
        What to shade.
    linear : float, optional
        Where the axis, linear around zero, becomes logarithmic, so that one method far off does not
        push all the others together.
    """
    names = list(dict.fromkeys(name for found in series.values() for name in found))
    figure, (axis,) = panels(1, height=1.2 + 0.55 * len(names), width=8.4)
    height = 0.7 / max(len(series), 1)
    for i, (method, found) in enumerate(series.items()):
        places = [names.index(name) + (i + 0.5) * height - 0.35 for name in found]
        errors = [0.0 if np.isnan(e.error) else 2 * e.error for e in found.values()]
        axis.errorbar(
            [e.mean for e in found.values()],
            places,
            xerr=errors,
            fmt=_MARKERS[i // len(PALETTE) % len(_MARKERS)],
            color=PALETTE[i % len(PALETTE)],
            markersize=4,
            linewidth=1,
            label=method,
        )
    for i in range(1, len(names)):
        axis.axhline(i - 0.5, color=INK, linewidth=0.3, alpha=0.4)
    if band is not None:
        axis.axvspan(*band, color=INK, alpha=0.1, linewidth=0)
    if marked is not None:
        axis.axvline(marked, color=INK, linewidth=0.8)
    if linear is not None:
        axis.set_xscale("symlog", linthresh=linear, linscale=2)
        low, high = axis.get_xlim()
        steps = [0.0] + [sign * linear * s for s in (0.5, 1, 2, 5, 10, 20) for sign in (-1, 1)]
        ticks = sorted(step for step in steps if low <= step <= high)
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_xticks([], minor=True)
    axis.set(xlabel=label, yticks=range(len(names)), yticklabels=names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=4)
    return figure


@style()
def bands(methods: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw means and three standard deviations along one input, a panel a method.

    Parameters
    ----------
    methods : mapping of str to mapping
        Of each method ``x``, ``mean``, ``std``, ``truth`` (G,) and ``data_x``, ``data_y`` (N,).
    """
    figure, axes = panels(len(methods), height=3.2, width=2.7)
    for i, ((name, drawn), axis) in enumerate(zip(methods.items(), axes, strict=True)):
        x, mean, std, truth = (np.asarray(drawn[k]) for k in ("x", "mean", "std", "truth"))
        colour = PALETTE[i % len(PALETTE)]
        shade = {"color": colour, "alpha": 0.22, "linewidth": 0, "label": "±3 sd"}
        axis.fill_between(x, mean - 3 * std, mean + 3 * std, **shade)
        axis.plot(x, mean, color=colour, label="mean")
        axis.plot(x, truth, color=INK, linewidth=1, linestyle="--", label="truth")
        axis.plot(drawn["data_x"], drawn["data_y"], "o", color=INK, markersize=3, label="data")
        axis.set(title=name, xlabel="x", xlim=(x[0], x[-1]))
        if i == 0:
            reach = np.ptp(truth)
            axis.set(ylabel="y", ylim=(truth.min() - reach, truth.max() + reach))
            axis.legend(loc="lower left", ncols=2, handlelength=1.2, columnspacing=0.8)
    return figure


@style()
def maps(methods: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the probability of the second class over a plane, a panel a method.

    Parameters
    ----------
    methods : mapping of str to mapping
        Of each method ``line`` (G,), ``probability`` (G * G,), ``data_x`` (N, 2), ``data_y`` (N,).
    """
    figure, axes = panels(len(methods), height=3.0, width=2.5)
    for (name, drawn), axis in zip(methods.items(), axes, strict=True):
        line = np.asarray(drawn["line"])
        values = np.asarray(drawn["probability"]).reshape(len(line), len(line))
        image = axis.imshow(
            values,
            extent=(line[0], line[-1], line[0], line[-1]),
            origin="lower",
            cmap=_DIVERGING,
            vmin=0,
            vmax=1,
        )
        points, classes = np.asarray(drawn["data_x"]), np.asarray(drawn["data_y"])
        for i, fill in enumerate(("white", "black")):
            where = points[classes == i]
            edge = {"markeredgecolor": "black", "markersize": 3.5, "markeredgewidth": 0.6}
            axis.plot(where[:, 0], where[:, 1], "o", color=fill, **edge)
        axis.set(title=name)
    figure.colorbar(image, ax=axes, label="probability of the black class", shrink=0.8)
    return figure


@style()
def heat(
    values: np.ndarray, rows: Sequence[Any], columns: Sequence[Any], labels: tuple[str, str, str]
) -> Figure:
    """Draw a table as colours, with the numbers in it, and beside it as curves.

    Parameters
    ----------
    values : array, shape (R, C)
        NaN where there is nothing.
    rows, columns : sequence
        Their names.
    labels : (str, str, str)
        What rows, columns and values are.
    """
    figure, (whole,) = panels(1, height=3.6, width=8.4)
    whole.remove()  # the two halves have nothing to share
    left, right = figure.subplots(1, 2)
    left.imshow(values, cmap=_SEQUENTIAL, aspect="auto")
    middle = np.nanmin(values) + 0.6 * np.ptp(values[~np.isnan(values)])
    for (i, j), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "black" if value > middle else "white"
            left.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    left.set(xticks=range(len(columns)), xticklabels=columns, xlabel=labels[1])
    left.set(yticks=range(len(rows)), yticklabels=rows, ylabel=labels[0])
    for i, row in enumerate(rows):
        right.plot(range(len(columns)), values[i], "o-", color=PALETTE[i % len(PALETTE)], label=row)
    right.set(xticks=range(len(columns)), xticklabels=columns, xlabel=labels[1], ylabel=labels[2])
    right.legend(title=labels[0])
    return figure


@style()
def regret(worlds: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> Figure:
    """Draw how cumulative regret grows, a panel a world: every seed thinly, their mean boldly.

    Parameters
    ----------
    worlds : mapping of str to mapping of str to sequence of mapping
        By world and method, of each seed ``steps`` and ``regret`` (P,). The mean is drawn where
        all seeds have the same steps.
    """
    figure, axes = panels(len(worlds), height=5.0, width=8.4 if len(worlds) == 1 else 5.6)
    names = list(dict.fromkeys(method for found in worlds.values() for method in found))
    for axis, (world, found) in zip(axes, worlds.items(), strict=True):
        for method, seeds in found.items():
            i = names.index(method)
            colour, dash = PALETTE[i % len(PALETTE)], _DASHES[i // len(PALETTE) % len(_DASHES)]
            for seed in seeds:
                positive = np.where(np.asarray(seed["regret"]) > 0, seed["regret"], np.nan)
                axis.plot(seed["steps"], positive, color=colour, linewidth=0.5, alpha=0.45)
            if all(seed["steps"] == seeds[0]["steps"] for seed in seeds):
                mean = np.mean([seed["regret"] for seed in seeds], axis=0)
                axis.plot(seeds[0]["steps"], mean, dash, color=colour, linewidth=1.8, label=method)
        axis.set(title=world, xlabel="decisions", yscale="log")
        axis.set_xlim(left=0)
        # What is lost in the first few decisions says nothing, and would take half of the panel.
        ends = [seed["regret"][-1] for seeds in found.values() for seed in seeds]
        if min(ends, default=0.0) > 0:
            axis.set_ylim(bottom=min(ends) / 5)
    axes[0].set_ylabel("cumulative expected regret")
    handles = {h.get_label(): h for axis in axes for h in axis.get_legend_handles_labels()[0]}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4)
    return figure


@style()
def learning(
    tasks: Mapping[str, Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]],
    references: Mapping[str, Mapping[str, float]],
) -> Figure:
    """Draw how returns grow in training, a column a task and a row an estimator.

    The mean over particles is a bold line with a band of one standard deviation over seeds to
    either side; the best particle is a thin dashed line.

    Parameters
    ----------
    tasks : mapping of str to mapping of str to mapping of str to sequence of mapping
        By task, estimator and method, of each seed ``iterations``, ``mean`` and ``best`` (P,), and
        ``steps_per_iteration``. Seeds are averaged where all have the same iterations.
    references : mapping of str to mapping of str to float
        By task, values to draw a line at, with their names.
    """
    rows = list(dict.fromkeys(name for found in tasks.values() for name in found))
    figure, axes = panels(
        len(tasks),
        height=1.2 + 3.0 * len(rows),
        rows=len(rows),
        width=8.4 if len(tasks) == 1 else 4.0,
        share="col",
    )
    axes = np.reshape(axes, (len(rows), len(tasks)))
    methods = list(
        dict.fromkeys(m for found in tasks.values() for panel in found.values() for m in panel)
    )
    for (i, row), (j, task) in itertools.product(enumerate(rows), enumerate(tasks)):
        axis, panel = axes[i, j], tasks[task].get(row, {})
        for method, seeds in panel.items():
            _learned(axis, seeds, PALETTE[methods.index(method) % len(PALETTE)], method)
        if not panel:
            axis.text(0.5, 0.5, "not run", ha="center", transform=axis.transAxes)
        for name, value in references.get(task, {}).items():
            axis.axhline(value, color=INK, linewidth=0.8, linestyle=":")
            place = {"ha": "right", "va": "bottom", "transform": axis.get_yaxis_transform()}
            axis.text(0.99, value, name, fontsize=7, **place)
        axis.set_title(f"{task}, {row}")
        if i == len(rows) - 1:
            axis.set_xlabel(_iterations(panel))
    for axis in axes[:, 0]:
        axis.set_ylabel("return")
    handles = {h.get_label(): h for axis in axes.flat for h in axis.get_legend_handles_labels()[0]}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=5)
    return figure


def _learned(axis: Any, seeds: Sequence[Mapping[str, Any]], colour: str, method: str) -> None:
    x = seeds[0]["iterations"]
    if any(seed["iterations"] != x for seed in seeds):
        return
    values = np.array([seed["mean"] for seed in seeds])
    mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1 if len(seeds) > 1 else 0)
    axis.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
    axis.plot(x, mean, color=colour, linewidth=1.8, label=method)
    best = np.mean([seed["best"] for seed in seeds], axis=0)
    axis.plot(x, best, color=colour, linewidth=0.8, linestyle="--")


def _iterations(panel: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Name the axis, and say how many steps an iteration is where all agree on it."""
    steps = {seed["steps_per_iteration"] for seeds in panel.values() for seed in seeds}
    return f"iterations of {steps.pop():,} steps" if len(steps) == 1 else "iterations"
