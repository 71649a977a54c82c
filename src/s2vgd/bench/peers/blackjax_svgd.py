"""SVGD of BlackJAX, on the log joint of our own model."""

from __future__ import annotations

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from s2vgd.bench import ours
from s2vgd.bench.peers.jax_loop import Loop
from s2vgd.bench.problems import Optimizer, Regression
from s2vgd.bnn import Batch


def loop(
    problem: Regression,
    particles: int,
    optimizer: Optimizer = "adam",
    bandwidth: float = 1.0,
) -> Loop:
    """Return BlackJAX's SVGD; `bandwidth` is that of the first step, the median's come after."""
    bnn = ours.model(problem)

    def log_density(particle: dict, batch: Batch) -> jax.Array:
        return bnn.log_joint(particle, batch, float(problem.total))

    algorithm = blackjax.svgd(
        jax.grad(log_density), ours.adam() if optimizer == "adam" else optax.sgd(1.0)
    )
    start = ours.to_particles(problem, problem.start(particles))
    state = algorithm.init(start, {"length_scale": jnp.asarray(bandwidth, jnp.float32)})
    return Loop(
        lambda state, batch: algorithm.step(state, batch=batch),
        state,
        ours.batch(problem),
        lambda state: ours.from_particles(problem, state.particles),
    )


def bandwidth_of(flat: np.ndarray) -> float:
    """Return the bandwidth of BlackJAX's median heuristic at particles (M, D)."""
    from blackjax.vi.svgd import median_heuristic

    return float(median_heuristic({}, jnp.asarray(flat))["length_scale"])
