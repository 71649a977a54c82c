"""Assumed density filtering of Gaussians and Gammas, for probabilistic back-propagation.

Here is how beliefs about weights and about precisions change with one factor of the posterior, of
the likelihood or of the prior (Hernández-Lobato and Adams, 2015). Networks are in ``_moments``, the
pass over the rows in ``pbp_mv``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from s2vgd.baselines._moments import Moments


class Gamma(NamedTuple):
    """Shape and rate of the Gamma distribution of a precision."""

    shape: jax.Array
    rate: jax.Array

    @property
    def variance(self) -> jax.Array:
        """The mean of the inverse of the precision."""
        return self.rate / (self.shape - 1)


class Sites(NamedTuple):
    """Approximate factors of the prior, one a weight, (D,) each.

    N(w; 0, 1/lambda) is stood for by a Gaussian about zero with this precision, times a Gamma
    density of lambda up to a factor with these additions to shape and rate.
    """

    precision: jax.Array
    shape: jax.Array
    rate: jax.Array


def filter_gaussian(
    mean: jax.Array, var: jax.Array, d_mean: jax.Array, d_var: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Match the moments of Gaussians times a factor, from the gradient of its evidence.

    Parameters
    ----------
    mean, var : jax.Array
        Before.
    d_mean, d_var : jax.Array
        Derivatives in them of the log evidence log Z of the factor.

    Returns
    -------
    mean, var : jax.Array
        After; what would get a variance that is not positive, or not finite, stays as it was.
    """
    new_mean = mean + var * d_mean
    new_var = var - jnp.square(var) * (jnp.square(d_mean) - 2 * d_var)
    good = jnp.isfinite(new_mean) & jnp.isfinite(new_var) & (new_var > 0)
    return jnp.where(good, new_mean, mean), jnp.where(good, new_var, var)


def filter_gamma(gamma: Gamma, y: jax.Array, units: Moments) -> Gamma:
    """Match the moments of a precision after y ~ N(f, 1/precision), where f has these moments.

    The evidence is Z = N(y; mean, var + rate / (shape - 1)), and the moments are ratios of Z at
    three shapes that differ by one. Of shapes in the thousands, single precision cannot tell these
    apart, so their differences are written out here.

    Parameters
    ----------
    gamma : Gamma
        Before; its shape exceeds one.
    y : jax.Array, shape ()
        What was observed.
    units : Moments
        Of f, scalars.

    Returns
    -------
    Gamma
        After; as before, where it would not be finite or have a shape of one or less.
    """
    shape, rate = gamma
    total = units.var + rate / shape
    # Variances at shape and at shape + 2 are total (1 + more) and total (1 - less).
    more = rate / (shape * (shape - 1) * total)
    less = rate / (shape * (shape + 1) * total)
    gap = 2 * rate / (shape * (shape * shape - 1) * total)  # more - less
    distance = jnp.square(y - units.mean) / total
    rise = 0.5 * jnp.log1p(more) - 0.5 * distance * more / (1 + more)
    bend = -0.5 * jnp.log1p(gap - more * less)
    bend += 0.5 * distance * (gap - 2 * more * less) / ((1 + more) * (1 - less))
    new = Gamma(
        1 / jnp.expm1(bend + jnp.log1p(1 / shape)),
        rate * jnp.exp(-rise) / (jnp.exp(bend) + shape * jnp.expm1(bend)),
    )
    good = jnp.isfinite(new.shape) & jnp.isfinite(new.rate) & (new.shape > 1) & (new.rate > 0)
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, gamma)


def refine_prior(
    mean: jax.Array, var: jax.Array, prior: Gamma, sites: Sites
) -> tuple[jax.Array, jax.Array, Gamma, Sites]:
    """Sweep once over the factors N(w; 0, 1/lambda) of the prior, by expectation propagation.

    Each factor is taken out, matched anew to what the others say, and put back. Where taking it out
    leaves no distribution, it stays as it is.

    Parameters
    ----------
    mean, var : jax.Array, shape (D,)
        Of the weights w.
    prior : Gamma
        Of their precision lambda.
    sites : Sites
        The factors so far.
    """

    def refine(prior: Gamma, weight: Any) -> tuple[Gamma, Any]:
        mean, var, site = weight
        precision = 1 / var - site.precision
        cavity = Gamma(prior.shape - site.shape, prior.rate - site.rate)
        others = Moments(mean / var / precision, 1 / precision)
        updated = filter_gamma(cavity, jnp.zeros_like(mean), others)
        # With 1/lambda at its expectation the factor is a Gaussian itself: nothing to match.
        new_site = Sites(
            1 / cavity.variance, updated.shape - cavity.shape, updated.rate - cavity.rate
        )
        new_var = 1 / (precision + new_site.precision)
        new = (updated, (mean / var * new_var, new_var, new_site))
        good = (precision > 0) & (cavity.shape > 1) & (cavity.rate > 0)
        for leaf in jax.tree.leaves(new):
            good &= jnp.isfinite(leaf)
        kept: tuple[Gamma, Any] = (prior, weight)
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, kept)

    prior, (mean, var, sites) = jax.lax.scan(refine, prior, (mean, var, sites))
    return mean, var, prior, sites
