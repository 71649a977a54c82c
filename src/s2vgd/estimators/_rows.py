"""Rows as a user has them, and their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight

# How scikit-learn is to hand over rows. Frames have their numbers column by column, and sums in
# another order differ in the last bit.
ROWS: dict[str, Any] = {"dtype": np.float64, "order": "C"}


def is_plain_table(x: Any, n_features: int) -> bool:
    """Whether scikit-learn's checks would hand these rows back as they are.

    They take a tenth of a millisecond, which is half of what it takes to predict a single row.
    """
    has_the_form = (
        type(x) is np.ndarray
        and x.dtype == ROWS["dtype"]
        and x.ndim == 2
        and len(x) > 0
        and x.shape[1] == n_features
        and x.flags.c_contiguous
    )
    with np.errstate(over="ignore", invalid="ignore"):
        return has_the_form and bool(np.isfinite(np.sum(x)))


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
