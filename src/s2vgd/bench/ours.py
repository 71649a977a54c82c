"""Our side of the comparisons of single steps: SVGD and S²VGD as a user builds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from s2vgd import svgd
from s2vgd.bench.peers.jax_loop import Loop
from s2vgd.bench.problems import LEARNING_RATE, Optimizer, Regression
from s2vgd.bnn import BNN, Batch
from s2vgd.kernels import rbf
from s2vgd.likelihoods import Gaussian
from s2vgd.loop import carried_by
from s2vgd.networks import MLP
from s2vgd.priors import FixedPrior
from s2vgd.structure import Structure

PLAIN = Structure(reflections=0, scales=None)


def model(problem: Regression, structure: Structure = PLAIN) -> BNN:
    """Return the Bayesian network of the problem."""
    first, *hidden, last = problem.widths
    return BNN(
        MLP(first, tuple(hidden), last),
        Gaussian(fixed_std=problem.noise),
        structure,
        FixedPrior(),
        last,
    )


def batch(problem: Regression) -> Batch:
    """Return the rows of the problem."""
    return Batch(*map(jnp.asarray, problem.batch()))


def svgd_loop(
    problem: Regression,
    particles: int,
    optimizer: Optimizer = "adam",
    bandwidth: float | None = None,
    drive: float = 1.0,
) -> Loop:
    """Return SVGD on plain weights.

    Parameters
    ----------
    bandwidth : float, optional
        A fixed one; by default the median's.
    drive : float
        Factor of the driving term.
    """
    algorithm = svgd.build(
        log_density(problem, particles),
        adam() if optimizer == "adam" else optax.sgd(1.0),
        rbf() if bandwidth is None else rbf(bandwidth),
        anneal=None if drive == 1.0 else lambda _: drive,
    )
    start = to_particles(problem, problem.start(particles))
    return loop_of(
        algorithm,
        algorithm.init(start),
        batch(problem),
        lambda state: from_particles(problem, state.particles),
    )


def s2vgd_loop(problem: Regression, particles: int, structure: Structure) -> Loop:
    """Return S²VGD. Its particles have other columns than the problem's: one leaf is read."""
    bnn = model(problem, structure)
    algorithm = svgd.build(log_density(problem, particles, structure), adam())
    return loop_of(
        algorithm,
        algorithm.init(bnn.init_particles(jax.random.key(0), particles)),
        batch(problem),
        lambda state: np.asarray(jax.tree.leaves(state.particles)[0]).reshape(particles, -1),
    )


def loop_of(
    algorithm: svgd.Algorithm, state: svgd.State, batch: Any, read: Callable[[svgd.State], Any]
) -> Loop:
    """Return the steps of our SVGD as :mod:`s2vgd.training` runs them."""
    carried = carried_by(algorithm.step, algorithm.carried)
    return Loop(
        lambda packed, batch: carried.step(packed, batch)[0],
        carried.pack(state),
        batch,
        lambda packed: read(carried.unpack(packed)),
    )


def log_density(problem: Regression, particles: int, structure: Structure = PLAIN) -> Any:
    """Return the log joint as the estimators build it: of many rows, some at a time."""
    bnn = model(problem, structure)
    rows, total = bnn.rows_at_once(particles), float(problem.total)
    return lambda particle, batch: bnn.log_joint(particle, batch, total, rows)


def adam() -> optax.GradientTransformation:
    """Return the optimiser that all implementations are timed with."""
    return optax.adam(LEARNING_RATE)


def to_particles(problem: Regression, flat: np.ndarray) -> dict[str, Any]:
    """Return the particles of a `BNN` from a matrix (M, D)."""
    parts = list(map(jnp.asarray, problem.split(flat)))
    pairs = zip(parts[::2], parts[1::2], strict=True)
    layers = tuple({"kernel": kernel, "bias": bias} for kernel, bias in pairs)
    return {"weights": layers, "prior": {}, "likelihood": {}}


def from_particles(problem: Regression, particles: dict[str, Any]) -> np.ndarray:
    """Return the matrix (M, D) from the particles of a `BNN`."""
    layers = particles["weights"]
    return problem.join([layer[name] for layer in layers for name in ("kernel", "bias")])
