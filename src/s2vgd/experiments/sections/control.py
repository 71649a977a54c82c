"""The report on Figure 4: returns of sets of policies, what was asked of them, and exploration.

Only seeds that no learning rate was chosen on are judged; those it was chosen on have a table of
their own. The sentences are made in :mod:`~s2vgd.experiments.sections.control_claims`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import filterfalse

from s2vgd.experiments import plots
from s2vgd.experiments.control import (
    AGENTS,
    CONFIG,
    ESTIMATORS,
    FRESH,
    ITERATIONS,
    METHODS,
    RATES,
)
from s2vgd.experiments.records import Row
from s2vgd.experiments.sections import (
    Drawing,
    Section,
    Table,
    caution,
    in_order,
    label,
)
from s2vgd.experiments.sections.control_claims import (
    NAMES,
    OURS,
    TARGETS,
    TASKS,
    Target,
    claims,
    difference,
    number,
    of_target,
    rate_of,
    score_at,
    scores,
    tried_rates,
    verdict_of,
)
from s2vgd.experiments.sections.mushroom import with_interval
from s2vgd.experiments.summary import Estimate, Group, Groups, estimate, grouped

# Of the Stein variational policy gradient (Liu et al., 2017): the best of 16 particles.
PUBLISHED = {
    "swing-up": {"SVPG, best of 16": 405.0, "independent, best of 16": 234.0},
    "double-pendulum": {"SVPG, best of 16": -341.0, "independent, best of 16": -911.0},
}
_RETURNS = {
    "mean": "mean",
    "best": "best",
    "best_fresh": "best, fresh",
    "mixture": "mixture",
    "deterministic_mean": "mean, modes",
    "deterministic_best": "best, modes",
    "discounted_mean": "mean, γ = 0.99",
    "discounted_best": "best, γ = 0.99",
    "area": "area",
}
_EXPLORATION = {
    "coverage": ("cells", 0),
    "coverage_of_each": ("cells of one", 0),
    "entropy": ("entropy", 2),
    "parameter_distance": ("distance of weights", 2),
    "behaviour_distance": ("distance of behaviour", 2),
}


def section(rows: Iterable[Row]) -> Section:
    """Return the part of the page on Figure 4."""
    rows = list(rows)
    fresh = [row for row in rows if row["split"] >= FRESH or row["config"].get("quick")]
    tuning = [row for row in rows if row["split"] < FRESH and not row["config"].get("quick")]
    groups = grouped(filterfalse(_is_longer, fresh), _task_and_method)
    longer = grouped(filter(_is_longer, fresh), _task_and_method)
    tasks = in_order(ITERATIONS, {task for task, _ in groups})
    methods = in_order(METHODS, {method for _, method in groups})
    return Section(
        title="Figure 4: control",
        about="16 policies of 25-10 tanh units that learn together (25-16 for SVGD*; one agent has "
        "the whole batch), on three tasks of rllab, its tip of the double pendulum included, with "
        "ten updates for each rollout. "
        "Returns are of complete first episodes with actions drawn, if not said otherwise. "
        f"Learning rates are chosen on seeds below {FRESH}; what is shown is on seeds from {FRESH} "
        "on. Published figures are of other simulators and are drawn for orientation.",
        claims=[*caution(groups), *claims(groups, longer, tuning)],
        tables=[
            _targets(groups, longer),
            *(_returns(groups, methods, task) for task in tasks),
            _areas(groups, tasks),
            _exploration(groups, methods, tasks),
            _tuning(groups, tuning, methods, tasks),
        ],
        drawings=_drawings(groups, tasks),
    )


def _task_and_method(row: Row) -> tuple[str, str]:
    return row["dataset"], row["method"]


def _is_longer(row: Row) -> bool:
    """Say whether a run is longer than those of the figure, with a schedule of its own."""
    return row["config"]["iterations"] > ITERATIONS.get(row["dataset"], math.inf)


# -- tables ------------------------------------------------------------------------------------


def _targets(standard: Groups, longer: Groups) -> Table:
    def line(target: Target) -> list[str]:
        groups = of_target(target, standard, longer)
        found = scores(target, groups)
        wanted = [target.mean] if target.best is None else [target.mean, target.best]
        return [
            TASKS[target.task],
            NAMES[target.estimator],
            "aim" if target.is_aim else "target",
            str(target.after),
            " / ".join(map(number, wanted)),
            " / ".join(_with_spread(e) for e in found.values()) or "not run",
            str(max((e.n for e in found.values()), default=0)),
            verdict_of(target, groups),
        ]

    header = ["task", "gradient", "kind", "iterations", "at least", "found", "seeds", "verdict"]
    return Table(
        "control_targets",
        "What was asked of S²VGD",
        "Returns asked for and found: mean over particles / best particle, mean ± standard "
        "deviation over seeds. All targets were set before these seeds were run.",
        header,
        [line(target) for target in TARGETS],
        texts=3,
    )


def _returns(groups: Groups, methods: Sequence[str], task: str) -> Table:
    after = ITERATIONS.get(task)

    def cells(group: Group | None) -> list[str]:
        return [_cell(group, score_at(name, after, group)) for name in _RETURNS]

    return Table(
        f"control_{task.replace('-', '_')}",
        f"{TASKS.get(task, task)}, returns",
        f"After {after} iterations, mean ± standard deviation over seeds (trials: after their "
        "last): mean over particles; the best particle, as published figures have it; the best "
        "particle on episodes that did not choose it; the mixture of all; with modes in place of "
        "draws; discounted; and the mean over particles in the mean over all iterations, which is "
        "the area under the learning curve.",
        ["method", *_RETURNS.values(), "seeds"],
        [
            [
                label(method),
                *cells(groups.get((task, method))),
                _counted(groups.get((task, method))),
            ]
            for method in methods
        ],
    )


def _areas(groups: Groups, tasks: Sequence[str]) -> Table:
    rivals = [agent for agent in AGENTS if agent != OURS]

    def cell(task: str, estimator: str, rival: str) -> str:
        found = difference(groups, task, estimator, rival)
        return "not run" if found is None else with_interval(found)

    return Table(
        "control_area",
        "Area under the curve, differences",
        "S²VGD less each of the others with the same seed, mean over particles in the mean over "
        "all iterations: mean and 95 % interval of Student (number of pairs). Above zero S²VGD is "
        "better.",
        ["task", "gradient", *(f"− {label(f'{r}_a2c').removesuffix(', A2C')}" for r in rivals)],
        [
            [TASKS.get(task, task), NAMES[e], *(cell(task, e, rival) for rival in rivals)]
            for task in tasks
            for e in ESTIMATORS
        ],
        texts=2,
    )


def _exploration(groups: Groups, methods: Sequence[str], tasks: Sequence[str]) -> Table:
    def cells(task: str, method: str) -> list[str]:
        group, after = groups.get((task, method)), ITERATIONS.get(task)
        return [
            _cell(group, "parameters"),
            *(
                _cell(group, score_at(name, after, group), d)
                for name, (_, d) in _EXPLORATION.items()
            ),
        ]

    return Table(
        "control_exploration",
        "Parameters and exploration",
        "Parameters of one policy; cells of a grid of scaled observations that any policy, and "
        "that one policy by itself, visited; entropy of a policy's actions in nats; mean distance "
        "of two policies in their weights, and in what they do. Mean ± standard deviation over "
        "seeds, at the end of training.",
        ["task", "method", "parameters", *(name for name, _ in _EXPLORATION.values())],
        [
            [TASKS.get(task, task), label(method), *cells(task, method)]
            for task in tasks
            for method in methods
        ],
        texts=2,
    )


def _tuning(
    groups: Groups, rows: Sequence[Row], methods: Sequence[str], tasks: Sequence[str]
) -> Table:
    tried = tried_rates(rows)
    rates = sorted({*RATES, *(rate for found in tried.values() for rate in found)})

    def cells(task: str, method: str) -> list[str]:
        found = tried.get((task, method), {})
        group = groups.get((task, method))
        shown = "–" if group is None or not group.finished else f"{rate_of(group):g}"
        return [*(_with_spread(found[r]) if r in found else "not run" for r in rates), shown]

    return Table(
        "control_tuning",
        "Learning rates",
        f"Mean return after the last iteration by learning rate on seeds below {FRESH}, mean ± "
        "standard deviation over seeds, and the rate of the runs that are shown.",
        ["task", "method", *(f"{rate:g}" for rate in rates), "shown"],
        [
            [TASKS.get(task, task), label(method), *cells(task, method)]
            for task in tasks
            for method in methods
        ],
        texts=2,
    )


def _cell(group: Group | None, metric: str, digits: int = 0) -> str:
    found = estimate(group, metric)
    if found is not None:
        return _with_spread(found, digits)
    if group is not None and group.finished:
        return "–"  # a run that was shorter
    return "failed" if group is not None and group.failed else "not run"


def _counted(group: Group | None) -> str:
    done, failed = (len(group.finished), len(group.failed)) if group else (0, 0)
    return f"{done}, {failed} failed" if failed else str(done)


def _with_spread(found: Estimate, digits: int = 0) -> str:
    """Write a mean ± the standard deviation (not the standard error) of what it is of."""
    if math.isnan(found.error):
        return number(found.mean, digits)
    spread = found.error * math.sqrt(found.n)
    return f"{number(found.mean, digits)} ± {number(spread, digits)}"


# -- figure ------------------------------------------------------------------------------------


def _drawings(groups: Groups, tasks: Sequence[str]) -> list[Drawing]:
    drawn = {
        TASKS.get(task, task): {
            NAMES[estimator]: {
                label(f"{agent}_a2c").removesuffix(", A2C"): [r["details"] for r in group.finished]
                for agent in AGENTS
                if (group := groups.get((task, f"{agent}_{estimator}"))) and group.finished
            }
            for estimator in ESTIMATORS
        }
        for task in tasks
    }
    if not any(panel for found in drawn.values() for panel in found.values()):
        return []
    published = {TASKS[task]: values for task, values in PUBLISHED.items()}
    caption = (
        "Returns while training, with actions drawn: a bold line for the mean over particles, in "
        "the mean over seeds, with one standard deviation over seeds to either side; a dashed one "
        "for the best particle. Dotted: figures that Liu et al. (2017) published for SVPG and for "
        f"independent agents, which are the best of {CONFIG.settings[METHODS[0]]['particles']} "
        "particles, to be compared with dashed lines only; they are in both rows."
    )
    if any(group.quick for group in groups.values()):
        caption += " Some of it is a trial (--quick)."
    return [Drawing("control", plots.learning(drawn, published), caption)]
