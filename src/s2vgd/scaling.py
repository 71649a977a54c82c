"""Columns of numbers brought to mean zero and standard deviation one, which networks want."""

from __future__ import annotations

from typing import Self

import numpy as np


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
