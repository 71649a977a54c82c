"""The structured weight W = P Λ1 C Λ2 Qᵀ and how to rebuild W from its parts.

A matrix-variate Gaussian weight is an ordinary weight C, re-weighted by the diagonals Λ1, Λ2 and
rotated by the orthogonal P, Q, each a product of K Householder reflections (paper, sections 3.1 and
3.2, supplement A to C).  This module reparameterises every matrix of any pytree that way and turns
the result back into plain weights.  It knows nothing of networks, priors or particles: batches of
weights are handled by ``jax.vmap``.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd._layers import first_layer, product, shifted, total
from s2vgd._precise import matmul
from s2vgd._random import normals
from s2vgd.rotations import rotate, rotated_product

PyTree: TypeAlias = Any
Scales: TypeAlias = Literal["lognormal", "gaussian"]


@dataclass(frozen=True)
class Structure:
    """What to add to each weight matrix.

    Parameters
    ----------
    reflections : int, default=1
        K, the number of Householder reflections on each side. 0 gives P = Q = I.
    scales : {"lognormal", "gaussian"} or None, default="lognormal"
        How the diagonals are parameterised: Λ = exp(s), always positive; Λ = s, the literal form
        of eq. (fullmode); or None for Λ = I.
    min_side : int, default=4
        Sides shorter than this are not reflected. In few dimensions a Householder vector passes
        close to zero, where its reflection jumps, often enough to throw off a sampler.

    Notes
    -----
    ``Structure(reflections=0, scales=None)`` is no structure at all: weights stay plain arrays.
    """

    reflections: int = 1
    scales: Scales | None = "lognormal"
    min_side: int = 4

    def __post_init__(self) -> None:
        """Reject impossible settings where they are written, not where they are used."""
        for name, least in (("reflections", 0), ("min_side", 1)):
            value = getattr(self, name)
            try:
                whole = operator.index(value)
            except TypeError:
                raise TypeError(f"{name} must be an integer, got {value!r}") from None
            if whole < least:
                raise ValueError(f"{name} must be at least {least}, got {value!r}")
            object.__setattr__(self, name, whole)
        if self.scales is not None and self.scales not in get_args(Scales):
            raise ValueError(f"scales must be 'lognormal', 'gaussian' or None, got {self.scales!r}")

    @property
    def is_plain(self) -> bool:
        """Whether nothing is added, so that S²VGD is SVGD."""
        return self.reflections == 0 and self.scales is None

    def reflections_of(self, side: int) -> int:
        """Return the number of reflections on a side of this size, at most ``side - 1``."""
        return min(self.reflections, side - 1) if side >= self.min_side else 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StructuredWeight:
    """One weight in five factors, W = P Λ1 C Λ2 Qᵀ (proposition "reparameterization").

    A pytree node: ``scales`` is static and everything else is data.

    Parameters
    ----------
    c : Array, shape (l1, l2) or (..., in, out)
        The standard weight. More than two axes are a convolution kernel, read as the matrix of
        l1 = height * width * in rows and l2 = out columns.
    v_left : Array, shape (K_left, l1)
        Householder vectors of P, of which the first row is applied first.
    v_right : Array, shape (K_right, l2)
        Householder vectors of Q.
    s_left, s_right : Array, shapes (l1,) and (l2,)
        Parameters of Λ1 and Λ2; both empty when ``scales`` is None.
    scales : {"lognormal", "gaussian"} or None
        What ``s_left`` and ``s_right`` mean, see :class:`Structure`.
    """

    c: Array
    v_left: Array
    v_right: Array
    s_left: Array
    s_right: Array
    scales: Scales | None = field(metadata={"static": True})


def structure_weights(key: Array, weights: PyTree, structure: Structure) -> PyTree:
    """Give every matrix of a pytree the five-factor form.

    Householder vectors are drawn from N(0, I) and the diagonals start at one, so that if the
    entries of the weights are independent Gaussians of equal variance, so are those of W.

    Parameters
    ----------
    key : Array
        Key of ``jax.random.key``.
    weights : PyTree
        Plain weights of one network (no leading particle axis).
    structure : Structure
        What to add.

    Returns
    -------
    PyTree
        The same tree with a :class:`StructuredWeight` for each floating-point leaf of two axes or
        more. Biases, scalars and integers pass through.
    """
    if structure.is_plain:
        return weights
    leaves, treedef = jax.tree.flatten(weights, is_leaf=_is_structured)
    if any(map(_is_structured, leaves)):
        raise TypeError("weights are structured already; structure_weights expects plain arrays")
    matrices = {i: jnp.asarray(leaf) for i, leaf in enumerate(leaves) if _is_matrix(leaf)}
    sides = [side for c in matrices.values() for side in _sides(c)]
    shapes = [(structure.reflections_of(side), side) for side in sides]
    vectors = iter(normals(key, shapes, jnp.result_type(float, *matrices.values())))
    for i, c in matrices.items():
        leaves[i] = _structure_matrix(c, next(vectors), next(vectors), structure.scales)
    return jax.tree.unflatten(treedef, leaves)


def materialise(weights: PyTree) -> PyTree:
    """Rebuild plain weights, W = P Λ1 C Λ2 Qᵀ, from a structured tree.

    Parameters
    ----------
    weights : PyTree
        What :func:`structure_weights` returned. Leaves other than :class:`StructuredWeight` are
        returned as they are, so a plain tree comes back unchanged.

    Returns
    -------
    PyTree
        Plain weights, each of the shape of its ``c``. Differentiable in reverse mode, and forward
        over reverse (``jax.grad``, ``jax.hessian``), but not in forward mode alone (``jax.jvp``).
    """
    return jax.tree.map(
        lambda node: _matrix(node) if _is_structured(node) else node,
        weights,
        is_leaf=_is_structured,
    )


def apply_transposed(weight: Array | StructuredWeight, columns: Array) -> Array:
    """Return Wᵀ X, what a layer makes of its inputs before it adds the bias.

    W is a matrix of l1 by l2 and X one of l1 by B. With few columns the factors of
    Wᵀ = Q Λ2 Cᵀ Λ1 Pᵀ are applied to them one after the other, which takes some (l1 + l2) B K
    operations besides the product with C; with many, W is rebuilt first, in some l1 l2 K.

    Parameters
    ----------
    weight : Array or StructuredWeight, shape (l1, l2)
        The weight; no convolution kernel.
    columns : Array, shape (l1, B)
        Rows of the data or of a hidden layer, as columns.

    Returns
    -------
    Array, shape (l2, B)
    """
    whole = _written_out(weight, columns.shape[1])
    if whole is not None:
        return product(whole, columns)
    assert isinstance(weight, StructuredWeight)
    left, _ = _diagonals(weight)
    if len(weight.v_left):
        columns = rotate(weight.v_left[::-1], columns, 0)
    if left is not None:
        columns = left[:, None] * columns
    return _apply_rest(weight, product(weight.c, columns))


def _apply_rest(weight: StructuredWeight, columns: Array) -> Array:
    """Return Q Λ2 X."""
    _, right = _diagonals(weight)
    if right is not None:
        columns = right[:, None] * columns
    return rotate(weight.v_right, columns, 0) if len(weight.v_right) else columns


def apply_first(weight: Array | StructuredWeight, bias: Array, x: Array) -> Array:
    """Return Wᵀ Xᵀ + b for rows of data X (B, l1), shape (l2, B): :func:`apply_transposed` to them.

    Where W is at hand or rebuilt, its gradient and that of b are one product. Where it is not, its
    factors learn, on a CPU, without the gradient of the rows, which is another product.
    """
    whole = _written_out(weight, len(x))
    if whole is not None:
        return first_layer(whole, bias, x)
    assert isinstance(weight, StructuredWeight)
    quicker = jax.default_backend() == "cpu"
    if quicker and weight.scales == "lognormal" and len(weight.v_left):
        columns = rotated_product(weight.c, weight.s_left, weight.v_left, x)
        return shifted(_apply_rest(weight, columns), bias)
    return shifted(apply_transposed(weight, x.T), bias)


def _written_out(weight: Array | StructuredWeight, n_rows: int) -> Array | None:
    """Return W where it is a matrix, or is best rebuilt to be applied to so many rows."""
    if not isinstance(weight, StructuredWeight):
        return weight
    l1, l2 = weight.c.shape
    return _matrix(weight) if n_rows * (l1 + l2) >= l1 * l2 else None


def unstructured(matrix: Array, like: StructuredWeight) -> StructuredWeight:
    """Write a plain matrix as a structured weight with P = Q = Λ1 = Λ2 = I.

    Parameters
    ----------
    matrix : Array, shape of ``like.c``
        What :func:`materialise` is to return, exactly.
    like : StructuredWeight
        Gives the number of reflections and the kind of scales.
    """
    unit = jnp.ones_like if like.scales == "gaussian" else jnp.zeros_like
    return StructuredWeight(
        c=matrix,
        v_left=jnp.zeros_like(like.v_left),  # a reflection by zero is the identity
        v_right=jnp.zeros_like(like.v_right),
        s_left=unit(like.s_left),
        s_right=unit(like.s_right),
        scales=like.scales,
    )


def n_parameters(weights: PyTree) -> int:
    """Count the numbers in a tree: (K + 1)(l1 + l2) + l1 l2 for one fully structured weight."""
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(weights))


def _is_structured(node: object) -> bool:
    return isinstance(node, StructuredWeight)


def _is_matrix(leaf: Any) -> bool:
    return jnp.ndim(leaf) >= 2 and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _sides(c: Array) -> tuple[int, int]:
    return math.prod(c.shape[:-1]), c.shape[-1]


def _structure_matrix(
    c: Array, v_left: Array, v_right: Array, scales: Scales | None
) -> StructuredWeight:
    """Join a weight, its Householder vectors, and unit diagonals."""
    rows, columns = _sides(c)
    unit = 1.0 if scales == "gaussian" else 0.0
    return StructuredWeight(
        c=c,
        v_left=v_left.astype(c.dtype),
        v_right=v_right.astype(c.dtype),
        s_left=jnp.full(rows if scales else 0, unit, c.dtype),
        s_right=jnp.full(columns if scales else 0, unit, c.dtype),
        scales=scales,
    )


def _diagonals(weight: StructuredWeight) -> tuple[Array, Array] | tuple[None, None]:
    """Return Λ1 and Λ2 as vectors, or None for the identity."""
    if weight.scales is None:
        return None, None
    diagonals = weight.s_left, weight.s_right
    return jax.tree.map(jnp.exp, diagonals) if weight.scales == "lognormal" else diagonals


def _matrix(weight: StructuredWeight) -> Array:
    a = weight.c.reshape(_sides(weight.c))
    left, right = _diagonals(weight)
    if left is not None:
        a = _rescale(a, left, right)
    if len(weight.v_left):
        a = rotate(weight.v_left, a, 0)
    if len(weight.v_right):
        a = rotate(weight.v_right, a, 1)
    return a.reshape(weight.c.shape)


@jax.custom_vjp
def _rescale(c: Array, left: Array, right: Array) -> Array:
    """Return Λ1 C Λ2, with the diagonals as vectors; its derivative is short, as `rotate`'s is."""
    return _rescale_forward(c, left, right)[0]


def _rescale_forward(c: Array, left: Array, right: Array) -> tuple[Array, tuple[Array, ...]]:
    return left[:, None] * c * right, (c, left, right)


def _rescale_backward(saved: tuple[Array, ...], g: Array) -> tuple[Array, ...]:
    c, left, right = saved
    product = g * c
    if c.shape[1] == 1:
        of_right = total(left * product[:, 0])[None]
        return left[:, None] * g * right, product[:, 0] * right, of_right
    return left[:, None] * g * right, matmul(product, right), matmul(left, product)


_rescale.defvjp(_rescale_forward, _rescale_backward)
