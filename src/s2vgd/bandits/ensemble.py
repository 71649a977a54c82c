"""Thompson sampling with a bootstrapped ensemble of networks (Osband et al., 2016).

Every network learns by itself, from rewards that count for it or do not, at random. Disagreement
comes from the resampling and the random starts; there is no repulsion as in SVGD.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from s2vgd.bandits import buffer as replay_buffer
from s2vgd.bandits.agents import Agent, Choice, check_epsilon, choose, warm_up
from s2vgd.bandits.buffer import Buffer
from s2vgd.bandits.contexts import Context, ContextShape
from s2vgd.bandits.heads import Row, View
from s2vgd.bandits.learning import Learning
from s2vgd.bandits.rewards import RewardModel, gaussian
from s2vgd.bandits.stein import PLAIN, Model, make_model
from s2vgd.bnn import Particle
from s2vgd.priors import FixedPrior, Prior, check_count


class Weighted(NamedTuple):
    """A row of the buffer and what it counts for each network, (M,)."""

    row: Row
    weight: Array


class State(NamedTuple):
    """The networks, what Adam remembers of them, and the decisions to learn from."""

    members: Particle
    opt_state: optax.OptState
    buffer: Buffer


def bootstrap_thompson(
    shape: ContextShape,
    *,
    hidden: Sequence[int] = (50,),
    members: int = 20,
    keep: float = 0.5,
    reward: RewardModel | None = None,
    prior: Prior | None = None,
    learning: Learning | None = None,
    warmup: int = 20,
    epsilon: float = 0.0,
    view: View | None = None,
    activation: str = "relu",
    anchor_scale: float = 0.0,
) -> Agent:
    """Draw one network of a bootstrapped ensemble for each decision.

    Parameters
    ----------
    members : int
        M, the number of networks.
    keep : float
        Probability that a reward counts for a network; it then counts ``1 / keep`` times, so that
        all of them see as much as there is. One half is "double or nothing"; 1 gives a plain
        ensemble.
    shape, hidden, reward, prior, learning, warmup, epsilon, view, activation, anchor_scale
        As in :func:`s2vgd.bandits.stein.stein_thompson`.
    """
    check_count("members", members, 1)
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be a positive probability, got {keep!r}")
    model = make_model(
        shape,
        hidden,
        gaussian() if reward is None else reward,
        PLAIN,
        FixedPrior() if prior is None else prior,
        view,
        activation,
        anchor_scale,
    )
    learning = Learning() if learning is None else learning
    agent = _build(model, int(members), float(keep), learning, check_epsilon(epsilon))
    return warm_up(agent, warmup)


# Cached, because what is compiled is kept by the identity of an agent's functions.
@functools.lru_cache(maxsize=64)
def _build(model: Model, members: int, keep: float, learning: Learning, epsilon: float) -> Agent:
    optimizer = learning.optimizer()

    def init(key: Array) -> State:
        networks = model.bnn.init_particles(key, members)
        blank = Weighted(model.head.blank_row, jnp.zeros(members, jnp.float32))
        buffer = replay_buffer.empty(blank, learning.capacity)
        return State(networks, optimizer.init(networks), buffer)

    def act(state: State, key: Array, context: Context) -> Choice:
        scores = jax.vmap(model.expected, in_axes=(0, None))(state.members, context)
        return choose(key, scores, context.available, epsilon)

    def loss(member: Particle, weight: Array, rows: Row, n_total: Array) -> Array:
        # The mean weight undoes the normalisation of log_joint: rows count what they count, and a
        # batch of none leaves the prior.
        batch = model.batch(rows)._replace(weight=weight)
        return -model.bnn.log_joint(member, batch, n_total * jnp.mean(weight))

    def step(learner: tuple[Any, Any], rows: Weighted, n_total: Array, key: Array) -> Any:
        networks, opt_state = learner
        gradients = jax.vmap(jax.grad(loss), in_axes=(0, 1, None, None))(
            networks, rows.weight, rows.row, n_total
        )
        updates, opt_state = optimizer.update(gradients, opt_state, networks)
        return optax.apply_updates(networks, updates), opt_state

    def update(state: State, key: Array, context: Context, action: Array, reward: Array) -> State:
        learn_key, bootstrap_key = jax.random.split(key)
        counts = jax.random.uniform(bootstrap_key, (members,), jnp.float32) < keep
        row = Weighted(model.head.row(context, action, reward), counts.astype(jnp.float32) / keep)
        held = replay_buffer.add(state.buffer, row)
        learner = (state.members, state.opt_state)
        networks, opt_state = learning.learn(learn_key, held, step, learner)
        return State(networks, opt_state, held)

    return Agent(init, act, update)
