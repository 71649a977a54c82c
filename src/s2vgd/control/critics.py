"""Critics: what a state is worth under a policy, fitted anew to each rollout.

A critic is a pair of pure functions for *one* particle, `values` and `fit`, and a state of its own;
the caller maps them over particles. The linear one is rllab's baseline, the network is for tasks
whose values bend more. What is done with values is in `gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import Array

from s2vgd.networks import MLP
from s2vgd.priors import check_count, check_positive


class Critic(Protocol):
    """What `gradients` asks of a critic. Implementations are hashable (frozen dataclasses)."""

    def init(self, key: Array, observation_size: int) -> Any:
        """Return the state of a critic that knows nothing: all values are zero."""
        ...

    def values(self, state: Any, observations: Array, times: Array) -> Array:
        """Return values (N,) of scaled observations (N, O) at steps (N,) of their episodes."""
        ...

    def fit(self, state: Any, observations: Array, times: Array, targets: Array) -> Any:
        """Return the state after learning that these (N,) are the values there."""
        ...


class LinearState(NamedTuple):
    """Coefficients (2 O + 4,) of the features, and the range of the targets they were fitted to."""

    coefficients: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class LinearCritic:
    """Ridge regression on o, o², τ, τ², τ³ and 1 with τ = t / 100, rllab's linear-feature baseline.

    Observations are clipped to ±10 first, as there. Values are kept within the range of the targets
    of the last fit: where episodes used to be short, the cubic says anything at all about the first
    one that lasts.

    Parameters
    ----------
    ridge : float
        Weight of the penalty, relative to the variance of a feature.
    """

    ridge: float = 1e-5

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_positive("ridge", self.ridge)

    def init(self, key: Array, observation_size: int) -> LinearState:
        """Return coefficients of zero."""
        return LinearState(jnp.zeros(2 * observation_size + 4), jnp.zeros(()), jnp.zeros(()))

    def values(self, state: LinearState, observations: Array, times: Array) -> Array:
        """Return features times coefficients, (N,), within the range that was seen."""
        coefficients = state.coefficients
        values = coefficients[:-1] @ _features(observations, times) + coefficients[-1]
        return jnp.clip(values, state.low, state.high)

    def fit(
        self, state: LinearState, observations: Array, times: Array, targets: Array
    ) -> LinearState:
        """Solve the normal equations; what was known before is forgotten.

        Centred and scaled to unit variance, the features have a Gram matrix of correlations, which
        single precision can take; τ³ beside 1 would be beyond it.
        """
        features = _features(observations, times)
        n = features.shape[1]
        means = jnp.mean(features, axis=1)
        centred = features - means[:, None]
        lengths = jnp.sqrt(jnp.mean(centred**2, axis=1))
        # A feature that does not vary is left out. Rounding gives it a length above zero.
        tiny = 16 * jnp.finfo(features.dtype).eps * (1 + jnp.abs(means))
        inverse = jnp.where(lengths > tiny, 1 / jnp.maximum(lengths, tiny), 0.0)
        scaled = centred * inverse[:, None]
        mean = jnp.mean(targets)
        product = jax.lax.Precision.HIGHEST
        gram = jnp.matmul(scaled, scaled.T, precision=product) / n
        moments = jnp.matmul(scaled, targets - mean, precision=product) / n
        factor = jax.scipy.linalg.cho_factor(gram + self.ridge * jnp.eye(len(gram)))
        slopes = jax.scipy.linalg.cho_solve(factor, moments) * inverse
        coefficients = jnp.append(slopes, mean - slopes @ means)
        return LinearState(coefficients, jnp.min(targets), jnp.max(targets))


class NetworkState(NamedTuple):
    """Weights of a value network, its optimizer, and the units of its output."""

    weights: Any
    opt_state: Any
    mean: Array
    std: Array


@dataclass(frozen=True)
class NetworkCritic:
    """A small network of tanh units, trained for some steps of Adam on every rollout.

    It learns values in units of their own mean and spread. As those change, the last layer is
    rescaled so that what it says stays the same (van Hasselt et al., 2016).

    Parameters
    ----------
    hidden : sequence of int
        Widths of the layers.
    learning_rate : float
        Of Adam.
    steps : int
        Of Adam, each on the whole rollout.
    """

    hidden: Sequence[int] = (32,)
    learning_rate: float = 1e-2
    steps: int = 10

    def __post_init__(self) -> None:
        """Validate the settings, and make the critic hashable."""
        object.__setattr__(self, "hidden", tuple(self.hidden))
        self._network(1)
        check_positive("learning_rate", self.learning_rate)
        check_count("steps", self.steps, 1)

    def init(self, key: Array, observation_size: int) -> NetworkState:
        """Draw a network whose output is zero."""
        *layers, last = self._network(observation_size).init(key)
        weights = (*layers, jax.tree.map(jnp.zeros_like, last))
        optimizer = optax.adam(self.learning_rate)
        return NetworkState(weights, optimizer.init(weights), jnp.zeros(()), jnp.ones(()))

    def values(self, state: NetworkState, observations: Array, times: Array) -> Array:
        """Return what the network says, (N,)."""
        return state.mean + state.std * self._raw(state.weights, observations, times)

    def fit(
        self, state: NetworkState, observations: Array, times: Array, targets: Array
    ) -> NetworkState:
        """Go on learning by least squares."""
        mean, std = jnp.mean(targets), jnp.std(targets) + 1e-6
        *layers, last = state.weights
        last = {
            "kernel": last["kernel"] * state.std / std,
            "bias": (last["bias"] * state.std + state.mean - mean) / std,
        }
        wanted = (targets - mean) / std
        optimizer = optax.adam(self.learning_rate)

        def loss(weights: Any) -> Array:
            return jnp.mean((self._raw(weights, observations, times) - wanted) ** 2)

        def step(carry: Any, _: None) -> tuple[Any, None]:
            weights, opt_state = carry
            updates, opt_state = optimizer.update(jax.grad(loss)(weights), opt_state)
            return (optax.apply_updates(weights, updates), opt_state), None

        first = ((*layers, last), state.opt_state)
        (weights, opt_state), _ = jax.lax.scan(step, first, length=self.steps)
        return NetworkState(weights, opt_state, mean, std)

    def _raw(self, weights: Any, observations: Array, times: Array) -> Array:
        inputs = jnp.column_stack([jnp.clip(observations, -10, 10), times / 100])
        return self._network(observations.shape[1]).apply(weights, inputs)[:, 0]

    def _network(self, observation_size: int) -> MLP:
        return MLP(observation_size + 1, self.hidden, 1, "tanh")


def _features(observations: Array, times: Array) -> Array:
    """Return the features but the constant as rows, (2 O + 3, N)."""
    o = jnp.clip(observations.T, -10, 10)
    tau = times[None] / 100
    return jnp.concatenate([o, o**2, tau, tau**2, tau**3])
