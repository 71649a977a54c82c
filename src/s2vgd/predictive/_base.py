"""The interface every predictive distribution shares, and the checks and row chunks they all need.

What the numbers mean for regression and for classes is in ``_mixture`` and ``_categorical``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

# Largest array, in numbers, that one chunk of rows should need on the device.
CHUNK_CELLS = 2**21
_FEWEST_ROWS = 8

_CLOSEST_Q = 1e-12


class Predictive(ABC):
    """What S posterior draws say about N rows, as an equally weighted mixture over the draws.

    Rows are the first axis of everything: ``len(p)`` is N and ``p[rows]`` (an integer, a slice,
    indices or a mask) is the predictive of those rows alone. All results are NumPy arrays in the
    user's units.
    """

    n_draws: int

    @abstractmethod
    def __len__(self) -> int:
        """Count the rows."""

    @abstractmethod
    def __getitem__(self, rows: Any) -> Predictive:
        """Predictive of some of the rows; an integer gives a predictive of one row."""

    @cached_property
    @abstractmethod
    def mean(self) -> np.ndarray:
        """Predictive mean."""

    @cached_property
    @abstractmethod
    def var(self) -> np.ndarray:
        """Predictive variance."""

    @cached_property
    def std(self) -> np.ndarray:
        """Predictive standard deviation, the square root of ``var``."""
        return np.sqrt(self.var)

    @cached_property
    @abstractmethod
    def entropy(self) -> np.ndarray:
        """Predictive entropy in nats."""

    @cached_property
    @abstractmethod
    def epistemic(self) -> np.ndarray:
        """Uncertainty that more data would remove: disagreement between the draws."""

    @cached_property
    @abstractmethod
    def aleatoric(self) -> np.ndarray:
        """Uncertainty that more data would not remove: the noise within each draw, averaged."""

    @abstractmethod
    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Log density or log probability of each row's outcome, (N,)."""

    @abstractmethod
    def crps(self, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score of each row's outcome; smaller is better."""

    @abstractmethod
    def quantile(self, q: ArrayLike) -> np.ndarray:
        """Quantiles at ``q``, a number in (0, 1) or a one-dimensional array of them."""

    @abstractmethod
    def sample(self, key: Array, n: int) -> np.ndarray:
        """Draw ``n`` outcomes for each row, stacked along a new first axis."""

    @property
    def median(self) -> np.ndarray:
        """The 0.5-quantile."""
        return self.quantile(0.5)

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Central interval: the quantiles that leave (1 - level)/2 on either side.

        Parameters
        ----------
        level : float
            Probability inside, in (0, 1).

        Returns
        -------
        lower, upper : ndarray
        """
        level = check_level(level)
        lower, upper = self.quantile([0.5 * (1.0 - level), 0.5 * (1.0 + level)])
        return lower, upper


def row_chunks(n_rows: int, cells_per_row: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Cut rows into chunks of bounded memory and of few different sizes.

    Sizes are powers of two, so that jitted functions meet few shapes; the last chunk is padded by
    repeating the last row.

    Yields
    ------
    rows : slice
        The rows a chunk is for, of length m.
    index : ndarray of int
        Rows to compute, of which the first m are ``rows``.
    """
    affordable = max(1, CHUNK_CELLS // max(1, cells_per_row))
    needed = max(_FEWEST_ROWS, 1 << max(0, n_rows - 1).bit_length())
    size = min(1 << (affordable.bit_length() - 1), needed)
    for start in range(0, n_rows, size):
        index = np.minimum(np.arange(start, start + size), n_rows - 1)
        yield slice(start, min(start + size, n_rows)), index


def device_dtype() -> np.dtype:
    """Floating type JAX computes in now: float32, or float64 under ``jax_enable_x64``."""
    return np.dtype(jnp.result_type(float))


def finite_array(name: str, value: ArrayLike) -> np.ndarray:
    """Return a real, finite NumPy array, of type float32 or float64."""
    try:
        array = np.asarray(value)
        if array.dtype != np.float32:
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers") from error
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} contains NaN or infinite values")
    return array


def check_level(level: float) -> float:
    """Return ``level`` as a float in (0, 1) or raise ``ValueError``."""
    value = np.asarray(level)
    if value.ndim or value.dtype.kind not in "fiu" or not 0.0 < value < 1.0:
        raise ValueError(f"level must be a number strictly between 0 and 1, got {level!r}")
    return float(value)


def check_q(q: ArrayLike) -> np.ndarray:
    """Return ``q`` as a float64 array of at most one dimension, all of it inside (0, 1)."""
    values = np.asarray(q)
    if values.dtype.kind not in "fiu" or values.ndim > 1:
        raise ValueError(f"q must be a number or a one-dimensional array of numbers, got {q!r}")
    values = values.astype(np.float64)
    if not np.all((values >= _CLOSEST_Q) & (values <= 1.0 - _CLOSEST_Q)):
        raise ValueError(
            f"q must lie strictly between 0 and 1 (and no closer than {_CLOSEST_Q:g}), got {q!r}"
        )
    return values


def check_count(n: int) -> int:
    """Return ``n`` as a positive int or raise ``ValueError``."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"n must be a positive integer, got {n!r}")
    return int(n)


def row_index(rows: Any, n_rows: int) -> np.ndarray:
    """Positions that an integer, slice, index array or mask selects, always one-dimensional."""
    index = np.atleast_1d(np.arange(n_rows)[rows])
    if index.ndim != 1:
        raise IndexError("a predictive is indexed by rows only")
    return index
