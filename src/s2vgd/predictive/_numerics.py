"""What an equally weighted mixture of location-scale components says, as jitted JAX functions.

Arrays are ``loc`` and ``scale`` of shape (S, n, T) and ``df`` broadcastable to it (or None), in
units where each cell (row, target) is centred and of order one; the caller takes care of units,
chunks and shapes. Nothing larger than the components, or than the quadrature nodes of the cells, is
ever held.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._families import Family

_MAX_ITERATIONS = 100

# Breakpoints are drawn from these quantiles of every component (and their mirror images, and the
# centre).
_LEVELS = np.array([1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.05, 0.15, 0.3])
POINTS_PER_COMPONENT = 2 * len(_LEVELS) + 1
_PANELS = 128
_ORDER = 6
NODES = 2 * _PANELS * _ORDER  # an upper bound on the nodes of one cell

_Search = tuple[Array, Array, Array, Array, Array, Array]


def _average(values: Array) -> Array:
    """Mean over the draws, as a product: XLA reduces a leading axis ten times slower on a CPU."""
    ones = jnp.ones(values.shape[0], values.dtype)
    return jnp.tensordot(ones, values, axes=1, precision="highest") / values.shape[0]


@partial(jax.jit, static_argnames="family")
def log_prob(family: Family, y: Array, loc: Array, scale: Array, df: Array | None) -> Array:
    """Joint log density of each row, (n,): targets are independent given the draw."""
    log_pdf = (family.log_pdf((y - loc) / scale, df) - jnp.log(scale)).sum(axis=-1)
    largest = log_pdf.max(axis=0)
    base = jnp.where(jnp.isfinite(largest), largest, 0.0)
    return base + jnp.log(_average(jnp.exp(log_pdf - base)))


@partial(jax.jit, static_argnames="family")
def cdf(family: Family, y: Array, loc: Array, scale: Array, df: Array | None) -> Array:
    """Mixture cdf of each cell, (n, T)."""
    return _average(family.cdf((y - loc) / scale, df))


@partial(jax.jit, static_argnames="family")
def distance(family: Family, y: Array, loc: Array, scale: Array, df: Array | None) -> Array:
    """E|X - y| of each cell, (n, T), in closed form."""
    z = (y - loc) / scale
    return _average(scale * (2.0 * family.shortfall(z, df) - z))


@partial(jax.jit, static_argnames="family")
def lower_quantile(
    family: Family, p: Array, sign: Array, loc: Array, scale: Array, df: Array | None
) -> Array:
    """Exact p-quantile, p <= 1/2, of sign * X for each cell, (n, T).

    Solves log F(x) = log p by Newton steps kept inside a bracket, with bisection whenever a step
    leaves it or stops shrinking. The q-quantile for q > 1/2 is minus the (1-q)-quantile of -X: only
    the lower tail of F has relative accuracy in floating point.
    """
    loc = sign * loc
    ends = loc + scale * family.lower_quantile(p, df)
    slack = 1e-3 * (scale + jnp.abs(ends - loc))
    lower, upper = (ends - slack).min(axis=0), (ends + slack).max(axis=0)
    eps = jnp.finfo(loc.dtype).eps
    finest = eps * scale.min(axis=0)

    def searching(state: _Search) -> Array:
        iteration, *_, done = state
        return (iteration < _MAX_ITERATIONS) & ~done.all()

    def improve(state: _Search) -> _Search:
        iteration, x, lower, upper, last_step, done = state
        z = (x - loc) / scale
        below = _average(family.cdf(z, df))
        density = _average(jnp.exp(family.log_pdf(z, df)) / scale)
        excess = jnp.log(below / p)
        lower = jnp.where(excess < 0, x, lower)
        upper = jnp.where(excess < 0, upper, x)
        newton = x - excess * below / density
        # A comparison with the NaN of an empty tail is false, so such a step becomes a bisection.
        good = (newton > lower) & (newton < upper) & (jnp.abs(newton - x) < 0.5 * last_step)
        proposal = jnp.where(good, newton, 0.5 * (lower + upper))
        # What rounding can do to F: in the mean over components, and through x itself.
        noise = eps * (8 * below + 4 * jnp.abs(x) * density)
        found = jnp.abs(excess) * below <= noise
        step = jnp.abs(proposal - x)
        settled = found | (step <= eps * jnp.abs(x) + finest)
        moved = jnp.where(done | (found & ~good), x, proposal)
        return iteration + 1, moved, lower, upper, step, done | settled

    x = jnp.clip(_average(ends), lower, upper)
    start = (jnp.array(0), x, lower, upper, jnp.full_like(x, jnp.inf), jnp.zeros(x.shape, bool))
    return sign * jax.lax.while_loop(searching, improve, start)[1]


@partial(jax.jit, static_argnames="family")
def pairwise_half_spread(family: Family, loc: Array, scale: Array) -> Array:
    """E|X - X'|/2 of each cell for independent copies, (n, T), of normal components."""

    def add(total: Array, component: tuple[Array, Array]) -> tuple[Array, None]:
        spread = jnp.sqrt(scale**2 + component[1] ** 2)
        z = (component[0] - loc) / spread
        return total + _average(spread * (2.0 * family.shortfall(z, None) - z)), None

    total, _ = jax.lax.scan(add, jnp.zeros_like(loc[0]), (loc, scale))
    return 0.5 * total / loc.shape[0]


def _running_integral(nodes: np.ndarray) -> np.ndarray:
    """Matrix from values at Gauss-Legendre nodes to integrals from -1 up to each node."""
    legendre = np.polynomial.legendre
    coefficients = np.linalg.inv(legendre.legvander(nodes, len(nodes) - 1))
    return legendre.legval(nodes, legendre.legint(coefficients, lbnd=-1)).T


_GAUSS = np.polynomial.legendre.leggauss(_ORDER)
_RUNNING_INTEGRAL = _running_integral(_GAUSS[0])


class _Curves(NamedTuple):
    density: Array  # at the nodes
    below: Array  # F at the breakpoints
    above: Array  # 1 - F at the breakpoints


def breakpoints(family: Family, loc: Array, scale: Array, df: Array | None) -> Array:
    """Panels that follow the mass of each cell, (panels + 1, n, T), by NumPy (XLA sorts slowly).

    The quantiles of all components are pooled and sorted; every k-th is a breakpoint, with more of
    them towards the tails, or each interval is cut in equal parts when there are few components.
    """
    levels = jnp.asarray(_LEVELS, loc.dtype).reshape(-1, 1, 1, 1)
    z = np.asarray(_standard_quantiles(family, levels, df))
    z = np.concatenate([z, np.zeros_like(z[:1]), -z[::-1]])
    pooled = np.moveaxis(np.asarray(loc) + np.asarray(scale) * z, (0, 1), (-2, -1))
    pooled = np.sort(pooled.reshape(*pooled.shape[:-2], -1), axis=-1)
    last = pooled.shape[-1] - 1
    if last > _PANELS:
        ranks = np.rint(0.5 * last * (1.0 - np.cos(np.linspace(0.0, np.pi, _PANELS + 1))))
    else:
        ranks = np.linspace(0, last, last * -(-_PANELS // last) + 1)
    floor = np.minimum(ranks.astype(int), last - 1)
    fraction = (ranks - floor).astype(loc.dtype)
    breaks = (1 - fraction) * pooled[..., floor] + fraction * pooled[..., floor + 1]
    return jnp.asarray(np.moveaxis(breaks, -1, 0))


@partial(jax.jit, static_argnames="family")
def _standard_quantiles(family: Family, levels: Array, df: Array | None) -> Array:
    return family.lower_quantile(levels, df)


@partial(jax.jit, static_argnames="family")
def integrals(
    family: Family, breaks: Array, loc: Array, scale: Array, df: Array | None
) -> tuple[Array, Array]:
    """Entropy and E|X - X'|/2 = ∫ F (1 - F) of each cell, both (n, T).

    Inside a panel the density is integrated by Gauss-Legendre; at the breakpoints F and 1 - F are
    exact, each from its own tail, and the density of a panel is rescaled to the panel's exact mass,
    so that a component too narrow for the nodes is blurred but not lost. The tails beyond the
    panels are added in closed form.
    """
    draws = loc.shape[0]
    half = 0.5 * (breaks[1:] - breaks[:-1])[:, None]
    middle = 0.5 * (breaks[1:] + breaks[:-1])[:, None]
    nodes, weights = (jnp.asarray(a, loc.dtype)[:, None, None] for a in _GAUSS)
    running = jnp.asarray(_RUNNING_INTEGRAL, loc.dtype)
    x = middle + half * nodes

    def add(total: _Curves, component: tuple[Array, Array, Array | None]) -> tuple[_Curves, None]:
        loc, scale, df = component
        z = (breaks - loc) / scale
        tail = family.cdf(-jnp.abs(z), df)
        new = _Curves(
            density=jnp.exp(family.log_pdf((x - loc) / scale, df)) / scale,
            below=jnp.where(z < 0, tail, 1.0 - tail),
            above=jnp.where(z < 0, 1.0 - tail, tail),
        )
        return jax.tree.map(lambda t, n: t + n / draws, total, new), None

    per_draw = None if df is None else jnp.broadcast_to(df, (draws, *df.shape[1:]))
    empty = _Curves(jnp.zeros_like(x), jnp.zeros_like(breaks), jnp.zeros_like(breaks))
    (density, below, above), _ = jax.lax.scan(add, empty, (loc, scale, per_draw))

    mass = jnp.where(below[1:] < 0.5, jnp.diff(below, axis=0), -jnp.diff(above, axis=0))[:, None]
    found = (half * weights * density).sum(axis=1, keepdims=True)
    flat = 0.5 * mass / jnp.where(half > 0, half, jnp.inf)
    density = jnp.where(found > 0, density * (mass / jnp.where(found > 0, found, 1.0)), flat)
    log_density = jnp.log(jnp.where(density > 0, density, 1.0))
    entropy = -jnp.sum(half * weights * density * log_density, axis=(0, 1))

    rise = half * jnp.einsum("ij,pj...->pi...", running, density)
    fall = half * jnp.einsum("ij,pj...->pi...", weights[:, 0, 0] - running, density)
    product = (below[:-1, None] + rise) * (above[1:, None] + fall)
    outside = jnp.stack([breaks[0] - loc, loc - breaks[-1]]) / scale
    tails = _average(scale * family.shortfall(outside, df).sum(axis=0))
    return entropy, jnp.sum(half * weights * product, axis=(0, 1)) + tails
