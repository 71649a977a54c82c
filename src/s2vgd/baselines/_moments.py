"""Means and variances through a network of random weights, for probabilistic back-propagation.

A layer is a kernel ``P C Qᵀ`` of independent Gaussian entries C between fixed rotations, and a
Gaussian bias. Here is what a row of inputs becomes under such layers and ReLUs, with covariances
between units left out after each layer; how the Gaussians are learned is in ``pbp_mv``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jax.scipy.stats import norm

from s2vgd.rotations import orthogonal
from s2vgd.structure import StructuredWeight, materialise

Layers = Any


class Moments(NamedTuple):
    """Mean and variance of independent units, (n,) each."""

    mean: jax.Array
    var: jax.Array


class Rotation(NamedTuple):
    """Householder vectors of P, (K, in), and of Q, (K, out); with K = 0 nothing is rotated."""

    left: jax.Array
    right: jax.Array


def rotate_kernel(c: jax.Array, rotation: Rotation) -> jax.Array:
    """Return ``P C Qᵀ`` for C of shape (in, out)."""
    nothing = jnp.zeros(0, c.dtype)
    return materialise(StructuredWeight(c, *rotation, nothing, nothing, None))


def linear(mean: Layers, var: Layers, rotation: Rotation, units: Moments) -> Moments:
    """Return the moments of ``(Wᵀ z + b) / sqrt(in + 1)`` with ``W = P C Qᵀ``.

    They are exact for independent inputs z: with A = P E[C] Qᵀ, output j has the variance
    ``sum_i A_ij² Var z_i + sum_l Q_jl² sum_i Var C_il E (Pᵀz)_i² + Var b_j``, before the division.
    What is lost is the covariance of the outputs.

    Parameters
    ----------
    mean, var : dict
        Of ``"kernel"`` (in, out), which is C, and ``"bias"`` (out,).
    rotation : Rotation
        P and Q.
    units : Moments
        Of the inputs z.
    """
    kernel = rotate_kernel(mean["kernel"], rotation)
    scale = len(kernel) + 1
    scatter = var["kernel"].T @ _turned_squares(rotation.left, units)
    if len(rotation.right):
        scatter = jnp.square(orthogonal(rotation.right, len(scatter))) @ scatter
    return Moments(
        (kernel.T @ units.mean + mean["bias"]) / scale**0.5,
        (jnp.square(kernel).T @ units.var + scatter + var["bias"]) / scale,
    )


def relu(units: Moments) -> Moments:
    """Return the moments of max(z, 0) for Gaussian z.

    Written without differences of large numbers, since those would leave nothing of a variance in
    single precision: where z is likely positive, max(z, 0) is z and a small correction.
    """
    std = jnp.sqrt(units.var)
    z = units.mean / std
    mean = units.mean * ndtr(z) + std * norm.pdf(z)
    share = jnp.where(z > 0, 1 - 2 * ndtr(-z) + _rare(z), _rare(-z))
    return Moments(mean, units.var * jnp.maximum(share, 0.0))


def network(mean: Layers, var: Layers, rotations: tuple[Rotation, ...], x: jax.Array) -> Moments:
    """Return the moments of the outputs for one row of inputs (F,).

    Parameters
    ----------
    mean, var : tuple of dict
        One of each a layer, see :func:`linear`.
    rotations : tuple of Rotation
        One a layer.
    x : jax.Array, shape (F,)
        The row.
    """
    units = Moments(x, jnp.zeros_like(x))
    # Accelerators round the inputs of a product to 10 bits, too few for updates from single rows.
    with jax.default_matmul_precision("highest"):
        for i, layer in enumerate(zip(mean, var, rotations, strict=True)):
            units = linear(*layer, relu(units) if i else units)
    return units


def _rare(z: jax.Array) -> jax.Array:
    """Return Var max(e - z, 0) for standard normal e."""
    excess = norm.pdf(z) - z * ndtr(-z)
    return (1 + z * z) * ndtr(-z) - z * norm.pdf(z) - excess * excess


def _turned_squares(vectors: jax.Array, units: Moments) -> jax.Array:
    """Return ``E (Pᵀ z)²``, entry by entry."""
    if not len(vectors):
        return jnp.square(units.mean) + units.var
    p = orthogonal(vectors, len(units.mean))
    return jnp.square(p.T @ units.mean) + jnp.square(p).T @ units.var
