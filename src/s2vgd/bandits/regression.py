"""Ridge regressions that take one row at a time, in double precision whatever JAX is set to.

Rank-one updates of an inverse (Sherman and Morrison) in single precision drift until the estimates
are worthless: collinear one-hot features alone make condition numbers of a million. Here all
arithmetic is in float64, which is switched on locally, and between calls a number is a pair of
float32 whose sum it is (48 bits), so that states can be mixed with those of other agents in
programs of single precision. Which regressions an agent has, and on what, is in
:mod:`s2vgd.bandits.linear`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import cho_solve


class Ridge(NamedTuple):
    """R regressions of D features each, with precision matrices ``ridge I + sum of x xᵀ``.

    The last axis of the floating-point arrays is that of the pair.

    Attributes
    ----------
    inverse : Array, shape (R, D, D, 2)
        Inverses of the precision matrices.
    moment : Array, shape (R, D, 2)
        Sums of y x.
    squares : Array, shape (R, 2)
        Sums of y².
    n_rows : Array of int32, shape (R,)
        Rows that each has seen.
    """

    inverse: Array
    moment: Array
    squares: Array
    n_rows: Array


class Estimate(NamedTuple):
    """What regressions say of rows; float32.

    Attributes
    ----------
    mean : Array, shape (A,)
        Predictions.
    leverage : Array, shape (A,)
        ``xᵀ inverse x``: the variance of a prediction is this times that of the noise.
    """

    mean: Array
    leverage: Array


def split(x: Array) -> Array:
    """Return float64 numbers (...) as pairs of float32 (..., 2). Call where x64 is enabled."""
    # Not x as float32 and back: a compiler that may keep more precision than it was asked for, as
    # XLA's for GPUs does, takes that for x itself and leaves nothing for the lower half.
    high = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=23)
    return jnp.stack([high, x - high], axis=-1).astype(jnp.float32)


def whole(pair: Array) -> Array:
    """Return pairs (..., 2) as float64 numbers (...). Call where x64 is enabled."""
    return pair[..., 0].astype(jnp.float64) + pair[..., 1].astype(jnp.float64)


def empty(regressions: int, features: int, ridge: float) -> Ridge:
    """Return regressions that have seen nothing."""
    with jax.enable_x64(True):
        inverse = jnp.eye(features, dtype=jnp.float64) / ridge
        return Ridge(
            split(jnp.broadcast_to(inverse, (regressions, features, features))),
            jnp.zeros((regressions, features, 2), jnp.float32),
            jnp.zeros((regressions, 2), jnp.float32),
            jnp.zeros(regressions, jnp.int32),
        )


def from_sums(gram: Array, moment: Array, squares: Array, n_rows: Array, ridge: float) -> Ridge:
    """Return regressions that have seen rows of which only the sums are known.

    Parameters
    ----------
    gram, moment, squares, n_rows : Array, shapes (R, D, D), (R, D), (R,), (R,)
        Sums of x xᵀ, of y x, of y², and the number of rows.
    ridge : float
        Added to the diagonal.
    """
    with jax.enable_x64(True):
        identity = jnp.eye(gram.shape[-1], dtype=jnp.float64)
        inverse = inverted(gram.astype(jnp.float64) + ridge * identity)
        moment, squares = (split(part.astype(jnp.float64)) for part in (moment, squares))
        return Ridge(split(inverse), moment, squares, n_rows.astype(jnp.int32))


def inverted(precision: Array) -> Array:
    """Return the inverse of positive definite matrices (..., D, D)."""
    identity = jnp.broadcast_to(
        jnp.eye(precision.shape[-1], dtype=precision.dtype), precision.shape
    )
    return cho_solve((jnp.linalg.cholesky(precision), True), identity)


def add(ridge: Ridge, which: Array, x: Array, y: Array) -> Ridge:
    """Show a row x (D,) with the target y to one of the regressions."""
    with jax.enable_x64(True):
        x, y = x.astype(jnp.float64), y.astype(jnp.float64)
        updated = sherman_morrison(whole(ridge.inverse[which]), x)
        return Ridge(
            ridge.inverse.at[which].set(split(updated)),
            ridge.moment.at[which].set(split(whole(ridge.moment[which]) + y * x)),
            ridge.squares.at[which].set(split(whole(ridge.squares[which]) + y * y)),
            ridge.n_rows.at[which].add(jnp.int32(1)),
        )


def sherman_morrison(inverse: Array, x: Array) -> Array:
    """Return the inverse of ``inverse⁻¹ + x xᵀ``, symmetric as the argument is."""
    v = inverse @ x
    return inverse - v[:, None] * v / (1 + x @ v)


def estimate(ridge: Ridge, rows: Array) -> Estimate:
    """Ask regression r about row r, or a single regression about all rows (A, D)."""
    with jax.enable_x64(True):
        rows = rows.astype(jnp.float64)
        inverse = jnp.broadcast_to(whole(ridge.inverse), (len(rows), *ridge.inverse.shape[1:3]))
        turned = jnp.einsum("aij,aj->ai", inverse, rows)
        mean = jnp.sum(turned * whole(ridge.moment), axis=1)
        leverage = jnp.maximum(jnp.sum(turned * rows, axis=1), 0.0)
        return Estimate(mean.astype(jnp.float32), leverage.astype(jnp.float32))


def deviations(ridge: Ridge, rows: Array, key: Array, draws: int) -> Array:
    """Draw how far predictions are from their means, for noise of variance one, (draws, A).

    Predictions of one regression for several rows vary together, those of different ones do not.
    """
    if len(ridge.n_rows) == len(rows) > 1:
        spread = jnp.sqrt(estimate(ridge, rows).leverage)
        return spread * jax.random.normal(key, (draws, len(rows)), jnp.float32)
    with jax.enable_x64(True):
        root = jnp.linalg.cholesky(whole(ridge.inverse[0]))
        mixed = (rows.astype(jnp.float64) @ root).astype(jnp.float32)
    return jax.random.normal(key, (draws, rows.shape[1]), jnp.float32) @ mixed.T


def noise_posterior(ridge: Ridge, a: float, b: float) -> tuple[Array, Array]:
    """Return shape and rate (R,) of the Gamma posterior of the noise precision.

    Under the prior Gamma(a, rate b), with weights N(0, noise variance / ridge): the shape is
    ``a + n / 2`` and the rate ``b + (sum of y² - mᵀ inverse m) / 2`` with the moment m.
    """
    with jax.enable_x64(True):
        moment = whole(ridge.moment)
        explained = jnp.einsum("ri,rij,rj->r", moment, whole(ridge.inverse), moment)
        residual = jnp.maximum(whole(ridge.squares) - explained, 0.0)
        rate = (b + residual / 2).astype(jnp.float32)
    return a + ridge.n_rows.astype(jnp.float32) / 2, rate
