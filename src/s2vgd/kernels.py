"""Kernels between particles: RBF, inverse multiquadric, and a mean of either over the layers.

A kernel takes the particles as one (M, D) matrix and answers with what SVGD needs of it: the kernel
matrix, the sum of its gradients, and the bandwidth it chose. Everything is a product of M x M and
M x D matrices, so the memory is O(M D + M^2). The update that uses it is in :mod:`s2vgd.svgd`.

A new radial kernel is one function of the squared distance (see :func:`imq`); any other kernel is a
callable with the signature of :class:`Kernel`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal, NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array, lax

from s2vgd._precise import matmul

Bandwidth = float | Literal["median"]


class Block(NamedTuple):
    """The columns ``start:stop`` of the flat particles that hold the leaf at ``path``."""

    path: str
    start: int
    stop: int


class KernelResult(NamedTuple):
    """A kernel evaluated at the particles.

    Attributes
    ----------
    matrix : Array, shape (M, M)
        ``kappa(theta_i, theta_j)``.
    repulsion : Array, shape (M, D), or a tuple of Arrays, shapes (M, D_i)
        Row i is ``sum_j grad_{theta_j} kappa(theta_j, theta_i)``, the second term of
        eq. (svgd_update) before the division by M; in matrices if the particles are.
    bandwidth : Array, scalar
        The bandwidth h used (the mean over the layers for :func:`layerwise`).
    squared_distances : Array, shape (M, M)
        ``||theta_i - theta_j||^2``.
    """

    matrix: Array
    repulsion: Any
    bandwidth: Array
    squared_distances: Array


class Kernel(Protocol):
    """Anything callable as ``kernel(particles, blocks) -> KernelResult``.

    ``particles`` is (M, D); ``blocks`` says which columns hold which leaf of the user's particle,
    in order and without gaps. Most kernels ignore it.
    """

    def __call__(self, particles: Array, blocks: tuple[Block, ...], /) -> KernelResult:
        """Evaluate the kernel between all pairs of particles."""


Profile = Callable[[Array, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Radial:
    """A kernel ``kappa = f(||theta - theta'||^2, h)``; use :func:`rbf` or :func:`imq`.

    Parameters
    ----------
    profile : callable
        ``(squared_distances, h) -> (f, df)``: the kernel and its derivative with respect to the
        squared distance, elementwise.
    bandwidth : float or "median"
        A fixed h, or the paper's ``h = med^2 / log M``.
    factor : float
        h is multiplied by it: below 1, particles that are further apart than most go their own way.
    """

    profile: Profile
    bandwidth: Bandwidth = "median"
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor must be positive and finite, got {self.factor!r}")
        if self.bandwidth == "median":
            return
        if isinstance(self.bandwidth, str) or not 0 < self.bandwidth < math.inf:
            raise ValueError(
                f"bandwidth must be 'median' or a positive finite number, got {self.bandwidth!r}"
            )

    def __call__(self, particles: Array, blocks: tuple[Block, ...] = (), /) -> KernelResult:
        """Evaluate the kernel between all pairs of particles (M, D)."""
        at = self.of_pieces((particles,))
        return at._replace(repulsion=at.repulsion[0])

    def of_pieces(self, pieces: Sequence[Array]) -> KernelResult:
        """Evaluate it for particles side by side in matrices (M, D_i); the answers are so too."""
        if len(pieces[0]) == 1:
            # It is at no distance from itself, and need not be read to know that.
            nowhere = tuple(map(jnp.zeros_like, pieces))
            matrix, _, h = self.at_distances(jnp.zeros((1, 1), pieces[0].dtype))
            return KernelResult(matrix, nowhere, h, jnp.zeros_like(matrix))
        centred = [_centre(piece) for piece in pieces]
        squared = squared_distances(*centred)
        matrix, laplacian, h = self.at_distances(squared)
        # The centred particles give the same sum with less cancellation: it is a small difference
        # of large terms.
        repulsion = tuple(matmul(laplacian, piece) for piece in centred)
        return KernelResult(matrix, repulsion, h, squared)

    def at_distances(self, squared: Array) -> tuple[Array, Array, Array]:
        """Return the kernel matrix, the matrix that makes repulsion of particles, and h.

        With D the squared distances (M, M) and f the profile, ``sum_j grad_j f(D_ij) =
        2 sum_j f'(D_ij) (theta_j - theta_i)`` is one product of an M x M matrix with the particles,
        the sums of its rows being on the diagonal.
        """
        if self.bandwidth == "median":
            h = median_bandwidth(squared)
        else:
            h = jnp.asarray(self.bandwidth, squared.dtype)
        h = self.factor * h
        matrix, slope = self.profile(squared, h)
        return matrix, 2 * (slope - jnp.diag(jnp.sum(slope, axis=1))), h


def rbf(bandwidth: Bandwidth = "median", factor: float = 1.0) -> Radial:
    """RBF kernel ``exp(-||theta - theta'||^2 / h)``, the paper's and the default.

    Parameters
    ----------
    bandwidth : float or "median"
        h itself, or ``"median"`` for ``h = med^2 / log M`` with med the median of the distances
        between different particles (see :func:`median_bandwidth`).
    factor : float
        h is multiplied by it.
    """
    return Radial(_rbf_profile, bandwidth, factor)


def imq(bandwidth: Bandwidth = "median", beta: float = -0.5) -> Radial:
    """Inverse multiquadric ``(1 + ||theta - theta'||^2 / h)^beta``.

    Its tails are heavier than the RBF's, so that far particles still feel one another.

    Parameters
    ----------
    bandwidth : float or "median"
        As in :func:`rbf`.
    beta : float
        The exponent, in (-1, 0).
    """
    if not -1 < beta < 0:
        raise ValueError(f"beta must lie in (-1, 0), got {beta!r}")
    return Radial(_IMQProfile(beta), bandwidth)


@dataclass(frozen=True)
class Layerwise:
    """The mean of one kernel over groups of leaves; use :func:`layerwise`."""

    kernel: Kernel
    groups: int | Callable[[str], str]

    def __call__(self, particles: Array, blocks: tuple[Block, ...], /) -> KernelResult:
        """Evaluate the kernel on each layer's columns and take the mean."""
        groups: dict[str, list[Block]] = {}
        for block in blocks:
            groups.setdefault(self.label(block.path), []).append(block)
        layers = []
        repulsion = {}
        for members in groups.values():
            columns, local = _gather(particles, members)
            layer = self.kernel(columns, local)
            layers.append(layer)
            for block, where in zip(members, local, strict=True):
                repulsion[block] = layer.repulsion[:, where.start : where.stop]
        return KernelResult(
            matrix=jnp.mean(jnp.stack([layer.matrix for layer in layers]), axis=0),
            repulsion=jnp.concatenate([repulsion[block] for block in blocks], axis=1) / len(layers),
            bandwidth=jnp.mean(jnp.stack([layer.bandwidth for layer in layers])),
            squared_distances=jnp.sum(
                jnp.stack([layer.squared_distances for layer in layers]), axis=0
            ),
        )

    def label(self, path: str) -> str:
        """Return the layer of the leaf at this path."""
        if callable(self.groups):
            return self.groups(path)
        return "/".join(path.split("/")[: self.groups])


def layerwise(kernel: Kernel | None = None, groups: int | Callable[[str], str] = 1) -> Layerwise:
    """Mean of a kernel over the layers: ``kappa = 1/L sum_l kappa_l(theta_l, theta'_l)``.

    Each group of leaves has distances, and under ``"median"`` a bandwidth, of its own, so that a
    wide layer does not drown a narrow one.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel of every group, ``rbf()`` by default.
    groups : int or callable
        How leaves form layers. With an int n, leaves whose key paths share the first n keys belong
        together: 1 groups by the top-level keys of the particle, 2 suits a particle such as
        ``{"weights": (layer, layer), "prior": ...}``. A callable maps the path of a leaf, written
        ``"weights/0/bias"``, to the label of its group.
    """
    if not callable(groups) and (isinstance(groups, bool) or groups < 1):
        raise ValueError(f"groups must be a positive integer or a callable, got {groups!r}")
    return Layerwise(rbf() if kernel is None else kernel, groups)


def squared_distances(*pieces: Array) -> Array:
    """Pairwise squared Euclidean distances, (M, D) -> (M, M), from one Gram matrix.

    The columns may be spread over several matrices. The rounding error is about machine epsilon
    times the largest squared norm, so centre the particles first; what would come out negative is
    zero.
    """
    return distances_of_gram(reduce(operator.add, (matmul(piece, piece.T) for piece in pieces)))


def distances_of_gram(gram: Array) -> Array:
    """Return squared distances between points, from their inner products (M, M)."""
    norms = jnp.diagonal(gram)
    return jnp.maximum(norms[:, None] + norms[None, :] - 2 * gram, 0)


def median_bandwidth(squared: Array) -> Array:
    """Bandwidth ``h = med^2 / log M`` from squared distances (M, M), the zero diagonal left out.

    ``med`` is exactly the median (the mean of the two middle values when their number is even). On
    a CPU it is found by fixing the bits of the answer one at a time, which reads the distances 31
    times (63 in float64) and is much faster than a sort; elsewhere by a sort, since 31 small
    programs one after another would take longer than the rest of a step.
    Its square is not allowed below the rounding error of the distances, so that particles that
    coincide get a positive h. A single particle has no distances and gets 1.
    """
    m = squared.shape[0]
    if m == 1:
        return jnp.ones((), squared.dtype)
    lower, upper = middle(_each_pair_once(squared), m * (m - 1) // 2)
    median = (jnp.sqrt(lower) + jnp.sqrt(upper)) / 2
    epsilon = jnp.finfo(squared.dtype).eps
    floor = epsilon * (epsilon + jnp.mean(squared))
    return jnp.maximum(median**2, floor) / math.log(m)


def _each_pair_once(squared: Array) -> Array:
    """Return the upper triangle of a symmetric matrix (M, M) in half as many rows, and infinities.

    Row i has what is right of the diagonal in row i, and in the places left of it, which are as
    many, what is right of it in row M - 1 - i. Gathering the triangle would be slower.
    """
    m = len(squared)
    half = (m + 1) // 2
    row, column = jnp.arange(half)[:, None], jnp.arange(m)
    left = (column < row) & (row != m - 1 - row)  # the middle one of an odd number is there once
    flipped = jnp.where(left, squared[::-1, ::-1][:half], jnp.inf)
    return jnp.where(column > row, squared[:half], flipped)


def middle(values: Array, count: int) -> tuple[Array, Array]:
    """Return the two middle ones (or the middle one twice) of the ``count`` smallest values, >= 0.

    In whichever way is faster on the device, see :func:`median_bandwidth`.
    """
    return lax.platform_dependent(
        values,
        cpu=partial(middle_by_bits, count=count),
        default=partial(_middle_by_sort, count=count),
    )


def middle_by_bits(
    values: Array, count: int, axes: str | tuple[str, ...] = ()
) -> tuple[Array, Array]:
    """Return the same without sorting, inside ``jax.shard_map`` of all devices along these axes."""
    lower = _kth_smallest(values, (count - 1) // 2, axes)
    above = lax.pmin(jnp.min(jnp.where(values > lower, values, jnp.inf)), axes)
    is_twice = lax.psum(jnp.sum(values <= lower), axes) > count // 2
    return lower, jnp.where(is_twice, lower, above)


def _middle_by_sort(values: Array, count: int) -> tuple[Array, Array]:
    ordered = jnp.sort(values, axis=None)
    return ordered[(count - 1) // 2], ordered[count // 2]


def _kth_smallest(values: Array, rank: int, axes: str | tuple[str, ...]) -> Array:
    """Return the value at ``rank`` (from 0) in the order of non-negative floats, without sorting.

    Non-negative floats are ordered as the unsigned integers with the same bits.
    """
    width = jnp.finfo(values.dtype).bits
    integer = jnp.dtype(f"uint{width}")
    bits = lax.bitcast_convert_type(values, integer)

    def fix_bit(i: Array, prefix: Array) -> Array:
        candidate = prefix | (jnp.ones((), integer) << (width - 2 - i).astype(integer))
        below = lax.psum(_count(bits < candidate), axes)
        return jnp.where(below <= rank, candidate, prefix)

    found = lax.fori_loop(0, width - 1, fix_bit, jnp.zeros((), integer))
    return lax.bitcast_convert_type(found, values.dtype)


def _count(mask: Array) -> Array:
    """Return how many are true, as an integer; a CPU adds up whole columns much faster as floats.

    That is exact for up to 2^24 rows.
    """
    if mask.size <= 1024:  # a loop that is a single function of machine code
        return jnp.sum(mask)
    rows = mask.reshape(-1, mask.shape[-1]).astype(jnp.float32)
    return jnp.sum(matmul(jnp.ones(len(rows), jnp.float32), rows).astype(jnp.int32))


def _centre(particles: Array) -> Array:
    """Subtract the mean, relative to the first particle so that equal particles become zero."""
    shifted = particles - particles[0]
    # The mean as a product, which a CPU does much faster than a sum over the first axis.
    m = len(particles)
    return shifted - matmul(jnp.full(m, 1 / m, shifted.dtype), shifted)


def _rbf_profile(squared: Array, h: Array) -> tuple[Array, Array]:
    kernel = jnp.exp(-squared / h)
    return kernel, -kernel / h


@dataclass(frozen=True)
class _IMQProfile:
    beta: float

    def __call__(self, squared: Array, h: Array) -> tuple[Array, Array]:
        base = 1 + squared / h
        kernel = base**self.beta
        return kernel, self.beta / h * kernel / base


def _gather(particles: Array, members: list[Block]) -> tuple[Array, tuple[Block, ...]]:
    """Take the columns of some blocks, and say where each block is among them."""
    local = []
    start = 0
    for block in members:
        stop = start + block.stop - block.start
        local.append(Block(block.path, start, stop))
        start = stop
    first, last = members[0].start, members[-1].stop
    if last - first == start:
        return particles[:, first:last], tuple(local)
    columns = [particles[:, block.start : block.stop] for block in members]
    return jnp.concatenate(columns, axis=1), tuple(local)
