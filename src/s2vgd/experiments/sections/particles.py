"""The report on Figure 3(c): clicks on recommended news by the number of particles.

What the numbers are, and how they are judged, is as in :mod:`s2vgd.experiments.sections.news`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from s2vgd.experiments.particles import CONFIG
from s2vgd.experiments.records import Row
from s2vgd.experiments.sections import Drawing, Section, Table, caution, finished, in_order
from s2vgd.experiments.sections.news import (
    HOW,
    NOTHING,
    OURS,
    PLAIN,
    SCORE,
    TRUE,
    Line,
    draw,
    fresh,
    label_of,
    labelled,
    name_of,
    sets_of,
    trial_note,
    true_rate,
    verdict_on,
    with_interval,
)
from s2vgd.experiments.summary import Estimate, Group, Groups, estimate, grouped, paired, text


def section(rows: Iterable[Row]) -> Section:
    """Return the part of the page on Figure 3(c)."""
    groups = grouped(
        fresh(rows),
        lambda row: (row["dataset"], row["method"], row["config"]["agent"]["particles"]),
    )
    sizes = sorted({*CONFIG.particles, *(m for _, _, m in groups)})
    methods = in_order(CONFIG.methods, {method for _, method, _ in groups})
    sets = sets_of(groups)
    return Section(
        title=f"Figure 3(c): particles on the first day of the news{labelled(groups)}",
        about=f"{HOW} Simulated logs have {CONFIG.events:,} visits in one day.",
        claims=[*caution(groups), *_particle_claims(groups, sizes)],
        tables=[_particle_table(groups, methods, sizes, name) for name in sets],
        drawings=[d for name in sets for d in _particle_curves(groups, methods, sizes, name)],
    )


def _particle_table(
    groups: Groups, methods: Sequence[str], sizes: Sequence[int], name: str
) -> Table:
    def cell(m: int) -> str:
        found = paired(groups.get((name, OURS, m)), groups.get((name, PLAIN, m)), SCORE)
        return "–" if found is None else with_interval(found)

    rows = [
        [f"{label_of(method)}{whose}", *(shown(groups.get((name, method, m))) for m in sizes)]
        for whose, shown in (("", lambda group: text(group, SCORE)), (", true", true_rate))
        for method in methods
    ]
    return Table(
        f"particles_{name.replace('-', '_')}",
        f"Particles, {name_of(name)}",
        f"Click-through rate relative to random display after the first day, {name_of(name)} data: "
        "mean ± standard error over repetitions (number of them). True rates are mean "
        "probabilities of a click on what was chosen, which only a simulation knows. The last line "
        "is the paired difference of the rates with Student's 95 % interval.",
        ["method", *(f"M = {m}" for m in sizes)],
        [*rows, ["S²VGD − SVGD", *map(cell, sizes)]],
    )


def _particle_claims(groups: Groups, sizes: Sequence[int]) -> list[str]:
    said = []
    for name in sets_of(groups):
        for method in CONFIG.methods:
            found = {
                m: e for m in sizes if (e := _rate(finished(groups, (name, method, m)))) is not None
            }
            if len(found) > 1:
                few, many = min(found), max(found)
                gain = _gain(groups, name, method, few, many)
                ups = sum(a.mean < b.mean for a, b in pairwise(list(found.values())))
                said.append(
                    f"Claim, {name_of(name)} data: the rate keeps improving with M. That of "
                    f"{label_of(method)}, the true one where it is known, rises in {ups} of "
                    f"{len(found) - 1} steps to the next larger M, and changes by {gain} from "
                    f"M = {few} to M = {many}."
                )
        said += _dominance(groups, sizes, name)
    return said or NOTHING


def _rate(group: Group | None) -> Estimate | None:
    return estimate(group, TRUE) or estimate(group, SCORE)


def _gain(groups: Groups, name: str, method: str, few: int, many: int) -> str:
    pair = finished(groups, (name, method, many)), finished(groups, (name, method, few))
    found = paired(*pair, TRUE) or paired(*pair, SCORE)
    return "an unknown amount" if found is None else with_interval(found)


def _dominance(groups: Groups, sizes: Sequence[int], name: str) -> list[str]:
    found = {}
    for m in sizes:
        pair = finished(groups, (name, OURS, m)), finished(groups, (name, PLAIN, m))
        difference = paired(*pair, TRUE) or paired(*pair, SCORE)
        if difference is not None:
            found[m] = difference
    if not found:
        return []
    ahead = [m for m, e in found.items() if verdict_on(e) == "better than"]
    holds = "holds up" if len(ahead) == len(found) else "does not hold up"
    parts = [f"{with_interval(e)} at M = {m}" for m, e in found.items()]
    return [
        f"Claim, {name_of(name)} data: S²VGD has higher rates than SVGD at every M. It {holds}. "
        f"Paired differences: {'; '.join(parts)}."
    ]


def _particle_curves(
    groups: Groups, methods: Sequence[str], sizes: Sequence[int], name: str
) -> list[Drawing]:
    lines = {}
    for method in methods:
        found = {m: e for m in sizes if (e := estimate(groups.get((name, method, m)), SCORE))}
        if found:
            means, errors = ([e[i] for e in found.values()] for i in (0, 1))
            lines[label_of(method)] = Line(*map(np.array, (list(found), means, errors)))
    if not lines:
        return []
    title = f"Particles, first day, {name_of(name)} data"
    figure = draw(lines, title, ("particles M", "click-through rate / that of random display"))
    caption = (
        f"Click-through rate relative to random display after the first day, {name_of(name)} data, "
        "by the number of particles: mean over repetitions, with one standard error to either "
        "side." + trial_note(groups, name)
    )
    return [Drawing(f"particles_{name.replace('-', '_')}", figure, caption)]
