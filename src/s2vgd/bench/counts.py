"""How many operations and bytes the main kernels of a step need, at the least, as formulas.

A multiplication and an addition count as two operations, numbers have four bytes, and an array is
read or written once. The page "How fast, and why" states the same formulas in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def network_products(widths: Sequence[int], particles: int, rows: int) -> float:
    """Count the operations of the products in networks forward and backward.

    Each layer of l1 inputs and l2 outputs has three products of 2 B l1 l2 operations (outputs,
    gradient of the weights, gradient of the inputs), the first layer two, since nobody asks for
    the gradient of the data.

    Parameters
    ----------
    widths : sequence of int
        Numbers of units, inputs and outputs included.
    particles, rows : int
        M networks on a batch of B rows.
    """
    layers = [l1 * l2 for l1, l2 in pairwise(widths)]
    return 2.0 * particles * rows * (3 * sum(layers) - layers[0])


def network_bytes(widths: Sequence[int], particles: int, rows: int) -> float:
    """Count the bytes of networks forward and backward.

    Weights are read twice and their gradients written once; the units of every layer but the first
    are written and read going forward and again, with their gradients, going backward.
    """
    size = sum(l1 * l2 + l2 for l1, l2 in pairwise(widths))
    units = particles * rows * sum(widths[1:])
    return 3 * weights_bytes(particles, size) + 4 * 4.0 * units


def svgd_products(particles: int, size: int) -> float:
    """Count the operations of the three products of eq. (svgd_update): Gram matrix, drive, push."""
    return 3 * 2.0 * particles**2 * size


def weights_bytes(particles: int, size: int) -> float:
    """Count the bytes of one copy of M particles of D parameters."""
    return 4.0 * particles * size


def step_bytes(particles: int, size: int) -> float:
    """Count the bytes that an SVGD step with Adam must move.

    Read the particles for the gradients and write those (2), read both for the kernel products and
    write the direction (3), and Adam: read the direction, the two moments and the particles, and
    write the moments and the particles (7). The M x M matrices are left out.
    """
    return 12 * weights_bytes(particles, size)
