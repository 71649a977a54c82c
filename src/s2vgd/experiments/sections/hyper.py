"""The report on Figure 1: accuracy on Covertype by reflections K and particles M."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from s2vgd.experiments import plots
from s2vgd.experiments.hyper import CONFIG
from s2vgd.experiments.records import Row
from s2vgd.experiments.sections import Drawing, Section, Table, caution, finished
from s2vgd.experiments.summary import Groups, estimate, grouped, text


def section(rows: Iterable[Row]) -> Section:
    """Return the part of the page on Figure 1."""
    groups = grouped(rows, lambda row: (row["config"]["reflections"], row["config"]["particles"]))
    reflections = sorted({*CONFIG.reflections, *(k for k, _ in groups)})
    particles = sorted({*CONFIG.particles, *(m for _, m in groups)})
    table = Table(
        "hyper_accuracy",
        "Covertype, test accuracy",
        "Test accuracy on Covertype, class 2 against the rest, in per cent: mean ± standard error "
        "over random splits (number of splits). K = 0 is SVGD.",
        ["reflections", *(f"M = {m}" for m in particles)],
        [
            [f"K = {k}", *(text(groups.get((k, m)), "accuracy", 2, 100) for m in particles)]
            for k in reflections
        ],
    )
    return Section(
        title="Figure 1: reflections and particles",
        about="Covertype, 581,012 rows and 54 inputs, one hidden layer of 50 units; a random fifth "
        "of the rows is for testing. The paper's figure cannot be read off to the digit, so there "
        "is nothing to put beside.",
        claims=[*caution(groups), *_claims(groups, reflections, particles)],
        tables=[table],
        drawings=_drawings(groups),
    )


def _accuracy(groups: Groups, k: int, m: int) -> float:
    found = estimate(finished(groups, (k, m)), "accuracy")
    return float("nan") if found is None else 100 * found.mean


def _claims(groups: Groups, reflections: list[int], particles: list[int]) -> list[str]:
    values = np.array([[_accuracy(groups, k, m) for m in particles] for k in reflections])
    if np.isnan(values).all():
        return ["Nothing of it has been run in full settings, so no claim can be judged."]
    said = []
    steps = np.concatenate([np.diff(row[~np.isnan(row)]) for row in values])
    if steps.size:
        ups = int((steps > 0).sum())
        holds = "holds up" if ups > steps.size / 2 else "does not hold up"
        said.append(
            f"Claim: more particles M help. It {holds}: accuracy rises in {ups} of {steps.size} "
            "steps to the next larger M."
        )
    gains = values - values[:1]
    known = [j for j in range(len(particles)) if (~np.isnan(gains[1:, j])).any()]
    if len(known) > 1:
        first, last = known[0], known[-1]
        few, many = (float(np.nanmax(gains[1:, j])) for j in (first, last))
        holds = "holds up" if few > 0 and few > many else "does not hold up"
        said.append(
            f"Claim: reflections help most when there are few particles. It {holds}: the best K "
            f"gains {few:+.2f} points over K = 0 at M = {particles[first]} and {many:+.2f} at "
            f"M = {particles[last]}."
        )
    return said


def _drawings(groups: Groups) -> list[Drawing]:
    found = [key for key, group in groups.items() if group.finished]
    if not found:
        return []
    rows, columns = (sorted({key[i] for key in found}) for i in (0, 1))
    values = np.full((len(rows), len(columns)), np.nan)
    for k, m in found:
        accuracy = estimate(groups[k, m], "accuracy")
        if accuracy is not None:
            values[rows.index(k), columns.index(m)] = 100 * accuracy.mean
    labels = ("reflections K", "particles M", "test accuracy, %")
    drawn = plots.heat(values, rows, columns, labels)
    return [Drawing("hyper", drawn, "Mean test accuracy by K and M, as colours and as curves.")]
