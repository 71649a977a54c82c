"""From nothing to predictions: the estimator in a fresh process, to be compiled or compiled before.

The data are yacht (277 rows to learn from, 31 to predict). Without JAX's persistent compilation
cache everything is compiled; with it, filled by a run before, nearly nothing is. Two times are
taken: that of fit and predict, and that of the whole process, interpreter and imports included, by
which it is compared. Peers run in processes of their own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from s2vgd.bench import fits
from s2vgd.bench.records import Row, missing, not_run
from s2vgd.bench.timing import Spread, ratio

TITLE = "Fit and predict from a cold process"

DATASET = "yacht"
PEERS: dict[str, dict[str, Any]] = {
    "NGBoost": {"estimators": 500},
    "PyTorch deep ensemble": {"epochs": 400},
}
COLD, WARM = 10.0, 4.0
"""Seconds that the estimator may take, everything to be compiled and nothing."""


def ask(quick: bool, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield rows of the estimator by itself, and against peers."""
    budget = {"refine": None, "steps": 200} if quick else {}
    extra["estimator"], extra["peers"] = budget, PEERS
    yield from answer(budget, 1 if quick else 5, extra)


def answer(budget: dict[str, Any], repeats: int, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of an estimator with these settings."""
    reasons = {name: missing(*fits.PACKAGES[name]) for name in PEERS}
    with tempfile.TemporaryDirectory() as cache:

        def ours(environment: dict[str, str]) -> Callable[[int], fits.Fit]:
            return lambda seed: fits.run(
                fits_ours, DATASET, seed, budget, again=True, environment=environment
            )

        fits_ours = "S2VGDRegressor"
        runs: dict[str, Callable[[int], fits.Fit]] = {
            "without the cache": ours(fits.UNCOMPILED),
            "with the cache": ours(fits.compiled_in(cache)),
        }
        for name, settings in PEERS.items():
            if not reasons[name]:
                runs[name] = lambda seed, name=name, settings=settings: fits.run(  # type: ignore[misc]
                    name, DATASET, seed, settings
                )
        runs["with the cache"](0)  # fills it
        found: dict[str, list[fits.Fit]] = {name: [] for name in runs}
        for seed in range(repeats):
            for name, run in runs.items():
                found[name].append(run(seed))
    walls = {name: np.array([_wall(fit) for fit in list_]) for name, list_ in found.items()}
    extra["fits"] = {name: [fit.__dict__ for fit in list_] for name, list_ in found.items()}
    for name, goal in (("without the cache", COLD), ("with the cache", WARM)):
        target = goal if not budget else None
        alone = [fit.fit_seconds + fit.predict_seconds for fit in found[name]]
        yield _own(f"{DATASET}, fit and predict {name}", alone, target)
        yield _own(f"{DATASET}, process {name}", walls[name], target)
    again = [fit.again_seconds or 0.0 for fit in found["without the cache"]]
    yield _own(f"{DATASET}, second fit in a process", again, WARM if not budget else None)
    yield Row(
        f"{DATASET}, process without the cache",
        "with the cache",
        ratio(walls["without the cache"], walls["with the cache"]),
        "higher",
        Spread.of(walls["with the cache"]),
        Spread.of(walls["without the cache"]),
        "s",
    )
    for name, reason in reasons.items():
        for kind in ("without the cache", "with the cache"):
            case = f"{DATASET}, process {kind}"
            if reason:
                yield not_run(case, name, reason)
                continue
            yield Row(
                case,
                name,
                ratio(walls[name], walls[kind]),
                "higher",
                Spread.of(walls[kind]),
                Spread.of(walls[name]),
                "s",
                note=_scores(found[kind], found[name]),
            )


def _wall(fit: fits.Fit) -> float:
    return fit.process_seconds - (fit.again_seconds or 0.0)


def _own(case: str, seconds: Any, goal: float | None) -> Row:
    return Row(case, better="lower", ours=Spread.of(seconds), unit="s", target=goal)


def _scores(ours: list[fits.Fit], theirs: list[fits.Fit]) -> str:
    mine, peer = (float(np.mean([fit.log_likelihood for fit in fs])) for fs in (ours, theirs))
    return f"test log-likelihood {mine:.2f} against {peer:.2f}"
