"""The value of a policy from decisions that another one made: eight estimators, one signature.

Each is a frozen dataclass that says what base, weights and residuals it is made of; checks,
intervals and warnings are the same for all and live elsewhere. In the formulas, w = π(a | x) / p is
a row's importance weight, q(x, a) a predicted reward, and q(x, π) = Σₐ π(a | x) q(x, a).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from s2vgd.bandits.evaluation.base import Estimator, Evidence
from s2vgd.bandits.evaluation.data import Floats
from s2vgd.bandits.evaluation.intervals import Terms
from s2vgd.errors import DataError

Threshold = float | Literal["mse"] | None

_QUANTILES = (1.0, 0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)


def _weighted(
    evidence: Evidence,
    weights: Floats,
    *,
    self_normalised: bool = False,
    cap: float = np.inf,
    threshold: float | None = None,
) -> Terms:
    """Return terms without a model: weights × rewards."""
    return Terms(
        base=np.zeros(len(evidence.data)),
        weights=weights,
        residuals=evidence.data.rewards,
        self_normalised=self_normalised,
        base_range=(0.0, 0.0),
        cap=cap,
        weight_bound=_weight_bound(evidence),
        threshold=threshold,
    )


def _modelled(
    evidence: Evidence,
    weights: Floats,
    *,
    self_normalised: bool = False,
    cap: float = np.inf,
    threshold: float | None = None,
) -> Terms:
    """Return terms with a model: q(x, π) + weights × (rewards - q(x, a))."""
    predictions = evidence.predictions
    assert predictions is not None  # `evaluate` has seen to it
    return Terms(
        base=np.einsum("na,na->n", evidence.policy, predictions),
        weights=weights,
        residuals=evidence.data.rewards - evidence.data.of_logged_actions(predictions),
        self_normalised=self_normalised,
        base_range=(float(predictions.min()), float(predictions.max())),
        cap=cap,
        weight_bound=_weight_bound(evidence),
        threshold=threshold,
    )


def _weight_bound(evidence: Evidence) -> float:
    return float(evidence.policy.max() / evidence.data.propensities.min())


@dataclass(frozen=True)
class Replay(Estimator):
    """The mean reward of the rows that a policy would have produced (Li et al., 2011).

    A row is kept with probability w / bound: where logging was uniform and the policy is
    deterministic, exactly if the policy takes the logged action. The rows kept are a sample of
    what the policy would have logged.

    Parameters
    ----------
    bound : float, optional
        No weight may exceed it; the largest weight in the log by default.
    seed : int
        Of the draws that decide which rows are kept.
    """

    name: ClassVar[str] = "replay"
    bound: float | None = None
    seed: int = 0

    def terms(self, evidence: Evidence) -> Terms:
        """Keep or drop each row."""
        largest = float(evidence.weights.max())
        bound = largest if self.bound is None else self.bound
        if not largest <= bound < np.inf:
            raise DataError(f"bound is {bound:g} but there is a weight of {largest:g}")
        drawn = np.random.default_rng(self.seed).random(len(evidence.data))
        kept = (drawn * bound < evidence.weights).astype(np.float64)
        return _weighted(evidence, kept, self_normalised=True, cap=1.0)


@dataclass(frozen=True)
class IPS(Estimator):
    """Inverse propensity scores: mean(w r). Unbiased (Horvitz and Thompson, 1952)."""

    name: ClassVar[str] = "ips"

    def terms(self, evidence: Evidence) -> Terms:
        """Weigh every reward."""
        return _weighted(evidence, evidence.weights)


@dataclass(frozen=True)
class SelfNormalisedIPS(Estimator):
    """mean(w r) / mean(w): a slight bias for less variance (Swaminathan and Joachims, 2015)."""

    name: ClassVar[str] = "snips"

    def terms(self, evidence: Evidence) -> Terms:
        """Weigh every reward, and divide by the mean weight."""
        return _weighted(evidence, evidence.weights, self_normalised=True)


@dataclass(frozen=True)
class ClippedIPS(Estimator):
    """mean(min(w, clip) r): biased towards zero, but no row dominates (Ionides, 2008).

    Its interval is one for the clipped mean.

    Parameters
    ----------
    clip : float, "mse" or None
        The largest weight. None is √N, Ionides' rule, which the weights of an ordinary log do not
        reach; infinity gives `IPS`. "mse" chooses from the data: see `least_error`.
    """

    name: ClassVar[str] = "clipped-ips"
    clip: Threshold = None

    def __post_init__(self) -> None:
        if isinstance(self.clip, int | float) and not self.clip > 0:
            raise DataError(f"clip must be positive, got {self.clip}")
        _check_rule("clip", self.clip)

    def terms(self, evidence: Evidence) -> Terms:
        """Weigh every reward, with clipped weights."""

        def clipped(clip: float) -> Terms:
            weights = np.minimum(evidence.weights, clip)
            return _weighted(evidence, weights, cap=clip, threshold=clip)

        if self.clip == "mse":
            return least_error([clipped(clip) for clip in _candidates(evidence.weights)])
        return clipped(_fixed(self.clip, evidence))


@dataclass(frozen=True)
class DirectMethod(Estimator):
    """mean(q(x, π)): as good as the model, and its interval does not know how good that is."""

    name: ClassVar[str] = "dm"
    needs_predictions: ClassVar[bool] = True
    uses_weights: ClassVar[bool] = False

    def terms(self, evidence: Evidence) -> Terms:
        """Believe the model."""
        return _modelled(evidence, np.zeros(len(evidence.data)), cap=0.0)


@dataclass(frozen=True)
class DoublyRobust(Estimator):
    """mean(q(x, π) + w (r - q(x, a))): right if either is (Dudík, Langford and Li, 2011)."""

    name: ClassVar[str] = "dr"
    needs_predictions: ClassVar[bool] = True

    def terms(self, evidence: Evidence) -> Terms:
        """Correct the model by its weighted errors."""
        return _modelled(evidence, evidence.weights)


@dataclass(frozen=True)
class SelfNormalisedDR(Estimator):
    """mean(q(x, π)) + mean(w (r - q(x, a))) / mean(w) (Thomas and Brunskill, 2016)."""

    name: ClassVar[str] = "sndr"
    needs_predictions: ClassVar[bool] = True

    def terms(self, evidence: Evidence) -> Terms:
        """Correct the model by the weighted mean of its errors."""
        return _modelled(evidence, evidence.weights, self_normalised=True)


@dataclass(frozen=True)
class SwitchDR(Estimator):
    """mean(q(x, π) + [w ≤ tau] w (r - q(x, a))) (Wang, Agarwal and Dudík, 2017).

    Where the weight is above `tau` the model is believed as it is. The interval is one for
    the mean of this, whose bias is the model's error there.

    Parameters
    ----------
    tau : float, "mse" or None
        Zero gives `DirectMethod`, infinity `DoublyRobust`, None is √N. "mse" chooses from
        the data: see `least_error`.
    """

    name: ClassVar[str] = "switch-dr"
    needs_predictions: ClassVar[bool] = True
    tau: Threshold = None

    def __post_init__(self) -> None:
        if isinstance(self.tau, int | float) and not self.tau >= 0:
            raise DataError(f"tau must not be negative, got {self.tau}")
        _check_rule("tau", self.tau)

    def terms(self, evidence: Evidence) -> Terms:
        """Correct the model where the weight is moderate."""

        def switched(tau: float) -> Terms:
            weights = np.where(evidence.weights <= tau, evidence.weights, 0.0)
            return _modelled(evidence, weights, cap=tau, threshold=tau)

        if self.tau == "mse":
            return least_error([switched(tau) for tau in (*_candidates(evidence.weights), 0.0)])
        return switched(_fixed(self.tau, evidence))


def least_error(candidates: Sequence[Terms]) -> Terms:
    """Choose the threshold with the least estimated squared error: variance plus squared bias.

    In the manner of Su, Dimakopoulou, Krishnamurthy and Dudík (2020). The bias of a candidate is
    estimated by the mean of what it leaves out of the unbiased estimate, d. The square of that
    is too large by the variance of the mean, which is taken off: the squared bias is the larger of
    mean(d)² - var(d) / N and zero. The interval of the winner does not account for the choice.

    Parameters
    ----------
    candidates : sequence of Terms
        The unbiased one first. `ClippedIPS` and `SwitchDR` try infinity and then quantiles of
        the positive weights down to the median; `SwitchDR` also tries zero.
    """
    unbiased = candidates[0].corrections
    n = unbiased.size

    def squared_error(terms: Terms) -> float:
        left_out = unbiased - terms.corrections
        noise = left_out.var(ddof=1) / n if n > 1 else 0.0
        return terms.standard_error**2 + max(0.0, left_out.mean() ** 2 - noise)

    return min(candidates, key=squared_error)


def _candidates(weights: Floats) -> Sequence[float]:
    positive = weights[weights > 0]
    if positive.size == 0:
        return [np.inf]
    quantiles = np.quantile(positive, _QUANTILES, method="lower")
    return [np.inf, *np.unique(quantiles)[::-1].tolist()]


def _fixed(threshold: Threshold, evidence: Evidence) -> float:
    if threshold is None:
        return float(np.sqrt(len(evidence.data)))
    return float(threshold)


def _check_rule(name: str, threshold: Threshold) -> None:
    if isinstance(threshold, str) and threshold != "mse":
        raise DataError(f'{name} must be a number, "mse" or None, got {threshold!r}')


ALL_ESTIMATORS: tuple[Estimator, ...] = (
    Replay(),
    IPS(),
    SelfNormalisedIPS(),
    ClippedIPS(),
    DirectMethod(),
    DoublyRobust(),
    SelfNormalisedDR(),
    SwitchDR(),
)
