"""From the terms of an estimate to its value, standard error and confidence interval.

Every estimator here has one form, mean(base) + mean(weight × residual) / mean(weight), the last
division only if it is self-normalised; so each kind of interval is written once. Which base,
weights and residuals an estimator has is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple, Protocol

import numpy as np

from s2vgd.bandits.evaluation.data import Floats
from s2vgd.errors import DataError

_INDICES_AT_ONCE = 1 << 20  # bounds what a bootstrap holds in memory to some tens of MB
_BISECTIONS = 60  # halves the range of rewards to below float64's resolution


@dataclass(frozen=True, eq=False)
class Terms:
    """The rows' contributions to an estimate.

    Attributes
    ----------
    base : ndarray of shape (N,)
        What a model of the rewards predicts for the policy; zero where there is no model.
    weights : ndarray of shape (N,)
        How much each logged reward counts.
    residuals : ndarray of shape (N,)
        The logged reward less what the model predicts for it.
    self_normalised : bool
        Whether the weighted residuals are divided by the mean weight.
    base_range : (float, float)
        Between which values the model predicts.
    cap : float
        A bound that the estimator puts on its weights.
    weight_bound : float
        A bound on the weights as they come.
    threshold : float, optional
        The clip or switch that was used, by an estimator that has one.
    """

    base: Floats
    weights: Floats
    residuals: Floats
    self_normalised: bool
    base_range: tuple[float, float]
    cap: float
    weight_bound: float
    threshold: float | None = None

    def __len__(self) -> int:
        return self.base.size

    @property
    def corrections(self) -> Floats:
        """Weight × residual, of shape (N,)."""
        return self.weights * self.residuals

    @property
    def value(self) -> float:
        """The estimate."""
        normaliser = self.weights.mean() if self.self_normalised else 1.0
        return float(self.base.mean() + self.corrections.mean() / normaliser)

    @property
    def standard_error(self) -> float:
        """That of the estimate, by linearisation; infinite for a single row."""
        if len(self) < 2:
            return float("inf")
        influence = self.base + self.corrections
        if self.self_normalised:
            mean_weight = self.weights.mean()
            ratio = self.corrections.mean() / mean_weight
            influence = self.base + (self.corrections - ratio * self.weights) / mean_weight
        return float(influence.std(ddof=1) / np.sqrt(len(self)))


class Bounds(NamedTuple):
    """An interval, and the standard error that goes with it."""

    lower: float
    upper: float
    standard_error: float


class Interval(Protocol):
    """A kind of confidence interval."""

    def bounds(self, terms: Terms, level: float) -> Bounds:
        """Return the interval that covers with probability `level`, in (0, 1)."""
        ...


@dataclass(frozen=True)
class Normal:
    """Value ± z standard errors; self-normalised estimates are linearised (the delta method)."""

    def bounds(self, terms: Terms, level: float) -> Bounds:
        """Return the interval."""
        error = terms.standard_error
        half = NormalDist().inv_cdf((1 + level) / 2) * error
        return Bounds(terms.value - half, terms.value + half, error)


@dataclass(frozen=True)
class Bootstrap:
    """Percentiles of the estimate on rows drawn anew with replacement (Efron, 1979).

    Predictions and thresholds are kept as they are. Draws in which a self-normalised
    estimate does not exist, because no row with weight was drawn, are left out.

    Parameters
    ----------
    draws : int
        How often.
    seed : int
        The same seed gives the same interval.
    """

    draws: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise DataError(f"draws must be at least 2, got {self.draws}")

    def bounds(self, terms: Terms, level: float) -> Bounds:
        """Return the interval."""
        rng = np.random.default_rng(self.seed)
        n = len(terms)
        at_once = max(1, _INDICES_AT_ONCE // n)
        sizes = [min(at_once, self.draws - done) for done in range(0, self.draws, at_once)]
        values = np.concatenate([_resampled(terms, rng.integers(n, size=(k, n))) for k in sizes])
        if values.size < 2:
            raise DataError(f"draws must be more: of {self.draws}, {values.size} have any weight")
        lower, upper = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
        return Bounds(float(lower), float(upper), float(values.std(ddof=1)) if n > 1 else np.inf)


def _resampled(terms: Terms, drawn: np.ndarray) -> Floats:
    """Return the estimate for each row of `drawn`, of shape (draws, N): indices of rows."""
    if not terms.self_normalised:
        return (terms.base + terms.corrections)[drawn].mean(axis=1)
    normaliser = terms.weights[drawn].mean(axis=1)
    exists = normaliser > 0
    drawn, normaliser = drawn[exists], normaliser[exists]
    return terms.base[drawn].mean(axis=1) + terms.corrections[drawn].mean(axis=1) / normaliser


@dataclass(frozen=True)
class EmpiricalBernstein:
    """An interval that holds at every sample size, for rewards known to be bounded.

    Maurer and Pontil (2009, Theorem 4), on both sides; wide, because it promises more than
    the others. It covers the mean of the terms: the policy's value for IPS and DR, what is left
    of it after clipping for the clipped and switched estimators. For a self-normalised estimate
    v it is the set of v that the bound on the mean of w (r - v), which is zero at the truth,
    does not exclude. Predictions must come from other data, as `cross_fit` sees to.

    Parameters
    ----------
    low, high : float
        Between which values every reward lies.
    max_weight : float, optional
        A bound on the importance weights. By default the policy's largest probability over the
        least propensity in the log, which is right if the logging policy was never below that.
    """

    low: float = 0.0
    high: float = 1.0
    max_weight: float | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise DataError(f"low and high must be finite and in order, got {self.low, self.high}")

    def bounds(self, terms: Terms, level: float) -> Bounds:
        """Return the interval."""
        largest = min(terms.cap, terms.weight_bound if self.max_weight is None else self.max_weight)
        if terms.weights.max() > largest * (1 + 1e-9):
            raise DataError(
                f"max_weight is {largest:g} but there is a weight of {terms.weights.max():g}"
            )
        error, n = terms.standard_error, len(terms)
        if n < 2:
            return Bounds(-np.inf, np.inf, error)
        low = self.low - terms.base_range[1]
        high = self.high - terms.base_range[0]
        if terms.residuals.min() < low or terms.residuals.max() > high:
            raise DataError(f"rewards lie outside low={self.low:g} and high={self.high:g}")
        width = max(0.0, largest * high) - min(0.0, largest * low)
        base_width = terms.base_range[1] - terms.base_range[0]
        if not terms.self_normalised:
            half = _bernstein(terms.base + terms.corrections, base_width + width, 1 - level)
            return Bounds(terms.value - half, terms.value + half, error)
        # With a model, the two means share the probability of failure.
        failure = (1 - level) / (2 if base_width else 1)
        base_half = _bernstein(terms.base, base_width, failure) if base_width else 0.0
        lower, upper = _not_excluded(terms, (low, high), largest * (high - low), failure)
        centre = float(terms.base.mean())
        return Bounds(centre + lower - base_half, centre + upper + base_half, error)


def _bernstein(values: Floats, width: float, failure: float) -> float:
    """Return the half-width of Maurer and Pontil's interval for the mean of (N,) values."""
    log_term = np.log(4 / failure)
    n = values.size
    return float(
        np.sqrt(2 * values.var(ddof=1) * log_term / n) + 7 * width * log_term / (3 * (n - 1))
    )


def _not_excluded(
    terms: Terms, limits: tuple[float, float], width: float, failure: float
) -> tuple[float, float]:
    """Return the least and the largest v for which the mean of w (residual - v) may be zero.

    The mean is linear in v and its bound convex, so that on either side of the estimate what is
    excluded is one stretch; it reaches the limit or the limit itself is not excluded.
    """
    estimate = float(terms.corrections.mean() / terms.weights.mean())

    def excluded(v: float) -> bool:
        values = terms.weights * (terms.residuals - v)
        return abs(values.mean()) > _bernstein(values, width, failure)

    ends = []
    for limit in limits:
        inside, outside = estimate, limit
        if not excluded(limit):
            ends.append(limit)
            continue
        for _ in range(_BISECTIONS):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if excluded(middle) else (middle, outside)
        ends.append(outside)
    return ends[0], ends[1]
