"""Policies: structured networks that map observations to distributions over actions.

A particle is one policy: the structured weights of a small network and, for continuous actions, the
logarithm of the standard deviation. Everything here is a pure function of a particle; who rolls
policies out (`rollouts`) and who improves them (`gradients`, `stein`) is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.control.environments import Box, Discrete
from s2vgd.networks import ACTIVATIONS, MLP
from s2vgd.structure import Structure, materialise, structure_weights

Particle: TypeAlias = dict[str, Any]

# Sums with at most so many terms are written out, see `Policy.outputs_of_all`.
_UNROLLED = 64


class Task(Protocol):
    """What a policy must know of the environment it is for."""

    @property
    def observation_size(self) -> int:
        """Number of coordinates of an observation."""
        ...

    @property
    def action(self) -> Box | Discrete:
        """What can be done."""
        ...

    @property
    def observation_scales(self) -> tuple[float, ...]:
        """Fixed sizes of the observations."""
        ...


@dataclass(frozen=True)
class Policy:
    """A structured network with a Gaussian or a categorical distribution on top. Hashable.

    For a `Box` the actions are N(network(o / scales), exp(log_std)²) with a standard deviation that
    does not depend on the state, in units in which a bounded box is [-1, 1]. For a `Discrete` space
    the network gives the logits.

    Parameters
    ----------
    network : MLP
        From scaled observations to means or logits.
    action : Box or Discrete
        What can be done.
    scales : tuple of float
        Observations are divided by these.
    structure : Structure
        The form of every weight matrix, eq. (fullmode).
    log_std : float
        Where the logarithm of the standard deviation starts.
    last_layer : float
        Factor of the first weights of the last layer: below 1, policies begin more alike.
    """

    network: MLP
    action: Box | Discrete
    scales: tuple[float, ...]
    structure: Structure = Structure()  # noqa: RUF009  (frozen, hence safe to share)
    log_std: float = 0.0
    last_layer: float = 1.0

    def __post_init__(self) -> None:
        """Check that network, actions and observations fit together."""
        object.__setattr__(self, "scales", tuple(float(scale) for scale in self.scales))
        if len(self.scales) != self.network.n_inputs:
            raise ValueError(
                f"scales must have {self.network.n_inputs} entries, got {len(self.scales)}"
            )
        if not all(0 < scale < math.inf for scale in self.scales):
            raise ValueError(f"scales must be positive and finite, got {self.scales}")
        if self.network.n_outputs != self.n_outputs:
            raise ValueError(
                f"network must have {self.n_outputs} outputs for {self.action}, "
                f"got {self.network.n_outputs}"
            )
        if not math.isfinite(self.log_std):
            raise ValueError(f"log_std must be finite, got {self.log_std!r}")
        if not 0 < self.last_layer < math.inf:
            raise ValueError(f"last_layer must be positive and finite, got {self.last_layer!r}")

    @classmethod
    def of(
        cls,
        task: Task,
        hidden: Sequence[int] = (25, 10),
        activation: str = "tanh",
        structure: Structure | None = None,
        scales: Sequence[float] | None = None,
        **settings: Any,
    ) -> Policy:
        """Make the policy for an environment; the paper's 25-10 network of tanh by default."""
        n_outputs = task.action.n if isinstance(task.action, Discrete) else task.action.size
        return cls(
            MLP(task.observation_size, hidden, n_outputs, activation),
            task.action,
            tuple(task.observation_scales if scales is None else scales),
            Structure() if structure is None else structure,
            **settings,
        )

    @property
    def is_discrete(self) -> bool:
        """Whether actions are integers."""
        return isinstance(self.action, Discrete)

    @property
    def n_outputs(self) -> int:
        """Width of the network's output: coordinates of an action, or number of actions."""
        return self.action.n if isinstance(self.action, Discrete) else self.action.size

    def init(self, key: Array) -> Particle:
        """Draw one policy."""
        network_key, structure_key = jax.random.split(key)
        *layers, last = self.network.init(network_key)
        last = {"kernel": self.last_layer * last["kernel"], "bias": last["bias"]}
        weights = structure_weights(structure_key, (*layers, last), self.structure)
        if self.is_discrete:
            return {"weights": weights}
        return {
            "weights": weights,
            "log_std": jnp.full(self.n_outputs, self.log_std, jnp.result_type(float)),
        }

    def init_particles(self, key: Array, m: int) -> Particle:
        """Draw `m` policies: the tree of `init` with a leading axis of length `m`."""
        return jax.vmap(self.init)(jax.random.split(key, m))

    def outputs(self, particle: Particle, observations: Array) -> Array:
        """Return means or logits (N, n_outputs) of one particle for observations (N, O)."""
        weights = materialise(particle["weights"])
        return self.network.apply(weights, observations / jnp.array(self.scales))

    def log_prob(self, particle: Particle, observations: Array, actions: Array) -> Array:
        """Return log π(a | o) of one particle, (N,).

        Parameters
        ----------
        particle : pytree
            Without a leading axis.
        observations : Array, shape (N, O)
            As the environment gives them.
        actions : Array, shape (N, A) or (N,)
            In the units of the policy: what `sample` gave, before `to_environment`.
        """
        outputs = self.outputs(particle, observations)
        if self.is_discrete:
            chosen = jnp.arange(self.n_outputs) == actions[:, None]  # a gather is slower
            return jnp.sum(jnp.where(chosen, jax.nn.log_softmax(outputs), 0.0), axis=-1)
        log_std = particle["log_std"]
        deviation = (actions - outputs) * jnp.exp(-log_std)
        constant = self.n_outputs / 2 * math.log(2 * math.pi)
        return -0.5 * jnp.sum(deviation**2, axis=-1) - jnp.sum(log_std) - constant

    def entropy(self, particle: Particle, observations: Array) -> Array:
        """Return the entropy of one particle's actions at observations (N, O), (N,), in nats."""
        if self.is_discrete:
            log_p = jax.nn.log_softmax(self.outputs(particle, observations))
            return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
        entropy = jnp.sum(particle["log_std"] + 0.5 * math.log(2 * math.pi * math.e))
        return jnp.broadcast_to(entropy, observations.shape[:1])

    def noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Draw what `sample` needs: arrays of (*shape[:1], n_outputs, *shape[1:])."""
        shape = (*shape[:1], self.n_outputs, *shape[1:])
        draw = jax.random.gumbel if self.is_discrete else jax.random.normal
        return draw(key, shape)

    def sample(self, outputs: Array, log_std: Array | None, noise: Array | None) -> Array:
        """Return actions from outputs and noise, both (n_outputs, ...); no noise gives the mode.

        Parameters
        ----------
        outputs : Array, shape (n_outputs, ...)
            Means or logits.
        log_std : Array, shape (n_outputs, ...) or None
            None for discrete actions, or without noise.
        noise : Array, shape (n_outputs, ...), or None
            Standard normal, or Gumbel for discrete actions (their largest sum with the logits has
            the law of the categorical distribution).

        Returns
        -------
        Array, shape (n_outputs, ...), or (...) for discrete actions
        """
        if self.is_discrete:
            perturbed = outputs if noise is None else outputs + noise
            return jnp.argmax(perturbed, axis=0).astype(jnp.int32)
        if noise is None:
            return outputs
        assert log_std is not None, "continuous actions have a standard deviation"
        return outputs + jnp.exp(log_std) * noise

    def to_environment(self, actions: Array) -> Array:
        """Return actions (A, ...) in the units of the environment; bounded boxes are stretched."""
        if isinstance(self.action, Discrete):
            return actions
        centres, halves = zip(
            *map(_centre_and_half, self.action.low, self.action.high), strict=True
        )
        wide = (-1, *(1,) * (actions.ndim - 1))
        return (
            jnp.reshape(jnp.array(centres), wide) + jnp.reshape(jnp.array(halves), wide) * actions
        )

    def stacked(self, particles: Particle) -> Particle:
        """Return plain weights of M particles with the particles on the *last* axis.

        They are what `outputs_of_all` takes; building them once saves it in every time step.
        """
        plain = {**particles, "weights": jax.vmap(materialise)(particles["weights"])}
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), plain)

    def outputs_of_all(self, stacked: Particle, observations: Array) -> Array:
        """Return means or logits (n_outputs, E, M) for observations (O, E, M) of all particles.

        One time step of all particles is too small for matrix products to pay. With the particles
        side by side in memory, sums written out become one vectorised loop a layer: 2.4 times as
        fast as a batch of products for 25-10 units, 16 particles and 10 environments.
        """
        columns = observations / jnp.reshape(jnp.array(self.scales), (-1, 1, 1))
        *hidden, last = stacked["weights"]
        for layer in hidden:
            columns = ACTIVATIONS[self.network.activation](_affine(layer, columns))
        return _affine(last, columns)


def _affine(layer: dict[str, Array], columns: Array) -> Array:
    kernel, bias = layer["kernel"], layer["bias"]
    if len(kernel) > _UNROLLED:
        return jnp.einsum("ijm,iem->jem", kernel, columns) + bias[:, None]
    total = bias[:, None]
    for weights, column in zip(kernel, columns, strict=True):
        total = total + weights[:, None] * column
    return total


def _centre_and_half(low: float, high: float) -> tuple[float, float]:
    if math.isinf(low) or math.isinf(high):
        return 0.0, 1.0
    return (low + high) / 2, (high - low) / 2
