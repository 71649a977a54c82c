"""Products of Householder reflections, the orthogonal P and Q of a structured weight.

Paper, section 3.2 and supplement B: single reflections, K of them in compact form, and their
product with a matrix from either side, with its derivative. What is rotated, and what for, is
decided in :mod:`s2vgd.structure`. Products are in full precision, or P and Q would not stay
orthogonal on accelerators; they are skinny, so it costs next to nothing.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd._layers import product, total
from s2vgd._precise import matmul

_FEW = 16384  # numbers: those of a matrix, times the reflections of it


def reflect(v: Array, x: Array) -> Array:
    """Reflect x about the hyperplane orthogonal to v (eqs. (householder_vec), (effhouseholder)).

    Parameters
    ----------
    v : Array, shape (n,)
        Householder vector of any length. Its square is offset by the square of the machine
        epsilon, hence ``v = 0`` gives H = I with a gradient of zero, values and gradients are
        finite everywhere, and H is orthogonal to rounding once |v|² exceeds the machine epsilon.
    x : Array, shape (n,) or (n, m)
        A vector, or a matrix of which the columns are reflected.

    Returns
    -------
    Array, shape of x
        H x = x - 2 v (vᵀ x) / |v|²: a rank-one update.
    """
    return rotate(v[None], x.reshape(len(x), -1), 0).reshape(x.shape)


def wy(vs: Array) -> tuple[Array, Array]:
    """Compact WY form of a product of reflections, H_K ... H_1 = I - Y T Yᵀ.

    This is the basis-kernel representation of supplement B. T is the inverse of the lower triangle
    of YᵀY with its diagonal halved.

    Parameters
    ----------
    vs : Array, shape (K, n)
        One or more Householder vectors, first applied first; see :func:`reflect` for vectors near
        zero.

    Returns
    -------
    Y : Array, shape (n, K)
        The basis: the vectors as columns.
    T : Array, shape (K, K)
        Lower-triangular kernel.
    """
    floor = jnp.finfo(vs.dtype).eps ** 2
    if len(vs) == 1:
        return vs.T, 2 / (total(vs * vs)[:, None] + floor)
    gram = matmul(vs, vs.T)
    unit = jnp.sqrt(2 / (jnp.diag(gram) + floor))
    pairs = unit[:, None] * unit
    return vs.T, pairs * _inverse(jnp.tril(pairs * gram, -1))


def orthogonal(vs: Array, n: int) -> Array:
    """Write out H_K ... H_1, the P or Q of eq. (Househoder), as an n by n matrix.

    Parameters
    ----------
    vs : Array, shape (K, n)
        Householder vectors, first applied first. K may be 0.
    n : int
        Size of the matrix.
    """
    identity = jnp.eye(n, dtype=vs.dtype)
    return rotate(vs, identity, 0) if len(vs) else identity


def rotate(vs: Array, a: Array, axis: int) -> Array:
    """Return P a for axis 0 and a Pᵀ for axis 1, where P = H_K ... H_1 and K >= 1.

    In compact form a large matrix is read and written once for all reflections. A small one stays
    in the cache, and on a CPU it is quicker to reflect it K times than to make the kernel T.
    """
    if len(vs) * a.size > _FEW or jax.default_backend() != "cpu":
        return _rotate(vs, a, axis)
    for v in jnp.split(vs, len(vs)):
        a = _rotate(v, a, axis)
    return a


# The derivative is written out because a step on a small network is a hundred operations
# of a microsecond each: what is derived automatically takes twice as many.


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rotate(vs: Array, a: Array, axis: int) -> Array:
    return _rotate_forward(vs, a, axis)[0]


def _rotate_forward(vs: Array, a: Array, axis: int) -> tuple[Array, tuple[Array, ...]]:
    _, t = wy(vs)
    s = _mix(t, _project(vs, a, axis))
    return a - _expand(vs, s, axis), (vs, a, t, s)


def _rotate_backward(axis: int, saved: tuple[Array, ...], g: Array) -> tuple[Array, Array]:
    """Differentiate a - Y S with S = T Yᵀ a, using dT = -T d(T⁻¹) T for the kernel."""
    vs, a, t, s = saved
    r = _mix(t.T, _project(vs, g, axis))
    turned = _of_kernel(vs, r, s) - _collect(s, g, axis) - _collect(r, a, axis)
    return turned, g - _expand(vs, r, axis)


_rotate.defvjp(_rotate_forward, _rotate_backward)


def _of_kernel(vs: Array, r: Array, s: Array) -> Array:
    """Return what the vectors learn from their kernel T, as :func:`_rotate_backward` writes it."""
    if len(vs) == 1:
        return total(r * s) * vs
    d = jnp.tril(matmul(r, s.T))
    return matmul(jnp.tril(d, -1) + d.T, vs)


@jax.custom_vjp
def rotated_product(c: Array, log_left: Array, vs: Array, x: Array) -> Array:
    """Return Cᵀ Λ1 Pᵀ Xᵀ for rows X, where P = H_1 ... H_K, Λ1 = exp(s) and K >= 1.

    The gradients of P and Λ1 would ask for that of the rotated rows, a product as large as the one
    with C. Here they are a few products of C with vectors and, for Λ1, the sums of the rows of
    C times its gradient: rows of data need no gradient, and then no such product is made.

    Parameters
    ----------
    c : Array, shape (l1, l2)
    log_left : Array, shape (l1,)
        s, the logarithm of the diagonal of Λ1.
    vs : Array, shape (K, l1)
        Householder vectors, of which the last is applied to the rows first.
    x : Array, shape (B, l1)

    Returns
    -------
    Array, shape (l2, B)
    """
    return _rotated_product_forward(c, log_left, vs, x)[0]


def _rotated_product_forward(
    c: Array, log_left: Array, vs: Array, x: Array
) -> tuple[Array, tuple[Array, ...]]:
    vs = vs[::-1]
    _, t = wy(vs)
    s = _mix(t, matmul(vs, x.T))
    scaled = jnp.exp(log_left)[:, None] * (x.T - _expand(vs, s, 0))
    return product(c, scaled), (c, log_left, vs, x, t, s, scaled)


def _rotated_product_backward(saved: tuple[Array, ...], g: Array) -> tuple[Array, ...]:
    """Differentiate as `_rotate_backward` does, with Λ1 C g in place of its gradient."""
    c, log_left, vs, x, t, s, scaled = saved
    left = jnp.exp(log_left)
    of_c = scaled @ g.T
    r = _mix(t.T, matmul(matmul(left * vs, c), g))
    collected = (left[:, None] * matmul(c, matmul(g, s.T))).T
    of_vs = _of_kernel(vs, r, s) - collected - matmul(r, x)
    of_x = left[:, None] * (c @ g) - _expand(vs, r, 0)  # left out by the compiler if nobody asks
    return of_c, jnp.sum(c * of_c, axis=1), of_vs[::-1], of_x.T


rotated_product.defvjp(_rotated_product_forward, _rotated_product_backward)


def _inverse(below: Array) -> Array:
    """Invert I + N for a strictly lower-triangular N, (K, K).

    The inverse of (A, 0; B, D) is (A⁻¹, 0; -D⁻¹ B A⁻¹, D⁻¹): all blocks of a size on the diagonal
    are inverted together, then those of twice that size. These few products of small matrices
    take a fraction of the time of a triangular solve for each particle.
    """
    index = np.arange(len(below))
    inverse = jnp.eye(len(below), dtype=below.dtype)
    size = 1
    while size < len(below):
        block, pair = index // size, index // (2 * size)
        new = (block[:, None] != block) & (pair[:, None] == pair)
        corner = jnp.where(new, below, 0)
        inverse = inverse - (corner if size == 1 else matmul(matmul(inverse, corner), inverse))
        size *= 2
    return inverse


# Products with a single vector are written without a matrix product where nothing is summed over:
# as one, they would take longer to run and to compile.


def _mix(t: Array, s: Array) -> Array:
    """Return T S for a kernel (K, K) and components (K, m)."""
    return t * s if len(t) == 1 else matmul(t, s)


def _project(vs: Array, a: Array, axis: int) -> Array:
    """Return the components (K, m) of a along vectors (K, n), where n is this axis of a."""
    if len(vs) == 1 and a.size == vs.size:
        return total(vs * a.reshape(1, -1))[:, None]
    return matmul(a, vs.T).T if axis else matmul(vs, a)


def _expand(vs: Array, s: Array, axis: int) -> Array:
    """Return the combination of vectors (K, n) with components (K, m) along this axis."""
    if len(vs) == 1:
        return jnp.expand_dims(vs[0], 1 - axis) * jnp.expand_dims(s[0], axis)
    return matmul(s.T, vs) if axis else matmul(vs.T, s)


def _collect(s: Array, a: Array, axis: int) -> Array:
    """Return (K, n): components (K, m) times a, summed over its other axis."""
    return matmul(s, a) if axis else matmul(a, s.T).T
