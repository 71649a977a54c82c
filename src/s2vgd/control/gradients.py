"""Policy gradients: REINFORCE and the advantage actor critic, for every particle by itself.

An estimator turns a rollout into advantages, and with them the gradient of J is the gradient of
mean(advantage · log π): one backward pass over the stored observations, not through the rollout.
How the gradients of several particles are combined is in `stein`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.control.critics import Critic, LinearCritic
from s2vgd.control.policies import Particle, Policy
from s2vgd.control.rollouts import Trajectories


class Estimator(Protocol):
    """What `stein` asks of an estimator. Implementations are hashable (frozen dataclasses)."""

    @property
    def discount(self) -> float:
        """γ."""
        ...

    def init(self, key: Array, m: int, observation_size: int) -> Any:
        """Return the state of M critics, () if there are none."""
        ...

    def advantages(
        self, state: Any, trajectories: Trajectories, scales: tuple[float, ...]
    ) -> tuple[Array, Any]:
        """Return advantages (T, M, E), and the critics after they have seen the rollout."""
        ...


@dataclass(frozen=True)
class Reinforce:
    """Rewards to go, Σ_k γ^k r_{t+k} to the end of the episode (Williams, 1992).

    Parameters
    ----------
    discount : float
        γ.
    baseline : Critic or None
        What is subtracted: the values of a critic that was fitted to the rollout before this one,
        which therefore leaves the gradient unbiased.
    standardise : bool
        Bring the advantages of each particle to mean 0 and standard deviation 1.

    Notes
    -----
    There is no bootstrapping: an episode that is cut off counts as one that ended.
    """

    discount: float = 0.99
    baseline: Critic | None = None
    standardise: bool = True

    def __post_init__(self) -> None:
        """Validate the settings."""
        _check_fraction("discount", self.discount)

    def init(self, key: Array, m: int, observation_size: int) -> Any:
        """Return M critics that know nothing, () without a baseline."""
        return () if self.baseline is None else _critics(self.baseline, key, m, observation_size)

    def advantages(
        self, state: Any, trajectories: Trajectories, scales: tuple[float, ...]
    ) -> tuple[Array, Any]:
        """Return the rewards to go, less the baseline."""
        rewards, ended = trajectories.rewards, _ended(trajectories)
        to_go = discounted_sums(rewards, jnp.where(ended, 0.0, self.discount))
        advantages = to_go
        if self.baseline is not None:
            seen = trajectories.observations / jnp.array(scales)
            advantages = to_go - _values(self.baseline, state, seen, trajectories.times)
            state = _fit(self.baseline, state, seen, trajectories.times, to_go)
        return (_standardised(advantages) if self.standardise else advantages), state


@dataclass(frozen=True)
class A2C:
    """Generalised advantages with a critic (Schulman et al., 2016; Mnih et al., 2016).

    δ_t = r_t + γ V(s_{t+1}) - V(s_t), with V(s_{t+1}) = 0 where the task ended but not where it
    was cut off, and A_t = Σ_k (γλ)^k δ_{t+k} to the end of the episode.

    Parameters
    ----------
    discount : float
        γ.
    decay : float
        λ. At 1 the critic is a baseline and what is added at the end of an episode that was cut
        off; at 0 it is believed after one step.
    critic : Critic
        Fitted to A + V after it was used.
    standardise : bool
        Bring the advantages of each particle to mean 0 and standard deviation 1.
    """

    discount: float = 0.99
    decay: float = 1.0
    critic: Critic = LinearCritic()  # noqa: RUF009  (frozen, hence safe to share)
    standardise: bool = True

    def __post_init__(self) -> None:
        """Validate the settings."""
        _check_fraction("discount", self.discount)
        _check_fraction("decay", self.decay)

    def init(self, key: Array, m: int, observation_size: int) -> Any:
        """Return M critics that know nothing."""
        return _critics(self.critic, key, m, observation_size)

    def advantages(
        self, state: Any, trajectories: Trajectories, scales: tuple[float, ...]
    ) -> tuple[Array, Any]:
        """Return the generalised advantages."""
        times = trajectories.times
        seen = trajectories.observations / jnp.array(scales)
        values = _values(self.critic, state, seen, times)
        after = _values(
            self.critic, state, trajectories.last_observations / jnp.array(scales), times + 1
        )
        advantages = generalised_advantages(
            trajectories.rewards,
            values,
            jnp.where(trajectories.terminated, 0.0, after),
            _ended(trajectories),
            self.discount,
            self.decay,
        )
        state = _fit(self.critic, state, seen, times, advantages + values)
        return (_standardised(advantages) if self.standardise else advantages), state


def generalised_advantages(
    rewards: Array, values: Array, next_values: Array, ended: Array, discount: float, decay: float
) -> Array:
    """Return Σ_k (γλ)^k δ_{t+k} to the end of each episode, all arrays (T, ...).

    Parameters
    ----------
    rewards, values : Array
        r_t and V(s_t).
    next_values : Array
        V of the state that the step led to, before any reset; 0 where the task ended.
    ended : Array of bool
        Whether the step was the last of its episode.
    discount, decay : float
        γ and λ.
    """
    deltas = rewards + discount * next_values - values
    return discounted_sums(deltas, jnp.where(ended, 0.0, discount * decay))


def discounted_sums(terms: Array, weights: Array) -> Array:
    """Return x_t = terms_t + weights_t x_{t+1} for arrays (T, ...), with nothing after the end."""

    def back(following: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        term, weight = now
        total = term + weight * following
        return total, total

    nothing = jnp.zeros_like(terms[0])
    return jax.lax.scan(back, nothing, (terms, weights), reverse=True, unroll=4)[1]


def policy_gradients(
    policy: Policy,
    particles: Particle,
    trajectories: Trajectories,
    advantages: Array,
    entropy: float = 0.0,
) -> tuple[Array, Particle]:
    """Return the mean of advantage · log π over all steps, (M,), and its gradient, a particle each.

    Parameters
    ----------
    policy : Policy
        What the particles are.
    particles : pytree
        Leaves (M, ...): those that made the trajectories.
    trajectories : Trajectories
        Of all particles.
    advantages : Array, shape (T, M, E)
        Constants, as far as the gradient goes.
    entropy : float
        Weight of the mean entropy of the actions, which is added.
    """

    def surrogate(particle: Particle, o: Array, a: Array, weight: Array) -> Array:
        mean = jnp.mean(weight * policy.log_prob(particle, o, a))
        return mean + entropy * jnp.mean(policy.entropy(particle, o)) if entropy else mean

    rows = map(_rows, (trajectories.observations, trajectories.actions, advantages))
    return jax.vmap(jax.value_and_grad(surrogate))(particles, *rows)


def log_probs(policy: Policy, particles: Particle, trajectories: Trajectories) -> Array:
    """Return log π (T, M, E) of the actions of each particle's trajectories."""
    rows = map(_rows, (trajectories.observations, trajectories.actions))
    return _columns(jax.vmap(policy.log_prob)(particles, *rows), trajectories.rewards)


# Of a policy that has become almost deterministic, actions can be so much more or less probable
# than they were that the ratio itself is no number any more.
_LARGEST_LOG_RATIO = 20.0


def clipped_gradients(
    policy: Policy,
    particles: Particle,
    trajectories: Trajectories,
    advantages: Array,
    made_with: Array,
    trust: float,
    entropy: float = 0.0,
) -> tuple[Array, Particle]:
    r"""Return a surrogate of J, (M,), and its gradient, for particles that have moved on.

    With the ratio :math:`r = \pi(a) / \pi_{old}(a)` it is the mean of
    :math:`\min(r A, \mathrm{clip}(r, 1 - \epsilon, 1 + \epsilon) A)` (Schulman et al., 2017), the
    gradient of which is that of `policy_gradients` where nothing has moved yet.

    Parameters
    ----------
    policy, trajectories, advantages, entropy
        As for :func:`policy_gradients`.
    particles : pytree
        Leaves (M, ...), as they are now.
    made_with : Array, shape (T, M, E)
        :func:`log_probs` of the particles that made the trajectories.
    trust : float
        ε. A step counts for nothing once its ratio has left this range to its advantage.
    """

    def surrogate(particle: Particle, o: Array, a: Array, weight: Array, old: Array) -> Array:
        further = policy.log_prob(particle, o, a) - old
        ratio = jnp.exp(jnp.minimum(further, _LARGEST_LOG_RATIO))
        held = jnp.clip(ratio, 1 - trust, 1 + trust)
        mean = jnp.mean(jnp.minimum(ratio * weight, held * weight))
        return mean + entropy * jnp.mean(policy.entropy(particle, o)) if entropy else mean

    parts = (trajectories.observations, trajectories.actions, advantages, made_with)
    return jax.vmap(jax.value_and_grad(surrogate))(particles, *map(_rows, parts))


def clip_each(gradients: Array, limit: float | None) -> tuple[Array, Array]:
    """Shorten the rows of (M, D) to a length of at most `limit`; also return their lengths, (M,).

    What is not finite stays so.
    """
    lengths = jnp.sqrt(jnp.sum(gradients**2, axis=1))
    if limit is None:
        return gradients, lengths
    return gradients * jnp.where(lengths > limit, limit / lengths, 1.0)[:, None], lengths


def _rows(leaf: Array) -> Array:
    """Turn (T, M, E, ...) into (M, T * E, ...)."""
    leaf = jnp.moveaxis(leaf, 1, 0)
    return leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:])


def _columns(rows: Array, like: Array) -> Array:
    """Undo `_rows` for one number a step."""
    t, m, e = like.shape[:3]
    return jnp.moveaxis(rows.reshape(m, t, e), 0, 1)


def _ended(trajectories: Trajectories) -> Array:
    """Whether nothing of the same episode follows in the rollout."""
    return jnp.logical_or(trajectories.terminated, trajectories.truncated).at[-1].set(True)


def _standardised(advantages: Array) -> Array:
    mean = jnp.mean(advantages, axis=(0, 2), keepdims=True)
    std = jnp.std(advantages, axis=(0, 2), keepdims=True)
    return (advantages - mean) / (std + 1e-8)


def _critics(critic: Critic, key: Array, m: int, observation_size: int) -> Any:
    return jax.vmap(lambda k: critic.init(k, observation_size))(jax.random.split(key, m))


def _values(critic: Critic, state: Any, seen: Array, times: Array) -> Array:
    return _columns(jax.vmap(critic.values)(state, _rows(seen), _rows(times)), seen)


def _fit(critic: Critic, state: Any, seen: Array, times: Array, targets: Array) -> Any:
    return jax.vmap(critic.fit)(state, _rows(seen), _rows(times), _rows(targets))


def _check_fraction(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {value!r}")
