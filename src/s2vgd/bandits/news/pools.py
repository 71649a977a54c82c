"""The pools of articles that end the lines of the log, read for all lines of a block at once.

A pool is some twenty texts, of 75 bytes each, out of the few dozen that a block has in all. So
:class:`PoolReader` lets pyarrow number the different texts, which takes a few nanoseconds a text,
and parses each of them once. What lines display is then looked up in arrays of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow

from s2vgd.bandits.news.events import N_FEATURES, ArticleTable

_KNOWN_BYTES = 2**24
_ENTRY_BYTES = 256  # of a known text, beside the text: a dictionary's entry and two numbers

# Of at most 15 digits and without positive exponents, so that every match is finite in float32.
_FEATURE = re.compile(rb"([1-6]):(-?[0-9]{1,15}(?:\.[0-9]*)?(?:[eE]-[0-9]{1,2})?)")
INTEGER = re.compile(rb"[0-9]{1,15}")


class Found(NamedTuple):
    """What N lines display, and the pools of those that display a usable article of theirs.

    Parameters
    ----------
    position : (N,) int32
        Where the displayed article is among the usable ones of its pool, or -1.
    is_there : (N,) bool
        Whether it is in the pool, usable or not.
    is_repeated : (N,) bool
        Whether the pool has a usable article twice, which leaves no position.
    n_reduced : int
        Lines with a position whose pool has articles that are not usable.
    offsets, pool
        As in :class:`s2vgd.bandits.news.events.Events`, for the lines with a position.
    """

    position: np.ndarray
    is_there: np.ndarray
    is_repeated: np.ndarray
    n_reduced: int
    offsets: np.ndarray
    pool: np.ndarray


class Pools(NamedTuple):
    """P pools with T articles in all, D of them different; those without features are not usable.

    Parameters
    ----------
    ids, rows : (D,) int64
        Identifiers, and rows of the table of articles; -1 for what an article does not have.
    numbers : (T,) int32
        Which of these the articles are.
    offsets : (P + 1,) int64
        Where each pool begins and ends among the T.
    """

    ids: np.ndarray
    rows: np.ndarray
    numbers: np.ndarray
    offsets: np.ndarray

    def find(self, which: np.ndarray, displayed: np.ndarray) -> Found:
        """Look for the displayed article, (N,), in the pool of each of N lines, -1 for no pool."""
        n_articles, n_pools, n_lines = len(self.numbers), len(self.offsets) - 1, len(which)
        pool_of = np.repeat(np.arange(n_pools), np.diff(self.offsets))
        is_usable = (self.rows >= 0)[self.numbers]
        # One number for a pool and an identifier; of several the same, those not usable are last.
        different, rank = np.unique(self.ids, return_inverse=True)
        per_pool = 2 * len(different)
        keys = per_pool * pool_of + (2 * rank + (self.rows < 0))[self.numbers]
        order = np.argsort(keys)
        keys = keys[order]

        is_again = (keys[1:] >> 1 == keys[:-1] >> 1) & (keys[:-1] & 1 == 0)
        is_repeated = np.zeros(n_pools + 1, bool)  # the last is for lines without a pool
        is_repeated[pool_of[order[1:][is_again]]] = True
        is_repeated = is_repeated[which]

        # Where the key wanted would be; what is there may be another article or in another pool.
        at = np.searchsorted(keys, per_pool * which + 2 * np.searchsorted(different, displayed))
        lines = np.flatnonzero(at < n_articles)
        articles = order[at[lines]]
        is_it = self.ids[self.numbers[articles]] == displayed[lines]
        is_it &= pool_of[articles] == which[lines]
        lines, articles = lines[is_it], articles[is_it]
        is_there = np.zeros(n_lines, bool)
        is_there[lines] = True

        usable_before = np.concatenate([[0], np.cumsum(is_usable)])
        starts = usable_before[self.offsets]
        is_good = is_usable[articles] & ~is_repeated[lines]
        lines, articles = lines[is_good], articles[is_good]
        position = np.full(n_lines, -1, np.int32)
        position[lines] = usable_before[articles] - starts[which[lines]]

        sizes = np.diff(starts)
        offsets = np.concatenate([[0], np.cumsum(sizes[which[lines]])])
        shift = np.repeat(starts[which[lines]] - offsets[:-1], np.diff(offsets))
        rows = self.rows.astype(np.int32)[self.numbers[is_usable]]
        return Found(
            position=position,
            is_there=is_there,
            is_repeated=is_repeated,
            n_reduced=int((sizes < np.diff(self.offsets))[which[lines]].sum()),
            offsets=offsets,
            pool=rows[np.arange(offsets[-1]) + shift],
        )


class PoolReader:
    """Turns the texts of pools into rows of a table of articles."""

    def __init__(self) -> None:
        self.articles = ArticleTable()
        self._known: dict[bytes, tuple[int, int]] = {}
        self._known_bytes = 0

    def read(self, texts: Sequence[bytes]) -> tuple[Pools, list[tuple[int, bytes]]]:
        """Read pools, each the texts of its articles with ``|`` between them.

        Returns the pools, and the articles without their features that were not known yet, each by
        the first pool that has it and its text.
        """
        text = b"|".join([*texts, b""])
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("|")) + 1
        bounds = np.concatenate([[0], ends])
        offsets = np.searchsorted(bounds, np.cumsum([0, *(len(each) + 1 for each in texts)]))
        buffers = [None, pyarrow.py_buffer(bounds), pyarrow.py_buffer(text)]
        column = pyarrow.Array.from_buffers(pyarrow.large_binary(), len(ends), buffers)
        encoded = column.dictionary_encode()
        numbers = encoded.indices.to_numpy()
        # They are numbered as they appear: the first of a number is where the maximum gets there.
        first = np.searchsorted(np.maximum.accumulate(numbers), np.arange(len(encoded.dictionary)))
        pools = np.searchsorted(offsets, first, "right") - 1
        parsed, malformed = [], []
        for pool, article in zip(pools.tolist(), encoded.dictionary.to_pylist(), strict=True):
            known = self._known.get(article)
            if known is None:
                known = self._article(article)
                if known[1] < 0:
                    malformed.append((pool, article[:-1]))
            parsed.append(known)
        ids, rows = np.array(parsed, np.int64).reshape(-1, 2).T
        return Pools(ids, rows, numbers, offsets), malformed

    def _article(self, text: bytes) -> tuple[int, int]:
        """Return the identifier and the row of an article, -1 for what it does not have."""
        name, *words = text[:-1].split() or [b""]
        values = features(words)
        article = int(name) if INTEGER.fullmatch(name) else -1
        row = -1 if article < 0 or values is None else self.articles.row(article, values)
        # Emptied rather than trimmed: nothing like the real log ever fills it.
        if self._known_bytes > _KNOWN_BYTES:
            self._known.clear()
            self._known_bytes = 0
        self._known[text] = article, row
        self._known_bytes += len(text) + _ENTRY_BYTES
        return article, row


def features(words: list[bytes]) -> list[float] | None:
    """Return features 1 to 6, which must be there once each in any order, or None."""
    found = [_FEATURE.fullmatch(word) for word in words]
    values = {int(match[1]): float(match[2]) for match in found if match}
    if len(words) != N_FEATURES or len(values) != N_FEATURES:
        return None
    return [values[feature] for feature in range(1, N_FEATURES + 1)]
