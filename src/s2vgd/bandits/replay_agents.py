"""Agents as policies of a replay: many events decided, and many learned, by one compiled call.

:class:`AgentPolicy` drives the pure functions of an agent (:mod:`s2vgd.bandits.agents`) through
:func:`s2vgd.bandits.replay.replay_blocks`. An action of the agent is a position in the pool of an
event, so that a context is no larger than a pool. Agents that know articles by their features alone
need nothing else. Agents that learn something about each article by itself (disjoint and hybrid
linear models) have it kept here for every article that was ever in a pool, and are handed what
belongs to the pool before them. Nothing here knows what an agent believes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd.bandits.agents import Agent, uniform
from s2vgd.bandits.contexts import Context, ContextShape
from s2vgd.bandits.news.events import N_FEATURES
from s2vgd.bandits.replay import Block
from s2vgd.errors import DivergedError
from s2vgd.priors import check_count

# Intermediate results of so many events fit into the caches of a processor: five times as fast as
# all of a block at once. An accelerator wants the whole block.
_ROWS_ON_CPU = 32
_WIDTH_STEP = 8
# Those of the ten days of R6A, and nearly twice as many.
_ARTICLES = 512


class AgentPolicy:
    """An agent that can be replayed on a log of news.

    Decisions and updates draw their random numbers from the seed and ``Block.number``, so they do
    not depend on how events were put into blocks. What is compiled is kept by the identity of the
    agent: policies of equal settings share it.

    Parameters
    ----------
    build : callable
        ``build(shape) -> Agent`` for contexts of that shape: six features of the user, six of each
        article, and as many actions as the policy finds articles in a pool. The builders of
        :mod:`s2vgd.bandits` with their settings will do, such as
        ``functools.partial(lin_ucb, alpha=0.3)``. They should have no warm-up of their own: its
        pulls go round the actions as rewards are learned, and between two updates none are.
    seed : int
        Of the agent's randomness.
    warmup : int
        Articles are drawn at random until so many rewards were learned from.
    width : int
        The largest pool that is expected. A larger one is no error, but all is compiled again, and
        the numbers that an agent draws for each action are others from then on.

    Raises
    ------
    ValueError
        If the agent's state depends on the number of actions in a way that does not allow articles
        to come and go: only leading axes can belong to them, and all of them must begin alike. A
        network with an output for each action (``view="outputs"``) is such an agent.

    Notes
    -----
    What an agent keeps for each article begins as ``init`` says when the article is first in a
    pool. It stays as it is when the article goes, and is there again should the article come back.
    A new version of an article's features is no new article.
    """

    def __init__(
        self,
        build: Callable[[ContextShape], Agent],
        seed: int,
        *,
        warmup: int = 0,
        width: int = 24,
    ) -> None:
        check_count("warmup", warmup, 0)
        check_count("width", width, 2)
        self._still_random = int(warmup)
        self._build, self._width = build, int(width)
        self._own = _is_own(build, self._width)
        init_key, self._act_key, self._update_key = jax.random.split(jax.random.key(seed), 3)
        start = jax.jit(build(_shape(self._width)).init)(init_key)
        self._fresh = [
            _first(leaf) if own else None
            for leaf, own in zip(jax.tree.leaves(start), self._own, strict=True)
        ]
        # Copies, because what is learned is written in place, and leaves may share their memory.
        self._state = jax.tree.map(jnp.copy, start)
        self._row_of: dict[int, int] = {}
        self._extend(_ARTICLES)

    @property
    def width(self) -> int:
        """The largest pool that was expected or met."""
        return self._width

    def choose_block(self, block: Block) -> np.ndarray:
        """Return a position (B,) in each pool.

        Raises
        ------
        DivergedError
            If the agent expects something that is not a number.
        """
        agent, events = self._events(block)
        held: tuple[Agent, tuple[bool, ...], Any] = (agent, self._own, self._state)
        if self._still_random > 0:
            held = uniform(), (), ()
        choice, propensity = _choose(*held, self._act_key, *events)
        lost = np.isnan(np.asarray(propensity)) & block.live.any(axis=1)
        if lost.any():
            number = int(block.number[np.argmax(lost)])
            raise DivergedError(
                f"the agent's opinion of the articles of event {number} is not a number",
                step=number,
                quantity="scores",
            )
        return np.asarray(choice)

    def learn_block(self, block: Block, index: np.ndarray, click: np.ndarray) -> None:
        """Learn from events in their order: what was chosen (B,), and clicks (B,)."""
        agent, events = self._events(block)
        taken = np.asarray(index, np.int32), np.asarray(click, np.float32)
        self._state = _learn(agent, self._own, self._state, self._update_key, *events, *taken)
        self._still_random -= len(taken[0])

    def _events(self, block: Block) -> tuple[Agent, tuple[np.ndarray, np.ndarray, Context]]:
        """Return the agent for pools of this size, and numbers, rows and contexts of the events."""
        widest = int(block.live.sum(axis=1).max())
        if widest > self._width:
            self._width = -(-widest // _WIDTH_STEP) * _WIDTH_STEP
        articles, ids, live = (
            _padded(part, self._width) for part in (block.articles, block.article_ids, block.live)
        )
        parts: Any = block.user, articles, live  # of NumPy, which compiled functions take as well
        events = block.number.astype(np.uint32), self._rows(ids, live), Context(*parts)
        return self._build(_shape(self._width)), events

    def _rows(self, ids: np.ndarray, live: np.ndarray) -> np.ndarray:
        """Return where in the state the articles (B, W) are; padding is beyond its end."""
        if not any(self._own):
            return np.zeros(ids.shape, np.int32)
        known, inverse = np.unique(np.where(live, ids, -1), return_inverse=True)
        rows = [self._row_of.setdefault(i, len(self._row_of)) for i in known.tolist() if i >= 0]
        if len(self._row_of) > self._capacity:
            self._extend(max(2 * self._capacity, len(self._row_of)))
        padding = [np.iinfo(np.int32).max] * (len(known) - len(rows))
        return np.array([*padding, *rows], np.int32)[inverse.reshape(ids.shape)]

    def _extend(self, capacity: int) -> None:
        """Make room for so many articles."""
        leaves, tree = jax.tree.flatten(self._state)
        for i, fresh in enumerate(self._fresh):
            if fresh is not None:
                new = jnp.repeat(fresh[None], capacity - len(leaves[i]), axis=0)
                leaves[i] = jnp.concatenate([leaves[i], new])
        self._state, self._capacity = jax.tree.unflatten(tree, leaves), capacity


def _shape(width: int) -> ContextShape:
    return ContextShape(width, shared=N_FEATURES, per_action=N_FEATURES)


def _is_own(build: Callable[[ContextShape], Agent], width: int) -> tuple[bool, ...]:
    """Say of each leaf of the agent's state whether its leading axis is that of the actions."""
    sizes = width, width + 1
    one, other = (
        jax.tree.leaves(jax.eval_shape(build(_shape(size)).init, jax.random.key(0)))
        for size in sizes
    )
    own = tuple(a.shape != b.shape for a, b in zip(one, other, strict=True))
    for a, b, differs in zip(one, other, own, strict=True):
        if differs and (a.shape[0], b.shape[0], a.shape[1:]) != (*sizes, b.shape[1:]):
            raise ValueError(
                f"build: a part of the agent's state has the shape {a.shape} for {width} actions, "
                "where that of the actions must be the leading axis for articles to come and go"
            )
    return own


def _first(leaf: Array) -> Array:
    if not bool(jnp.all(leaf == leaf[:1])):
        raise ValueError("build: the agent's state must begin alike for all actions")
    return leaf[0]


def _padded(part: np.ndarray, width: int) -> np.ndarray:
    """Return (B, W, ...) with another W; what is cut off is padding."""
    missing = max(width - part.shape[1], 0)
    more = [(0, 0), (0, missing), *[(0, 0)] * (part.ndim - 2)]
    return np.pad(part, more)[:, :width]


def _of_pool(state: Any, own: tuple[bool, ...], rows: Array) -> Any:
    """Return the state of an agent whose actions are the articles in these rows (W,)."""
    leaves, tree = jax.tree.flatten(state)
    parts = zip(leaves, own, strict=True)
    held = [leaf.at[rows].get(mode="clip") if is_own else leaf for leaf, is_own in parts]
    return jax.tree.unflatten(tree, held)


def _put_back(state: Any, own: tuple[bool, ...], rows: Array, pool: Any) -> Any:
    leaves, tree = jax.tree.flatten(state)
    parts = zip(leaves, jax.tree.leaves(pool), own, strict=True)
    put = [leaf.at[rows].set(new, mode="drop") if is_own else new for leaf, new, is_own in parts]
    return jax.tree.unflatten(tree, put)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _choose(
    agent: Agent,
    own: tuple[bool, ...],
    state: Any,
    key: Array,
    number: Array,
    rows: Array,
    context: Context,
) -> tuple[Array, Array]:
    """Return actions and their propensities (B,)."""

    def act(event: tuple[Array, Array, Context]) -> tuple[Array, Array]:
        number, rows, context = event
        pool = _of_pool(state, own, rows)
        choice = agent.act(pool, jax.random.fold_in(key, number), context)
        return choice.action, choice.propensity

    at_once = _ROWS_ON_CPU if jax.default_backend() == "cpu" else len(number)
    return jax.lax.map(act, (number, rows, context), batch_size=at_once)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _learn(
    agent: Agent,
    own: tuple[bool, ...],
    state: Any,
    key: Array,
    number: Array,
    rows: Array,
    context: Context,
    action: Array,
    click: Array,
) -> Any:
    """Return the state after the rewards (B,) of actions (B,), one after the other."""

    def update(state: Any, event: tuple[Array, Array, Context, Array, Array]) -> tuple[Any, None]:
        number, rows, context, action, click = event
        pool = _of_pool(state, own, rows)
        learned = agent.update(pool, jax.random.fold_in(key, number), context, action, click)
        return _put_back(state, own, rows, learned), None

    return jax.lax.scan(update, state, (number, rows, context, action, click))[0]
