"""Worlds to try agents in: contexts, random rewards, and the expected rewards behind them.

A world is pure functions of its data, a key and the number of the step, so that every agent meets
the same contexts and the same luck under the same key. It knows the expected reward of every
action, so regret is exact and carries no noise of the rewards. Worlds take arrays; where tables
come from is the business of the experiments.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd.bandits.contexts import Context, ContextShape, always
from s2vgd.errors import DataError
from s2vgd.priors import check_count, check_positive


class Rules(NamedTuple):
    """The functions of a world; what is compiled for them is kept by their identity.

    Attributes
    ----------
    sample : callable
        ``sample(data, key, step) -> (Context, hidden)``: what the agent sees, and what it does not.
    reward : callable
        ``reward(key, hidden, action) -> scalar``: draw the reward of an action.
    expected : callable
        ``expected(hidden) -> (A,)``: the mean reward of every action.
    """

    sample: Callable[[Any, Array, Array], tuple[Context, Any]]
    reward: Callable[[Array, Any, Array], Array]
    expected: Callable[[Any], Array]


class World(NamedTuple):
    """A contextual bandit.

    Attributes
    ----------
    rules : Rules
        Its functions.
    data : pytree of arrays
        What ``rules.sample`` draws from.
    shape : ContextShape
        Of its contexts.
    """

    rules: Rules
    data: Any
    shape: ContextShape


PASS, EAT = 0, 1


def mushroom(
    x: np.ndarray,
    poisonous: np.ndarray,
    *,
    good: float = 5.0,
    bad: float = -10.0,
    luck: float = 0.5,
) -> World:
    """Mushrooms to eat or to leave, the simulation of the paper's Figure 3(a).

    Action 0 passes, for a reward of 0. Action 1 eats: `good` for an edible mushroom; for a
    poisonous one `bad`, or with probability `luck` it goes well and gives `good`.

    Parameters
    ----------
    x : array of shape (N, F)
        Features of the mushrooms; each step draws a row.
    poisonous : array of bool, shape (N,)
        Which are poisonous.
    good, bad, luck : float
        The rewards. The paper's are the defaults; Blundell et al. (2015) have ``bad=-35``.
    """
    features, labels = _table(x, poisonous, "poisonous")
    if not np.isin(labels, (0, 1)).all():
        raise DataError("poisonous must be true or false for each row")
    if not 0 <= luck <= 1:
        raise ValueError(f"luck must be a probability, got {luck!r}")
    rules = _mushroom_rules(float(good), float(bad), float(luck))
    shape = ContextShape(2, features.shape[1])
    return World(rules, (jnp.asarray(features), jnp.asarray(labels, bool)), shape)


@functools.lru_cache(maxsize=16)
def _mushroom_rules(good: float, bad: float, luck: float) -> Rules:
    def reward(key: Array, poisonous: Array, action: Array) -> Array:
        lucky = jax.random.uniform(key, dtype=jnp.float32) < luck
        eaten = jnp.where(poisonous & ~lucky, bad, good)
        return jnp.where(action == EAT, eaten, 0.0).astype(jnp.float32)

    def expected(poisonous: Array) -> Array:
        eaten = jnp.where(poisonous, luck * good + (1 - luck) * bad, good)
        return jnp.stack([jnp.zeros_like(eaten), eaten])

    return Rules(_sample_row_of(ContextShape(2)), reward, expected)


def classification(x: np.ndarray, y: np.ndarray, n_classes: int | None = None) -> World:
    """Any table of a classification problem: a reward of 1 for naming the class, 0 otherwise.

    Parameters
    ----------
    x : array of shape (N, F)
        Features; each step draws a row.
    y : array of int, shape (N,)
        Classes 0, 1, ...
    n_classes : int, optional
        Their number, which is that of the actions; one more than the largest by default.
    """
    features, labels = _table(x, y, "y")
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise DataError("y must be classes 0, 1, ...")
    n_actions = int(labels.max()) + 1 if n_classes is None else n_classes
    check_count("n_classes", n_actions, max(2, int(labels.max()) + 1))
    shape = ContextShape(int(n_actions), features.shape[1])
    data = (jnp.asarray(features), jnp.asarray(labels, jnp.int32))
    return World(_classification_rules(shape.actions), data, shape)


@functools.lru_cache(maxsize=64)
def _classification_rules(n_actions: int) -> Rules:
    return Rules(
        sample=_sample_row_of(ContextShape(n_actions)),
        reward=lambda key, label, action: (action == label).astype(jnp.float32),
        expected=lambda label: jax.nn.one_hot(label, n_actions, dtype=jnp.float32),
    )


def wheel(delta: float = 0.95, *, means: tuple[float, float, float] = (1.2, 1.0, 50.0)) -> World:
    """Return the wheel bandit (Riquelme et al., 2018): rarely, one of five actions is worth fifty.

    Contexts are uniform on the unit disk. Action 0 gives ``means[0]`` always. The others give
    ``means[1]``, but outside the circle of radius `delta` the one that belongs to the quadrant
    gives ``means[2]``. Rewards have normal noise of standard deviation 0.01.

    Parameters
    ----------
    delta : float
        Between 0 and 1; the larger, the rarer and the harder.
    means : three floats
        The mean rewards.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta!r}")
    safe, plain, high = map(float, means)
    return World(_wheel_rules(float(delta), safe, plain, high), (), ContextShape(5, 2))


@functools.lru_cache(maxsize=16)
def _wheel_rules(delta: float, safe: float, plain: float, high: float) -> Rules:
    def sample(data: Any, key: Array, step: Array) -> tuple[Context, Array]:
        u = jax.random.uniform(key, (2,), jnp.float32)
        radius, angle = jnp.sqrt(u[0]), 2 * math.pi * u[1]
        point = radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        return always(ContextShape(5), point), point

    def expected(point: Array) -> Array:
        right, up = point[0] > 0, point[1] > 0
        quadrant = jnp.where(right, jnp.where(up, 1, 2), jnp.where(up, 3, 4))
        means = jnp.full(5, plain).at[0].set(safe)
        return jnp.where(jnp.linalg.norm(point) > delta, means.at[quadrant].set(high), means)

    return Rules(sample, _noisy(expected, 0.01), expected)


class Waves(NamedTuple):
    """The truth of :func:`nonlinear` and :func:`clicks`: sums of random waves over the features.

    Attributes
    ----------
    directions : Array, shape (F, K)
        Of the waves.
    phases : Array, shape (K,)
        Of the waves.
    weights : Array, shape (2, A, K) or (2, G, K)
        Of the waves in the rewards, now and a quarter of a period later.
    turn : Array, scalar
        Angle by which the weights turn each step; 0 for a world that stays as it is.
    """

    directions: Array
    phases: Array
    weights: Array
    turn: Array

    def at(self, x: Array, step: Array) -> Array:
        """Return the sums (A,) or (G,) at features (F,)."""
        angle = self.turn * step
        weights = jnp.cos(angle) * self.weights[0] + jnp.sin(angle) * self.weights[1]
        return weights @ jnp.sin(x @ self.directions + self.phases)


def nonlinear(
    n_actions: int = 5,
    n_features: int = 6,
    *,
    noise: float = 0.5,
    waves: int = 4,
    period: float | None = None,
    presence: float = 1.0,
    seed: int = 0,
) -> World:
    """Build a smooth non-linear world with a known truth, that may drift.

    Contexts are standard normal, (F,). The mean reward of each action is a sum of a few sines of
    random projections, of variance about one, and the noise is normal.

    Parameters
    ----------
    n_actions, n_features : int
        A and F.
    noise : float
        Standard deviation of the rewards about their means.
    waves : int
        The number of sines; more are harder to learn.
    period : float, optional
        With it the weights of the sines turn, and after so many steps are again what they were:
        after half a period the best action has become the worst.
    presence : float
        Probability with which each action is available at a step; one always is.
    seed : int
        Decides the truth.
    """
    for name, count in (("n_actions", n_actions), ("n_features", n_features), ("waves", waves)):
        check_count(name, count, 1)
    check_positive("noise", noise)
    if not 0 < presence <= 1:
        raise ValueError(f"presence must be a positive probability, got {presence!r}")
    truth = _waves(seed, n_features, waves, n_actions, period)
    rules = _nonlinear_rules(int(n_actions), int(n_features), float(noise), float(presence))
    return World(rules, truth, ContextShape(int(n_actions), int(n_features)))


@functools.lru_cache(maxsize=64)
def _nonlinear_rules(n_actions: int, n_features: int, noise: float, presence: float) -> Rules:
    def sample(truth: Waves, key: Array, step: Array) -> tuple[Context, Array]:
        features_key, presence_key = jax.random.split(key)
        x = jax.random.normal(features_key, (n_features,), jnp.float32)
        context = always(ContextShape(n_actions), x)
        if presence < 1:
            u = jax.random.uniform(presence_key, (n_actions,), jnp.float32)
            context = context._replace(available=(u < presence) | (u == jnp.min(u)))
        return context, truth.at(x, step)

    def expected(means: Array) -> Array:
        return means

    return Rules(sample, _noisy(expected, noise), expected)


def clicks(
    n_actions: int = 10,
    n_shared: int = 4,
    n_per_action: int = 4,
    *,
    waves: int = 4,
    period: float | None = None,
    presence: float = 0.7,
    seed: int = 0,
) -> World:
    """Build a pool of articles that come and go, each described by features, to be clicked on.

    Each step brings standard normal features of the user (F,) and of each action (A, G). A click
    has log odds ``g . w(f) - 1``, where the G entries of w are sums of sines of the user's
    features.

    Parameters
    ----------
    n_actions, n_shared, n_per_action : int
        A, F and G.
    waves, period, presence, seed
        As in :func:`nonlinear`.
    """
    sizes = {"n_actions": n_actions, "n_shared": n_shared, "n_per_action": n_per_action}
    for name, count in {**sizes, "waves": waves}.items():
        check_count(name, count, 1)
    if not 0 < presence <= 1:
        raise ValueError(f"presence must be a positive probability, got {presence!r}")
    shape = ContextShape(int(n_actions), int(n_shared), int(n_per_action))
    truth = _waves(seed, n_shared, waves, n_per_action, period)
    return World(_click_rules(shape, float(presence)), truth, shape)


@functools.lru_cache(maxsize=64)
def _click_rules(shape: ContextShape, presence: float) -> Rules:
    def sample(truth: Waves, key: Array, step: Array) -> tuple[Context, Array]:
        keys = jax.random.split(key, 3)
        user = jax.random.normal(keys[0], (shape.shared,), jnp.float32)
        pool = jax.random.normal(keys[1], (shape.actions, shape.per_action), jnp.float32)
        u = jax.random.uniform(keys[2], (shape.actions,), jnp.float32)
        context = Context(user, pool, (u < presence) | (u == jnp.min(u)))
        return context, jax.nn.sigmoid(pool @ truth.at(user, step) - 1)

    def reward(key: Array, chances: Array, action: Array) -> Array:
        return (jax.random.uniform(key, dtype=jnp.float32) < chances[action]).astype(jnp.float32)

    return Rules(sample, reward, lambda chances: chances)


def _waves(seed: int, n_features: int, n_waves: int, n_sums: int, period: float | None) -> Waves:
    if period is not None:
        check_positive("period", period)
    rng = np.random.default_rng(seed)
    parts = (
        rng.normal(size=(n_features, n_waves)) / math.sqrt(n_features) * 2,
        rng.uniform(0, 2 * math.pi, n_waves),
        rng.normal(size=(2, n_sums, n_waves)) * math.sqrt(2 / n_waves),
        np.asarray(0.0 if period is None else 2 * math.pi / period),
    )
    return Waves(*(jnp.asarray(part, jnp.float32) for part in parts))


@functools.lru_cache(maxsize=64)
def _sample_row_of(shape: ContextShape) -> Callable[[Any, Array, Array], tuple[Context, Array]]:
    """Return ``sample`` for data (features (N, F), labels (N,)), of which it draws a row."""

    def sample(data: Any, key: Array, step: Array) -> tuple[Context, Array]:
        features, labels = data
        # One call of the generator where randint makes three; all rows are equally likely up to
        # a part in 2^32 / N.
        row = jax.random.bits(key, (), jnp.uint32) % np.uint32(len(labels))
        return always(shape, features[row]), labels[row]

    return sample


def _noisy(expected: Callable[[Any], Array], std: float) -> Callable[[Array, Any, Array], Array]:
    """Return ``reward`` for normal noise about the expected reward."""

    def reward(key: Array, hidden: Any, action: Array) -> Array:
        return expected(hidden)[action] + std * jax.random.normal(key, dtype=jnp.float32)

    return reward


def _table(x: np.ndarray, labels: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    features, labels = np.asarray(x, np.float32), np.asarray(labels)
    if features.ndim != 2 or 0 in features.shape:
        raise DataError(f"x must be a table (N, F) with rows, got shape {features.shape}")
    if not np.isfinite(features).all():
        raise DataError("x must be finite")
    if labels.shape != (len(features),):
        raise DataError(f"{name} must have one entry a row of x, got shape {labels.shape}")
    return features, labels
