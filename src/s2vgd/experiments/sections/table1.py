"""The report on Table 1: scores of every method, the paper's figures, and what peeking buys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from s2vgd.experiments import plots
from s2vgd.experiments.records import Row
from s2vgd.experiments.sections import Drawing, Section, Table, caution, finished, in_order, label
from s2vgd.experiments.sections.claims1 import claims
from s2vgd.experiments.summary import Estimate, Groups, estimate, grouped, text
from s2vgd.experiments.table1 import CONFIG, PAPER, PEEKED

_PRINTED = {"rmse": "RMSE", "log_likelihood": "log-likelihood"}


def section(rows: Iterable[Row]) -> Section:
    """Return the part of the page on Table 1."""
    groups = grouped(rows, lambda row: (row["dataset"], row["method"]))
    sets = in_order(CONFIG.datasets, {name for name, _ in groups})
    methods = in_order(CONFIG.methods, {method for _, method in groups})
    honest = [method for method in methods if method != PEEKED]
    return Section(
        title="Table 1: regression",
        about="Published splits of the UCI sets, one hidden layer of 50 units (100 on protein and "
        "year), batches of 100 (1000); SVGD and S²VGD see all rows at each step up to 2048 of "
        "them, and 512 beyond. Whatever a method chooses it chooses inside the training rows of a "
        "split. Test rows are scored once, at the end.",
        claims=[*caution(groups), *claims(groups)],
        tables=[
            *(_beside_paper(groups, sets, honest, metric) for metric in _PRINTED),
            _scores(groups, sets, honest, "crps", "CRPS", "smaller is better"),
            *(_coverage(groups, sets, honest, level) for level in (50, 90, 95)),
            _peeking(groups, sets),
            _cost(groups, sets, honest),
        ],
        drawings=_drawings(groups, sets, honest),
    )


def _beside_paper(
    groups: Groups, sets: Sequence[str], methods: Sequence[str], metric: str
) -> Table:
    rows = []
    for method in methods:
        ours = [text(groups.get((name, method)), metric) for name in sets]
        rows.append([label(method), *ours])
        if any(method in cells for cells in PAPER.values()):
            rows.append([f"{label(method)}, paper", *(_published(n, method, metric) for n in sets)])
    better = "smaller" if metric == "rmse" else "larger"
    return Table(
        f"table1_{metric}",
        f"Test {_PRINTED[metric]}",
        f"Test {_PRINTED[metric]}, {better} is better: mean ± standard error over splits (number "
        "of splits). The paper's lines are as printed, with what it calls standard deviations.",
        ["method", *sets],
        rows,
    )


def _published(name: str, method: str, metric: str) -> str:
    cell = PAPER.get(name, {}).get(method)
    if cell is None:
        return "–"
    mean, error = getattr(cell, metric), getattr(cell, f"{metric}_error")
    return f"{mean:.2f}" if error != error else f"{mean:.2f} ± {error:.2f}"


def _scores(
    groups: Groups, sets: Sequence[str], methods: Sequence[str], metric: str, name: str, hint: str
) -> Table:
    return Table(
        f"table1_{metric}",
        f"Test {name}",
        f"{name}, {hint}: mean ± standard error over splits (number of splits).",
        ["method", *sets],
        [[label(m), *(text(groups.get((s, m)), metric) for s in sets)] for m in methods],
    )


def _coverage(groups: Groups, sets: Sequence[str], methods: Sequence[str], level: int) -> Table:
    def cell(name: str, method: str) -> str:
        return text(groups.get((name, method)), f"coverage_{level}", digits=1, scale=100)

    return Table(
        f"table1_coverage_{level}",
        f"Coverage of {level} % intervals",
        f"Share of test outcomes inside the central {level} % interval, in per cent: {level} is "
        "right, less is too sure, more too cautious.",
        ["method", *sets],
        [[label(method), *(cell(name, method) for name in sets)] for method in methods],
    )


def _peeking(groups: Groups, sets: Sequence[str]) -> Table:
    def cells(name: str) -> list[str]:
        group = groups.get((name, PEEKED))
        return [text(group, metric) for m in _PRINTED for metric in (f"last_{m}", m)]

    return Table(
        "table1_peeking",
        "What peeking buys",
        "What peeking buys: S²VGD scored at its last iterate, and as the published code does, at "
        "the iterate that has the best RMSE on the test rows themselves. Both columns are of the "
        "same particles. No other table uses the peeked figures.",
        ["set", "RMSE", "RMSE, peeked", "log-likelihood", "log-likelihood, peeked"],
        [[name, *cells(name)] for name in sets],
    )


def _cost(groups: Groups, sets: Sequence[str], methods: Sequence[str]) -> Table:
    def cell(name: str, method: str) -> str:
        group = groups.get((name, method))
        if group is None or not group.finished:
            return "not run"
        seconds = sorted(row["seconds"] for row in group.finished)
        return f"{seconds[len(seconds) // 2]:.1f}"

    return Table(
        "table1_seconds",
        "Seconds a run",
        "Median seconds a run, compilation included where there was any. Machines differ: see what "
        "was run where.",
        ["method", *sets],
        [[label(method), *(cell(name, method) for name in sets)] for method in methods],
    )


def _drawings(groups: Groups, sets: Sequence[str], methods: Sequence[str]) -> list[Drawing]:
    lead: dict[str, dict[str, Estimate]] = {}
    held: dict[str, dict[str, Estimate]] = {}
    for method in methods:
        for name in sets:
            found = estimate(finished(groups, (name, method)), "log_likelihood")
            if found is not None and name in PAPER:
                gain = found.mean - PAPER[name]["s2vgd"].log_likelihood
                lead.setdefault(label(method), {})[name] = found._replace(mean=gain)
            covered = estimate(finished(groups, (name, method)), "coverage_90")
            if covered is not None:
                share = Estimate(100 * covered.mean, 100 * covered.error, covered.n)
                held.setdefault(label(method), {})[name] = share
    drawings = []
    if lead:
        drawings.append(
            Drawing(
                "table1_log_likelihood",
                plots.dots(
                    lead, "log-likelihood minus the paper's for S²VGD", marked=0.0, linear=1.0
                ),
                "Test log-likelihood a row relative to what the paper prints for S²VGD (the line): "
                "to the right is better. Bars are two standard errors over the splits. Beyond 1 "
                "the axis is logarithmic.",
            )
        )
        drawings.append(
            Drawing(
                "table1_coverage",
                plots.dots(held, "outcomes inside the 90 % interval, %", 90.0, (86.0, 94.0)),
                "Coverage of the 90 % interval. The line is where honest error bars are, the band "
                "86 to 94 %.",
            )
        )
    return drawings
