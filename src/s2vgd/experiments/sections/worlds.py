"""The report on the other worlds: regret in per cent of what chance would have, agents as rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from s2vgd.experiments.mushroom import FRESH
from s2vgd.experiments.records import Row
from s2vgd.experiments.sections import Section, Table, caution, finished, in_order, label, listed
from s2vgd.experiments.summary import Groups, estimate, grouped, paired, text
from s2vgd.experiments.worlds import CONFIG

OURS = "s2vgd"
_BASELINE = "uniform"


def section(rows: Iterable[Row]) -> Section:
    """Return the part of the page on the other worlds."""
    fresh = [row for row in rows if row["split"] >= FRESH or row["config"].get("quick")]
    groups = grouped(fresh, lambda row: (row["dataset"], row["method"]))
    worlds = in_order(CONFIG.datasets, {name for name, _ in groups})
    methods = in_order(CONFIG.methods, {method for _, method in groups})
    return Section(
        title="More worlds",
        about=f"{CONFIG.steps:,} decisions in each of {len(CONFIG.datasets)} worlds. Shuttle, "
        "Adult and Covertype are classification bandits, in the wheel the best action rarely pays, "
        "and the non-linear world is synthetic. Settings are those of the mushrooms with the noise "
        "of each world's rewards, and were chosen on none of the other worlds.",
        claims=[*caution(groups), *_claims(groups, methods, worlds)],
        tables=[
            _relative(groups, methods, worlds),
            Table(
                "worlds_regret",
                "Cumulative regret",
                "Cumulative expected regret, in units of each world's rewards: mean ± standard "
                "error over seeds (number of seeds).",
                ["method", *worlds],
                [
                    [label(m), *(text(groups.get((name, m)), "regret", 0) for name in worlds)]
                    for m in methods
                ],
            ),
        ],
    )


def _relative(groups: Groups, methods: Sequence[str], worlds: Sequence[str]) -> Table:
    ranks = mean_ranks(groups, methods, worlds)
    return Table(
        "worlds",
        "Regret relative to chance",
        "Cumulative expected regret in per cent of that of taking any action, with the same seed: "
        "mean ± standard error over seeds (number of seeds). The mean rank is over worlds in which "
        "every agent that has run at all has run.",
        ["method", *worlds, "mean rank"],
        [
            [
                label(method),
                *(text(groups.get((name, method)), "relative", 1) for name in worlds),
                f"{ranks[method]:.1f}" if method in ranks else "–",
            ]
            for method in methods
        ],
    )


def mean_ranks(groups: Groups, methods: Sequence[str], worlds: Sequence[str]) -> dict[str, float]:
    """Return the mean rank of each agent that has run, 1 for the least regret."""
    runners = [m for m in methods if any(finished(groups, (name, m)) for name in worlds)]
    complete = _complete(groups, runners, worlds)
    if not complete:
        return {}
    ranks: dict[str, list[int]] = {method: [] for method in runners}
    for name in complete:
        order = sorted(runners, key=lambda method: _mean(groups, name, method))
        for rank, method in enumerate(order, start=1):
            ranks[method].append(rank)
    return {method: sum(found) / len(found) for method, found in ranks.items()}


def _complete(groups: Groups, methods: Sequence[str], worlds: Sequence[str]) -> list[str]:
    return [
        name for name in worlds if methods and all(finished(groups, (name, m)) for m in methods)
    ]


def _mean(groups: Groups, name: str, method: str) -> float:
    found = estimate(finished(groups, (name, method)), "relative")
    assert found is not None, "only asked where it is finished"
    return found.mean


def _claims(groups: Groups, methods: Sequence[str], worlds: Sequence[str]) -> list[str]:
    if not any(finished(groups, key) for key in groups):
        return ["Nothing of it has been run in full settings, so no claim can be judged."]
    return [
        *_ranking(groups, methods, worlds),
        *(_in_pairs(groups, rival, worlds) for rival in ("svgd", "linucb")),
        *_no_better_than_chance(groups, worlds),
    ]


def _ranking(groups: Groups, methods: Sequence[str], worlds: Sequence[str]) -> list[str]:
    ranks = mean_ranks(groups, methods, worlds)
    if not ranks:
        return ["There is no world yet in which all agents have run, so they have no mean rank."]
    n = len(_complete(groups, list(ranks), worlds))
    order = sorted(ranks, key=lambda method: ranks[method])
    best = f"{label(order[0])} has the best mean rank, {ranks[order[0]]:.1f} of {len(order)}"
    place = f"; S²VGD comes {order.index(OURS) + 1}., with {ranks[OURS]:.1f}"
    ours = place if OURS in ranks and order[0] != OURS else ""
    return [f"Over {n} worlds {best}{ours}."]


def _in_pairs(groups: Groups, rival: str, worlds: Sequence[str]) -> str:
    found = {
        name: difference
        for name in worlds
        if finished(groups, (name, OURS)) and finished(groups, (name, rival))
        if (difference := paired(groups[name, OURS], groups[name, rival], "relative"))
    }
    if not found:
        return f"S²VGD − {label(rival)}: not run."
    lower = [name for name, d in found.items() if d.mean < 0]
    clearly = [name for name in lower if found[name].mean < -2 * found[name].error]
    higher = [name for name in found if name not in lower]
    clearly_higher = [name for name in higher if found[name].mean > 2 * found[name].error]
    return (
        f"S²VGD has less regret than {label(rival)} in {len(lower)} of {len(found)} worlds, by "
        f"more than two standard errors of the paired difference in {len(clearly)}"
        + (f" ({listed(clearly)})" if clearly else "")
        + f", and more by as much in {len(clearly_higher)}"
        + (f" ({listed(clearly_higher)})." if clearly_higher else ".")
    )


def _no_better_than_chance(groups: Groups, worlds: Sequence[str]) -> list[str]:
    lost = [
        f"{label(method)} in {name}"
        for name, method in groups
        if method != _BASELINE and name in worlds and finished(groups, (name, method))
        if _mean(groups, name, method) >= 100
    ]
    return [f"No better than chance: {listed(lost)}."] if lost else []
