"""The report on Figure 3(a): regret on the mushrooms seed by seed, and differences in pairs.

Only seeds that no setting was chosen on are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from s2vgd.experiments import plots
from s2vgd.experiments.mushroom import BAD, CONFIG, FRESH
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
from s2vgd.experiments.summary import Estimate, Group, Groups, estimate, grouped, paired, text
from s2vgd.predictive import from_components

START, EARLY, END = 1000, 10_000, 50_000
OURS, PLAIN = "s2vgd", "svgd"
LATER = {
    "s2vgd_linear": "svgd_linear",
    "s2vgd_optimistic": "svgd_optimistic",
    "s2vgd_bounded": "svgd_bounded",
}
"""Settings of S²VGD that came later, each with SVGD's that differ by the structure alone."""
GREEDY = ("epsilon_greedy_0", "epsilon_greedy_1", "epsilon_greedy_3")
GREEDY_PAPER = tuple(f"{method}_paper" for method in GREEDY)
_WORLD = "mushroom"
_TITLES = {"mushroom": "Mushroom, the paper's rewards", "mushroom-blundell": "Blundell's rewards"}
_SEEDS = 10
# Targets that were set before anything was run on these seeds.
_MEAN_AT_END, _AIM_AT_END, _WORST_AT_END, _MEAN_EARLY, _FACTOR = 1100, 800, 2500, 650, 4


def section(rows: Iterable[Row]) -> Section:
    """Return the part of the page on Figure 3(a)."""
    fresh = [row for row in rows if row["split"] >= FRESH or row["config"].get("quick")]
    groups = grouped(fresh, lambda row: (row["dataset"], row["method"]))
    worlds = in_order(BAD, {name for name, _ in groups})
    methods = in_order(CONFIG.methods, {method for _, method in groups})
    return Section(
        title="Figure 3(a): mushrooms",
        about=f"{CONFIG.steps:,} decisions to eat or to leave a mushroom, one-hot features, one "
        "hidden layer of 50 units, 20 particles. Regret is expected and cumulative. All methods "
        "with the same seed meet the same mushrooms and the same luck. Settings were chosen on "
        f"seeds below {FRESH}; what is shown is on seeds from {FRESH} on.",
        claims=[*caution(groups), *_claims(groups)],
        tables=[
            table
            for name in worlds
            for table in (_regrets(groups, methods, name), _differences(groups, methods, name))
        ],
        drawings=_drawings(groups, methods, worlds),
    )


def t_interval(found: Estimate, level: float = 0.95) -> tuple[float, float] | None:
    """Return Student's interval for a mean; None for fewer than three values."""
    if found.n < 3:
        return None
    if found.error == 0:
        return found.mean, found.mean
    parts = {"loc": found.mean, "scale": found.error, "df": found.n - 1.0}
    student = from_components("student_t", {k: np.full((1, 1), v) for k, v in parts.items()})
    low, high = student.interval(level)
    return float(low[0]), float(high[0])


def with_interval(found: Estimate) -> str:
    """Write a difference with its 95 % interval and the number of pairs."""
    bounds = t_interval(found)
    pairs = f"{found.n} pair{'s' if found.n > 1 else ''}"
    if bounds is None:
        return f"{_signed(found.mean)} ({pairs}, too few for an interval)"
    return f"{_signed(found.mean)} [{_signed(bounds[0])}, {_signed(bounds[1])}] ({pairs})"


def _signed(value: float) -> str:
    return f"{value:+,.0f}".replace("-", "−")


def _regrets(groups: Groups, methods: Sequence[str], name: str) -> Table:
    def cells(group: Group | None) -> list[str]:
        if group is None or not group.finished:
            return [text(group, "regret")] * 4 + [_counted(group)]
        return [
            _cell(group, f"regret_{EARLY}"),
            _cell(group, f"regret_{END}"),
            f"{worst:,.0f}" if (worst := _worst(group)) is not None else "–",
            _cell(group, "wrong", 2, 100),
            _counted(group),
        ]

    return Table(
        name.replace("-", "_"),
        _TITLES.get(name, name),
        f"Cumulative expected regret after {EARLY:,} and {END:,} decisions: mean ± standard error "
        f"over seeds (number of seeds); that of the worst seed after {END:,}; and how many of the "
        f"last {CONFIG.last:,} decisions were wrong, in per cent.",
        ["method", f"at {EARLY:,}", f"at {END:,}", "worst seed", "wrong at the end, %", "seeds"],
        [[label(method), *cells(groups.get((name, method)))] for method in methods],
    )


def _cell(group: Group, metric: str, digits: int = 0, scale: float = 1.0) -> str:
    """Write a score; a run that was shorter than that has none."""
    found = estimate(group, metric)
    return "–" if found is None else text(group, metric, digits, scale)


def _counted(group: Group | None) -> str:
    done, failed = (len(group.finished), len(group.failed)) if group else (0, 0)
    return f"{done}, {failed} failed" if failed else str(done)


def _worst(group: Group | None) -> float | None:
    rows = group.finished if group else []
    values = [row["metrics"][f"regret_{END}"] for row in rows if _reaches_end(row)]
    return max(values) if values else None


def _reaches_end(row: Row) -> bool:
    return f"regret_{END}" in row["metrics"]


def _differences(groups: Groups, methods: Sequence[str], name: str) -> Table:
    """Compare ours with everybody, and pairs of equal settings with one another."""
    pairs = [(OURS, method) for method in methods if method != OURS]
    pairs += [("s2vgd_paper", "svgd_paper"), *LATER.items()]
    pairs += [(method, "linucb") for method in LATER]
    return Table(
        f"{name.replace('-', '_')}_paired",
        f"{_TITLES.get(name, name)}, differences",
        "Regret of the first method less that of the second, with the same seed: mean and 95 % "
        "interval of Student (number of pairs). Below zero the first is better.",
        ["difference", *(f"at {n:,}" for n in (START, EARLY, END))],
        [
            [
                f"{label(first)} − {label(second)}",
                *(_difference(groups, name, first, second, n) for n in (START, EARLY, END)),
            ]
            for first, second in pairs
        ],
    )


def _difference(groups: Groups, name: str, first: str, second: str, n: int) -> str:
    found = _paired(groups, name, first, second, n)
    if found is not None:
        return with_interval(found)
    both = all((name, m) in groups and groups[name, m].finished for m in (first, second))
    return "–" if both else "not run"


def _paired(groups: Groups, name: str, first: str, second: str, n: int) -> Estimate | None:
    return paired(groups.get((name, first)), groups.get((name, second)), f"regret_{n}")


def _claims(groups: Groups) -> list[str]:
    known = {key: group for key in groups if (group := finished(groups, key)) is not None}
    if not known:
        return ["Nothing of it has been run in full settings, so no claim can be judged."]
    return [
        _against(known, PLAIN, "The paired difference S²VGD − SVGD"),
        *_targets(known, OURS),
        *(said for m in LATER if (_WORLD, m) in known for said in _targets(known, m)),
        _papers_claim(known),
    ]


def _targets(groups: Groups, method: str) -> list[str]:
    ours, name = groups.get((_WORLD, method)), label(method)
    at_end, early = (estimate(ours, f"regret_{n}") for n in (END, EARLY))
    said = [
        _bounded(
            f"mean regret of {name} at {END:,} at most {_MEAN_AT_END:,}", at_end, _MEAN_AT_END
        ),
        _bounded(f"the same at most {_AIM_AT_END:,}, the aim beyond it", at_end, _AIM_AT_END),
        _no_worse(ours, name),
        _bounded(f"mean regret of {name} at {EARLY:,} at most {_MEAN_EARLY}", early, _MEAN_EARLY),
        _far_below_greedy(groups, at_end, name, GREEDY, "with learned noise"),
        _far_below_greedy(
            groups,
            at_end,
            name,
            GREEDY_PAPER,
            "with learned noise and the paper's batches and step size",
        ),
        _against(groups, "linucb", f"Target: {name} ahead of LinUCB", method, judged=True),
    ]
    if at_end is not None and at_end.n < _SEEDS:
        said.append(f"{name} has been run on {at_end.n} seeds, and {_SEEDS} were asked for.")
    return said


def _verdict(holds: bool) -> str:
    return "Reached" if holds else "Not reached"


def _bounded(target: str, found: Estimate | None, most: float) -> str:
    if found is None:
        return f"Target: {target}. Not run."
    return f"Target: {target}. {_verdict(found.mean <= most)}: {_plain(found)}."


def _plain(found: Estimate) -> str:
    error = "" if math.isnan(found.error) else f" ± {found.error:,.0f}"
    return f"{found.mean:,.0f}{error} over {found.n} seed{'s' if found.n > 1 else ''}"


def _no_worse(ours: Group | None, name: str) -> str:
    target = f"Target: no seed of {name} above {_WORST_AT_END:,} at {END:,}."
    worst = _worst(ours)
    if worst is None:
        return f"{target} Not run."
    n_failed = len(ours.failed) if ours else 0
    failed = f", and {n_failed} seeds failed" if n_failed else ""
    holds = worst <= _WORST_AT_END and not n_failed
    return f"{target} {_verdict(holds)}: the worst has {worst:,.0f}{failed}."


def _far_below_greedy(
    groups: Groups, ours: Estimate | None, name: str, rivals: tuple[str, ...], which: str
) -> str:
    target = (
        f"Target: {name} at least {_FACTOR} times below the ε-greedy agents {which} at {END:,}."
    )
    found = {m: estimate(groups.get((_WORLD, m)), f"regret_{END}") for m in rivals}
    factors = {m: e.mean / ours.mean for m, e in found.items() if e is not None and ours}
    if not factors:
        return f"{target} Not run."
    holds = len(factors) == len(rivals) and min(factors.values()) >= _FACTOR
    missing = [label(m) for m in rivals if m not in factors]
    parts = [f"{factor:.1f} times below {label(m)}" for m, factor in factors.items()]
    return f"{target} {_verdict(holds)}: {listed(parts)}" + (
        f"; {listed(missing)} not run." if missing else "."
    )


def _against(
    groups: Groups, rival: str, about: str, method: str = OURS, judged: bool = False
) -> str:
    """Say what the paired difference between ours and a rival is, and whether chance may be it."""
    found = _paired(groups, _WORLD, method, rival, END)
    if found is None:
        return f"{about} at {END:,}: not run."
    bounds = t_interval(found)
    if bounds is None:
        reading = "which says nothing yet"
    elif bounds[0] <= 0 <= bounds[1]:
        reading = "which could be chance"
    else:
        reading = (
            f"so {label(method)} is {'better' if found.mean < 0 else 'worse'} than {label(rival)}"
        )
    is_ahead = bounds is not None and bounds[1] < 0
    verdict = f" {_verdict(is_ahead)}." if judged else ""
    return f"{about} at {END:,}.{verdict} It differs by {with_interval(found)}, {reading}."


def _papers_claim(groups: Groups) -> str:
    claim = (
        "Claim: S²VGD has lower regret than SVGD at the beginning, and the lowest at the end of "
        "the methods of the paper's figure (SVGD, VMG and ε-greedy)."
    )
    start = _paired(groups, _WORLD, OURS, PLAIN, START)
    rivals = (PLAIN, "vmg", *GREEDY)
    ends = {
        method: found.mean
        for method in (OURS, *rivals)
        if (found := estimate(groups.get((_WORLD, method)), f"regret_{END}")) is not None
    }
    if start is None or OURS not in ends or len(ends) < 2:
        return f"{claim} Not run."

    best = min(ends, key=lambda method: ends[method])
    holds = start.mean < 0 and best == OURS
    missing = [label(m) for m in rivals if m not in ends]
    return (
        f"{claim} It {'holds up' if holds else 'does not hold up'} on average: at {START:,} the "
        f"difference to SVGD is {with_interval(start)}, and at {END:,} {label(best)} has the "
        f"lowest mean, {ends[best]:,.0f}" + (f" ({listed(missing)} not run)." if missing else ".")
    )


def _drawings(groups: Groups, methods: Sequence[str], worlds: Sequence[str]) -> list[Drawing]:
    drawn = {
        _TITLES.get(name, name): {
            label(method): [row["details"] for row in group.finished]
            for method in methods
            if (group := groups.get((name, method))) is not None and group.finished
        }
        for name in worlds
    }
    drawn = {name: found for name, found in drawn.items() if found}
    if not drawn:
        return []
    caption = (
        "Cumulative expected regret: a thin line for each seed, a bold one for their mean. The "
        "scale is logarithmic."
    )
    if any(group.quick for group in groups.values()):
        caption += " Some of it is a trial (--quick)."
    return [Drawing("mushroom", plots.regret(drawn), caption)]
