"""The line format of the Yahoo! Today click log (Webscope R6A), and a parser of it.

A line is one visit of the portal::

    1241160900 109513 0 |user 2:0.000012 ... 1:1.000000 |109498 2:0.306008 ... |109509 ...

that is the time, the article that was displayed, whether it was clicked, six features of the user,
and the pool of articles with six features each. What comes out are the columns of
:mod:`s2vgd.bandits.news`; files are opened and read in :mod:`s2vgd.bandits.news.reading`.

A pool changes a few times an hour, so nearly every line ends in the same 1.5 kB as the one before
it. The parser is quick because it compares those bytes and reads them only when they are new, and
because it reads what comes before them for all lines of a block at once.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from s2vgd.bandits.news.events import N_FEATURES, ArticleTable, Events

MAX_LINE_BYTES = 65_536

_CACHED_POOLS = 1_024
_QUOTES_A_KIND = 2
_QUOTED_BYTES = 120

# Of at most 15 digits and without positive exponents, so that every match is finite in float32.
_FEATURE = re.compile(rb"([1-6]):(-?[0-9]{1,15}(?:\.[0-9]*)?(?:[eE]-[0-9]{1,2})?)")
_INTEGER = re.compile(rb"[0-9]{1,15}")

# How lines begin, to the pool, with # for a digit. Whatever begins otherwise is parsed slowly.
_USUAL_HEAD = (
    b"########## ###### # |user 2:#.###### 3:#.###### 4:#.###### 5:#.###### 6:#.###### 1:#.###### |"
)
_TEMPLATE = np.frombuffer(_USUAL_HEAD, np.uint8)
_IS_DIGIT = np.equal(_TEMPLATE, ord("#"))
_FEATURE_ORDER = (2, 3, 4, 5, 6, 1)


class Malformed(StrEnum):
    """Why a line, or an article of a line, cannot be used."""

    BLANK = "blank line"
    TOO_LONG = f"longer than {MAX_LINE_BYTES:,} bytes"
    HEAD = "does not begin with a time, an article and a click of 0 or 1"
    USER = "no user with the six features"
    NO_ARTICLES = "no articles"
    REPEATED = "an article is twice in the pool"
    NOT_IN_POOL = "the displayed article is not in the pool"
    DISPLAYED = "the displayed article lacks its six features"
    ARTICLE = "an article lacks its six features"


@dataclass
class Tally:
    """What a parser has seen.

    Parameters
    ----------
    lines, events : int
        Lines read, and those among them that are events.
    skipped : Counter
        Lines that are not, by :class:`Malformed` kind.
    reduced : int
        Events that were kept although an article of their pool was malformed, without it.
    quotes : list of str
        The first two examples of each kind, with the file and line they are from.
    """

    lines: int = 0
    events: int = 0
    skipped: Counter[Malformed] = field(default_factory=Counter)
    reduced: int = 0
    quotes: list[str] = field(default_factory=list)
    _quoted: Counter[Malformed] = field(default_factory=Counter)

    def quote(self, kind: Malformed, where: str, text: bytes) -> None:
        """Keep an example of a kind, if there are not enough of it."""
        self._quoted[kind] += 1
        if self._quoted[kind] <= _QUOTES_A_KIND:
            shown = text[:_QUOTED_BYTES].decode("utf-8", "backslashreplace")
            more = "..." if len(text) > _QUOTED_BYTES else ""
            self.quotes.append(f"{where}: {kind}: {shown!r}{more}")


class _Pool(NamedTuple):
    rows: np.ndarray
    position: dict[int, int]
    malformed: frozenset[int]
    problem: Malformed | None


class _Heads(NamedTuple):
    """What the lines of a block say before their pools; rows that are not usual hold zeros."""

    is_usual: np.ndarray
    timestamp: np.ndarray
    displayed: np.ndarray
    click: np.ndarray
    user: np.ndarray


class Parser:
    """Turns blocks of whole lines into events, and counts what it cannot use.

    A line that is malformed is skipped. An article without its six features is left out of the
    pool, and the event is skipped only if that article was the one displayed: given that it was
    not, the displayed article is still uniform over those that remain, so replay stays unbiased.
    """

    def __init__(self) -> None:
        self.articles = ArticleTable()
        self.tally = Tally()
        self._pools: dict[bytes, _Pool] = {}
        self._articles_of_text: dict[bytes, tuple[int, int]] = {}

    def parse(self, block: bytes, source: str = "line", first_line: int = 1) -> Events:
        """Parse whole lines, which end in LF or CRLF; the last may lack its end.

        Parameters
        ----------
        block : bytes
            The lines.
        source : str
            What quotes of malformed lines call the text, such as the name of its file.
        first_line : int
            The number of its first line.
        """
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        if block and not block.endswith(b"\n"):
            block += b"\n"
        buffer = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(buffer == ord("\n"))
        starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        heads = _usual_heads(buffer, starts, ends)

        positions: list[int] = []
        pools: list[np.ndarray] = []
        n_reduced = 0
        rest, pool = b"", None  # of the last usual line
        bounds = zip(
            starts.tolist(),
            ends.tolist(),
            heads.is_usual.tolist(),
            heads.displayed.tolist(),
            strict=True,
        )
        for i, (start, end, is_usual, displayed) in enumerate(bounds):
            here, problem = pool, None
            if not is_usual:
                where = f"{source}:{first_line + i}"
                problem, displayed, here = self._unusual(block[start:end], where, heads, i)
            elif here is None or not block.startswith(rest, start + len(_USUAL_HEAD)):
                rest = block[start + len(_USUAL_HEAD) : end + 1]
                here = pool = self._pool(rest[:-1], f"{source}:{first_line + i}")
            position = -1 if here is None else here.position.get(displayed, -1)
            positions.append(position)
            if here is not None and position >= 0:
                pools.append(here.rows)
                n_reduced += bool(here.malformed)
            else:
                problem = problem or _why_not(here, displayed)
                self.tally.skipped[problem] += 1
                self.tally.quote(problem, f"{source}:{first_line + i}", block[start:end])
        self.tally.lines += len(positions)
        self.tally.events += len(pools)
        self.tally.reduced += n_reduced

        kept = np.array(positions, np.int32) >= 0
        return Events(
            timestamp=heads.timestamp[kept],
            displayed=np.array(positions, np.int32)[kept],
            click=heads.click[kept],
            user=heads.user[kept],
            offsets=np.concatenate([[0], np.cumsum([len(rows) for rows in pools], dtype=np.int64)]),
            pool=np.concatenate([np.zeros(0, np.int32), *pools]),
        )

    def _unusual(
        self, line: bytes, where: str, heads: _Heads, i: int
    ) -> tuple[Malformed | None, int, _Pool | None]:
        """Parse a line with other widths, spaces or order of features into row i, or say why not.

        Returns the problem, the displayed article, and the pool, the last two where there are.
        """
        if len(line) > MAX_LINE_BYTES:
            return Malformed.TOO_LONG, 0, None
        if not line.strip():
            return Malformed.BLANK, 0, None
        head, *blocks = line.split(b"|")
        words = head.split()
        are_numbers = len(words) == 3 and all(map(_INTEGER.fullmatch, words))
        if not are_numbers or words[2] not in (b"0", b"1"):
            return Malformed.HEAD, 0, None
        name, *features = (blocks[0].split() if blocks else None) or [b""]
        user = _features(features)
        if name != b"user" or user is None:
            return Malformed.USER, 0, None
        heads.timestamp[i] = int(words[0])
        heads.click[i] = words[2] == b"1"
        heads.user[i] = user
        return None, int(words[1]), self._pool(b"|".join(blocks[1:]), where)

    def _pool(self, text: bytes, where: str) -> _Pool:
        pool = self._pools.get(text)
        if pool is None:
            # Emptied rather than trimmed: it takes the real log days to fill this.
            if len(self._pools) >= _CACHED_POOLS:
                self._pools.clear()
                self._articles_of_text.clear()
            pool = self._pools[text] = self._new_pool(text, where)
        return pool

    def _new_pool(self, text: bytes, where: str) -> _Pool:
        if not text.strip():
            return _Pool(np.zeros(0, np.int32), {}, frozenset(), Malformed.NO_ARTICLES)
        known = self._articles_of_text
        articles = [known.get(each) or self._article(each, where) for each in text.split(b"|")]
        usable = [article for article, row in articles if row >= 0]
        position = dict(zip(usable, range(len(usable)), strict=True))
        malformed = frozenset(article for article, row in articles if row < 0)
        if len(position) < len(usable) or not malformed.isdisjoint(position):
            return _Pool(np.zeros(0, np.int32), {}, frozenset(), Malformed.REPEATED)
        rows = np.array([row for _, row in articles if row >= 0], np.int32)
        return _Pool(rows, position, malformed, None)

    def _article(self, text: bytes, where: str) -> tuple[int, int]:
        """Return the identifier and the row of an article, -1 for what it does not have."""
        name, *words = text.split() or [b""]
        features = _features(words)
        article = int(name) if _INTEGER.fullmatch(name) else -1
        if article < 0 or features is None:
            self.tally.quote(Malformed.ARTICLE, where, text)
            row = -1
        else:
            row = self.articles.row(article, features)
        self._articles_of_text[text] = article, row
        return article, row


def _usual_heads(buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> _Heads:
    """Parse the beginning of all usual lines of a block at once."""
    is_usual = (ends - starts > len(_TEMPLATE)) & (ends - starts <= MAX_LINE_BYTES)
    places = np.where(is_usual, starts, 0)[:, None] + np.arange(len(_TEMPLATE))
    heads = buffer[np.minimum(places, len(buffer) - 1)]
    digits = heads[:, _IS_DIGIT] - np.uint8(ord("0"))
    is_usual &= np.all(heads[:, ~_IS_DIGIT] == _TEMPLATE[~_IS_DIGIT], axis=1)
    is_usual &= np.all(digits <= 9, axis=1)
    is_usual &= digits[:, 16] <= 1
    digits[~is_usual] = 0
    user = np.empty((len(starts), N_FEATURES), np.float32)
    millionths = _numbers(digits[:, 17:].reshape(-1, N_FEATURES, 7))
    user[:, np.array(_FEATURE_ORDER) - 1] = millionths / 1e6
    return _Heads(
        is_usual,
        timestamp=_numbers(digits[:, :10]),
        displayed=_numbers(digits[:, 10:16]),
        click=digits[:, 16] == 1,
        user=user,
    )


def _numbers(digits: np.ndarray) -> np.ndarray:
    """Return the numbers, (...), that decimal digits (..., D) write."""
    numbers = np.zeros(digits.shape[:-1], np.int64)
    for place in range(digits.shape[-1]):
        numbers = 10 * numbers + digits[..., place]
    return numbers


def _features(words: list[bytes]) -> list[float] | None:
    """Return features 1 to 6, which must be there once each in any order, or None."""
    found = [_FEATURE.fullmatch(word) for word in words]
    values = {int(match[1]): float(match[2]) for match in found if match}
    if len(words) != N_FEATURES or len(values) != N_FEATURES:
        return None
    return [values[feature] for feature in range(1, N_FEATURES + 1)]


def _why_not(pool: _Pool | None, displayed: int) -> Malformed:
    if pool is not None and pool.problem is not None:
        return pool.problem
    is_known = pool is not None and displayed in pool.malformed
    return Malformed.DISPLAYED if is_known else Malformed.NOT_IN_POOL
