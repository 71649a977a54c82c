"""Agents whose model is linear in the features: LinUCB and linear Thompson sampling.

``"disjoint"``
    A regression for each action, on [1, shared features, features of the action].
``"shared"``
    One regression for all actions, on the same; it needs features of the actions.
``"hybrid"`` (LinUCB only)
    Both at once (Li et al., 2010, algorithm 2), in :mod:`s2vgd.bandits.hybrid`.

The arithmetic is in :mod:`s2vgd.bandits.regression`.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.bandits import regression
from s2vgd.bandits.agents import Agent, Choice, check_epsilon, choose, warm_up
from s2vgd.bandits.contexts import Context, ContextShape, joint_features
from s2vgd.bandits.hybrid import hybrid_lin_ucb
from s2vgd.bandits.regression import Ridge
from s2vgd.priors import check_count, check_positive

LinearModel = Literal["disjoint", "shared"]


def lin_ucb(
    shape: ContextShape,
    *,
    alpha: float = 1.0,
    ridge: float = 1.0,
    model: LinearModel | Literal["hybrid"] = "disjoint",
    warmup: int = 0,
    epsilon: float = 0.0,
) -> Agent:
    """LinUCB (Li et al., 2010): take the action that may plausibly be the best.

    The score of an action is ``mean + alpha * sqrt(xᵀ A⁻¹ x)``. It decides without chance, so that
    its propensities are one, or shared between actions that tie.

    Parameters
    ----------
    shape : ContextShape
        Of the contexts.
    alpha : float
        Width of the confidence bounds, in units of the reward.
    ridge : float
        Added to the diagonal of A.
    model : {"disjoint", "shared", "hybrid"}
        See the module.
    warmup : int
        Decisions at the start that go round the actions in turn.
    epsilon : float
        Share of the decisions left to chance.
    """
    check_positive("alpha", alpha)
    check_positive("ridge", ridge)
    epsilon = check_epsilon(epsilon)
    if model == "hybrid":
        agent = hybrid_lin_ucb(shape.check(), float(alpha), float(ridge), epsilon)
    else:
        size = _size(shape, model)
        agent = _lin_ucb(*size, float(alpha), float(ridge), epsilon)
    return warm_up(agent, warmup)


def lin_ts(
    shape: ContextShape,
    *,
    noise: float | None = None,
    ridge: float = 1.0,
    model: LinearModel = "disjoint",
    a: float = 1.0,
    b: float = 1.0,
    draws: int = 20,
    warmup: int = 0,
    epsilon: float = 0.0,
) -> Agent:
    """Linear Thompson sampling with a conjugate posterior (Agrawal and Goyal, 2013).

    Parameters
    ----------
    shape : ContextShape
        Of the contexts.
    noise : float, optional
        The standard deviation of the rewards about their mean. With None it is unknown, and the
        posterior of each regression is normal-inverse-gamma (as in Riquelme et al., 2018).
    ridge : float
        Weights are N(0, noise² / ridge) a priori.
    model : {"disjoint", "shared"}
        See the module.
    a, b : float
        Shape and rate of the Gamma prior on the precision of unknown noise.
    draws : int
        Draws from the posterior at each decision. One of them decides, so that actions are taken
        with the probabilities of Thompson sampling whatever the number; propensities are those
        given the draws, multiples of one over their number.
    warmup : int
        Decisions at the start that go round the actions in turn.
    epsilon : float
        Share of the decisions left to chance.
    """
    if noise is not None:
        check_positive("noise", noise)
    for name, value in (("ridge", ridge), ("a", a), ("b", b)):
        check_positive(name, value)
    check_count("draws", draws, 1)
    size = _size(shape, model)
    known = None if noise is None else float(noise)
    settings = (float(ridge), float(a), float(b), int(draws), check_epsilon(epsilon))
    return warm_up(_lin_ts(*size, known, *settings), warmup)


@functools.lru_cache(maxsize=64)
def _lin_ucb(regressions: int, features: int, alpha: float, ridge: float, epsilon: float) -> Agent:
    def act(state: Ridge, key: Array, context: Context) -> Choice:
        mean, leverage = regression.estimate(state, _rows(context))
        scores = mean + alpha * jnp.sqrt(leverage)
        return choose(key, scores[None], context.available, epsilon)

    return Agent(_init(regressions, features, ridge), act, _update)


@functools.lru_cache(maxsize=64)
def _lin_ts(
    regressions: int,
    features: int,
    noise: float | None,
    ridge: float,
    a: float,
    b: float,
    draws: int,
    epsilon: float,
) -> Agent:
    def act(state: Ridge, key: Array, context: Context) -> Choice:
        choice_key, draws_key = jax.random.split(key)
        scores = thompson_scores(state, _rows(context), draws_key, draws, noise, a, b)
        return choose(choice_key, scores, context.available, epsilon)

    return Agent(_init(regressions, features, ridge), act, _update)


def thompson_scores(
    ridge: Ridge,
    rows: Array,
    key: Array,
    draws: int,
    noise: float | None,
    a: float,
    b: float,
) -> Array:
    """Draw the mean rewards of rows (A, D) from the posterior, (draws, A)."""
    noise_key, weights_key = jax.random.split(key)
    scale: Any = noise
    if noise is None:
        shape, rate = regression.noise_posterior(ridge, a, b)
        precision = jax.random.gamma(noise_key, shape, (draws, len(shape)), jnp.float32) / rate
        scale = 1 / jnp.sqrt(precision)
    mean = regression.estimate(ridge, rows).mean
    return mean + scale * regression.deviations(ridge, rows, weights_key, draws)


def _size(shape: ContextShape, model: str) -> tuple[int, int]:
    """Return the number of regressions and of their features."""
    shape.check()
    if model not in ("disjoint", "shared"):
        raise ValueError(f"model must be 'disjoint', 'shared' or 'hybrid', got {model!r}")
    if model == "shared" and not shape.per_action:
        raise ValueError("model='shared' needs features of the actions, but they have none")
    regressions = shape.actions if model == "disjoint" else 1
    return regressions, 1 + shape.shared + shape.per_action


def _rows(context: Context) -> Array:
    """Return [1, shared, action features] of every action, (A, D)."""
    features = joint_features(context)
    return jnp.concatenate([jnp.ones((len(features), 1), features.dtype), features], axis=1)


def _init(regressions: int, features: int, ridge: float) -> Any:
    return lambda key: regression.empty(regressions, features, ridge)


def _update(state: Ridge, key: Array, context: Context, action: Array, reward: Array) -> Ridge:
    which = action if len(state.n_rows) > 1 else jnp.zeros_like(action)
    return regression.add(state, which, _rows(context)[action], reward)
