"""SVGD without all pairs of particles: a random few of them, or random features, and their error.

How the directions are computed is in :mod:`s2vgd.parallel.direction`; here is what a user chooses,
and a measure of what it costs in accuracy.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from s2vgd.svgd import Algorithm


@dataclass(frozen=True)
class RandomSubset:
    """Use :func:`subset`."""

    size: int

    def check(self, m: int, parts: int) -> None:
        """Raise ValueError unless so many of m particles can be chosen on so many devices."""
        k, rest = divmod(self.size, parts)
        least = min(2, m // parts)
        if rest or not least <= k <= m // parts:
            raise ValueError(
                f"size of the subset must be a multiple of {parts}, from {least * parts} to the "
                f"{m} particles, got {self.size}"
            )


@dataclass(frozen=True)
class RandomFeatures:
    """Use :func:`random_features`."""

    size: int

    def check(self, m: int, parts: int) -> None:
        """Any number of features will do."""


Approximation = RandomSubset | RandomFeatures


def subset(size: int) -> RandomSubset:
    """In each step, let a random ``size`` of the M particles stand for all.

    A particle's own term stays exact and the others are scaled up, so that with a fixed bandwidth
    the direction is unbiased; with ``"median"`` h is that of the distances to the chosen. Time,
    bytes and memory of the exchange fall by ``M / size``. The error relative to the exact direction
    is about ``1 / sqrt(size)`` in many dimensions, where the particles are about equally far from
    one another; measure yours with :func:`direction_error`.

    Parameters
    ----------
    size : int
        How many; a multiple of the mesh's ``particles``, at least two on each device.
    """
    return RandomSubset(_positive(size))


def random_features(size: int) -> RandomFeatures:
    r"""Replace the RBF kernel by ``size`` random cosines, new ones in each step.

    With a fixed bandwidth each entry of the kernel matrix is unbiased with variance
    :math:`(1 - \kappa^2)^2 / 2R` (Rahimi and Recht, 2007). This is for very many particles in few
    dimensions: the cost is M R D rather than M² D. In many dimensions it is of no use. Between
    particles at the median distance the kernel is 1/M, far below that error, and the relative error
    of the repulsion is about :math:`\sqrt{M D / (R \log M)}`: it drowns in noise.

    Parameters
    ----------
    size : int
        R, the number of random frequencies.
    """
    return RandomFeatures(_positive(size))


class DirectionError(NamedTuple):
    """How far an approximate direction is from the exact one, both as lengths over all particles.

    Attributes
    ----------
    relative : float
        Root mean square of the difference over repeats, over the length of the exact direction.
    bias : float
        Length of the mean difference over the length of the exact direction. What is only chance
        makes it about ``relative / sqrt(repeats)``.
    """

    relative: float
    bias: float


def direction_error(
    exact: Algorithm,
    approximate: Algorithm,
    particles: Any,
    batch: Any = None,
    *,
    key: Array,
    repeats: int = 32,
) -> DirectionError:
    """Measure the error of an approximation where the particles are now.

    Parameters
    ----------
    exact, approximate : Algorithm
        Both with the optimizer ``optax.sgd(1.0)``, so that a step is the direction itself, and
        otherwise the same. Either may be of :func:`s2vgd.parallel.build`; the exact one may be of
        :func:`s2vgd.svgd.build`.
    particles : pytree
        Leaves of shape (M, ...).
    batch : pytree, optional
        What the log density is given.
    key : key
        Of the random choices.
    repeats : int
        How many of them.
    """
    step = partial(_moved, particles=particles, batch=batch)
    truth = step(exact, None)
    off = np.stack([step(approximate, k) - truth for k in jax.random.split(key, repeats)])
    length = np.linalg.norm(truth)
    return DirectionError(
        relative=float(np.sqrt(np.mean(np.sum(off**2, axis=1))) / length),
        bias=float(np.linalg.norm(off.mean(axis=0)) / length),
    )


def _moved(algorithm: Algorithm, key: Array | None, particles: Any, batch: Any) -> np.ndarray:
    state = algorithm.init(particles) if key is None else algorithm.init(particles, key)
    after, _ = algorithm.step(state, batch)
    moves = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), after.particles, particles)
    return np.concatenate([move.ravel() for move in jax.tree.leaves(moves)])


def _positive(size: Any) -> int:
    try:
        number = operator.index(size)
    except TypeError:
        number = 0
    if number < 1 or isinstance(size, bool):
        raise ValueError(f"size must be a positive integer, got {size!r}")
    return number
