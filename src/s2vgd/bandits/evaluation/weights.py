"""Importance weights and what can be wrong with them.

An off-policy estimate is only as good as its weights, and bad weights do not show in the number
that comes out; here they are turned into sentences. The estimators themselves are not here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from s2vgd.bandits.evaluation.data import Floats, LoggedData


class DegenerateWeightsWarning(UserWarning):
    """The weights, and so the estimate and its interval, should not be relied upon."""


@dataclass(frozen=True)
class WeightLimits:
    """Where weights begin to be called degenerate.

    Parameters
    ----------
    ess : float
        The least effective sample size. Below some thirty the normal approximation is no good.
    ess_share : float
        The least effective sample size as a share of the rows.
    weight_share : float
        The largest share of the total weight that one row may carry.
    propensity : float
        The least propensity of a row whose action the policy takes more often than the log.
    unsupported : float
        The largest mean probability that the policy may give to actions that were never logged.
    mean_errors : float
        The weights average 1 if propensities are right and every action has a chance. This is how
        many of its own standard errors their mean may be away from 1.
    """

    ess: float = 30.0
    ess_share: float = 0.01
    weight_share: float = 0.1
    propensity: float = 1e-3
    unsupported: float = 1e-3
    mean_errors: float = 5.0


def importance_weights(data: LoggedData, policy: Floats) -> Floats:
    """Return π(aᵢ | xᵢ) / pᵢ, the ratio of the two policies' probabilities of what was done.

    Parameters
    ----------
    data : LoggedData
        The log, with propensities p.
    policy : ndarray of shape (N, A)
        π, already checked.

    Returns
    -------
    ndarray of shape (N,)
    """
    return data.of_logged_actions(policy) / data.propensities


def effective_sample_size(weights: Floats) -> float:
    """Return (Σw)² / Σw², the number of equal weights that would vary as little (Kish, 1965).

    It is N for equal weights, 1 if one row has all the weight, and 0 if none has any.
    """
    largest = weights.max(initial=0.0)
    if largest == 0:
        return 0.0
    scaled = weights / largest  # so that the squares neither overflow nor vanish
    return float(scaled.sum() ** 2 / (scaled**2).sum())


def unsupported_mass(data: LoggedData, policy: Floats) -> float:
    """Return the mean probability that a policy of shape (N, A) gives to actions never logged."""
    never = np.bincount(data.actions, minlength=data.n_actions) == 0
    return float(policy[:, never].sum(axis=1).mean())


def describe_support(data: LoggedData, policy: Floats, limits: WeightLimits) -> list[str]:
    """Say what no estimator can mend: actions and propensities that the log is short of."""
    found = []
    mass = unsupported_mass(data, policy)
    if mass > limits.unsupported:
        found.append(
            f"the policy gives {mass:.1%} of its probability to actions that were never logged"
        )
    weights = importance_weights(data, policy)
    rare = (data.propensities < limits.propensity) & (weights > 1)
    if rare.any():
        found.append(
            f"actions of the policy were logged with propensities below {limits.propensity:g} "
            f"(rows: {rare.sum()}, least {data.propensities[rare].min():.2g})"
        )
    return found


def describe_weights(raw: Floats, used: Floats, limits: WeightLimits) -> list[str]:
    """Say how weights are degenerate.

    Parameters
    ----------
    raw : ndarray of shape (N,)
        The importance weights.
    used : ndarray of shape (N,)
        Those that the estimator made of them, by clipping or otherwise.
    limits : WeightLimits
        What counts as degenerate.
    """
    found = []
    n = used.size
    ess = effective_sample_size(used)
    if ess < max(limits.ess, limits.ess_share * n):
        found.append(f"the effective sample size is {ess:.1f} of {n} rows ({ess / n:.2%})")
    total = used.sum()
    if total > 0 and used.max() > limits.weight_share * total:
        found.append(f"one row carries {used.max() / total:.1%} of the total weight")
    away = abs(raw.mean() - 1)
    error = raw.std(ddof=1) / np.sqrt(n) if n > 1 else np.inf
    if away > 1e-6 and (away / error if error > 0 else np.inf) > limits.mean_errors:
        found.append(
            f"the weights average {raw.mean():.3g} where 1 is expected: propensities are wrong, or "
            "the policy does what the log never did"
        )
    return found
