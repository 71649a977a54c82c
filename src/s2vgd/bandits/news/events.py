"""Events of the click log of the Yahoo! Today module (Webscope R6A), as columns of arrays.

Here are the arrays alone, whatever they come from: text files
(:mod:`s2vgd.bandits.news.reading`), a Parquet file made of them
(:mod:`s2vgd.bandits.news.parquet`), or the click model of :mod:`s2vgd.bandits.news.simulated`.
Policies are evaluated on any of them by :mod:`s2vgd.bandits.replay`.

An event is one visit of the portal (Li et al. 2010): the time, six features of the user, a pool of
about 20 articles with six features each, the one of them that was displayed, drawn uniformly from
the pool, and whether it was clicked. Feature 1 is the constant.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from s2vgd.errors import DataError

N_FEATURES = 6
CHUNK_EVENTS = 65_536
MAX_ARTICLES = 100_000


class ArticleTable:
    """The articles of a log: one row for each article and each version of its features."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, bytes], int] = {}
        self._ids = np.zeros(0, np.int64)
        self._features = np.zeros((0, N_FEATURES), np.float32)

    @classmethod
    def from_arrays(cls, ids: np.ndarray, features: np.ndarray) -> ArticleTable:
        """Return the table with these rows, ids (V,) and features (V, 6)."""
        table = cls()
        for article, values in zip(ids.tolist(), features.tolist(), strict=True):
            table.row(article, values)
        return table

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, article: int, features: Sequence[float]) -> int:
        """Return the row of an article with these features (1 to 6), adding it if it is new."""
        key = (article, struct.pack("<6f", *features))
        if key not in self._rows and len(self._rows) == MAX_ARTICLES:
            raise DataError(
                f"there are more than {MAX_ARTICLES:,} different articles, where R6A has a few "
                "hundred: is this a log in its format?"
            )
        return self._rows.setdefault(key, len(self._rows))

    @property
    def ids(self) -> np.ndarray:
        """The identifier of each row, (V,)."""
        self._extend()
        return self._ids

    @property
    def features(self) -> np.ndarray:
        """Features 1 to 6 of each row, (V, 6) in float32."""
        self._extend()
        return self._features

    def _extend(self) -> None:
        if len(self._ids) < len(self._rows):
            self._ids = np.array([article for article, _ in self._rows], np.int64)
            packed = b"".join(values for _, values in self._rows)
            self._features = np.frombuffer(packed, "<f4").reshape(-1, N_FEATURES)


@dataclass(frozen=True)
class Events:
    """A chunk of N events as columns; pools are ragged.

    Parameters
    ----------
    timestamp : (N,) int64
        Seconds since 1970.
    displayed : (N,) int32
        Position, in the event's pool, of the article that was displayed.
    click : (N,) bool
        Whether it was clicked.
    user : (N, 6) float32
        Features 1 to 6 of the user; column 0 is feature 1, the constant.
    offsets : (N + 1,) int64
        The pool of event i is ``pool[offsets[i]:offsets[i + 1]]``.
    pool : (offsets[-1],) int32
        Rows of the :class:`ArticleTable` that comes with the log.
    """

    timestamp: np.ndarray
    displayed: np.ndarray
    click: np.ndarray
    user: np.ndarray
    offsets: np.ndarray
    pool: np.ndarray

    def __len__(self) -> int:
        return len(self.timestamp)

    @property
    def pool_sizes(self) -> np.ndarray:
        """Number of articles of each event, (N,)."""
        return np.diff(self.offsets)

    def pool_of(self, event: int) -> np.ndarray:
        """Return the pool of one event, (A,)."""
        return self.pool[self.offsets[event] : self.offsets[event + 1]]

    def padded_pools(self, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the pools as (N, width), with zeros after the end, and what is not padding."""
        live = np.arange(width) < self.pool_sizes[:, None]
        pools = np.zeros(live.shape, np.int32)
        pools[live] = self.pool
        return pools, live

    def take(self, rows: np.ndarray | slice) -> Events:
        """Return some of the events, by a slice without a step or by increasing indices."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            offsets = self.offsets[start : max(start, stop) + 1]
            pool = self.pool[offsets[0] : offsets[-1]]
            offsets = offsets - offsets[0]
        else:
            kept = np.zeros(len(self), bool)
            kept[rows] = True
            pool = self.pool[np.repeat(kept, self.pool_sizes)]
            offsets = np.concatenate([[0], np.cumsum(self.pool_sizes[rows])])
        return Events(
            timestamp=self.timestamp[rows],
            displayed=self.displayed[rows],
            click=self.click[rows],
            user=self.user[rows],
            offsets=offsets,
            pool=pool,
        )

    @staticmethod
    def concatenate(parts: Sequence[Events]) -> Events:
        """Return the events of one or more chunks of the same log as one chunk."""
        sizes = np.concatenate([part.pool_sizes for part in parts])
        return Events(
            timestamp=np.concatenate([part.timestamp for part in parts]),
            displayed=np.concatenate([part.displayed for part in parts]),
            click=np.concatenate([part.click for part in parts]),
            user=np.concatenate([part.user for part in parts]),
            offsets=np.concatenate([[0], np.cumsum(sizes)]),
            pool=np.concatenate([part.pool for part in parts]),
        )


class NewsLog(Protocol):
    """What can be replayed: chunks of events, and the articles that they point to."""

    @property
    def articles(self) -> ArticleTable:
        """The articles; complete for every chunk that was given so far."""

    def __iter__(self) -> Iterator[Events]: ...
