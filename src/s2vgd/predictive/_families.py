"""The standard location-scale families a regression mixture is made of.

Each family is the distribution of Z in X = loc + scale Z, written as a handful of JAX functions
that keep their *relative* accuracy in the lower tail, because single precision has nothing to spare
there. What a mixture of them says is in ``_numerics``; no data and no units appear here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtr, ndtri

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


class Family(NamedTuple):
    """One standard distribution; each function takes ``df``, None where it has no meaning.

    Attributes
    ----------
    name : str
        What the user calls it.
    log_pdf : callable
        ``(z, df)`` to the log density of Z at z.
    cdf : callable
        ``(z, df)`` to P(Z <= z).
    shortfall : callable
        ``(z, df)`` to E max(z - Z, 0), which is the integral of the cdf up to z.
    lower_quantile : callable
        ``(p, df)`` to the p-quantile of Z for p <= 1/2.
    noise : callable
        ``(key, df, shape)`` to independent copies of Z.
    variance : callable
        ``(df)`` to Var Z, in NumPy.
    """

    name: str
    log_pdf: Callable[[Array, Any], Array]
    cdf: Callable[[Array, Any], Array]
    shortfall: Callable[[Array, Any], Array]
    lower_quantile: Callable[[Array, Any], Array]
    noise: Callable[[Array, Any, tuple[int, ...]], Array]
    variance: Callable[[Any], np.ndarray | float]


def _normal_log_pdf(z: Array, df: Any) -> Array:
    return -0.5 * z * z - _LOG_SQRT_2PI


def _normal_shortfall(z: Array, df: Any) -> Array:
    return jnp.exp(_normal_log_pdf(z, df)) + z * ndtr(z)


_NORMAL = Family(
    name="normal",
    log_pdf=_normal_log_pdf,
    cdf=lambda z, df: ndtr(z),
    shortfall=_normal_shortfall,
    lower_quantile=lambda p, df: ndtri(p),
    noise=lambda key, df, shape: jax.random.normal(key, shape),
    variance=lambda df: 1.0,
)


def _laplace_cdf(z: Array, df: Any) -> Array:
    tail = 0.5 * jnp.exp(-jnp.abs(z))
    return jnp.where(z < 0, tail, 1.0 - tail)


_LAPLACE = Family(
    name="laplace",
    log_pdf=lambda z, df: -jnp.abs(z) - math.log(2.0),
    cdf=_laplace_cdf,
    shortfall=lambda z, df: jnp.maximum(z, 0.0) + 0.5 * jnp.exp(-jnp.abs(z)),
    lower_quantile=lambda p, df: jnp.log(2.0 * p),
    noise=lambda key, df, shape: jax.random.laplace(key, shape),
    variance=lambda df: 2.0,
)

# Raising df by 2 this many times takes any df > 0 to where the asymptotic formulas below are exact
# to about 1e-9, so that neither needs a branch.
_LIFTS = 8


def _gamma_ratio(a: Array) -> Array:
    """Compute Γ(a + 1/2) / Γ(a) without the cancellation of two large log-gammas."""
    n = a + _LIFTS
    series = (((-399 / (8 * n) - 21) / (32 * n) + 5) / (8 * n) + 1) / (16 * n) - 1
    lifts = a[..., None] + jnp.arange(_LIFTS, dtype=a.dtype)
    return jnp.sqrt(n) * (1 + series / (8 * n)) * jnp.prod(lifts / (lifts + 0.5), axis=-1)


def _student_log_pdf(z: Array, df: Any) -> Array:
    log_norm = jnp.log(_gamma_ratio(df / 2)) - 0.5 * jnp.log(math.pi * df)
    return log_norm - 0.5 * (df + 1) * jnp.log1p(z * z / df)


def _student_cdf(z: Array, df: Any) -> Array:
    """P(T <= z), about 1e-6 relative in single and 1e-9 in double precision.

    With x = df / (df + z²) the lower tail is I_x(df/2, 1/2)/2. The recurrence I_x(a, b) = I_x(a+1,
    b) + x^a (1-x)^b / (a B(a, b)) adds positive terms only and raises df by 2 each time; G. W.
    Hill's normal approximation (Algorithm 395, 1970) finishes. This is a hundred times faster than
    ``jax.scipy.special.betainc``, which in single precision also loses its digits from df = 20 on.
    """
    a = df / 2
    x = df / (df + z * z)
    log_odds = jnp.log1p(z * z / df)
    terms = jnp.ones_like(x)
    lifts = a[..., None] + jnp.arange(_LIFTS - 1, dtype=a.dtype)
    ratios = (lifts + 0.5) / (lifts + 1.0)
    for j in reversed(range(_LIFTS - 1)):
        terms = 1.0 + ratios[..., j] * x * terms
    first = jnp.exp(-a * log_odds) * jnp.abs(z) / jnp.sqrt(df + z * z)
    first = first * (_gamma_ratio(a) / (math.sqrt(math.pi) * a))
    lifted = df + 2 * _LIFTS - 0.5
    b = 48 * lifted**2
    y = lifted * log_odds
    bend = (((-0.4 * y - 3.3) * y - 24) * y - 85.5) / (0.8 * y * y + 100 + b)
    tail = ndtr(-((bend + y + 3) / b + 1) * jnp.sqrt(y)) + 0.5 * first * terms
    return jnp.where(z < 0, tail, 1.0 - tail)


def _student_shortfall(z: Array, df: Any) -> Array:
    density = jnp.exp(_student_log_pdf(z, df))
    return (df + z * z) / (df - 1) * density + z * _student_cdf(z, df)


def _student_lower_quantile(p: Array, df: Any) -> Array:
    """Bisect for log(-z): good to about 1e-5 relative, enough for brackets and for breakpoints."""
    p, df = jnp.broadcast_arrays(p, df)

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        too_far = _student_cdf(-jnp.exp(middle), df) < p
        return jnp.where(too_far, low, middle), jnp.where(too_far, middle, high)

    start = jnp.full_like(df, -16.0), jnp.full_like(df, 40.0)
    low, high = jax.lax.fori_loop(0, 40, halve, start)
    return -jnp.exp(0.5 * (low + high))


def _student_variance(df: Any) -> np.ndarray:
    heavy = df <= 2
    return np.where(heavy, np.inf, df / np.where(heavy, 1.0, df - 2))


def _student_noise(key: Array, df: Any, shape: tuple[int, ...]) -> Array:
    """Draw by the polar method of R. W. Bailey (1994): exact, and far cheaper than a gamma draw."""
    key_radius, key_angle = jax.random.split(key)
    u = jax.random.uniform(key_radius, shape, minval=jnp.finfo(df.dtype).tiny)
    angle = jax.random.uniform(key_angle, shape, maxval=2.0 * math.pi)
    return jnp.sqrt(df * jnp.expm1(-2.0 / df * jnp.log(u))) * jnp.cos(angle)


_STUDENT_T = Family(
    name="student_t",
    log_pdf=_student_log_pdf,
    cdf=_student_cdf,
    shortfall=_student_shortfall,
    lower_quantile=_student_lower_quantile,
    noise=_student_noise,
    variance=_student_variance,
)

FAMILIES = {family.name: family for family in (_NORMAL, _STUDENT_T, _LAPLACE)}
