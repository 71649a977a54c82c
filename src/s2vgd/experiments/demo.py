"""The demonstration, ``s2vgd demo``: small problems of prediction, choice and control on one page.

Fits the yacht data (published split 0) and the toy regression of the paper's supplement with SVGD,
with S²VGD, and with S²VGD refined, lets four agents choose mushrooms
(:mod:`~s2vgd.experiments.demo_bandit`), and lets policies balance a pole
(:mod:`~s2vgd.experiments.demo_control`); prints two tables and writes ``index.html`` and
``results.json``. Every sentence that judges a result is made from the numbers, in
:mod:`~s2vgd.experiments.reading`.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import s2vgd
from s2vgd import datasets, metrics
from s2vgd.estimators import S2VGDRegressor
from s2vgd.experiments import demo_bandit, demo_control, figures, reading, report
from s2vgd.predictive import MixturePredictive

REFINED = "S²VGD refined"
METHODS: dict[str, dict[str, Any]] = {
    # The paper's two: constant noise, the particles as SVGD leaves them.
    "SVGD": {"reflections": 0, "scales": None, "noise": "constant", "refine": None},
    "S²VGD": {"reflections": 1, "scales": "lognormal", "noise": "constant", "refine": None},
    REFINED: {},
}
HEADER = ["data", "method", "RMSE", "log-likelihood", "90 % coverage", "seconds"]
LEVEL = 0.9

_TOY_TEST_ROWS = 500
_GAP = (0.6, 0.8)


class Problem(NamedTuple):
    """Rows to learn from, rows to be judged on, and settings besides those of the methods."""

    name: str
    about: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    settings: dict[str, Any]
    refined_settings: dict[str, Any]


class Result(NamedTuple):
    """One method on one problem."""

    settings: dict[str, Any]
    model: S2VGDRegressor
    predictive: MixturePredictive
    log_prob: np.ndarray
    scores: dict[str, float]


Results = dict[str, Result]


def run(
    out: str | os.PathLike[str] = "report",
    seed: int = 0,
    progress: bool = True,
    *,
    settings: Mapping[str, Any] | None = None,
    decisions: int = demo_bandit.DECISIONS,
    iterations: int = demo_control.ITERATIONS,
) -> dict[str, Any]:
    """Run the demonstration.

    Parameters
    ----------
    out : path-like
        Directory for ``index.html`` and ``results.json``, which are replaced if they are there.
    seed : int
        Decides everything random, the toy data included.
    progress : bool
        Show what is being fitted, with a progress bar for each part.
    settings : mapping, optional
        Parameters of the estimators that override those of every fit, to try things quickly.
    decisions : int
        Of the bandit.
    iterations : int
        Of the policies.

    Returns
    -------
    dict
        What ``results.json`` holds.
    """
    problems = [yacht_problem(), toy_problem(seed)]
    results: dict[str, Results] = {problem.name: {} for problem in problems}
    pairs = [(problem, method) for problem in problems for method in METHODS]
    total, numbers = len(pairs) + len(demo_bandit.AGENTS) + 1, itertools.count(1)

    def announce(what: str) -> None:
        if progress:
            print(f"[{next(numbers)}/{total}] {what}", file=sys.stderr, flush=True)

    for problem, method in pairs:
        announce(f"{problem.name}: {method}")
        results[problem.name][method] = fit(problem, method, seed, progress, settings)
    bandit = demo_bandit.play(
        seed, decisions, progress, lambda agent: announce(f"mushroom bandit: {agent}")
    )

    announce(f"control: {demo_control.NAME}")
    control, film = demo_control.learn(seed, iterations, progress)

    found = _summary(problems, results, out, seed) | {"bandit": bandit, "control": control}
    text = json.dumps(found, indent=2, ensure_ascii=False)
    summary = json.loads(text)
    directory = Path(out)
    report.write(directory / "results.json", text + "\n")
    report.write(directory / "index.html", _page(problems, results, summary, film))
    _print_table(summary)
    if progress:
        print(f"wrote {directory / 'index.html'}", file=sys.stderr, flush=True)
    return summary


def yacht_problem() -> Problem:
    """Return the yacht data, published split 0."""
    data = datasets.load("yacht")
    train, test = data.splits[0]
    return Problem(
        name="yacht",
        about=f"residuary resistance of sailing yachts, published split 0: {data.x.shape[1]} "
        f"inputs, {len(train)} rows to learn from, {len(test)} to be judged on",
        x=data.x[train],
        y=data.y[train],
        x_test=data.x[test],
        y_test=data.y[test],
        settings={"hidden": (data.hidden_units,)},
        refined_settings={},
    )


def toy_problem(seed: int) -> Problem:
    """Return the toy regression of the paper's supplement, 100 hidden units as there.

    Twenty points say too little about the variance of three hundred weights: learned, it shrinks
    until the curve is a constant. It is fixed at 1. They also make exact chains affordable.
    """
    data = datasets.toy_regression(seed)
    test = datasets.toy_regression(jax.random.key(seed), _TOY_TEST_ROWS)
    return Problem(
        name="toy",
        about="y = z + sin 4z + sin 13z with z = x + noise, from the paper's supplement: "
        f"{len(data.y)} points with a gap from {_GAP[0]} to {_GAP[1]}, judged on {len(test.y)} "
        "others drawn the same way",
        x=data.x,
        y=data.y,
        x_test=test.x,
        y_test=test.y,
        settings={"hidden": (100,), "prior": 1.0},
        refined_settings={"noise": "constant", "refine": "hmc"},
    )


def fit(
    problem: Problem,
    method: str,
    seed: int = 0,
    progress: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Result:
    """Fit one of the methods to a problem and score it on the test rows."""
    chosen = {**METHODS[method], **problem.settings}
    if method == REFINED:
        chosen |= problem.refined_settings
    chosen |= settings or {}
    start = time.perf_counter()
    model = S2VGDRegressor(**chosen, random_state=seed, verbose=progress)
    model.fit(problem.x, problem.y)
    seconds = time.perf_counter() - start
    predictive = cast(MixturePredictive, model.predict_dist(problem.x_test))
    log_prob = predictive.log_prob(problem.y_test)
    scores = {
        "rmse": metrics.rmse(predictive, problem.y_test),
        "log_likelihood": float(log_prob.mean()),
        "coverage": metrics.coverage(predictive, problem.y_test, LEVEL),
        "epistemic_std": float(np.sqrt(predictive.epistemic.mean())),
        "seconds": seconds,
    }
    return Result(chosen, model, predictive, log_prob, scores)


def toy_figure(problem: Problem, models: Mapping[str, S2VGDRegressor]) -> Any:
    """Draw what models of the toy problem predict, on and around its points."""
    grid = np.linspace(-0.25, 1.25, 151)
    panels = {name: model.predict_dist(grid[:, None]) for name, model in models.items()}
    truth = datasets.toy_function(grid)
    return figures.curves(problem.x[:, 0], problem.y, grid, truth, panels)


def _summary(
    problems: list[Problem],
    results: Mapping[str, Results],
    out: str | os.PathLike[str],
    seed: int,
) -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "command": f"s2vgd demo --out {shlex.quote(os.fspath(out))} --seed {seed}",
        "seed": seed,
        "versions": {
            "s2vgd": s2vgd.__version__,
            "python": platform.python_version(),
            "jax": jax.__version__,
            "numpy": np.__version__,
        },
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cpus": os.cpu_count(),
            "device": device.device_kind,
        },
        "problems": {
            problem.name: {
                "about": problem.about,
                "test_rows": len(problem.y_test),
                "methods": {
                    method: {**result.scores, "settings": result.settings}
                    for method, result in results[problem.name].items()
                },
                "reading": _read(problem, results[problem.name]),
            }
            for problem in problems
        },
    }


def _read(problem: Problem, results: Results) -> list[str]:
    def held(level: float) -> dict[str, int]:
        share = {m: metrics.coverage(r.predictive, y, level) for m, r in results.items()}
        return {method: round(len(y) * value) for method, value in share.items()}

    y = problem.y_test
    sentences = [
        *(reading.coverage(held(level), len(y), level) for level in (LEVEL, 0.5)),
        reading.lead({m: r.log_prob for m, r in results.items()}),
        reading.spread({m: r.scores["epistemic_std"] for m, r in results.items()}),
    ]
    if problem.name == "toy":
        sentences.append(reading.gap({m: _growth(r.model) for m, r in results.items()}))
    sentences.append(reading.cost({m: r.scores["seconds"] for m, r in results.items()}))
    refined = results[REFINED].model.diagnostics_
    return sentences if refined is None else [*sentences, reading.chains(REFINED, refined)]


def _growth(model: S2VGDRegressor) -> float:
    """Return the standard deviation in the gap relative to that among the data."""
    x = np.linspace(0, 1, 101)
    std = model.predict_dist(x[:, None]).std
    is_gap = (x > _GAP[0]) & (x < _GAP[1])
    return float(std[is_gap].mean() / std[~is_gap].mean())


def rows_of(summary: Mapping[str, Any]) -> list[list[str]]:
    """Return the table that is printed and put on the page, as text."""
    return [
        [
            problem,
            method,
            f"{scores['rmse']:.3f}",
            f"{scores['log_likelihood']:.3f}",
            f"{100 * scores['coverage']:.1f} %",
            f"{scores['seconds']:.1f}",
        ]
        for problem, found in summary["problems"].items()
        for method, scores in found["methods"].items()
    ]


def _print_table(summary: Mapping[str, Any]) -> None:
    table = Table(title="s2vgd demo", title_justify="left")
    for i, name in enumerate(HEADER):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for row in rows_of(summary):
        table.add_row(*row, end_section=row[1] == REFINED)
    Console().print(table)
    Console().print(demo_bandit.table(summary["bandit"]))
    for sentence in summary["control"]["reading"]:
        Console().print(sentence)


def _page(
    problems: list[Problem],
    results: Mapping[str, Results],
    summary: Mapping[str, Any],
    film: bytes,
) -> str:
    yacht, toy = problems
    predictives = {
        name: {method: result.predictive for method, result in found.items()}
        for name, found in results.items()
    }
    outcomes = {problem.name: problem.y_test for problem in problems}
    drawn = {
        "toy": toy_figure(toy, {m: r.model for m, r in results["toy"].items()}),
        "yacht": figures.parity(yacht.y_test, predictives["yacht"], "resistance"),
        "calibration": figures.calibration(predictives, outcomes),
    }
    captions = {
        "toy": "The toy regression. Points are the data, the dashed line is the curve they were "
        "drawn from, the bands are the 90 % interval and three standard deviations.",
        "yacht": "Yacht: predictions of the test rows with 90 % intervals, and their errors.",
        "calibration": "How many outcomes fall inside the central interval of each probability. On "
        "the diagonal error bars mean what they say; below it they are too short. The shaded band "
        "is where a method as good as its word stays at 95 % of the levels.",
    }
    versions = ", ".join(f"{name} {value}" for name, value in summary["versions"].items())
    machine = summary["machine"]
    ran = [
        ("command", summary["command"]),
        ("versions", versions),
        (
            "machine",
            f"{machine['system']}, {machine['cpus']} CPUs, computed on {machine['device']}",
        ),
        *(
            (f"{name}, {method}", ", ".join(f"{k}={v!r}" for k, v in scores["settings"].items()))
            for name, found in summary["problems"].items()
            for method, scores in found["methods"].items()
        ),
    ]
    return report.page(
        "s2vgd: a demonstration",
        [
            report.paragraph(
                "A network whose weights are uncertain predicts with error bars. Here are two "
                "small problems, each learned in three ways, and what the error bars are worth; "
                "a third in which doubt decides what to try next; and policies that learn to act."
            ),
            report.heading("What was run"),
            report.bullets(f"{problem.name}: {problem.about}." for problem in problems),
            report.facts(ran),
            report.paragraph("All other settings are the estimator's defaults."),
            report.heading("Results"),
            report.table(
                "On the test rows. Log-likelihood is the mean a row in nats, higher is better; "
                "coverage is the share of outcomes inside their 90 % interval; seconds are for the "
                "fit, compilation included.",
                HEADER,
                rows_of(summary),
                texts=2,
            ),
            *(
                report.figure(figures.to_svg(figure, name, inline=True), captions[name])
                for name, figure in drawn.items()
            ),
            report.heading("Reading it"),
            *(
                report.subheading(name) + report.bullets(found["reading"])
                for name, found in summary["problems"].items()
            ),
            report.paragraph(
                "One split and one seed show how the pieces work. They do not settle which method "
                "is better: that takes all splits, and is in the documentation."
            ),
            *demo_bandit.page(summary["bandit"]),
            *demo_control.page(summary["control"], film),
        ],
    )
