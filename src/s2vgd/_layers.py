"""Products of layers as XLA makes them quickly on a CPU, where most tables are fitted.

Each function here is one matrix product, or two, or a sum, in an order that was found by timing the
others; products have a rule for their derivative that makes reverse mode do the same, and are the
plain ones on accelerators. One activation is kept from being made several times there. What a layer
is, and how its weight comes about, is decided in :mod:`s2vgd.networks` and :mod:`s2vgd.structure`.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

_NARROW, _SMALL = 16, 4096
_WINDOW = 32


@jax.custom_jvp
def relu(x: Array) -> Array:
    """Return max(x, 0), with a derivative that is read off the result.

    A layer is written down once then, after its activation. Left to itself, XLA would on a GPU keep
    what was before it, and make the activation again in each product that follows.
    """
    y = jnp.maximum(x, 0)
    return y if jax.default_backend() == "cpu" else jax.lax.optimization_barrier(y)


@relu.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y = relu(*primals)
    return y, jnp.where(y > 0, tangents[0], 0)


def shifted(columns: Array, bias: Array) -> Array:
    """Return X + b for columns X (l2, B) and a bias (l2,).

    On a GPU the gradient of the bias, a sum over the rows, is kept apart from what is made of it:
    in one loop with that, the sum would be slow.
    """
    if jax.default_backend() != "cpu":
        bias = jax.lax.optimization_barrier(bias)
    return columns + bias[:, None]


def product(weight: Array, columns: Array) -> Array:
    """Return Wᵀ X for a weight (l1, l2) and columns (l1, B).

    XLA makes products of many small matrices that are to be transposed by plain loops. They take
    two to four times as long as to write down the transpose and use its library.
    """
    l1, l2 = weight.shape
    small = l1 * l2 <= _SMALL or l2 <= _NARROW
    is_vector = 1 in (l2, columns.shape[1])
    if is_vector or not small or jax.default_backend() != "cpu":
        return weight.T @ columns
    return _transposed_first(weight, columns)


@jax.custom_jvp
def _transposed_first(weight: Array, columns: Array) -> Array:
    # In two parts, for a transpose by itself would be made part of the product again.
    half = weight.shape[1] // 2
    return jnp.concatenate([weight[:, :half].T, weight[:, half:].T]) @ columns


@_transposed_first.defjvp
def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    weight, columns = primals
    of_weight, of_columns = tangents
    change = of_weight.T @ columns + weight.T @ of_columns
    return _transposed_first(weight, columns), change


def first_layer(weight: Array, bias: Array, x: Array) -> Array:
    """Return Wᵀ Xᵀ + b, the first layer before its activation.

    The gradient of the bias is a sum over the rows, and that of the weight a product with them.
    Where the rows are data, shared by all particles, a column of ones makes one product of both.

    Parameters
    ----------
    weight : Array, shape (l1, l2)
    bias : Array, shape (l2,)
    x : Array, shape (B, l1)
        Rows of data.

    Returns
    -------
    Array, shape (l2, B)
    """
    if jax.default_backend() != "cpu":
        return _affine(weight, bias, x)
    return _affine_in_one(weight, bias, x)


def _affine(weight: Array, bias: Array, x: Array) -> Array:
    return shifted(weight.T @ x.T, bias)


_affine_in_one = jax.custom_jvp(_affine)


def _change_of_affine(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    weight, bias, x = primals
    of_weight, of_bias, of_x = tangents
    n_rows, n_inputs = x.shape
    spare = _columns(n_inputs + 1) - n_inputs - 1
    rows = [x, jnp.ones((n_rows, 1), x.dtype), jnp.zeros((n_rows, spare), x.dtype)]
    blank = jnp.zeros((spare, len(bias)), weight.dtype)
    layer = jnp.concatenate([_array(of_weight), _array(of_bias)[None], blank])
    change = layer.T @ jnp.concatenate(rows, axis=1).T
    if not isinstance(of_x, SymbolicZero):
        change += weight.T @ of_x.T
    return _affine_in_one(weight, bias, x), change


_affine_in_one.defjvp(_change_of_affine, symbolic_zeros=True)


def _array(tangent: Any) -> Array:
    if isinstance(tangent, SymbolicZero):
        return jnp.zeros(tangent.shape, tangent.dtype)
    return tangent


def total(values: Array) -> Array:
    """Return the sum over the last axis, (..., n) to (...).

    On a CPU XLA makes a sum of more than 32 numbers in two operations, after what computes them.
    Parts of equal length that are added to one another first are summed in the same operation.
    """
    if jax.default_backend() != "cpu":
        return jnp.sum(values, axis=-1)
    n = values.shape[-1]
    parts = next((k for k in range(max(1, -(-n // _WINDOW)), _WINDOW) if n % k == 0), 1)
    return jnp.sum(functools.reduce(operator.add, jnp.split(values, parts, axis=-1)), axis=-1)


def _columns(n: int) -> int:
    """Return how many columns to give the second factor of a product that needs n.

    XLA makes strips of 16 columns, or four or eight of them; what is between costs more.
    """
    if n <= 8:
        return 4 if n <= 4 else 8
    short = -n % 16
    return n + short if n < 16 or short < 8 else n
