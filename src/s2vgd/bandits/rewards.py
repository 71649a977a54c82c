"""Models of the reward: how it scatters about what a network puts out, and what it is on average.

A reward model is a likelihood of :mod:`s2vgd.likelihoods` for one reward, the translation of a
reward into that likelihood's target, and the expectation that an agent maximises. Rewards are in
their own units throughout: nothing is standardised, because the scale is not known before the
rewards are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Params,
)


@dataclass(frozen=True)
class RewardModel:
    """A likelihood with its target and its mean; made by the functions of this file.

    Parameters
    ----------
    likelihood : Likelihood
        Of one reward, with the family "normal", "bernoulli" or "categorical".
    values : tuple of float
        The values that a categorical reward can take; empty for the others.
    """

    likelihood: Likelihood
    values: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """O, the outputs that a network needs for the reward of one action."""
        return self.likelihood.n_outputs(1)

    def targets(self, rewards: Array) -> Array:
        """Return rewards (B,) as the likelihood wants them: (B, 1) numbers, or (B,) labels."""
        if self.likelihood.family == "bernoulli":
            return (rewards > 0.5).astype(jnp.int32)
        if self.likelihood.family == "categorical":
            distances = jnp.abs(rewards[:, None] - jnp.asarray(self.values, rewards.dtype))
            return jnp.argmin(distances, axis=1).astype(jnp.int32)
        return rewards[:, None]

    def expected(self, params: Params, outputs: Array) -> Array:
        """Return the mean reward (B,) for outputs (B, O) and the likelihood's own parameters."""
        components = self.likelihood.components(params, outputs)
        if self.likelihood.family == "bernoulli":
            return jax.nn.sigmoid(components["logits"][:, 0])
        if self.likelihood.family == "categorical":
            chances = jax.nn.softmax(components["logits"], axis=-1)
            return chances @ jnp.asarray(self.values, outputs.dtype)
        return components["loc"][:, 0]


def gaussian(std: float | None = 10.0, *, a: float = 1.0, b: float = 0.1) -> RewardModel:
    """Rewards with normal noise.

    Parameters
    ----------
    std : float, optional
        The standard deviation of the noise, in units of the reward. With None it is learned, which
        makes agents sure too early: the noise is fitted to the few rewards that were seen first.
    a, b : float
        Shape and rate of the Gamma prior of a learned precision.
    """
    return RewardModel(Gaussian(fixed_std=std, a=a, b=b))


def heteroscedastic(floor: float = 1e-3, gain: float = 0.2) -> RewardModel:
    """Rewards with normal noise whose size is learned as a function of context and action.

    Parameters
    ----------
    floor, gain : float
        See :class:`s2vgd.likelihoods.HeteroscedasticGaussian`.
    """
    return RewardModel(HeteroscedasticGaussian(floor, gain))


def bernoulli() -> RewardModel:
    """Rewards of 0 or 1, such as clicks."""
    return RewardModel(Bernoulli())


def categorical(values: Sequence[float]) -> RewardModel:
    """Rewards that take finitely many values.

    The network learns the probability of each value, so that a lucky reward is told from a good
    action.

    Parameters
    ----------
    values : sequence of float
        The values, at least two; a reward counts as the nearest of them.
    """
    known = tuple(float(value) for value in values)
    if len(known) < 2 or len(set(known)) < len(known) or not all(map(math.isfinite, known)):
        raise ValueError(f"values must be two or more different finite numbers, got {values!r}")
    return RewardModel(Categorical(len(known)), known)
