"""SVGD of NumPyro, on the same model written in its primitives, a sample site a weight."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.einstein import SVGD, RBFKernel

from s2vgd.bench.peers.jax_loop import Loop
from s2vgd.bench.problems import LEARNING_RATE, Optimizer, Regression


def loop(problem: Regression, particles: int, optimizer: Optimizer = "adam") -> Loop:
    """Return NumPyro's SVGD.

    Its driving term is the sum over the particles where its repulsion is their mean.
    """
    names = site_names(problem)
    rule: Any = numpyro.optim.Adam(LEARNING_RATE)
    if optimizer == "sgd":
        rule = numpyro.optim.SGD(1.0)
    algorithm = SVGD(model(problem), rule, RBFKernel(), num_stein_particles=particles)
    batch = tuple(map(jnp.asarray, problem.batch()))
    state = algorithm.init(jax.random.key(0), *batch)
    start = dict(zip(names, map(jnp.asarray, problem.split(problem.start(particles))), strict=True))
    return Loop(
        lambda state, batch: algorithm.update(state, *batch)[0],
        state._replace(
            optim_state=algorithm.optim.init(start),
            loss_temperature=jnp.float32(1),
            repulsion_temperature=jnp.float32(1),
        ),
        batch,
        lambda state: problem.join([algorithm.get_params(state)[name] for name in names]),
    )


def own_run(problem: Regression, particles: int) -> Callable[[int], Any]:
    """Return what makes so many steps by NumPyro's own loop, without its progress bar."""
    rule = numpyro.optim.Adam(LEARNING_RATE)
    algorithm = SVGD(model(problem), rule, RBFKernel(), num_stein_particles=particles)
    batch = tuple(map(jnp.asarray, problem.batch()))

    def run(steps: int) -> None:
        result = algorithm.run(jax.random.key(0), steps, *batch, progress_bar=False)
        jax.block_until_ready(result.params)

    return run


def model(problem: Regression) -> Any:
    """Return the model as a function of inputs and targets."""

    def sample(x: jax.Array, y: jax.Array | None = None) -> None:
        hidden, parts = x, iter(enumerate(problem.shapes))
        for i, shape in parts:
            j, width = next(parts)
            kernel = numpyro.sample(f"w{i}", dist.Normal(0, 1).expand(shape).to_event(2))
            bias = numpyro.sample(f"w{j}", dist.Normal(0, 1).expand(width).to_event(1))
            hidden = hidden @ kernel + bias
            if j < len(problem.shapes) - 1:
                hidden = jax.nn.relu(hidden)
        with numpyro.handlers.scale(scale=problem.total / problem.rows):
            numpyro.sample("y", dist.Normal(hidden, problem.noise).to_event(2), obs=y)

    return sample


def site_names(problem: Regression) -> list[str]:
    """Return the names of the parameters of the guide, in the order of the problem."""
    return [f"w{i}_auto_loc" for i in range(len(problem.shapes))]


def bandwidth_of(flat: np.ndarray) -> float:
    """Return NumPyro's bandwidth at particles (M, D): its median counts the zero self-distances."""
    from numpyro.contrib.einstein.stein_util import median_bandwidth

    return float(median_bandwidth(jnp.asarray(flat), lambda n: 1 / math.log(n)))
