"""Stein Thompson sampling behind an application, in a few lines; :class:`Live` is for any agent.

This is the front: how decisions, rewards, updates, files and threads work is in
:mod:`s2vgd.bandits.serving`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.bandits.agents import Agent, Choice, WarmUpState, uniform
from s2vgd.bandits.contexts import Context, ContextShape
from s2vgd.bandits.description import SETTINGS, Setup
from s2vgd.bandits.serving import Decision, Live
from s2vgd.bandits.stein import stein_thompson
from s2vgd.errors import DataError, ModelFileError
from s2vgd.priors import check_count

__all__ = ["Decision", "Live", "SteinThompson", "uniform_until"]


class SteinThompson(Live):
    """Stein Thompson sampling (Algorithm 1) behind an application.

    Parameters
    ----------
    n_actions : int, optional
        A, the number of actions, which are then 0, 1, ..., A - 1.
    context_dim : int
        F, the number of features that all actions share.
    action_dim : int
        G, the number of features of each action; 0 for none.
    max_arms : int, optional
        In the place of `n_actions`: the most arms that there can be, named and added by
        :meth:`~Live.add_arm`.
    hidden, particles, reflections
        Of the network and its posterior, see :func:`~s2vgd.bandits.stein.stein_thompson`.
    warmup : int
        Until this many rewards were learned, any available action is as likely as the others
        (:func:`uniform_until`).
    seed, log, durable
        See :class:`Live`.
    **settings
        Further settings of :func:`~s2vgd.bandits.stein.stein_thompson`, such as ``reward``,
        ``epsilon`` and ``learning``.

    Examples
    --------
    >>> agent = SteinThompson(n_actions=3, context_dim=4, hidden=(8,), particles=5)
    >>> decision = agent.decide([0.1, 0.2, 0.3, 0.4])
    >>> agent.reward(decision.id, 1.0)
    True
    >>> agent.update()
    1
    """

    def __init__(
        self,
        n_actions: int | None = None,
        context_dim: int = 0,
        *,
        action_dim: int = 0,
        max_arms: int | None = None,
        hidden: Sequence[int] = (50,),
        particles: int = 20,
        reflections: int = 1,
        warmup: int = 20,
        seed: int = 0,
        log: str | os.PathLike[str] | None = None,
        durable: bool = False,
        **settings: Any,
    ) -> None:
        chosen = {
            "n_actions": n_actions,
            "context_dim": context_dim,
            "action_dim": action_dim,
            "max_arms": max_arms,
            "hidden": tuple(hidden),
            "particles": particles,
            "reflections": reflections,
            "warmup": warmup,
            **settings,
        }
        self._start(_stein_setup(**chosen), seed, log, durable)

    @classmethod
    def _setup_of(cls, about: Mapping[str, Any], agent: Agent | None) -> Setup:
        if agent is not None:
            raise DataError("agent must be left out: SteinThompson is saved with its own")
        if about["settings"] is None:
            raise ModelFileError("it was saved by Live, which must load it")
        return _stein_setup(
            **{name: SETTINGS.rebuild(value) for name, value in about["settings"].items()}
        )


def _stein_setup(
    *,
    n_actions: int | None,
    context_dim: int,
    action_dim: int,
    max_arms: int | None,
    warmup: int,
    **settings: Any,
) -> Setup:
    """Build the agent, and describe by which settings."""
    if (n_actions is None) == (max_arms is None):
        raise ValueError("give either n_actions, or max_arms for arms with names")
    size = max_arms if n_actions is None else n_actions
    check_count("max_arms" if n_actions is None else "n_actions", size, 1)
    check_count("context_dim", context_dim, 0)
    check_count("action_dim", action_dim, 0)
    shape = ContextShape(int(size or 0), int(context_dim), int(action_dim))
    own = {
        "n_actions": n_actions,
        "context_dim": context_dim,
        "action_dim": action_dim,
        "max_arms": max_arms,
        "warmup": warmup,
    }
    reward = settings.get("reward")
    return Setup(
        uniform_until(stein_thompson(shape, warmup=0, **settings), warmup),
        shape,
        named_arms=max_arms is not None,
        reuse_slots=(settings.get("view") or ("inputs" if action_dim else "outputs")) == "inputs",
        settings={name: SETTINGS.describe(value) for name, value in (own | settings).items()},
        binary_rewards=reward is not None and reward.likelihood.family == "bernoulli",
    )


def uniform_until(agent: Agent, rewards: int) -> Agent:
    """Let an agent choose any available action until it has learned from some rewards.

    :func:`~s2vgd.bandits.agents.warm_up` goes round the actions by the number of rewards seen.
    Where rewards are late that number stands still, and so would the action. Chance needs no
    number, and every action has a propensity above zero from the first decision on.

    Parameters
    ----------
    agent : Agent
        The agent, which learns from these rewards as from all others.
    rewards : int
        How many; 0 returns the agent itself.
    """
    check_count("warmup", rewards, 0)
    return agent if rewards == 0 else _uniform_until(agent, int(rewards))


# Cached, because what is compiled is kept by the identity of an agent's functions.
@functools.lru_cache(maxsize=64)
def _uniform_until(agent: Agent, rewards: int) -> Agent:
    def init(key: Array) -> WarmUpState:
        return WarmUpState(jnp.zeros((), jnp.int32), agent.init(key))

    def act(state: WarmUpState, key: Array, context: Context) -> Choice:
        own = agent.act(state.inner, key, context)
        chance = uniform().act((), key, context)
        return jax.tree.map(lambda a, b: jnp.where(state.seen < rewards, a, b), chance, own)

    def update(
        state: WarmUpState, key: Array, context: Context, action: Array, reward: Array
    ) -> WarmUpState:
        return WarmUpState(state.seen + 1, agent.update(state.inner, key, context, action, reward))

    return Agent(init, act, update)
