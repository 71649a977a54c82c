"""RMSspectral: RMSprop in the geometry of the spectral norm (Carlson et al., 2015).

Steepest descent, when the length of a step of a matrix is measured by its largest singular value,
moves all singular directions of the gradient equally far. Here are that direction, the optimiser
that takes it in RMSprop's coordinates, and the point estimate it finds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from s2vgd._precise import matmul
from s2vgd.baselines.point import PointEstimate, check_fraction
from s2vgd.priors import check_positive

EXACT_SIDE = 100
"""Matrices whose smaller side is longer than this are treated approximately by :func:`sharp`."""

NEWTON_SCHULZ_STEPS = 25


class SpectralState(NamedTuple):
    """Running mean of the squared gradients, like the parameters, and the number of updates."""

    square: Any
    n_updates: Array


def sharp(matrix: Array) -> Array:
    r"""Apply the #-operator of the spectral norm.

    :math:`X^\# = \|s\|_1 U V^T` for :math:`X = U \mathrm{diag}(s) V^T`; singular values that are
    zero up to rounding are left out, of which the definition leaves open what becomes.

    Parameters
    ----------
    matrix : Array, shape (n, m)
        It is decomposed exactly if its smaller side is at most `EXACT_SIDE`. Beyond that a
        decomposition takes far longer than the gradient, and :math:`U V^T` is found with matrix
        products alone, by 25 Newton-Schulz iterations, in place of the randomised decomposition of
        Carlson et al. The factor of a singular direction is then 1 to rounding for singular values
        above 3e-4 of the Frobenius norm, still 0.997 at 1e-4, and a quarter at 1e-5.

    Returns
    -------
    Array, shape (n, m)
    """
    if min(matrix.shape) <= EXACT_SIDE:
        u, s, vt = jnp.linalg.svd(matrix, full_matrices=False)
        counts = s > max(matrix.shape) * jnp.finfo(s.dtype).eps * s[0]
        return jnp.sum(s) * matmul(u * counts, vt)
    polar = _polar(matrix) if matrix.shape[0] <= matrix.shape[1] else _polar(matrix.T).T
    return jnp.sum(matrix * polar) * polar


def scale_by_rms_spectral(decay: float, floor: float) -> optax.GradientTransformation:
    r"""Precondition as RMSspectral does (Carlson et al., 2015).

    With :math:`V` the running mean of the squared gradients :math:`G \circ G`, corrected for its
    start at zero, and :math:`D = \lambda + \sqrt V`, a matrix moves along
    :math:`(G \oslash \sqrt D)^\# \oslash \sqrt D` and everything else as in RMSprop, along
    :math:`G \oslash D`.

    Parameters
    ----------
    decay : float
        How much of :math:`V` is kept at a step.
    floor : float
        The :math:`\lambda` above.
    """

    def init(parameters: Any) -> SpectralState:
        return SpectralState(jax.tree.map(jnp.zeros_like, parameters), jnp.zeros((), jnp.int32))

    def update(
        gradients: Any, state: SpectralState, parameters: Any = None
    ) -> tuple[Any, SpectralState]:
        n_updates = state.n_updates + 1
        square = jax.tree.map(lambda v, g: decay * v + (1 - decay) * g * g, state.square, gradients)
        correction = 1 - decay**n_updates

        def direction(g: Array, v: Array) -> Array:
            d = floor + jnp.sqrt(v / correction)
            return sharp(g / jnp.sqrt(d)) / jnp.sqrt(d) if g.ndim == 2 else g / d

        return jax.tree.map(direction, gradients, square), SpectralState(square, n_updates)

    return optax.GradientTransformation(init, update)


@dataclass(kw_only=True)
class RMSSpectral(PointEstimate):
    """RMSspectral (Carlson et al., 2015), its learning rate falling along a cosine.

    Parameters
    ----------
    decay : float
        How much of the mean square of past gradients is kept at a step.
    floor : float
        Added to the root of that mean square.

    Notes
    -----
    All singular directions move as far as the strongest, so the learning rate has to be smaller
    than that of RMSprop, the more so the larger the matrices are. For those with both sides above
    100 see the approximation in :func:`sharp`.
    """

    learning_rate: float = 3e-3
    decay: float = 0.99
    floor: float = 1e-5

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_fraction("decay", self.decay)
        check_positive("floor", self.floor)

    def _optimizer(self) -> optax.GradientTransformation:
        return _cosine_rms_spectral(self.learning_rate, self.steps, self.decay, self.floor)


@functools.lru_cache(maxsize=64)
def _cosine_rms_spectral(
    learning_rate: float, steps: int, decay: float, floor: float
) -> optax.GradientTransformation:
    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    return optax.chain(scale_by_rms_spectral(decay, floor), optax.scale_by_learning_rate(schedule))


def _polar(matrix: Array) -> Array:
    """Return U V^T for a matrix with at least as many columns as rows."""
    norm = jnp.sqrt(jnp.sum(matrix * matrix))
    start = matrix / jnp.maximum(norm, jnp.finfo(matrix.dtype).tiny)

    def improve(_: Array, x: Array) -> Array:
        return 1.5 * x - 0.5 * matmul(matmul(x, x.T), x)

    return jax.lax.fori_loop(0, NEWTON_SCHULZ_STEPS, improve, start)


METHODS = {"rmsspectral": RMSSpectral}
