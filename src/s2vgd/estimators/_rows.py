"""Rows as a user has them: their weights, and the scaling that the networks want."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import _check_sample_weight

# How scikit-learn is to hand over rows. Frames have their numbers column by column, and sums in
# another order differ in the last bit.
ROWS: dict[str, Any] = {"dtype": np.float64, "order": "C"}


class Scaler:
    """Shift and scale of columns; a constant column is shifted and left at that.

    Parameters
    ----------
    shift, scale : array, shape (columns,)
        ``standardised = (value - shift) / scale``.
    """

    def __init__(self, shift: np.ndarray, scale: np.ndarray) -> None:
        self.shift = shift
        self.scale = scale

    @classmethod
    def of(cls, values: np.ndarray, weight: np.ndarray | None) -> Self:
        """Measure mean and standard deviation, weighted if need be."""
        shift = np.average(values, axis=0, weights=weight)
        deviation = values - shift
        largest = np.abs(deviation).max(axis=0)
        unit = np.where(largest > 0, largest, 1.0)  # in which no square leaves the range of floats
        scale = unit * np.sqrt(np.average((deviation / unit) ** 2, axis=0, weights=weight))
        # Rounding gives a constant column of large numbers a tiny spread.
        constant = scale <= 10 * np.finfo(np.float64).eps * np.abs(shift)
        return cls(shift, np.where(constant | (scale == 0), 1.0, scale))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Standardise."""
        return (values - self.shift) / self.scale


def weighted_rows(
    x: np.ndarray, y: np.ndarray, sample_weight: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return rows and validated weights, which are None when all are one.

    Rows of no weight leave no trace, as if they had not been given.
    """
    if sample_weight is None:
        return x, y, None
    weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
    counts = weight > 0
    if not counts.any():
        raise ValueError("sample_weight must have a positive sum, got zeros only")
    if np.all(weight[counts] == 1.0):
        return x[counts], y[counts], None
    return x[counts], y[counts], weight[counts]
