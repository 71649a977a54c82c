"""Stochastic gradient Langevin dynamics, plain and preconditioned.

The step is that of Welling and Teh (2011), or of Li et al. (2016) with a diagonal preconditioner;
:func:`build` knows log densities only, the classes make samplers of networks of it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd._random import normals
from s2vgd.baselines._base import Baseline, Problem
from s2vgd.baselines._density import log_joint
from s2vgd.baselines._descent import Algorithm, Info, side_by_side
from s2vgd.baselines.point import check_fraction
from s2vgd.bnn import BNN
from s2vgd.posterior import Posterior
from s2vgd.priors import FixedPrior, check_count, check_positive
from s2vgd.svgd import LogDensity, Schedule
from s2vgd.training import train


class State(NamedTuple):
    """One chain.

    Attributes
    ----------
    particles : pytree
        Where it is: no leading axis.
    square : pytree
        Running mean of the squared gradients, like the particles; None without preconditioner.
    step : Array, scalar int32
        How many steps were made.
    key : Array
        Decides the noise; the same in every state of a run.
    """

    particles: Any
    square: Any
    step: Array
    key: Array


class Preconditioner(NamedTuple):
    """The diagonal preconditioner of Li et al. (2016): 1 / (floor + root mean square gradient).

    Attributes
    ----------
    memory : float
        How much of the mean square is kept at a step.
    floor : float
        In the units of the gradient of the log density.
    """

    memory: float
    floor: float


def build(
    log_density: LogDensity, step_size: Schedule, preconditioner: Preconditioner | None = None
) -> Algorithm:
    r"""Langevin dynamics of one chain, its gradients from batches.

    .. math::
        \theta \leftarrow \theta + \tfrac12 \epsilon_t G \nabla \log p(\theta)
        + (\epsilon_t G)^{1/2} \xi, \quad \xi \sim N(0, I),

    where G = I (Welling and Teh, 2011, eq. 4) or the preconditioner (Li et al., 2016, Algorithm 1),
    whose term Γ, the derivative of G, is left out as they leave it out. Unlike theirs it looks at
    the gradient of the whole log density, the prior's part included, and is corrected for its start
    at zero.

    The preconditioner remembers where the chain has been and is not independent of where it is. Its
    draws are right if it remembers many times the chain's correlation time, or if the noise of
    batches, which has nothing to do with the place, makes up most of the gradients. With exact
    gradients, on a Gaussian in three dimensions and at a step of 0.04, variances were 15 to 27 %
    too large with memory 0.99, and 2 to 4 % with 0.999.

    Parameters
    ----------
    log_density : callable
        ``log_density(particle, batch) -> scalar``, the likelihood of a batch being scaled up to all
        of the data.
    step_size : callable
        ``step_size(step)``, the :math:`\epsilon_t` above, counted from 0.
    preconditioner : Preconditioner, optional
        None for G = I.

    Returns
    -------
    Algorithm
        ``init(particle, key)`` and ``step(state, batch)``.
    """

    def init(particle: Any, key: Array) -> State:
        square = None if preconditioner is None else jax.tree.map(jnp.zeros_like, particle)
        return State(particle, square, jnp.zeros((), jnp.int32), key)

    def step(state: State, batch: Any) -> tuple[State, Info]:
        particle, square, count, key = state
        value, gradient = jax.value_and_grad(log_density)(particle, batch)
        epsilon = step_size(count)
        if preconditioner is None:
            scale = jax.tree.map(jnp.ones_like, gradient)
        else:
            memory, floor = preconditioner
            square = jax.tree.map(lambda v, g: memory * v + (1 - memory) * g * g, square, gradient)
            correction = 1 - memory ** (count + 1)
            scale = jax.tree.map(lambda v: 1 / (floor + jnp.sqrt(v / correction)), square)
        noise = _normals_like(jax.random.fold_in(key, count), particle)
        moved = jax.tree.map(
            lambda x, g, s, n: x + 0.5 * epsilon * s * g + jnp.sqrt(epsilon * s) * n,
            *(particle, gradient, scale, noise),
        )
        return State(moved, square, count + 1, key), Info(value)

    return Algorithm(init, step)


def polynomial_decay(first: float, offset: float, power: float) -> Schedule:
    """Return the steps ``first (1 + t / offset)^-power`` of Welling and Teh (2011), section 4.2."""
    return lambda step: first * (1 + step / offset) ** -power


@dataclass(kw_only=True)
class SGLD(Baseline):
    r"""Stochastic gradient Langevin dynamics (Welling and Teh, 2011).

    The draws are taken evenly from the second half of the steps, and count alike.

    Parameters
    ----------
    learning_rate : float
        Of the drift, on the log joint density divided by the number N of rows, as for SGD: the
        step size is :math:`\epsilon = 2` learning_rate / N.
    power : float
        The step size falls as ``(1 + t / offset)^-power``; 0 keeps it constant.
    offset : float, optional
        See `power`; a tenth of the steps by default.
    chains : int
        Independent chains, run side by side, each with its own start and batches.
    draws : int
        Draws kept of each chain.
    prior_variance : float
        Of the Gaussian prior on all weights and biases.
    """

    steps: int = 10_000
    learning_rate: float = 1e-2
    power: float = 0.55
    offset: float | None = None
    chains: int = 1
    draws: int = 100
    prior_variance: float = 1.0

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_positive("learning_rate", self.learning_rate)
        check_positive("prior_variance", self.prior_variance)
        check_fraction("power", self.power)
        if self.offset is not None:
            check_positive("offset", self.offset)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size, 1)
        check_count("chains", self.chains, 1)
        check_count("draws", self.draws, 1)
        check_count("steps", self.steps, 2 * self.draws)

    def _learn(self, problem: Problem, key: Array) -> Posterior:
        start_key, run_key = jax.random.split(key)
        n_rows = len(problem.data.x)
        bnn = problem.bnn(FixedPrior(self.prior_variance))
        algorithm = side_by_side(self._one_chain(bnn, float(n_rows)), self.batch_size)
        thin = self.steps // 2 // self.draws
        kept = []

        def keep(step: int, state: Any, info: Any) -> None:
            if step % thin == 0 and step > self.steps - self.draws * thin:
                kept.append(jax.tree.map(np.asarray, state.particles))

        train(
            algorithm,
            algorithm.init(bnn.init_particles(start_key, self.chains), run_key, n_rows),
            problem.data,
            key=run_key,
            steps=self.steps,
            chunk=thin,
            callbacks=[keep],
            progress=self.progress,
        )
        return Posterior.from_chains(
            bnn, jax.tree.map(lambda *draws: np.stack(draws, axis=1), *kept)
        )

    def _one_chain(self, bnn: BNN, n_total: float) -> Algorithm:
        return _langevin(bnn, n_total, *self._decay(2 * self.learning_rate / n_total), None)

    def _decay(self, first: float) -> tuple[float, float, float]:
        return first, self.offset or self.steps / 10, self.power


@dataclass(kw_only=True)
class PSGLD(SGLD):
    r"""Preconditioned SGLD (Li et al., 2016), without its term Γ; see :func:`build`.

    Parameters
    ----------
    learning_rate : float
        Of the drift, as for RMSprop: the step size is :math:`\epsilon = 2` learning_rate / N for
        gradients divided by N.
    memory : float
        How much of the mean square of past gradients is kept at a step.
    floor : float
        Added to the root of that mean square, of gradients divided by N.
    """

    learning_rate: float = 3e-3
    memory: float = 0.99
    floor: float = 1e-5

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_fraction("memory", self.memory)
        check_positive("floor", self.floor)

    def _one_chain(self, bnn: BNN, n_total: float) -> Algorithm:
        # With gradients that are not divided by N, the preconditioner is N times as small.
        preconditioner = Preconditioner(self.memory, n_total * self.floor)
        return _langevin(bnn, n_total, *self._decay(2 * self.learning_rate), preconditioner)


@functools.lru_cache(maxsize=64)
def _langevin(
    bnn: BNN,
    n_total: float,
    first: float,
    offset: float,
    power: float,
    preconditioner: Preconditioner | None,
) -> Algorithm:
    return build(log_joint(bnn, n_total), polynomial_decay(first, offset, power), preconditioner)


def _normals_like(key: Array, tree: Any) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    drawn = normals(key, [leaf.shape for leaf in leaves], leaves[0].dtype)
    return jax.tree.unflatten(treedef, drawn)


METHODS = {"sgld": SGLD, "psgld": PSGLD}
