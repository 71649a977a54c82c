"""Policies by estimators in one table, and what the logging policy itself earned.

The estimators and what they need are in the other files of this package.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from s2vgd.bandits.evaluation.base import (
    DEFAULT_INTERVAL,
    DEFAULT_LIMITS,
    Estimate,
    Estimator,
    gather,
)
from s2vgd.bandits.evaluation.data import LoggedData
from s2vgd.bandits.evaluation.estimators import ALL_ESTIMATORS
from s2vgd.bandits.evaluation.intervals import Interval, Terms
from s2vgd.bandits.evaluation.weights import DegenerateWeightsWarning, WeightLimits
from s2vgd.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


def logged_value(
    data: LoggedData, *, interval: Interval = DEFAULT_INTERVAL, level: float = 0.95
) -> Estimate:
    """Return the mean reward that the logging policy itself had, to compare others with."""
    if not 0 < level < 1:
        raise DataError(f"level must be between 0 and 1, got {level}")
    n = len(data)
    terms = Terms(
        base=np.zeros(n),
        weights=np.ones(n),
        residuals=data.rewards,
        self_normalised=False,
        base_range=(0.0, 0.0),
        cap=1.0,
        weight_bound=1.0,
    )
    bounds = interval.bounds(terms, level)
    return Estimate(
        value=terms.value,
        lower=bounds.lower,
        upper=bounds.upper,
        level=level,
        standard_error=bounds.standard_error,
        effective_sample_size=float(n),
        n=n,
    )


@dataclass(frozen=True)
class Comparison:
    """Policies by estimators, a row each; printing it gives a table.

    Attributes
    ----------
    rows : tuple of dict
        ``policy`` and ``estimator``, then the attributes of `Estimate`.
    """

    rows: tuple[dict[str, Any], ...]

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame; needs pandas."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def __str__(self) -> str:
        level = self.rows[0]["level"]
        table = [["policy", "estimator", "value", f"{level:.0%} interval", "std. error", "ESS", ""]]
        table += [
            [
                row["policy"],
                row["estimator"],
                f"{row['value']:.5g}",
                f"[{row['lower']:.5g}, {row['upper']:.5g}]",
                f"{row['standard_error']:.2g}",
                f"{row['effective_sample_size']:.0f}",
                "!" if row["warnings"] else "",
            ]
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join([*lines, *(f"! {note}" for note in self.notes())])

    def notes(self) -> list[str]:
        """Return the warnings, a sentence each, with the policy and the estimators they are about.

        No estimators are named where it is about all of them.
        """
        about: dict[tuple[str, str], list[str]] = {}
        estimators: dict[str, list[str]] = {}
        for row in self.rows:
            estimators.setdefault(row["policy"], []).append(row["estimator"])
            for text in row["warnings"]:
                about.setdefault((row["policy"], text), []).append(row["estimator"])
        return [
            f"{policy}: {text}"
            if warned == estimators[policy]
            else f"{policy}, {', '.join(warned)}: {text}"
            for (policy, text), warned in about.items()
        ]


def compare(
    data: LoggedData,
    policies: Mapping[str, ArrayLike],
    estimators: Sequence[Estimator] | None = None,
    predictions: ArrayLike | None = None,
    *,
    interval: Interval = DEFAULT_INTERVAL,
    level: float = 0.95,
    limits: WeightLimits = DEFAULT_LIMITS,
) -> Comparison:
    """Evaluate several policies on one log by several estimators.

    Parameters
    ----------
    data : LoggedData
        N rows, A actions.
    policies : mapping from names to arrays of shape (N, A)
        The policies to be evaluated.
    estimators : sequence of Estimator, optional
        All of them by default; without `predictions`, those that need none.
    predictions : array of shape (N, A), optional
        Predicted rewards, for all policies.
    interval, level, limits
        As in `Estimator.estimate`.

    Returns
    -------
    Comparison
        Estimators within policies. What several estimators have to warn of is said once.
    """
    if not policies:
        raise DataError("policies is empty: there is nothing to compare")
    if estimators is None:
        have = predictions is not None
        estimators = [each for each in ALL_ESTIMATORS if have or not each.needs_predictions]
    if not estimators:
        raise DataError("estimators is empty: there is nothing to compare by")
    rows: list[dict[str, Any]] = []
    for policy_name, policy in policies.items():
        try:
            evidence = gather(data, policy, predictions)
        except DataError as error:
            raise DataError(f"{policy_name}: {error}") from error
        for estimator in estimators:
            made = estimator.evaluate(evidence, interval, level, limits)
            rows.append({"policy": policy_name, "estimator": estimator.name, **vars(made)})
    table = Comparison(tuple(rows))
    for note in table.notes():
        warnings.warn(note, DegenerateWeightsWarning, stacklevel=2)
    return table
