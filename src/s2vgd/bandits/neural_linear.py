"""NeuralLinear (Riquelme et al., 2018): Thompson sampling on features that a network learned.

The network's last hidden layer serves as features of a Bayesian linear regression, which has an
exact posterior. Networks learn all the time; the features are a copy of theirs that is renewed now
and then, when the regressions are computed anew from the buffer. With several particles each has
features and regressions of its own, which puts an exact posterior of the last layer on top of
S²VGD.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.bandits import regression, stein
from s2vgd.bandits.agents import NOBODY, Agent, Choice, check_epsilon, choose, warm_up
from s2vgd.bandits.buffer import Buffer
from s2vgd.bandits.contexts import Context, ContextShape
from s2vgd.bandits.heads import View
from s2vgd.bandits.learning import Learning
from s2vgd.bandits.linear import thompson_scores
from s2vgd.bandits.regression import Ridge
from s2vgd.bandits.rewards import RewardModel, gaussian
from s2vgd.networks import ACTIVATIONS, MLP
from s2vgd.priors import FixedPrior, Prior, check_count, check_positive
from s2vgd.structure import Structure, materialise

_BLOCK = 1024


class State(NamedTuple):
    """What the agent knows.

    Attributes
    ----------
    network : stein.State
        The particles and the buffer.
    trunk : pytree
        Weights of the networks whose last hidden layers are the features now; leading axis M.
    ridge : Ridge
        The regressions on them; leading axis M.
    """

    network: stein.State
    trunk: Any
    ridge: Ridge


class Settings(NamedTuple):
    """Of the last layer; hashable."""

    noise: float | None
    ridge: float
    a: float
    b: float
    draws: int
    refresh: int
    epsilon: float


def neural_linear(
    shape: ContextShape,
    *,
    hidden: Sequence[int] = (50,),
    particles: int = 1,
    reflections: int = 0,
    scales: Any = None,
    noise: float | None = None,
    ridge: float = 1.0,
    a: float = 1.0,
    b: float = 1.0,
    draws: int = 20,
    refresh: int = 100,
    reward: RewardModel | None = None,
    prior: Prior | None = None,
    learning: Learning | None = None,
    warmup: int = 20,
    epsilon: float = 0.0,
    view: View | None = None,
    activation: str = "relu",
) -> Agent:
    """Thompson sampling by Bayesian linear regression on learned features.

    Parameters
    ----------
    hidden : sequence of int
        At least one hidden layer.
    particles, reflections, scales : int, int, and {"lognormal", "gaussian"} or None
        The networks that provide the features; a single ordinary one by default.
    noise, ridge, a, b
        Of the regressions, see :func:`s2vgd.bandits.linear.lin_ts`. There is a regression for each
        action where these are outputs, and one for all where they are inputs.
    draws : int
        Draws from the posterior of each particle's regressions at each decision.
    refresh : int
        Rewards between two renewals of the features. Each goes through the whole of the buffer.
    reward : RewardModel, optional
        What the networks learn from; a family with normal noise.
    shape, prior, learning, warmup, epsilon, view, activation
        As in :func:`s2vgd.bandits.stein.stein_thompson`; there is no forgetting.
    """
    if not hidden:
        raise ValueError("hidden must name at least one layer, whose units are the features")
    if noise is not None:
        check_positive("noise", noise)
    for name, value in (("ridge", ridge), ("a", a), ("b", b)):
        check_positive(name, value)
    for name, count in (("draws", draws), ("refresh", refresh), ("particles", particles)):
        check_count(name, count, 1)
    reward = gaussian() if reward is None else reward
    if reward.likelihood.family != "normal":
        raise ValueError(f"reward must have normal noise, got {reward.likelihood}")
    learning = Learning() if learning is None else learning
    if learning.half_life is not None:
        raise ValueError("learning.half_life must be None: the regressions do not forget")
    model = stein.make_model(
        shape,
        hidden,
        reward,
        Structure(reflections, scales),
        FixedPrior() if prior is None else prior,
        view,
        activation,
    )
    known = None if noise is None else float(noise)
    numbers = (float(ridge), float(a), float(b), int(draws), int(refresh), check_epsilon(epsilon))
    return warm_up(_build(model, int(particles), learning, Settings(known, *numbers)), warmup)


# Cached, because what is compiled is kept by the identity of an agent's functions.
@functools.lru_cache(maxsize=64)
def _build(model: stein.Model, particles: int, learning: Learning, settings: Settings) -> Agent:
    network = stein.build(model, particles, learning)
    head = model.head
    regressions = head.n_actions if head.view == "outputs" else 1

    def features_of(trunk: Any, rows: Array) -> Array:
        return last_features(head.network, trunk, rows)

    def init(key: Array) -> State:
        inner = network.init(key)
        nothing = regression.empty(regressions, head.network.hidden[-1] + 1, settings.ridge)
        ridge = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], particles, axis=0), nothing)
        return State(inner, _trunk(inner), ridge)

    def act(state: State, key: Array, context: Context) -> Choice:
        choice_key, draws_key = jax.random.split(key)
        rows = head.candidates(context).features

        def opinions(trunk: Any, ridge: Ridge, key: Array) -> Array:
            features = features_of(trunk, rows)
            features = jnp.broadcast_to(features, (head.n_actions, features.shape[1]))
            return thompson_scores(
                ridge, features, key, settings.draws, settings.noise, settings.a, settings.b
            )

        keys = jax.random.split(draws_key, particles)
        scores = jax.vmap(opinions)(state.trunk, state.ridge, keys).reshape(-1, head.n_actions)
        choice = choose(choice_key, scores, context.available, settings.epsilon)
        particle = jnp.where(choice.particle == NOBODY, NOBODY, choice.particle // settings.draws)
        return choice._replace(particle=particle)

    def update(state: State, key: Array, context: Context, action: Array, reward: Array) -> State:
        inner = network.update(state.network, key, context, action, reward)
        row = head.row(context, action, reward)
        which = row.action if regressions > 1 else jnp.zeros_like(row.action)

        def add(trunk: Any, ridge: Ridge) -> Ridge:
            return regression.add(ridge, which, features_of(trunk, row.features[None])[0], reward)

        def renewed(_: Array, carry: tuple[Any, Ridge]) -> tuple[Any, Ridge]:
            trunk = _trunk(inner)
            anew = functools.partial(_regress, head.network, regressions, settings.ridge)
            return trunk, jax.vmap(anew, in_axes=(0, None))(trunk, inner.buffer)

        ridge = jax.vmap(add)(state.trunk, state.ridge)
        # A loop of no rounds and not a branch: under vmap over seeds a branch is always taken.
        rounds = jnp.where(inner.buffer.seen % settings.refresh == 0, 1, 0)
        trunk, ridge = jax.lax.fori_loop(0, rounds, renewed, (state.trunk, ridge))
        return State(inner, trunk, ridge)

    return Agent(init, act, update)


def last_features(network: MLP, weights: Any, rows: Array) -> Array:
    """Return [1, last hidden layer] of an MLP with plain weights at rows (B, D), (B, H + 1)."""
    activate = ACTIVATIONS[network.activation]
    for layer in weights[:-1]:
        rows = activate(rows @ layer["kernel"] + layer["bias"])
    return jnp.concatenate([jnp.ones((len(rows), 1), rows.dtype), rows], axis=1)


def _trunk(inner: stein.State) -> Any:
    return jax.vmap(lambda particle: materialise(particle["weights"]))(inner.learner.particles)


def _regress(network: MLP, regressions: int, ridge: float, trunk: Any, buffer: Buffer) -> Ridge:
    """Return the regressions of all rows of a buffer on the features of one network."""
    n_features = network.hidden[-1] + 1
    block = min(_BLOCK, buffer.capacity)

    def add_block(i: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        slots = i * block + jnp.arange(block)
        is_held = slots < buffer.held
        rows = jax.tree.map(lambda leaf: jnp.take(leaf, slots, axis=0, mode="clip"), buffer.rows)
        features = last_features(network, trunk, rows.features)
        which = rows.action if regressions > 1 else jnp.zeros_like(rows.action)
        own = jax.nn.one_hot(which, regressions, axis=0) * is_held  # (R, block)
        with jax.default_matmul_precision("highest"):
            new = (
                jnp.einsum("rb,bi,bj->rij", own, features, features),
                (own * rows.reward) @ features,
                own @ jnp.square(rows.reward),
                jnp.sum(own, axis=1),
            )
        return jax.tree.map(jnp.add, sums, new)

    shapes = ((regressions, n_features, n_features), (regressions, n_features))
    nothing = tuple(map(jnp.zeros, (*shapes, (regressions,), (regressions,))))
    n_blocks = (buffer.held + block - 1) // block
    gram, moment, squares, count = jax.lax.fori_loop(0, n_blocks, add_block, nothing)
    return regression.from_sums(gram, moment, squares, count, ridge)
