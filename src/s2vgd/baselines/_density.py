"""The log joint density that the rivals climb or sample from, kept so that it is compiled once.

Compiled code is found again by the identity of the function it was compiled from, hence the caches.
What is done with the density is the affair of each rival.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax

from s2vgd.baselines._base import Problem
from s2vgd.bnn import BNN, Batch
from s2vgd.likelihoods import Categorical
from s2vgd.priors import FixedPrior, HierarchicalPrior, Prior

ROWS_FOLLOWED = 32


@functools.lru_cache(maxsize=64)
def log_joint(bnn: BNN, n_total: float) -> Callable[[Any, Batch], jax.Array]:
    """Return ``(particle, batch) -> log joint`` for data of `n_total` rows."""
    return lambda particle, batch: bnn.log_joint(particle, batch, n_total)


@functools.lru_cache(maxsize=64)
def followed(bnn: BNN) -> Callable[[Any, Batch], jax.Array]:
    """Return ``(particle, batch) -> (R,)``: outputs for some rows, to judge chains by."""
    return lambda particle, batch: bnn.outputs(particle, batch.x[:ROWS_FOLLOWED]).ravel()


def check_prior(prior: object) -> None:
    """Raise unless :func:`prior_of` knows what is meant."""
    if isinstance(prior, bool) or not isinstance(prior, int | float | str):
        raise TypeError(f"prior must be a name or a variance, got {prior!r}")
    known = ("auto", "hierarchical")
    is_meaningful = prior in known if isinstance(prior, str) else 0 < prior < math.inf
    if not is_meaningful:
        raise ValueError(f"prior must be one of {known} or a positive variance, got {prior!r}")


def prior_of(prior: float | str, problem: Problem) -> Prior:
    """Return the prior that a setting stands for.

    "hierarchical" is eq. (fullmode); a number is the variance of all weights, as in the paper's
    Tables 4 to 6; "auto" is hierarchical for numbers and variance 1 for classes, where the mode at
    zero weights is near.
    """
    if prior == "auto":
        prior = 1.0 if isinstance(problem.likelihood, Categorical) else "hierarchical"
    return HierarchicalPrior() if prior == "hierarchical" else FixedPrior(variance=float(prior))
