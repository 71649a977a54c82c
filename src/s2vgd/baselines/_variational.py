"""Ascent of a variational bound with random batches: what Bayes by Backprop and VMG have in common.

A family of distributions over the weights of a network is a hashable object that starts its
parameters, passes rows through a random network of theirs together with what that distribution
costs, and draws plain weights. Here are the bound, its algorithm and the base class of the rivals
that climb it; the families are in the files of the methods.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from s2vgd import training
from s2vgd.baselines._base import Baseline, Problem
from s2vgd.baselines._descent import Algorithm, Info
from s2vgd.bnn import Batch
from s2vgd.likelihoods import Likelihood
from s2vgd.networks import MLP
from s2vgd.posterior import Posterior
from s2vgd.priors import check_count, check_positive


class Family(Protocol):
    """Distributions q over the weights of a network. Implementations are hashable."""

    def init(self, key: jax.Array) -> Any:
        """Return the parameters of the q to start from."""
        ...

    def forward(self, params: Any, x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return random outputs (B, O) at rows (B, F), and KL(q, prior) or an estimate of it."""
        ...

    def draw(self, params: Any, key: jax.Array) -> Any:
        """Return weights from q, as the network has them."""
        ...


class State(NamedTuple):
    """What a step carries to the next.

    Attributes
    ----------
    particles : dict
        ``{"family": parameters of q, "noise": parameters of the likelihood}``.
    opt_state : optax.OptState
        Of Adam.
    key : jax.Array
        Of the random networks to come.
    """

    particles: Any
    opt_state: optax.OptState
    key: jax.Array


@dataclass(frozen=True)
class Bound:
    """The evidence lower bound, a function of the parameters of q.

    Parameters
    ----------
    family : Family
        Of the distributions q.
    likelihood : Likelihood
        Of the rows.
    n_total : float
        N, the number of all rows.
    """

    family: Family
    likelihood: Likelihood
    n_total: float

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Return the parameters to start from, of q and of the noise."""
        family_key, noise_key = jax.random.split(key)
        noise = self.likelihood.init(noise_key, 1)
        return {"family": self.family.init(family_key), "noise": noise}

    def __call__(self, params: dict[str, Any], batch: Batch, key: jax.Array) -> jax.Array:
        """Estimate the bound from a batch of B rows and one random network.

        ``N / B sum_i log p(y_i | x_i, w) - KL(q, prior)`` with w from q, plus the log prior density
        of the noise level, which is a point: batch by batch, the divergence has weight B / N.
        """
        outputs, cost = self.family.forward(params["family"], batch.x, key)
        rows = self.likelihood.log_prob(params["noise"], outputs, batch.y)
        return self.n_total * jnp.mean(rows) + self.likelihood.log_prior(params["noise"]) - cost


# Cached, because what is compiled is kept by the identity of the step.
@functools.lru_cache(maxsize=64)
def build(bound: Bound, learning_rate: float, steps: int) -> Algorithm:
    """Return stochastic gradient ascent of a bound, by Adam with cosine decay."""
    # On one vector, Adam compiles and runs faster than on the many small arrays of a family.
    optimizer = optax.flatten(training.cosine_adam(learning_rate, steps))

    def init(key: jax.Array) -> State:
        init_key, key = jax.random.split(key)
        params = bound.init(init_key)
        return State(params, optimizer.init(params), key)

    def step(state: State, batch: Batch) -> tuple[State, Info]:
        key, network_key = jax.random.split(state.key)

        def loss(params: Any) -> jax.Array:
            # Per row, so that Adam's offset means the same for all sizes of data.
            return -bound(params, batch, network_key) / bound.n_total

        value, gradient = jax.value_and_grad(loss)(state.particles)
        updates, opt_state = optimizer.update(gradient, state.opt_state)
        moved = optax.apply_updates(state.particles, updates)
        return State(moved, opt_state, key), Info(-bound.n_total * value)

    return Algorithm(jax.jit(init), step)


@functools.partial(jax.jit, static_argnums=(0, 3))
def draw_many(family: Family, params: Any, key: jax.Array, n: int) -> Any:
    """Draw `n` sets of weights from q, one after the other: a stack of them is large enough."""
    return jax.lax.map(lambda key: family.draw(params, key), jax.random.split(key, n))


@dataclass(kw_only=True)
class Variational(Baseline):
    """A rival that climbs a variational bound, and predicts with draws of what it finds.

    Parameters
    ----------
    draws : int
        Networks to predict with.
    """

    draws: int = 100

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_count("draws", self.draws, 1)
        check_count("steps", self.steps, 1)
        check_positive("learning_rate", self.learning_rate)

    def _family(self, network: MLP) -> Family:
        raise NotImplementedError

    def _learn(self, problem: Problem, key: jax.Array) -> Posterior:
        init_key, train_key, draw_key = jax.random.split(key, 3)
        family = self._family(problem.network)
        bound = Bound(family, problem.likelihood, float(len(problem.data.x)))
        algorithm = build(bound, self.learning_rate, self.steps)
        result = training.train(
            algorithm,
            algorithm.init(init_key),
            problem.data,
            key=train_key,
            steps=self.steps,
            batch_size=self.batch_size,
            progress=self.progress,
            description=type(self).__name__,
        )
        learned = result.state.particles
        draws = draw_many(family, learned["family"], draw_key, self.draws)
        noise = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (self.draws, *leaf.shape)), learned["noise"]
        )
        return problem.posterior(draws, noise)
