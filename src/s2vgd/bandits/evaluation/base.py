"""What every off-policy estimator is and returns: checked input, one signature, an `Estimate`.

The estimators themselves, and the formulas, are not here.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from numpy.typing import ArrayLike

from s2vgd.bandits.evaluation.data import Floats, LoggedData, check_policy, check_predictions
from s2vgd.bandits.evaluation.intervals import Interval, Normal, Terms
from s2vgd.bandits.evaluation.weights import (
    DegenerateWeightsWarning,
    WeightLimits,
    describe_support,
    describe_weights,
    effective_sample_size,
    importance_weights,
)
from s2vgd.errors import DataError

DEFAULT_INTERVAL = Normal()
DEFAULT_LIMITS = WeightLimits()


@dataclass(frozen=True)
class Estimate:
    """What a policy is worth a decision, and how far to trust that.

    Attributes
    ----------
    value : float
        The estimated mean reward.
    lower, upper : float
        Its confidence interval.
    level : float
        The probability with which that is to cover.
    standard_error : float
        Of the value.
    effective_sample_size : float
        Of the weights that were used (Kish); `n` for the direct method, which uses none.
    n : int
        The number of rows.
    warnings : tuple of str
        What is wrong with the weights; empty if nothing is.
    threshold : float, optional
        The clip or switch that was used, by an estimator that has one.
    """

    value: float
    lower: float
    upper: float
    level: float
    standard_error: float
    effective_sample_size: float
    n: int
    warnings: tuple[str, ...] = ()
    threshold: float | None = None

    def __str__(self) -> str:
        trust = f"{len(self.warnings)} warnings" if self.warnings else "no warnings"
        return (
            f"{self.value:.4g} [{self.lower:.4g}, {self.upper:.4g}] ({self.level:.0%}), "
            f"effective sample size {self.effective_sample_size:.0f} of {self.n}, {trust}"
        )


class Evidence(NamedTuple):
    """A log with a policy and predictions for it, all checked.

    Attributes
    ----------
    data : LoggedData
        N rows, A actions.
    policy : ndarray of shape (N, A)
    weights : ndarray of shape (N,)
        The importance weights of the policy.
    predictions : ndarray of shape (N, A), optional
    """

    data: LoggedData
    policy: Floats
    weights: Floats
    predictions: Floats | None


def gather(data: LoggedData, policy: ArrayLike, predictions: ArrayLike | None) -> Evidence:
    """Check what an estimator is given."""
    checked = check_policy(data, policy)
    predicted = None if predictions is None else check_predictions(data, predictions)
    return Evidence(data, checked, importance_weights(data, checked), predicted)


class Estimator(ABC):
    """An off-policy estimator; `terms` is all that a new one must add."""

    name: ClassVar[str]
    needs_predictions: ClassVar[bool] = False
    uses_weights: ClassVar[bool] = True

    @abstractmethod
    def terms(self, evidence: Evidence) -> Terms:
        """Return the rows' contributions."""

    def estimate(
        self,
        data: LoggedData,
        policy: ArrayLike,
        predictions: ArrayLike | None = None,
        *,
        interval: Interval = DEFAULT_INTERVAL,
        level: float = 0.95,
        limits: WeightLimits = DEFAULT_LIMITS,
    ) -> Estimate:
        """Estimate the mean reward of a policy.

        Parameters
        ----------
        data : LoggedData
            N decisions of the logging policy among A actions.
        policy : array of shape (N, A)
            The probability of each action in each row under the policy to be evaluated.
        predictions : array of shape (N, A), optional
            A prediction of the reward of each action in each row, by a model that has not seen
            the row (see `cross_fit`); needed by the direct and the doubly robust methods.
        interval : Interval
            `Normal`, `Bootstrap` or `EmpiricalBernstein`.
        level : float
            The probability with which the interval is to cover, in (0, 1).
        limits : WeightLimits
            What counts as degenerate.

        Returns
        -------
        Estimate
            With the warnings in it that were also issued, as `DegenerateWeightsWarning`.

        Raises
        ------
        DataError
            If an argument is wrong, or no row with weight is left to a self-normalised
            estimate.
        """
        made = self.evaluate(gather(data, policy, predictions), interval, level, limits)
        if made.warnings:
            text = f"{self.name}: {'; '.join(made.warnings)}"
            warnings.warn(text, DegenerateWeightsWarning, stacklevel=2)
        return made

    def evaluate(
        self, evidence: Evidence, interval: Interval, level: float, limits: WeightLimits
    ) -> Estimate:
        """Estimate from what `gather` has checked, without issuing warnings."""
        if not 0 < level < 1:
            raise DataError(f"level must be between 0 and 1, got {level}")
        if self.needs_predictions and evidence.predictions is None:
            raise DataError(f"predictions must be given: {self.name} needs them")
        terms = self.terms(evidence)
        if terms.self_normalised and not terms.weights.any():
            raise DataError(f"policy shares no action with the log: {self.name} is 0/0")
        bounds = interval.bounds(terms, level)
        data, policy = evidence.data, evidence.policy
        found = describe_support(data, policy, limits)
        if self.uses_weights:
            found += describe_weights(evidence.weights, terms.weights, limits)
            if bounds.standard_error <= 1e-12 * abs(terms.value):
                found.append("all rows say the same, so that the interval has no width")
        return Estimate(
            value=terms.value,
            lower=bounds.lower,
            upper=bounds.upper,
            level=level,
            standard_error=bounds.standard_error,
            effective_sample_size=(
                effective_sample_size(terms.weights) if self.uses_weights else float(len(data))
            ),
            n=len(data),
            warnings=tuple(found),
            threshold=terms.threshold,
        )
