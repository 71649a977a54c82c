"""The report on the two toy problems: the pictures, and how far each is from the HMC reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from s2vgd.experiments import plots, scores, toy_classification, toy_regression
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
from s2vgd.experiments.summary import Group, Groups, estimate, grouped, text

REFERENCE = "hmc"
Distance = Callable[[Mapping[str, Any], Mapping[str, Any]], float]


def regression(rows: Iterable[Row]) -> Section:
    """Return the part of the page on the toy regression."""
    groups = _with_distance(rows, _between_quantiles)
    return Section(
        title="Toy regression",
        about="Twenty points with a gap, one hidden layer of 100 units, five draws of the points. "
        "The distance is the 1-Wasserstein distance between predictive distributions, averaged "
        "over the inputs that are drawn, from the method to long HMC chains on an ordinary network "
        "with the same prior variance and the same points.",
        claims=[*caution(groups), *_claims(groups, "the toy regression")],
        tables=[
            _table(
                groups,
                toy_regression.CONFIG.methods,
                "toy_regression",
                {"distance": "distance to HMC", "rmse": "RMSE", "log_likelihood": "log-likelihood"},
            )
        ],
        drawings=_drawing(
            groups,
            toy_regression.CONFIG.methods,
            "toy_regression",
            plots.bands,
            "Means and three standard deviations, first draw of the points.",
        ),
    )


def classification(rows: Iterable[Row]) -> Section:
    """Return the part of the page on the toy classification."""
    groups = _with_distance(rows, _between_probabilities)
    return Section(
        title="Toy classification",
        about="Ten points on each of two squares, one hidden layer of 30 units, five draws of the "
        "points. The distance is the total variation between predictive probabilities, averaged "
        "over the plane that is drawn, from the method to long HMC chains on an ordinary network "
        "with the same prior variance and the same points.",
        claims=[*caution(groups), *_claims(groups, "the toy classification")],
        tables=[
            _table(
                groups,
                toy_classification.CONFIG.methods,
                "toy_classification",
                {
                    "distance": "distance to HMC",
                    "confidence": "mean confidence over the plane",
                    "log_likelihood": "log-likelihood",
                },
            )
        ],
        drawings=_drawing(
            groups,
            toy_classification.CONFIG.methods,
            "toy_classification",
            plots.maps,
            "Probability of the class of the black points, first draw of the points.",
        ),
    )


def _with_distance(rows: Iterable[Row], distance: Distance) -> dict[str, Group]:
    """Group lines by method, and add the distance to the reference of the same seed as a score."""
    groups = grouped(rows, lambda row: row["method"])
    reference = groups.get(REFERENCE)
    by_seed = {row["seed"]: row for row in reference.finished} if reference else {}
    for group in groups.values():
        for row in group.finished:
            other = by_seed.get(row["seed"])
            if other is not None and row is not other and _comparable(row, other):
                apart = distance(row["details"], other["details"])
                row["metrics"] = {**row["metrics"], "distance": apart}
    return groups


def _comparable(row: Row, other: Row) -> bool:
    """Whether both were drawn over the same inputs, and neither or both are trials."""
    return all(row["config"].get(k) == other["config"].get(k) for k in ("grid", "plane", "quick"))


def _between_quantiles(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    return scores.wasserstein(np.asarray(a["quantiles"]), np.asarray(b["quantiles"]))


def _between_probabilities(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    p, q = (np.stack([1 - np.asarray(d["probability"]), d["probability"]], -1) for d in (a, b))
    return scores.total_variation(p, q)


def _table(groups: Groups, known: Iterable[str], name: str, columns: Mapping[str, str]) -> Table:
    def cell(method: str, metric: str) -> str:
        if metric == "distance" and method == REFERENCE:
            return "reference"
        return text(groups.get(method), metric, digits=3)

    return Table(
        name,
        name.replace("_", " ").capitalize(),
        "Mean ± standard error over draws of the points (number of draws). Scores other than the "
        "distance are on points drawn like the training points.",
        ["method", *columns.values()],
        [[label(m), *(cell(m, metric) for metric in columns)] for m in in_order(known, groups)],
    )


def _drawing(
    groups: Groups, known: Iterable[str], name: str, draw: Callable[..., Any], caption: str
) -> list[Drawing]:
    shown = {
        label(method): min(groups[method].finished, key=lambda row: row["seed"])["details"]
        for method in in_order(known, groups)
        if method in groups and groups[method].finished
    }
    if any(group.quick for group in groups.values()):
        caption += " Some of it is a trial (--quick)."
    return [Drawing(name, draw(shown), caption)] if shown else []


def _claims(groups: Groups, problem: str) -> list[str]:
    found = {
        method: distance
        for method in groups
        if (distance := estimate(finished(groups, method), "distance")) is not None
    }
    if not found:
        return ["Nothing of it has been run in full settings, so no claim can be judged."]
    order = sorted(found, key=lambda method: found[method].mean)
    said = [
        f"On {problem} the nearest to HMC is {label(order[0])}; distances: "
        + ", ".join(f"{label(m)} {found[m].mean:.3f}" for m in order)
        + "."
    ]
    rivals = [method for method in ("svgd", "pbp_mv") if method in found]
    if "s2vgd" in found and rivals:
        beaten = [m for m in rivals if found["s2vgd"].mean < found[m].mean]
        holds = "holds up" if len(beaten) == len(rivals) else "does not hold up"
        than = f"nearer than {listed([label(m) for m in beaten])}" if beaten else "not nearer"
        rest = [label(m) for m in rivals if m not in beaten]
        said.append(
            f"Claim: S²VGD is closest to the truth on {problem}. Against "
            f"{listed([label(m) for m in rivals])} it {holds}: S²VGD is {than}"
            + (f", and not nearer than {listed(rest)}." if beaten and rest else ".")
        )
    return said
