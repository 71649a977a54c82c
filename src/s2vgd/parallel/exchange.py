"""How the devices that share the particles learn of one another's parameters, and of the median.

Everything here runs inside ``jax.shard_map`` on the axes of :mod:`s2vgd.parallel.meshes`. A device
holds m = M / P particles, and C columns of one piece of their parameters. An :class:`Exchange`
gives it the two products that SVGD needs with the parameters of n particles, its *columns*: of all
M, gathered at once (:class:`Gather`) or visited in a ring (:class:`Ring`), or of a random few
(:class:`Subset`). What is done with the products is in :mod:`s2vgd.parallel.direction`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from s2vgd._precise import matmul
from s2vgd.kernels import middle, middle_by_bits
from s2vgd.parallel.meshes import PARTICLE

MOST_PARTICLES = 46_340
"""The pairs of more particles than this cannot be counted in 32 bits."""

FEW = 2**20
"""Up to so many distances it is quicker to send them than to count them together."""


class Exchange(Protocol):
    """Products with the parameters of n particles that may live elsewhere."""

    def ids(self, m: int) -> Array:
        """Return the numbers (n,) of the particles that are the columns."""

    def weights(self, m: int) -> Array | None:
        """Return by how much each column counts for each of m rows (m, n); None for once."""

    def norms(self, x: Array, gram: Array) -> Array:
        """Return the squared lengths (m,) of the rows, given x (m, C) and its Gram matrix."""

    def gram(self, x: Array) -> Array:
        """Return the products (m, n) of our rows (m, C) with the columns, over our C."""

    def product(self, weights: Array, x: Array) -> Array:
        """Return weights (m, n) times the columns' rows, (m, C)."""


class Gather(NamedTuple):
    """Every device receives all particles, and keeps them during the step."""

    def ids(self, m: int) -> Array:
        """All particles."""
        return jnp.arange(m * lax.axis_size(PARTICLE))

    def weights(self, m: int) -> None:
        """Each once."""
        return None

    def norms(self, x: Array, gram: Array) -> Array:
        """From the diagonal, so that the distance to an equal particle is exactly 0."""
        return _diagonal(gram)

    def gram(self, x: Array) -> Array:
        """One product."""
        return matmul(x, gathered(x).T)

    def product(self, weights: Array, x: Array) -> Array:
        """One product; what was gathered for the Gram matrix is not sent again."""
        return matmul(weights, gathered(x))


class Ring(NamedTuple):
    """The blocks of m particles travel round the devices, one neighbour at a time."""

    def ids(self, m: int) -> Array:
        """All particles."""
        return Gather().ids(m)

    def weights(self, m: int) -> None:
        """Each once."""
        return None

    def norms(self, x: Array, gram: Array) -> Array:
        """As in :class:`Gather`."""
        return _diagonal(gram)

    def gram(self, x: Array) -> Array:
        """Fill in the columns of each block as it comes by."""
        m = len(x)

        def meet(block: Array, start: Array, gram: Array) -> Array:
            return lax.dynamic_update_slice(gram, matmul(x, block.T), (0, start))

        return _tour(x, meet, jnp.zeros((m, m * lax.axis_size(PARTICLE)), x.dtype))

    def product(self, weights: Array, x: Array) -> Array:
        """Add up the contribution of each block as it comes by."""
        m = len(x)

        def meet(block: Array, start: Array, total: Array) -> Array:
            return total + matmul(lax.dynamic_slice(weights, (0, start), (m, m)), block)

        return _tour(x, meet, jnp.zeros_like(x))


class Subset(NamedTuple):
    """A few particles of each device stand for all of that device.

    A particle's own term is known and is not left to chance: its weight here is 0, and the others
    of a device are scaled up to the number there are of them. Averaged over all choices of
    equal size, a sum over the columns with :meth:`weights` is the sum over all other particles.

    Parameters
    ----------
    chosen : Array, shape (k,)
        The rows of this device that stand for it, all different.
    """

    chosen: Array

    @classmethod
    def draw(cls, key: Array, m: int, size: int) -> Subset:
        """Choose ``size`` in all, the same number on each device."""
        k = size // lax.axis_size(PARTICLE)
        key = jax.random.fold_in(key, lax.axis_index(PARTICLE))
        return cls(jax.random.permutation(key, m)[:k])

    def ids(self, m: int) -> Array:
        """Those chosen on all devices."""
        return gathered(self.chosen + m * lax.axis_index(PARTICLE))

    def weights(self, m: int) -> Array:
        """0 for itself, else how many others of the column's device it stands for."""
        k = len(self.chosen)
        home = jnp.arange(k * lax.axis_size(PARTICLE)) // k == lax.axis_index(PARTICLE)
        is_chosen = jnp.isin(jnp.arange(m), self.chosen)
        # A device whose only choice is the particle itself has nobody to stand for the others:
        # the sizes that would allow it are refused when the algorithm is built.
        others = jnp.maximum(k - is_chosen, 1)
        weights = jnp.where(home, ((m - 1) / others)[:, None], m / k)
        return jnp.where(self.ids(m) == row_ids(m)[:, None], 0.0, weights)

    def norms(self, x: Array, gram: Array) -> Array:
        """Of the rows themselves, which need not be among the columns."""
        return jnp.sum(x * x, axis=1)

    def gram(self, x: Array) -> Array:
        """One product with the chosen rows."""
        return matmul(x, gathered(x[self.chosen]).T)

    def product(self, weights: Array, x: Array) -> Array:
        """One product with the chosen rows."""
        return matmul(weights, gathered(x[self.chosen]))


def row_ids(m: int) -> Array:
    """Return the numbers (m,) of the particles of this device."""
    return m * lax.axis_index(PARTICLE) + jnp.arange(m)


def median_bandwidth(squared: Array, itself: Array) -> Array:
    """Return :func:`s2vgd.kernels.median_bandwidth` of distances that are divided over devices.

    Few distances are sent to all devices. Many stay where they are: the devices only add up how
    many lie below a value, which fixes one bit of the answer, in float32 31 times.

    Parameters
    ----------
    squared : Array, shape (m, n)
        Squared distances of this device's particles to the columns, the same along ``"data"``.
    itself : Array, shape (m, n)
        True where the column is the row.
    """
    rows, n = squared.shape
    m = rows * lax.axis_size(PARTICLE)
    if m == 1:
        return jnp.ones((), squared.dtype)
    pairs = jnp.where(itself, jnp.inf, squared)
    count = (m - 1) * n  # each column has one row that is itself
    if m * n <= FEW:
        lower, upper = middle(gathered(pairs), count)
    else:
        lower, upper = middle_by_bits(pairs, count, PARTICLE)
    median = (jnp.sqrt(lower) + jnp.sqrt(upper)) / 2
    epsilon = jnp.finfo(squared.dtype).eps
    mean = lax.psum(jnp.sum(squared), PARTICLE) / (m * n)
    return jnp.maximum(median**2, epsilon * (epsilon + mean)) / math.log(m)


def gathered(x: Array, name: str = PARTICLE, axis: int = 0) -> Array:
    """Return the parts of all devices along an axis of the mesh, joined along an axis of x."""
    if lax.axis_size(name) == 1:  # the compiler would copy it
        return x
    return lax.all_gather(x, name, axis=axis, tiled=True)


def _diagonal(gram: Array) -> Array:
    m = len(gram)
    own = lax.dynamic_slice(gram, (0, m * lax.axis_index(PARTICLE)), (m, m))
    return jnp.diagonal(own)


def _tour(x: Array, meet: Callable[[Array, Array, Array], Array], carry: Array) -> Array:
    """Call ``meet(block, start, carry)`` for the block of every device, beginning with our own.

    ``start`` is the number of the block's first particle.
    """
    size, here, m = lax.axis_size(PARTICLE), lax.axis_index(PARTICLE), len(x)
    to_the_left = [(i, (i - 1) % size) for i in range(size)]

    def visit(k: Array, held: tuple[Array, Array]) -> tuple[Array, Array]:
        block, carry = held
        # Sent on before it is used, so that it may travel while the product is computed.
        following = lax.ppermute(block, PARTICLE, to_the_left)
        return following, meet(block, (here + k) % size * m, carry)

    block, carry = lax.fori_loop(0, size - 1, visit, (x, carry))
    return meet(block, (here + size - 1) % size * m, carry)
