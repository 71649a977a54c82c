"""What a policy would have earned, from a log in which articles were displayed at random.

The method is the rejection replay of Li, Chu, Langford and Wang (2011). A policy is shown the
events of the log one after the other; where it chooses the article that was displayed, it is
credited with the click, may learn from it, and the event counts; all other events are passed over,
and the policy never hears of them. Because display was uniform and independent, the accepted events
are distributed as if the policy had been live. Logs of any origin will do
(:mod:`s2vgd.bandits.news`); estimators that weigh events by propensities are not here.

An event with A articles is accepted with probability 1/A, so where pools differ in size the
estimate is the mean over visits weighted by 1/A. The random policy, by which the others are
normalised, is weighted in the same way; it needs no rejection, since every event of the log is one
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from s2vgd.bandits.news.events import ArticleTable, Events, NewsLog
from s2vgd.bandits.replay_result import Replay, ReplayRecord, at_least_one
from s2vgd.errors import DataError

EVERY = 20_000
_WIDTH_STEP = 8


class Policy(Protocol):
    """A policy that decides and learns one event at a time."""

    def choose(self, user: np.ndarray, articles: np.ndarray, article_ids: np.ndarray) -> int:
        """Return a position in the pool, given features (6,) and (A, 6) and identifiers (A,)."""

    def learn(
        self,
        user: np.ndarray,
        articles: np.ndarray,
        article_ids: np.ndarray,
        index: int,
        click: bool,
    ) -> None:
        """Learn whether the article that was chosen was clicked."""


class Block(NamedTuple):
    """B events for a policy that decides many at once; pools are padded to a common width W.

    B is always the same in a replay, and W grows by multiples of eight and seldom, so compiled code
    is reused. Rows after the end of the log have no live article and their choices are ignored.

    Parameters
    ----------
    number : (B,) int64
        Position of the event in the log. A policy that draws random numbers should fold this into
        its key: its decisions then do not depend on how events were put into blocks.
    timestamp : (B,) int64
        Seconds since 1970.
    user : (B, 6) float32
        Features of the users.
    articles : (B, W, 6) float32
        Features of the articles, zero where there is none.
    article_ids : (B, W) int64
        Their identifiers, -1 where there is none.
    live : (B, W) bool
        Which are articles and not padding.
    """

    number: np.ndarray
    timestamp: np.ndarray
    user: np.ndarray
    articles: np.ndarray
    article_ids: np.ndarray
    live: np.ndarray


class BlockPolicy(Protocol):
    """A policy that decides many events at once, and learns from many at once."""

    def choose_block(self, block: Block) -> np.ndarray:
        """Return a position (B,) in each pool."""

    def learn_block(self, block: Block, index: np.ndarray, click: np.ndarray) -> None:
        """Learn from accepted events in their order: what was chosen (B,), and clicks (B,)."""


def replay(policy: Policy, log: NewsLog, *, every: int = EVERY) -> Replay:
    """Replay a policy one event at a time, as in Li et al. (2011), algorithm 2.

    Parameters
    ----------
    policy : Policy
        Told of each accepted event before it is asked about the next event.
    log : NewsLog
        Of uniform display, such as :class:`s2vgd.bandits.news.parquet.NewsFile`.
    every : int
        Accepted events from one point of the curve to the next.
    """
    record = ReplayRecord(every)
    for events in log:
        ids, features = log.articles.ids, log.articles.features
        accepted = np.zeros(len(events), bool)
        for i in range(len(events)):
            rows = events.pool_of(i)
            user, articles, article_ids = events.user[i], features[rows], ids[rows]
            index = int(policy.choose(user, articles, article_ids))
            _check_choices(np.array([index]), np.array([len(rows)]))
            if index == events.displayed[i]:
                accepted[i] = True
                policy.learn(user, articles, article_ids, index, bool(events.click[i]))
        record.add(events, accepted)
    return record.result()


def replay_blocks(
    policy: BlockPolicy,
    log: NewsLog,
    *,
    update_every: int,
    block: int | None = None,
    every: int = EVERY,
) -> Replay:
    """Replay a policy that learns after every so many accepted events, many events at once.

    The result is that of replaying one event at a time an agent that keeps what it is told and
    learns it all when ``update_every`` events have come together. Between two such moments the
    agent does not change, so its decisions for the events ahead can be computed together; when it
    has learned, those for events after that moment are thrown away and computed again. Hence
    ``block`` changes the speed and nothing else, provided that ``choose_block`` decides each row by
    itself and draws random numbers by ``Block.number``. What is left over at the end of the log,
    fewer than ``update_every`` accepted events, is not learned: no decision could depend on it.

    Parameters
    ----------
    policy : BlockPolicy
        ``learn_block`` always gets exactly ``update_every`` events.
    log : NewsLog
        Of uniform display.
    update_every : int
        Accepted events from one update to the next.
    block : int, optional
        Events decided at once. A good value is a little over ``update_every`` times the size of a
        pool, and the default is 24 times: most often one call of ``choose_block`` to an update.
    every : int
        Accepted events from one point of the curve to the next.
    """
    at_least_one("update_every", update_every)
    block = 24 * update_every if block is None else block
    record, queue = ReplayRecord(every), _Queue(log, block)
    held: list[Events] = []
    held_numbers: list[np.ndarray] = []
    n_held = 0
    while (ahead := queue.head()) is not None:
        events, number = ahead
        is_accepted = _accepts(policy.choose_block(queue.block(events, number)), events)
        rows = np.flatnonzero(is_accepted)[: update_every - n_held]
        n_held += len(rows)
        held.append(events.take(rows))
        held_numbers.append(number[rows])
        used = int(rows[-1]) + 1 if n_held == update_every else len(events)
        record.add(events.take(slice(0, used)), is_accepted[:used])
        queue.advance(used)
        if n_held == update_every:
            batch = Events.concatenate(held)
            learned = queue.block(batch, np.concatenate(held_numbers), update_every)
            policy.learn_block(learned, batch.displayed, batch.click)
            held, held_numbers, n_held = [], [], 0
    return record.result()


def replay_fixed(
    choose_block: Callable[[Block], np.ndarray],
    log: NewsLog,
    *,
    block: int = 8_192,
    every: int = EVERY,
) -> Replay:
    """Replay a policy that does not learn, many events at once.

    Parameters
    ----------
    choose_block : callable
        As that of a :class:`BlockPolicy`.
    log : NewsLog
        Of uniform display.
    block : int
        Events decided at once.
    every : int
        Accepted events from one point of the curve to the next.
    """
    record, queue = ReplayRecord(every), _Queue(log, block)
    while (ahead := queue.head()) is not None:
        events, number = ahead
        record.add(events, _accepts(choose_block(queue.block(events, number)), events))
        queue.advance(len(events))
    return record.result()


def as_block(
    events: Events,
    articles: ArticleTable,
    *,
    number: np.ndarray | None = None,
    size: int | None = None,
    width: int = 0,
) -> Block:
    """Return events as a block.

    Parameters
    ----------
    events : Events
        At least one.
    articles : ArticleTable
        The articles of their log.
    number : (N,) int array, optional
        Their positions in the log; 0, 1, ... by default.
    size : int, optional
        Rows of the block, at least N; N by default.
    width : int
        The least width; it is otherwise the largest pool, rounded up to a multiple of eight.
    """
    widest = int(events.pool_sizes.max())
    rows, live = events.padded_pools(max(width, -(-widest // _WIDTH_STEP) * _WIDTH_STEP))
    columns = (
        np.arange(len(events)) if number is None else number,
        events.timestamp,
        events.user,
        np.where(live[:, :, None], articles.features[rows], np.float32(0)),
        np.where(live, articles.ids[rows], -1),
        live,
    )
    missing = 0 if size is None else size - len(events)
    return Block(*(np.pad(c, [(0, missing)] + [(0, 0)] * (c.ndim - 1)) for c in columns))


class _Queue:
    """The events of a log that were not used up yet, as blocks of fixed shape."""

    def __init__(self, log: NewsLog, size: int) -> None:
        self._log = log
        self._size = at_least_one("block", size)
        self._chunks: Iterator[Events] = iter(log)
        self._held: Events | None = None
        self._used = 0
        self._position = 0
        self._width = 0

    def head(self) -> tuple[Events, np.ndarray] | None:
        """Return the next ``size`` events, or fewer at the end, and their positions in the log."""
        left = 0 if self._held is None else len(self._held) - self._used
        if left < self._size:
            parts = [] if self._held is None else [self._held.take(slice(self._used, None))]
            while left < self._size and (chunk := next(self._chunks, None)) is not None:
                parts.append(chunk)
                left += len(chunk)
            if left == 0:
                return None
            self._held, self._used = Events.concatenate(parts), 0
        assert self._held is not None
        events = self._held.take(slice(self._used, self._used + self._size))
        return events, self._position + np.arange(len(events))

    def advance(self, n: int) -> None:
        """Drop the first n events."""
        self._used += n
        self._position += n

    def block(self, events: Events, number: np.ndarray, size: int | None = None) -> Block:
        """Return events as a block that is not narrower than the one before."""
        size = self._size if size is None else size
        block = as_block(events, self._log.articles, number=number, size=size, width=self._width)
        self._width = block.live.shape[1]
        return block


def _accepts(choices: np.ndarray, events: Events) -> np.ndarray:
    choices = np.asarray(choices)
    if choices.ndim != 1 or len(choices) < len(events):
        raise DataError(f"choose_block: expected a position for each row, got {choices.shape}")
    _check_choices(choices[: len(events)], events.pool_sizes)
    return choices[: len(events)] == events.displayed


def _check_choices(choices: np.ndarray, sizes: np.ndarray) -> None:
    wrong = (choices < 0) | (choices >= sizes)
    if wrong.any():
        raise DataError(
            f"the policy chose position {choices[wrong][0]} of a pool of {sizes[wrong][0]} articles"
        )
