"""How good predictions were: the numbers that ``fit`` and ``evaluate`` report.

Rows are scored piece by piece and only a few numbers a row are kept, so that tables of any length
can be scored. What each number means is in :mod:`s2vgd.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from s2vgd import metrics
from s2vgd.cli.options import ROWS_AT_ONCE
from s2vgd.tabular import TableCodec

LEVELS = (0.5, 0.9, 0.95)

Rows = dict[str, np.ndarray]


def split(
    y: np.ndarray, share: float, seed: int, *, stratify: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Divide the rows at random into those to fit and those to hold out.

    With `stratify` each class gives its share, and at least one row of each is fitted, so that
    the fit knows every class. Too few rows for a useful division hold out none.
    """
    rng = np.random.default_rng(seed)
    held_out: list[int] = []
    groups = (
        [np.flatnonzero(y == label) for label in np.unique(y)] if stratify else [np.arange(len(y))]
    )
    for group in groups:
        rows = rng.permutation(group)
        held_out.extend(rows[: min(round(share * len(rows)), len(rows) - 1)])
    test = np.sort(np.array(held_out, dtype=np.int64))
    train = np.setdiff1d(np.arange(len(y)), test)
    if len(train) < 2:
        return np.arange(len(y)), test[:0]
    return train, test


def score_rows(codec: TableCodec, predictive: Any, y: np.ndarray) -> Rows:
    """Return what is kept of each row: errors and densities, or class probabilities."""
    if codec.classes:
        return {"proba": predictive.proba, "y": y, "log_prob": predictive.log_prob(y)}
    per_target = {
        "error": predictive.mean - y,
        "crps": predictive.crps(y),
        "pit": predictive.cdf(y),
    }
    shaped = {name: values.reshape(len(y), -1) for name, values in per_target.items()}
    return {**shaped, "log_prob": predictive.log_prob(y)}


def join(pieces: Iterable[Rows]) -> Rows:
    """Put the rows of several pieces together."""
    pieces = list(pieces)
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def score_arrays(codec: TableCodec, estimator: Any, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Score an estimator on encoded rows."""
    starts = range(0, len(y), ROWS_AT_ONCE)
    pieces = [slice(start, start + ROWS_AT_ONCE) for start in starts]
    return summarise(
        codec, join(score_rows(codec, estimator.predict_dist(x[p]), y[p]) for p in pieces)
    )


def summarise(codec: TableCodec, rows: Rows) -> dict[str, Any]:
    """Average the rows into metrics that ``json`` can write.

    For one target: ``rmse``, ``crps``, ``coverage`` by level, ``log_likelihood``. For several the
    first three are under ``targets`` by name and the log-likelihood is the joint one. For classes:
    ``accuracy``, ``brier``, ``ece``, ``log_likelihood``.
    """
    common = {
        "task": codec.task,
        "rows": len(rows["log_prob"]),
        "log_likelihood": float(rows["log_prob"].mean()),
    }
    if codec.classes:
        return {**common, **_class_metrics(rows["proba"], rows["y"])}
    by_target = {
        name: {
            "rmse": float(np.sqrt(np.mean(rows["error"][:, i] ** 2))),
            "crps": float(rows["crps"][:, i].mean()),
            "coverage": {f"{level:g}": coverage(rows["pit"][:, i], level) for level in LEVELS},
        }
        for i, name in enumerate(codec.targets)
    }
    if len(codec.targets) == 1:
        return {**common, **by_target[codec.targets[0]]}
    return {**common, "targets": by_target}


def coverage(pit: np.ndarray, level: float) -> float:
    """Share of rows inside the central interval of a level, from their cdf at the outcome."""
    return float(np.mean(np.abs(pit - 0.5) <= 0.5 * level))


def metric_rows(scores: dict[str, Any]) -> list[list[str]]:
    """Return metrics as rows of name and text, for a table to read."""
    named = {
        "rmse": "RMSE",
        "accuracy": "accuracy",
        "log_likelihood": "log-likelihood",
        "crps": "CRPS",
        "brier": "Brier score",
        "ece": "calibration error",
    }
    rows = [["rows", str(scores["rows"])]]
    for prefix, part in [("", scores), *scores.get("targets", {}).items()]:
        start = f"{prefix} " if prefix else ""
        rows += [[start + label, f"{part[key]:.4g}"] for key, label in named.items() if key in part]
        rows += [
            [f"{start}inside {100 * float(level):g} % interval", f"{100 * share:.1f} %"]
            for level, share in part.get("coverage", {}).items()
        ]
    return rows


def _class_metrics(proba: np.ndarray, y: np.ndarray) -> dict[str, float]:
    return {
        "accuracy": metrics.accuracy(proba.argmax(axis=1), y),
        "brier": metrics.brier(proba, y),
        "ece": metrics.expected_calibration_error(proba, y),
    }
