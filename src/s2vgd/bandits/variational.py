"""Thompson sampling with VMG posteriors (Louizos and Welling, 2016), the paper's third contender.

Each decision draws networks from matrix-variate Gaussian posteriors with pseudo-data, which climb
their variational bound on what was seen. Family and bound are those of :mod:`s2vgd.baselines.vmg`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from s2vgd.bandits import buffer as replay_buffer
from s2vgd.bandits.agents import Agent, Choice, check_epsilon, choose, warm_up
from s2vgd.bandits.buffer import Buffer
from s2vgd.bandits.contexts import Context, ContextShape
from s2vgd.bandits.heads import Head, Inputs, Row, View, make_head
from s2vgd.bandits.learning import Learning
from s2vgd.bandits.rewards import RewardModel, gaussian
from s2vgd.baselines._variational import Bound
from s2vgd.baselines.vmg import MatrixGaussian
from s2vgd.bnn import Batch
from s2vgd.priors import check_count, check_positive


class State(NamedTuple):
    """The parameters of the posterior, what Adam remembers, and the decisions to learn from."""

    params: Any
    opt_state: optax.OptState
    buffer: Buffer


@dataclass(frozen=True)
class _OfActions:
    """A family over the weights of a head: like that of its MLP, but asked about actions."""

    head: Head
    matrices: MatrixGaussian

    def init(self, key: Array) -> Any:
        return self.matrices.init(key)

    def forward(self, params: Any, x: Any, key: Array) -> tuple[Array, Array]:
        outputs, cost = self.matrices.forward(params, x.features, key)
        return self.head.of_actions(outputs, x.action), cost

    def draw(self, params: Any, key: Array) -> Any:
        return self.matrices.draw(params, key)

    def draw_outputs(self, params: Any, context: Context, key: Array, draws: int) -> Array:
        """Return the outputs of all actions from `draws` networks, (draws, A, O)."""
        features = self.head.candidates(context).features
        if self.head.view == "inputs":
            # Actions are rows of the same network here, so whole networks have to be drawn.
            return jax.vmap(
                lambda key: self.head.network.apply(self.matrices.draw(params, key), features)
            )(jax.random.split(key, draws))
        # One row cannot tell a draw of its outputs from that of a network, and is far cheaper.
        outputs, _ = self.matrices.forward(params, jnp.repeat(features, draws, axis=0), key)
        return outputs.reshape(draws, self.head.n_actions, self.head.n_outputs)


def vmg_thompson(
    shape: ContextShape,
    *,
    hidden: Sequence[int] = (50,),
    pseudo_rows: int = 10,
    prior_std: float = 1.0,
    initial_std: float = 0.1,
    draws: int = 20,
    reward: RewardModel | None = None,
    learning: Learning | None = None,
    warmup: int = 20,
    epsilon: float = 0.0,
    view: View | None = None,
    activation: str = "relu",
) -> Agent:
    """Draw a network from a VMG posterior for each decision.

    Parameters
    ----------
    pseudo_rows, prior_std, initial_std
        Of the posterior, see :class:`s2vgd.baselines.vmg.VMG`.
    draws : int
        Networks drawn at each decision, one of which decides; propensities are those given the
        draws.
    shape, hidden, reward, learning, warmup, epsilon, view, activation
        As in :func:`s2vgd.bandits.stein.stein_thompson`.
    """
    for name, count in (("pseudo_rows", pseudo_rows), ("draws", draws)):
        check_count(name, count, 1)
    check_positive("prior_std", prior_std)
    check_positive("initial_std", initial_std)
    reward = gaussian() if reward is None else reward
    head = make_head(shape, hidden, reward.width, view, activation)
    matrices = MatrixGaussian(head.network, int(pseudo_rows), float(prior_std), float(initial_std))
    learning = Learning() if learning is None else learning
    family = _OfActions(head, matrices)
    return warm_up(_build(family, reward, int(draws), learning, check_epsilon(epsilon)), warmup)


# Cached, because what is compiled is kept by the identity of an agent's functions.
@functools.lru_cache(maxsize=64)
def _build(
    family: _OfActions, reward_model: RewardModel, draws: int, learning: Learning, epsilon: float
) -> Agent:
    # On one vector, Adam compiles and runs faster than on the many small arrays of a family.
    optimizer = optax.flatten(learning.optimizer())

    def bound(n_total: Any) -> Bound:
        return Bound(family, reward_model.likelihood, n_total)

    def init(key: Array) -> State:
        params = bound(1.0).init(key)
        buffer = replay_buffer.empty(family.head.blank_row, learning.capacity)
        return State(params, optimizer.init(params), buffer)

    def act(state: State, key: Array, context: Context) -> Choice:
        choice_key, draws_key = jax.random.split(key)
        outputs = family.draw_outputs(state.params["family"], context, draws_key, draws)
        expected = jax.vmap(reward_model.expected, in_axes=(None, 0))
        scores = expected(state.params["noise"], outputs)
        return choose(choice_key, scores, context.available, epsilon)

    def step(learner: tuple[Any, Any], rows: Row, n_total: Array, key: Array) -> Any:
        params, opt_state = learner
        inputs: Any = Inputs(rows.features, rows.action)
        batch = Batch(inputs, reward_model.targets(rows.reward))

        def loss(params: Any) -> Array:
            # Per row, so that Adam's offset means the same however much was seen.
            return -bound(n_total)(params, batch, key) / n_total

        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state)
        return optax.apply_updates(params, updates), opt_state

    def update(state: State, key: Array, context: Context, action: Array, reward: Array) -> State:
        held = replay_buffer.add(state.buffer, family.head.row(context, action, reward))
        learner = (state.params, state.opt_state)
        params, opt_state = learning.learn(key, held, step, learner)
        return State(params, opt_state, held)

    return Agent(init, act, update)
