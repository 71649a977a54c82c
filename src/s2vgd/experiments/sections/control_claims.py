"""What was asked of the policies of Figure 4, and what came of it, in sentences.

The section itself is in :mod:`~s2vgd.experiments.sections.control`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from s2vgd.experiments.control import ESTIMATORS, ITERATIONS, RATES
from s2vgd.experiments.records import Row
from s2vgd.experiments.sections import finished, label, listed
from s2vgd.experiments.sections.mushroom import t_interval, with_interval
from s2vgd.experiments.summary import Estimate, Group, Groups, estimate, grouped, paired

OURS, PLAIN = "s2vgd", "svgd"
TASKS = {
    "cartpole": "Cartpole",
    "swing-up": "Cartpole Swing-Up",
    "double-pendulum": "Double Pendulum",
}
NAMES = {"a2c": "A2C", "reinforce": "REINFORCE"}
_SEEDS = 5


class Target(NamedTuple):
    """Returns that were asked of S²VGD before anything was run on these seeds."""

    task: str
    estimator: str
    after: int
    mean: float
    best: float | None
    is_aim: bool = False

    @property
    def method(self) -> str:
        """Who is asked."""
        return f"{OURS}_{self.estimator}"

    def __str__(self) -> str:
        """Name it in a sentence."""
        return f"{TASKS[self.task]} with {NAMES[self.estimator]} at {self.after}"


TARGETS = (
    Target("cartpole", "a2c", 25, 4500, None),
    Target("cartpole", "a2c", 100, 4950, 4999),
    Target("cartpole", "reinforce", 100, 4700, 4999),
    Target("swing-up", "a2c", 500, 120, 320),
    Target("swing-up", "reinforce", 500, 70, 250),
    Target("swing-up", "a2c", 1000, 180, 405, is_aim=True),
    Target("double-pendulum", "a2c", 300, -350, -220),
    Target("double-pendulum", "reinforce", 300, -750, -300),
    Target("double-pendulum", "a2c", 1000, -280, -170, is_aim=True),
)


def claims(groups: Groups, longer: Groups, tuning: Sequence[Row]) -> list[str]:
    """Return what is to be said of the runs, of longer ones, and of those on the tuning seeds."""
    known = {key: group for key in groups if (group := finished(groups, key)) is not None}
    if not known:
        return ["Nothing of it has been run in full settings, so no claim can be judged."]
    return [
        *_judged(groups, longer),
        _area_claim(known),
        *_few_seeds(known),
        *_matched(known, tuning),
    ]


def of_target(target: Target, groups: Groups, longer: Groups) -> Groups:
    """Return the runs that a target is about: aims are about longer trainings."""
    return longer if target.after > ITERATIONS[target.task] else groups


def _judged(standard: Groups, longer: Groups) -> list[str]:
    said = []
    for what, targets in (
        ("Targets for the returns of S²VGD", [t for t in TARGETS if not t.is_aim]),
        ("Aims beyond them", [t for t in TARGETS if t.is_aim]),
    ):
        by_verdict: dict[str, list[str]] = {"reached": [], "not reached": [], "not run": []}
        for target in targets:
            groups = of_target(target, standard, longer)
            found = _found(target, groups)
            name = f"{target} ({found})" if found else str(target)
            by_verdict[verdict_of(target, groups)].append(name)
        parts = [
            f"{len(names)} of {len(targets)} {verdict}: {listed(names)}"
            for verdict, names in by_verdict.items()
            if names
        ]
        said.append(f"{what}: {'; '.join(parts)}.")
    return said


def scores(target: Target, groups: Groups) -> dict[str, Estimate]:
    """Return what was found of mean and best, if it has been run."""
    group = finished(groups, (target.task, target.method))
    wanted = ("mean",) if target.best is None else ("mean", "best")
    found = {name: estimate(group, f"{name}_{target.after}") for name in wanted}
    return {name: e for name, e in found.items() if e is not None}


def verdict_of(target: Target, groups: Groups) -> str:
    """Judge a target by the means; a seed that failed fails it."""
    found, failed = scores(target, groups), _failed(target, groups)
    if not found and not failed:
        return "not run"
    least = {"mean": target.mean, "best": target.best or -math.inf}
    holds = all(e.mean >= least[name] for name, e in found.items())
    return "reached" if holds and not failed else "not reached"


def _failed(target: Target, groups: Groups) -> int:
    """Count the seeds that failed, in full settings."""
    group = groups.get((target.task, target.method))
    return sum(not row["config"].get("quick") for row in group.failed) if group else 0


def _found(target: Target, groups: Groups) -> str:
    returns = " / ".join(number(e.mean) for e in scores(target, groups).values())
    failed = _failed(target, groups)
    return ", ".join(filter(None, [returns, f"{failed} seeds failed" if failed else ""]))


def _area_claim(groups: Groups) -> str:
    """Say where S²VGD is at or ahead of SVGD in the area under the curve, and where it is not."""
    target = (
        "Target: S²VGD at or ahead of SVGD in the area under the learning curve on each of the "
        f"{len(ITERATIONS) * len(ESTIMATORS)} panels."
    )
    ahead: list[str] = []
    behind: list[str] = []
    missing: list[str] = []
    for task in ITERATIONS:
        for estimator in ESTIMATORS:
            name = f"{TASKS[task]} with {NAMES[estimator]}"
            found = difference(groups, task, estimator, PLAIN)
            if found is None:
                missing.append(name)
                continue
            bounds = t_interval(found)
            if bounds is None:
                doubt = "too few seeds to tell"
            else:
                doubt = "could be chance" if bounds[0] <= 0 <= bounds[1] else "more than chance"
            side = ahead if found.mean >= 0 else behind
            side.append(f"{name} ({with_interval(found)}, {doubt})")
    if not ahead and not behind:
        return f"{target} Not run."
    verdict = "Not reached" if behind else "Not judged yet" if missing else "Reached"
    parts = [
        *([f"at or ahead in {listed(ahead)}"] if ahead else []),
        *([f"behind in {listed(behind)}"] if behind else []),
        *([f"not run in {listed(missing)}"] if missing else []),
    ]
    return f"{target} {verdict}: {'; '.join(parts)}."


def _few_seeds(groups: Groups) -> list[str]:
    few = sum(len(group.finished) < _SEEDS for group in groups.values())
    asked = f"{_SEEDS} seeds were asked for"
    return [f"{asked}, and {few} of {len(groups)} cells have fewer."] if few else []


def _matched(groups: Groups, tuning: Sequence[Row]) -> list[str]:
    """Say whether the methods are compared at matched tuning."""
    tried = tried_rates(tuning)
    untuned = [key for key in groups if len(tried.get(key, {})) < len(RATES)]
    other = [
        f"{label(method)} in {TASKS.get(task, task)}"
        for (task, method), group in groups.items()
        if (task, method) not in untuned
        and rate_of(group) != max(found := tried[task, method], key=lambda rate: found[rate].mean)
    ]
    said = []
    if untuned:
        said.append(
            f"For {len(untuned)} of {len(groups)} cells the learning rate has not been chosen: the "
            "values have not all been run on the tuning seeds. There the comparison is not at "
            "matched tuning."
        )
    if other:
        said.append(f"Not run with the learning rate that tuning favours: {listed(other)}.")
    return said


def tried_rates(rows: Iterable[Row]) -> dict[tuple[str, str], dict[float, Estimate]]:
    """Return the mean returns at the end on the tuning seeds, by task and method, and by rate."""

    def cell(row: Row) -> tuple[str, str, float]:
        return row["dataset"], row["method"], row["config"]["agent"].get("learning_rate", math.nan)

    found: dict[tuple[str, str], dict[float, Estimate]] = {}
    for (task, method, rate), group in grouped(rows, cell).items():
        if (reached := estimate(group, "mean")) is not None:
            found.setdefault((task, method), {})[rate] = reached
    return found


def rate_of(group: Group) -> float:
    """Return the learning rate of a cell's runs."""
    return group.finished[0]["config"]["agent"]["learning_rate"]


def difference(groups: Groups, task: str, estimator: str, rival: str) -> Estimate | None:
    """Return the area under the curve of S²VGD less that of a rival, in pairs of one seed."""
    first, second = (groups.get((task, f"{who}_{estimator}")) for who in (OURS, rival))
    if first is None or second is None or first.quick != second.quick:
        return None
    return paired(first, second, score_at("area", ITERATIONS.get(task), first))


def score_at(name: str, after: int | None, group: Group | None) -> str:
    """Return the name of a score at the standard number of iterations; of a trial, at its end."""
    return name if group is None or group.quick or after is None else f"{name}_{after}"


def number(value: float, digits: int = 0) -> str:
    """Write a number with a true minus."""
    return f"{value:,.{digits}f}".replace("-", "−")
