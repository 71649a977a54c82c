"""Choices made on rows that a trial fit did not see: which noise, and how wide the predictions.

The trial itself is the estimators' affair; here is what it says, and what to conclude from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from s2vgd.predictive import from_components, spread_out

# How far from one the spread is expected to be, as the standard deviation of its logarithm. Some
# forty held-out rows, as small data have, are too few to be believed without reserve.
_SPREAD_EXPECTED = 0.2
_SPREAD_LIMITS = 0.2, 2.5

STEPS_TO_CHOOSE_FROM = (1000, 4000, 16_000)


def held_out_rows(n_rows: int) -> np.ndarray:
    """Return the rows on which choices are made: a sixth, the same for every choice."""
    return np.random.default_rng(0).permutation(n_rows)[: n_rows // 6]


class Trial(NamedTuple):
    """What draws of a trial fit say about the rows that were held out.

    Parameters
    ----------
    family : str
        Of the likelihood.
    components : dict of array
        As :func:`s2vgd.predictive.from_components` takes them, S draws of N rows.
    y : array, shape (N, T) or (N,)
        The outcomes, as the networks know them.
    weight : array, shape (N,)
        How often each row counts.
    """

    family: str
    components: dict[str, np.ndarray]
    y: np.ndarray
    weight: np.ndarray

    def of(self, draws: slice) -> Trial:
        """Return what some of the draws say."""
        some = {name: value[draws] for name, value in self.components.items()}
        return self._replace(components=some)

    def log_prob(self, spread: float = 1.0, centre: np.ndarray | None = None) -> np.ndarray:
        """Return the log predictive density of each row, (N,)."""
        components: Mapping[str, ArrayLike] = self.components
        if spread != 1.0:
            components = spread_out(components, spread, centre)
        return from_components(self.family, components, squeeze=False).log_prob(self.y)


def shares_to_choose_from(n: int, unit: int = 1) -> np.ndarray:
    """Return the shares of n particles that may be tied, in steps of `unit` particles.

    A quarter of either kind is kept where n allows it. Free noise makes for better error bars and
    for a worse mean, since it explains away what is hard to fit; a few tied particles mend the
    mean, which a choice by density alone does not value.
    """
    shares = np.append(np.arange(0, n, unit) / n, 1.0)
    both = shares[(shares >= 0.25) & (shares <= 0.75)]
    return both if len(both) else shares


def best_share(free: Trial, tied: Trial, shares: np.ndarray) -> float:
    """Return the share of draws with tied noise whose pool predicts best.

    Parameters
    ----------
    free, tied : Trial
        Draws of either kind.
    shares : array
        The shares to choose from, between 0 and 1.
    """
    parts = free.log_prob(), tied.log_prob()
    scores = [np.average(_pooled(*parts, share), weights=free.weight) for share in shares]
    return float(shares[np.argmax(scores)])


def best_spread(free: Trial, tied: Trial, share: float) -> float:
    """Return the factor on all deviations from the mean that predicts best, near one in doubt."""
    locations = (np.mean(part.components["loc"], axis=0) for part in (free, tied))
    centre = np.average(list(locations), axis=0, weights=[1 - share, share])

    def loss(log_spread: float) -> float:
        spread = float(np.exp(log_spread))
        pooled = _pooled(free.log_prob(spread, centre), tied.log_prob(spread, centre), share)
        doubt = 0.5 * (log_spread / _SPREAD_EXPECTED) ** 2
        return doubt - float(free.weight @ pooled)

    found = minimize_scalar(
        loss, bounds=np.log(_SPREAD_LIMITS), method="bounded", options={"xatol": 1e-2}
    )
    return float(np.exp(found.x))


def _pooled(free: np.ndarray, tied: np.ndarray, share: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-share) + free, np.log(share) + tied)
