"""The SVGD direction, eq. (svgd_update), of the particles of one device among those of all.

Runs inside ``jax.shard_map``: see :mod:`s2vgd.parallel.exchange`. Distances are summed over the
columns of the parameters in a first pass and the two terms formed in a second one, because the
bandwidth must be known in between. With ``block`` both passes take so many columns at a time, and
the direction takes the place of the gradients, so that nothing else of their size is ever held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from s2vgd._precise import matmul
from s2vgd.kernels import Radial
from s2vgd.parallel.exchange import Exchange, Subset, gathered, median_bandwidth, row_ids
from s2vgd.parallel.meshes import DATA, PARTICLE

Carry = TypeVar("Carry")
Pieces = Sequence[Array]

_SAMPLE = 256


class Seen(NamedTuple):
    """What the direction tells about itself; scalars, the same on all devices.

    Attributes
    ----------
    bandwidth : Array
        h, the mean over the layers.
    drive, push : Array
        Mean over the particles of the squared lengths of the two terms.
    min_squared_distance : Array
        Between different particles, of the pairs that were looked at.
    """

    bandwidth: Array
    drive: Array
    push: Array
    min_squared_distance: Array


def direction(
    theta: Pieces,
    gradients: Pieces,
    anneal: Array,
    *,
    kernel: Radial,
    layers: Sequence[int],
    repulsion: float,
    exchange: Exchange,
    block: int | None = None,
) -> tuple[tuple[Array, ...], Seen]:
    """Return the sum of the driving and the repulsive term, in pieces.

    Parameters
    ----------
    theta, gradients : sequence of Array, shape (m, C)
        This device's particles and the gradients of the log density, in pieces of which it has
        a part of the columns.
    anneal : Array, scalar
        Factor of the driving term.
    kernel : Radial
        Of each layer; the kernel of the whole is their mean.
    layers : sequence of int
        The layer of each piece.
    repulsion : float
        Weight of the repulsive term.
    exchange : Exchange
        How to get at the other particles.
    block : int, optional
        Columns at a time; all of a piece by default.
    """
    m = len(theta[0])
    everyone, n_layers = m * lax.axis_size(PARTICLE), max(layers) + 1
    centres = [_centre(piece) for piece in theta]
    itself = exchange.ids(m) == row_ids(m)[:, None]
    squared = _squared_distances(theta, centres, layers, exchange, block)
    bandwidths = [_bandwidth(kernel, distances, itself) for distances in squared]
    profiles = [kernel.profile(d, h) for d, h in zip(squared, bandwidths, strict=True)]
    weight: Array | float = 1.0
    own = jnp.zeros((), theta[0].dtype)
    if (weights := exchange.weights(m)) is not None:
        weight = weights
        at_zero = [kernel.profile(jnp.zeros_like(h), h)[0] for h in bandwidths]
        own = anneal / everyone * _total(at_zero) / n_layers
    pull = anneal / (everyone * n_layers) * weight * _total([matrix for matrix, _ in profiles])
    pushes = [2 * repulsion / (everyone * n_layers) * weight * slope for _, slope in profiles]

    def of_columns(piece: int, x: Array, g: Array, start: Array | int) -> tuple[Array, Array]:
        push_weights = pushes[layers[piece]]
        # sum_j grad_j f(|theta_j - theta_i|^2) = 2 sum_j f'_ij (theta_j - theta_i)
        push = exchange.product(push_weights, x) - push_weights.sum(axis=1, keepdims=True) * x
        return exchange.product(pull, g) + own * g, push

    moved, drive, push = _move(of_columns, theta, gradients, centres, block)
    return moved, Seen(
        bandwidth=_total(bandwidths) / n_layers,
        drive=drive,
        push=push,
        min_squared_distance=_smallest(_total(squared), itself),
    )


def feature_direction(
    theta: Pieces,
    gradients: Pieces,
    anneal: Array,
    key: Array,
    *,
    kernel: Radial,
    repulsion: float,
    size: int,
    block: int | None = None,
) -> tuple[tuple[Array, ...], Seen]:
    r"""Return the direction with the RBF kernel replaced by random features.

    :math:`\kappa(x, y) \approx \frac1R \sum_r \cos w_r^\top (x - y)` with w from N(0, 2/h I)
    (Rahimi and Recht, 2007). Both terms are then sums over features of sums over particles, so that
    no pair of particles is ever formed. The w are drawn again wherever they are needed and never
    sent. Under ``"median"`` the bandwidth is that of the distances to a random 256 particles.

    Parameters
    ----------
    theta, gradients, anneal, kernel, repulsion, block
        As in :func:`direction`.
    key : key
        Of the features of this step, the same on all devices.
    size : int
        R, the number of frequencies w.
    """
    m, parts, dtype = len(theta[0]), lax.axis_size(PARTICLE), theta[0].dtype
    everyone = m * parts
    sample_key, feature_key = jax.random.split(key)
    few = Subset.draw(sample_key, m, parts * min(m, -(-_SAMPLE // parts)))
    centres = [_centre(piece) for piece in theta]
    itself = few.ids(m) == row_ids(m)[:, None]
    (squared,) = _squared_distances(theta, centres, [0] * len(theta), few, block)
    h = _bandwidth(kernel, squared, itself)

    # Devices that hold the same columns must draw the same frequencies for them.
    feature_key = jax.random.fold_in(feature_key, lax.axis_index(DATA))

    def frequencies(piece: int, start: Array | int, width: int) -> Array:
        column_key = jax.random.fold_in(jax.random.fold_in(feature_key, piece), start)
        return jnp.sqrt(2 / h) * jax.random.normal(column_key, (size, width), dtype)

    phases = jnp.zeros((m, size), dtype)
    for i, piece in enumerate(theta):

        def add(total: Array, start: Array | int, width: int, i: int = i) -> Array:
            x = _columns(theta[i], centres[i], start, width)
            return total + matmul(x, frequencies(i, start, width).T)

        phases = _over_blocks(add, phases, piece.shape[1], block)
    phases = lax.psum(phases, DATA)
    cosines, sines = jnp.cos(phases), jnp.sin(phases)
    all_cosines, all_sines = lax.psum((cosines.sum(axis=0), sines.sum(axis=0)), PARTICLE)
    scale = 1 / (everyone * size)
    push_weights = repulsion * scale * (sines * all_cosines - cosines * all_sines)

    def of_columns(piece: int, x: Array, g: Array, start: Array | int) -> tuple[Array, Array]:
        pulls = lax.psum((matmul(cosines.T, g), matmul(sines.T, g)), PARTICLE)
        drive = anneal * scale * (matmul(cosines, pulls[0]) + matmul(sines, pulls[1]))
        return drive, matmul(push_weights, frequencies(piece, start, x.shape[1]))

    moved, drive, push = _move(of_columns, theta, gradients, centres, block)
    return moved, Seen(h, drive, push, _smallest(squared, itself))


def _move(
    of_columns: Callable[[int, Array, Array, Array | int], tuple[Array, Array]],
    theta: Pieces,
    gradients: Pieces,
    centres: Sequence[tuple[Array, Array]],
    block: int | None,
) -> tuple[tuple[Array, ...], Array, Array]:
    """Form the two terms of all columns: their sum, and the mean squared length of each.

    ``of_columns(piece, x, g, start) -> (drive, push)`` takes centred parameters and gradients of
    some columns of a piece, the first of which is ``start``.
    """
    moved, lengths = [], jnp.zeros(2, theta[0].dtype)
    for i, gradient in enumerate(gradients):

        def replace(
            carry: tuple[Array, Array], start: Array | int, width: int, i: int = i
        ) -> tuple[Array, Array]:
            buffer, lengths = carry
            x = _columns(theta[i], centres[i], start, width)
            g = lax.dynamic_slice_in_dim(buffer, start, width, axis=1)
            drive, push = of_columns(i, x, g, start)
            buffer = lax.dynamic_update_slice_in_dim(buffer, drive + push, start, axis=1)
            return buffer, lengths + jnp.stack([jnp.sum(drive**2), jnp.sum(push**2)])

        buffer, lengths = _over_blocks(replace, (gradient, lengths), gradient.shape[1], block)
        moved.append(buffer)
    everyone = len(theta[0]) * lax.axis_size(PARTICLE)
    drive, push = lax.psum(lengths, (PARTICLE, DATA)) / everyone
    return tuple(moved), drive, push


def _over_blocks(
    function: Callable[[Carry, Array | int, int], Carry],
    carry: Carry,
    width: int,
    block: int | None,
) -> Carry:
    """Fold ``function(carry, start, columns)`` over blocks of columns; the last may be narrower."""
    if block is None or width <= block:
        return function(carry, 0, width)
    whole = width // block
    carry = lax.fori_loop(0, whole, lambda i, carry: function(carry, i * block, block), carry)
    return carry if width == whole * block else function(carry, whole * block, width % block)


def _centre(piece: Array) -> tuple[Array, Array]:
    """Return two vectors (C,) to subtract: the first particle, then the mean of what is left.

    The same as in :mod:`s2vgd.kernels`, where equal particles become exactly zero.
    """
    first = jnp.where(lax.axis_index(PARTICLE) == 0, piece[0], 0)
    first = lax.psum(first, PARTICLE)
    # A sum and not a product, as on one device: that would write the difference down.
    total = lax.psum(jnp.sum(piece - first, axis=0), PARTICLE)
    return first, total / (len(piece) * lax.axis_size(PARTICLE))


def _columns(piece: Array, centre: tuple[Array, Array], start: Array | int, width: int) -> Array:
    """Return some columns of a piece, centred."""
    first, mean = (lax.dynamic_slice_in_dim(vector, start, width) for vector in centre)
    return lax.dynamic_slice_in_dim(piece, start, width, axis=1) - first - mean


def _squared_distances(
    theta: Pieces,
    centres: Sequence[tuple[Array, Array]],
    layers: Sequence[int],
    exchange: Exchange,
    block: int | None,
) -> list[Array]:
    """Return squared distances (m, n) to the columns of the exchange, for each layer."""
    m = len(theta[0])
    n = len(exchange.ids(m))
    found = []
    for layer in range(max(layers) + 1):
        carry = jnp.zeros((m, n), theta[0].dtype), jnp.zeros(m, theta[0].dtype)
        for i in [i for i, other in enumerate(layers) if other == layer]:

            def add(
                carry: tuple[Array, Array], start: Array | int, width: int, i: int = i
            ) -> tuple[Array, Array]:
                x = _columns(theta[i], centres[i], start, width)
                gram = exchange.gram(x)
                return carry[0] + gram, carry[1] + exchange.norms(x, gram)

            carry = _over_blocks(add, carry, theta[i].shape[1], block)
        gram, norms = lax.psum(carry, DATA)
        others = gathered(norms)[exchange.ids(m)]
        found.append(jnp.maximum(norms[:, None] + others - 2 * gram, 0))
    return found


def _bandwidth(kernel: Radial, squared: Array, itself: Array) -> Array:
    if kernel.bandwidth == "median":
        return kernel.factor * median_bandwidth(squared, itself)
    return kernel.factor * jnp.asarray(kernel.bandwidth, squared.dtype)


def _smallest(squared: Array, itself: Array) -> Array:
    return lax.pmin(jnp.min(jnp.where(itself, jnp.inf, squared)), PARTICLE)


def _total(arrays: Sequence[Array]) -> Array:
    return jnp.sum(jnp.stack(arrays), axis=0)
