"""The report on Figure 3(b): how often the news that agents recommend are clicked.

Whatever comes from simulated logs says so, in titles and captions. Only logs that no setting was
chosen on are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from s2vgd.experiments.figures import INK, panels, style
from s2vgd.experiments.mushroom import FRESH
from s2vgd.experiments.news import BEST, CONFIG, REAL, SIMULATED
from s2vgd.experiments.plots import PALETTE
from s2vgd.experiments.records import Row
from s2vgd.experiments.sections import (
    Drawing,
    Section,
    Table,
    caution,
    finished,
    in_order,
    label,
    listed,
)
from s2vgd.experiments.sections.mushroom import t_interval
from s2vgd.experiments.summary import Estimate, Group, Groups, estimate, grouped, paired, text

OURS, PLAIN = "s2vgd", "svgd"
SCORE, TRUE = "normalised_ctr", "true_normalised_ctr"
_NAMES = {SIMULATED: "simulated", REAL: "Yahoo! Today"}
_LABELS = {
    BEST: "best possible",
    "vmg": "VMG",
    "linucb": "LinUCB, disjoint",
    "linucb_hybrid": "LinUCB, hybrid",
    "lints": "LinTS, disjoint",
    "epsilon_greedy_1": "ε-greedy, 1 %",
}
NOTHING = ["Nothing of it has been run in full settings, so no claim can be judged."]
TOO_LITTLE = ["Too little of it has been run in full settings for a claim to be judged."]
_DASHES = ("-", "--", ":")
HOW = (
    "Agents are replayed on a log of random display (Li et al., 2011) and see the click of an "
    "event only where they choose what had been displayed; those are the observations. The "
    "click-through rate is that of all observations so far, divided by that of random display."
)


class Line(NamedTuple):
    """A curve with standard errors, all (P,); NaN where there is no error."""

    x: np.ndarray
    mean: np.ndarray
    error: np.ndarray


def section(rows: Iterable[Row]) -> Section:
    """Return the part of the page on Figure 3(b)."""
    groups = grouped(fresh(rows), lambda row: (row["dataset"], row["method"]))
    methods = in_order(CONFIG.methods, {method for _, method in groups})
    sets = sets_of(groups)
    return Section(
        title=f"Figure 3(b): news recommendation{labelled(groups)}",
        about=f"{HOW} One hidden layer of 50 units, 20 particles, batches of 100. Simulated logs "
        f"have {CONFIG.events:,} visits in {CONFIG.days} days and pools of up to 20 articles that "
        "come and go; each number of a split is a world of its own, and all methods see the same.",
        claims=[*caution(groups), *_claims(groups)],
        tables=[_table(groups, methods, name) for name in sets],
        drawings=[d for name in sets for d in _curves(groups, methods, name)],
    )


def fresh(rows: Iterable[Row]) -> list[Row]:
    """Return the lines of logs that no setting was chosen on, and those of trials."""
    return [row for row in rows if row["split"] >= FRESH or row["config"].get("quick")]


def sets_of(groups: Groups) -> list[str]:
    """Return the data sets, those that are known first."""
    return in_order((SIMULATED, REAL), {key[0] for key in groups})


def name_of(dataset: str) -> str:
    """Return how a data set is called in sentences."""
    return _NAMES.get(dataset, dataset)


def label_of(method: str) -> str:
    """Return the name of a method as it is printed."""
    return _LABELS.get(method, label(method))


def labelled(groups: Groups) -> str:
    """Return what the title has to say of where the numbers are from."""
    done = {key[0] for key, group in groups.items() if group.finished}
    if not done:
        return ""
    return " (simulated)" if done == {SIMULATED} else " (in part simulated)" * (SIMULATED in done)


def _table(groups: Groups, methods: Sequence[str], name: str) -> Table:
    def cells(method: str) -> list[str]:
        group = groups.get((name, method))
        rivals = () if method == OURS else (SCORE, TRUE)
        differences = [_difference(groups, name, method, metric) for metric in rivals]
        return [text(group, SCORE), true_rate(group), *(differences or ["–", "–"]), _seen(group)]

    return Table(
        f"news_{name.replace('-', '_')}",
        f"News recommendation, {name_of(name)}",
        f"Click-through rate relative to random display, {name_of(name)} data, at the end of the "
        "log: mean ± standard error over repetitions (number of them). The true rate is the mean "
        "probability of a click on what was chosen at every event, which only a simulation knows. "
        "Differences are those of S²VGD less the method on the same logs, with Student's 95 % "
        "interval; above zero S²VGD is better. Observations are the mean number of accepted "
        "events.",
        [
            "method",
            "rate",
            "true rate",
            "S²VGD − method",
            "S²VGD − method, true",
            "observations",
        ],
        [[label_of(method), *cells(method)] for method in methods],
    )


def true_rate(group: Group | None) -> str:
    """Write the true rate of a cell, if it is known."""
    return "–" if estimate(group, TRUE) is None else text(group, TRUE)


def _seen(group: Group | None) -> str:
    found = estimate(group, "observations")
    return "–" if found is None else f"{found.mean:,.0f}"


def _difference(groups: Groups, name: str, method: str, metric: str) -> str:
    found = paired(groups.get((name, OURS)), groups.get((name, method)), metric)
    return "–" if found is None else with_interval(found)


def with_interval(found: Estimate) -> str:
    """Write a difference with its 95 % interval."""
    bounds = t_interval(found)
    if bounds is None:
        return f"{_signed(found.mean)} (too few for an interval)"
    return f"{_signed(found.mean)} [{_signed(bounds[0])}, {_signed(bounds[1])}]"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _claims(groups: Groups) -> list[str]:
    said = []
    for name in sets_of(groups):
        rivals = [m for m in CONFIG.methods if m not in (OURS, "uniform", BEST)]
        against = {
            method: verdict_on(found)
            for method in rivals
            if (found := _judged(groups, name, OURS, method)) is not None
        }
        if not against:
            continue
        kinds = {
            kind: [label_of(method) for method, verdict in against.items() if verdict == kind]
            for kind in ("better than", "worse than", "not to be told from")
        }
        parts = [f"{kind} {listed(found)}" for kind, found in kinds.items() if found]
        holds = "holds up" if len(kinds["better than"]) == len(against) else "does not hold up"
        said.append(
            f"Claim, {name_of(name)} data: S²VGD consistently outperforms other methods. It "
            f"{holds}: by the paired 95 % intervals of the {_kind(name)} at the end of the log, "
            f"S²VGD is {listed(parts)}."
        )
        said += _structure(groups, name) + _room(groups, name)
    begun = any(group.finished and not group.quick for group in groups.values())
    return said or (TOO_LITTLE if begun else NOTHING)


def _kind(name: str) -> str:
    return "true rates" if name == SIMULATED else "rates"


def _judged(groups: Groups, name: str, first: str, second: str) -> Estimate | None:
    """Return the paired difference, by the truth where it is known, which has the least noise."""
    pair = finished(groups, (name, first)), finished(groups, (name, second))
    return paired(*pair, TRUE) or paired(*pair, SCORE)


def verdict_on(found: Estimate) -> str:
    """Say whether the first of a pair is better, worse, or neither beyond chance."""
    bounds = t_interval(found)
    if bounds is None or bounds[0] <= 0 <= bounds[1]:
        return "not to be told from"
    return "better than" if found.mean > 0 else "worse than"


def _structure(groups: Groups, name: str) -> list[str]:
    parts = []
    for first in (OURS, "vmg"):
        for second in (PLAIN, "linucb"):
            found = _judged(groups, name, first, second)
            if found is not None:
                parts.append(f"{label_of(first)} − {label_of(second)} {with_interval(found)}")
    if not parts:
        return []
    return [
        f"Claim, {name_of(name)} data: S²VGD and VMG do better than SVGD and LinUCB. Differences "
        f"of the {_kind(name)} at the end of the log: {'; '.join(parts)}."
    ]


def _room(groups: Groups, name: str) -> list[str]:
    ours, best = (estimate(finished(groups, (name, m)), TRUE) for m in (OURS, BEST))
    if ours is None or best is None:
        return []
    return [
        f"{name_of(name).capitalize()} data: the policy that knows the click model reaches "
        f"{best.mean:.2f} times the rate of random display, S²VGD {ours.mean:.2f} times."
    ]


def _curves(groups: Groups, methods: Sequence[str], name: str) -> list[Drawing]:
    lines = {
        label_of(method): line
        for method in methods
        if (group := groups.get((name, method))) is not None
        and (line := _mean_curve(group.finished)) is not None
    }
    if not lines:
        return []
    title = f"News recommendation, {name_of(name)} data"
    figure = draw(lines, title, ("observations", "click-through rate / that of random display"))
    caption = (
        f"Accumulated click-through rate relative to random display, {name_of(name)} data: mean "
        "over repetitions, with one standard error to either side. The best possible policy knows "
        "the click model." + trial_note(groups, name)
    )
    return [Drawing(f"news_{name.replace('-', '_')}", figure, caption)]


def _mean_curve(rows: Sequence[Row]) -> Line | None:
    """Return the mean over rows at the points that all of them have."""
    curves = [row["details"] for row in rows if row["details"]["observations"]]
    if not curves:
        return None
    n = min(len(curve["observations"]) for curve in curves)
    values = np.array([curve["normalised"][:n] for curve in curves])
    error = values.std(axis=0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else None
    x = np.array(curves[0]["observations"][:n])
    return Line(x, values.mean(axis=0), np.full(n, np.nan) if error is None else error)


def trial_note(groups: Groups, name: str) -> str:
    """Return what a caption must say of trials."""
    is_trial = any(group.quick for key, group in groups.items() if key[0] == name)
    return " Some of it is a trial (--quick)." if is_trial else ""


@style()
def draw(lines: Mapping[str, Line], title: str, labels: tuple[str, str]) -> Figure:
    """Draw curves with their standard errors, beside the rate of random display.

    Parameters
    ----------
    lines : mapping of str to Line
        By method.
    title : str
        What is drawn, and from which data.
    labels : (str, str)
        Of the axes.
    """
    figure, (axis,) = panels(1, height=4.6, width=8.4)
    for i, (name, line) in enumerate(lines.items()):
        axis.errorbar(
            line.x,
            line.mean,
            yerr=np.nan_to_num(line.error),
            fmt="o",
            linestyle=_DASHES[i // len(PALETTE) % len(_DASHES)],
            color=PALETTE[i % len(PALETTE)],
            markersize=3.5,
            linewidth=1.2,
            capsize=2,
            label=name,
        )
    axis.axhline(1.0, color=INK, linewidth=0.6)
    axis.set(title=title, xlabel=labels[0], ylabel=labels[1])
    figure.legend(loc="outside lower center", ncols=4)
    return figure
