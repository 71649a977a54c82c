"""The report on Table 2: errors on MNIST beside the paper's, and how images of other kinds fare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from s2vgd.experiments.records import Row
from s2vgd.experiments.sections import Section, Table, caution, finished, in_order, label, listed
from s2vgd.experiments.summary import Estimate, Groups, estimate, grouped, text, written
from s2vgd.experiments.table2 import CONFIG, CONTROL, PAPER, Widths

_SCORES = {
    "error": ("error, %", 2),
    "log_likelihood": ("log-likelihood", 4),
    "ece": ("ECE", 4),
    "auroc_fashion_entropy": ("Fashion, entropy", 3),
    "auroc_fashion_information": ("Fashion, information", 3),
    "auroc_notmnist_entropy": ("notMNIST, entropy", 3),
    "auroc_notmnist_information": ("notMNIST, information", 3),
}


def section(rows: Iterable[Row]) -> Section:
    """Return the part of the page on Table 2."""
    tested = [row for row in rows if not row["config"].get("validation_rows")]
    groups = grouped(tested, lambda row: (tuple(row["config"]["hidden"]), row["method"]))
    methods = in_order(CONFIG.methods, {method for _, method in groups})
    extra = sorted({widths for widths, _ in groups} - {*CONFIG.networks, CONTROL})
    return Section(
        title="Table 2: MNIST",
        about="Two hidden layers, relu, 20 particles, batches of 100, pixels divided by 126, no "
        "augmentation; 60,000 training and 10,000 test images. Learning rates and epochs were "
        "chosen on 10,000 of the training images, the last iterate is scored, and no "
        "statistics of test images are used.",
        claims=[*caution(groups), *_claims(groups)],
        tables=[
            _errors(groups, methods),
            *(_scores(groups, methods, widths) for widths in (*CONFIG.networks, CONTROL, *extra)),
        ],
    )


def _errors(groups: Groups, methods: Sequence[str]) -> Table:
    widths = CONFIG.networks
    header = [f"{'-'.join(map(str, w))}{whose}" for w in widths for whose in ("", ", paper")]
    rows = [
        [label(method), *(cell for w in widths for cell in _pair(groups, method, w))]
        for method in methods
    ]
    control = f"{label('svgd')} {_name(CONTROL)}"
    rows.append([control, *_pair(groups, "svgd", CONTROL), *["–"] * (2 * len(widths) - 2)])
    return Table(
        "table2_error",
        "MNIST, test error",
        "Test error in per cent: mean ± standard error over seeds (number of seeds), and the "
        "paper's. The last line is the paper's control, a plain network with as many parameters as "
        "400-400 has with K = 10; it stands in the columns of 400-400.",
        ["method", *header],
        rows,
    )


def _pair(groups: Groups, method: str, widths: Widths) -> list[str]:
    published = PAPER.get(method, {}).get(widths)
    ours = text(groups.get((widths, method)), "error", digits=2)
    return [ours, "–" if published is None else f"{published:.2f}"]


def _scores(groups: Groups, methods: Sequence[str], widths: Widths) -> Table:
    shown = ["svgd"] if widths == CONTROL else methods
    return Table(
        f"table2_{_name(widths)}",
        f"MNIST, {_name(widths)}",
        f"All scores at {_name(widths)}. The last four are areas under the ROC curve for telling "
        "test digits from Fashion-MNIST and from notMNIST images, by predictive entropy and by "
        "mutual information, which a single network does not have.",
        ["method", *(name for name, _ in _SCORES.values())],
        [[label(method), *_cells(groups.get((widths, method)))] for method in shown],
    )


def _cells(group: Any) -> list[str]:
    if group is None or not group.finished:
        return [text(group, "error")] * len(_SCORES)
    found = {name: (estimate(group, name), digits) for name, (_, digits) in _SCORES.items()}
    return ["–" if e is None else written(e, digits) for e, digits in found.values()]


def _claims(groups: Groups) -> list[str]:
    said: list[str] = []
    for widths in CONFIG.networks:
        said += _reached(groups, widths) + _ahead(groups, widths) + _bayesian(groups, widths)
    said += _control(groups)
    return said or ["Nothing of it has been run in full settings, so no claim can be judged."]


def _error(groups: Groups, widths: Widths, method: str) -> Any:
    return estimate(finished(groups, (widths, method)), "error")


def _reached(groups: Groups, widths: Widths) -> list[str]:
    said = []
    for method in ("s2vgd_k10", "s2vgd_k1", "svgd"):
        found = _error(groups, widths, method)
        if found is not None:
            published = PAPER[method][widths]
            side = "at or under" if round(found.mean, 2) <= published else "over"
            said.append(
                f"{label(method)} {written(found, 2)} %, {side} the paper's {published:.2f}"
            )
    return [f"MNIST {_name(widths)}: {'; '.join(said)}."] if said else []


def _ahead(groups: Groups, widths: Widths) -> list[str]:
    said = []
    pairs = [
        ("s2vgd_k10", "svgd", "S²VGD improves on SVGD by a significant margin"),
        ("s2vgd_k10", "s2vgd_k1", "more reflections help"),
    ]
    for first, second, claim in pairs:
        a, b = (_error(groups, widths, method) for method in (first, second))
        if a is None or b is None:
            continue
        said.append(
            f"Claim, MNIST {_name(widths)}: {claim}. It {_verdict(a, b)}: {label(first)} "
            f"{a.mean:.2f} % against {label(second)} {b.mean:.2f} %{_lead(a, b)}."
        )
    return said


def _difference(a: Estimate, b: Estimate) -> tuple[float, float]:
    return b.mean - a.mean, (a.error**2 + b.error**2) ** 0.5


def _verdict(a: Estimate, b: Estimate) -> str:
    """Say whether the first has fewer errors than the second."""
    gain, doubt = _difference(a, b)
    if math.isnan(doubt):
        return "cannot be judged from a single seed"
    if gain > 2 * doubt:
        return "holds up"
    if gain > doubt:
        return "holds up, by more than one standard error but not two"
    return "does not hold up: the difference is within a standard error or the wrong way"


def _lead(a: Estimate, b: Estimate) -> str:
    gain, doubt = _difference(a, b)
    return "" if math.isnan(doubt) else f", a lead of {gain:.2f} ± {doubt:.2f}"


def _bayesian(groups: Groups, widths: Widths) -> list[str]:
    """Compare as the paper does: each Bayesian method with its optimisation counterpart."""
    parts = []
    for bayesian, point in (("svgd", "rmsprop"), ("sgld", "sgd"), ("s2vgd_k1", "rmsprop")):
        a, b = (_error(groups, widths, method) for method in (bayesian, point))
        if a is not None and b is not None:
            verb = "beats" if a.mean < b.mean else "does not beat"
            parts.append(f"{label(bayesian)} {verb} {label(point)}")
    if not parts:
        return []
    return [
        f"Claim, MNIST {_name(widths)}: Bayesian methods do better than their optimisation "
        f"counterparts. By mean test error {listed(parts)}."
    ]


def _control(groups: Groups) -> list[str]:
    a, b = _error(groups, CONFIG.networks[0], "s2vgd_k10"), _error(groups, CONTROL, "svgd")
    if a is None or b is None:
        return []
    return [
        f"Claim: it is the structure and not the number of parameters. It {_verdict(a, b)}: S²VGD "
        f"(K=10) at 400-400 has {a.mean:.2f} % errors, SVGD at {_name(CONTROL)} {b.mean:.2f} %"
        f"{_lead(a, b)}."
    ]


def _name(widths: Widths) -> str:
    return "-".join(map(str, widths))
