"""The protocol of an agent, the one way in which agents choose, and the agents that need no model.

An agent is three pure functions on an explicit state. Whatever it believes, it chooses by
:func:`choose`: a set of equally likely opinions (particles, networks, posterior draws, or a single
one) scores the actions, one opinion is drawn, and its best action is taken. The probability of
every action is then known exactly. What agents believe is in the other files of this package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.bandits.contexts import Context
from s2vgd.priors import check_count

NOBODY = -1
"""The particle of a choice that no particle made."""


class Choice(NamedTuple):
    """An action and how likely it was.

    Attributes
    ----------
    action : Array, scalar int32
        The action taken.
    propensity : Array, scalar
        The probability with which it was taken, given the agent's state, the context and, for
        agents that draw their opinions afresh at each decision, those draws.
    propensities : Array, shape (A,)
        The probabilities of all actions; 0 where an action is not available. They are NaN if a
        score is, or if no action was available.
    particle : Array, scalar int32
        The index of the opinion drawn; -1 if chance or a rule decided.
    """

    action: Array
    propensity: Array
    propensities: Array
    particle: Array


class Agent(NamedTuple):
    """Three pure functions; they jit, scan, and vmap over seeds.

    Attributes
    ----------
    init : callable
        ``init(key) -> state``.
    act : callable
        ``act(state, key, context) -> Choice``.
    update : callable
        ``update(state, key, context, action, reward) -> state``: learn from the reward of an
        action that was taken (by whomever) in a context.
    """

    init: Callable[[Array], Any]
    act: Callable[[Any, Array, Context], Choice]
    update: Callable[[Any, Array, Context, Array, Array], Any]


def choose(key: Array, scores: Array, available: Array, epsilon: float = 0.0) -> Choice:
    """Draw an opinion and take its best available action; Algorithm 1, lines 3 and 4.

    Opinion m votes for the available actions of the highest score, in equal parts if there are
    several. An action has the mean of its votes as its probability, and with an exploration floor
    ``(1 - epsilon) * votes + epsilon / (number of available actions)``.

    Parameters
    ----------
    key : Array
        Decides.
    scores : Array, shape (M, A)
        What each opinion expects of each action.
    available : Array of bool, shape (A,)
        Which actions may be taken.
    epsilon : float
        The probability of ignoring all opinions and taking any available action.

    Notes
    -----
    The action has the stated distribution up to 2^-32 times the number of opinions or actions,
    which is less than the rounding of the stated numbers.
    """
    m = scores.shape[0]
    masked = jnp.where(available, scores, -jnp.inf)
    top = jnp.max(masked, axis=1, keepdims=True)
    # A compiler may compute the scores twice, and round them in another way for the maximum than
    # for the comparison, so that none equals it: the first of the best is one in any case.
    is_first = jnp.arange(masked.shape[1]) == jnp.argmax(masked, axis=1)[:, None]
    best = available & ((masked == top) | is_first)
    n_best = jnp.sum(best, axis=1, keepdims=True)
    # A NaN among the scores leaves an opinion without a best action, which must not go unnoticed.
    known = (n_best > 0) & ~jnp.isnan(top)
    votes = jnp.mean(jnp.where(known, best / n_best, jnp.nan), axis=0)
    propensities = (1 - epsilon) * votes + epsilon * available / jnp.sum(available)

    which_opinion, which_tie, is_chance = jax.random.bits(key, (3,), jnp.uint32)
    opinion = (which_opinion % m).astype(jnp.int32)
    by_chance = is_chance < jnp.uint32(min(round(epsilon * 2**32), 2**32 - 1))
    candidates = jnp.where(by_chance, available, best[opinion])
    action = _nth(candidates, which_tie)
    return Choice(
        action,
        propensities[action],
        propensities,
        jnp.where(by_chance, NOBODY, opinion),
    )


def check_epsilon(epsilon: float) -> float:
    """Return the exploration floor as a float, or say that it is no probability."""
    if isinstance(epsilon, bool) or not 0.0 <= epsilon <= 1.0:
        raise ValueError(f"epsilon must be a probability, got {epsilon!r}")
    return float(epsilon)


@functools.lru_cache(maxsize=1)
def uniform() -> Agent:
    """Take any available action, each as likely as the others, and learn nothing."""

    def init(key: Array) -> tuple[()]:
        return ()

    def act(state: tuple[()], key: Array, context: Context) -> Choice:
        choice = choose(key, jnp.zeros((1, len(context.available))), context.available)
        return choice._replace(particle=jnp.int32(NOBODY))

    def update(
        state: tuple[()], key: Array, context: Context, action: Array, reward: Array
    ) -> tuple[()]:
        return state

    return Agent(init, act, update)


class WarmUpState(NamedTuple):
    """How many rewards were seen, and the state of the agent that is warmed up."""

    seen: Array
    inner: Any


def warm_up(agent: Agent, pulls: int) -> Agent:
    """Let an agent begin with `pulls` decisions that go round all actions in turn.

    A model that has seen one reward of one action is sure of much that is not so. Decision t takes
    the available action number ``t mod (number of available actions)``, with probability one;
    rewards are learned from as ever.

    Parameters
    ----------
    agent : Agent
        The agent, with a state of its own.
    pulls : int
        How many rewards to see first; 0 returns the agent itself.
    """
    check_count("pulls", pulls, 0)
    return agent if pulls == 0 else _warm_up(agent, int(pulls))


# Cached, because what is compiled is kept by the identity of an agent's functions.
@functools.lru_cache(maxsize=64)
def _warm_up(agent: Agent, pulls: int) -> Agent:
    def init(key: Array) -> WarmUpState:
        return WarmUpState(jnp.zeros((), jnp.int32), agent.init(key))

    def act(state: WarmUpState, key: Array, context: Context) -> Choice:
        own = agent.act(state.inner, key, context)
        action = _nth(context.available, state.seen.astype(jnp.uint32))
        certain = jax.nn.one_hot(action, len(context.available), dtype=own.propensities.dtype)
        rule = Choice(action, jnp.ones_like(own.propensity), certain, jnp.int32(NOBODY))
        warming = state.seen < pulls
        return jax.tree.map(lambda a, b: jnp.where(warming, a, b), rule, own)

    def update(
        state: WarmUpState, key: Array, context: Context, action: Array, reward: Array
    ) -> WarmUpState:
        return WarmUpState(state.seen + 1, agent.update(state.inner, key, context, action, reward))

    return Agent(init, act, update)


def _nth(candidates: Array, number: Array) -> Array:
    """Return the index of the candidate of rank ``number mod (how many there are)``, int32."""
    count = jnp.maximum(jnp.sum(candidates), 1).astype(jnp.uint32)
    rank = (number % count).astype(jnp.int32)
    return jnp.argmax(candidates & (jnp.cumsum(candidates) == rank + 1)).astype(jnp.int32)
