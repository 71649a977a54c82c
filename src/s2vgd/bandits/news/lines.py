"""The line format of the Yahoo! Today click log (Webscope R6A), and a parser of it.

A line is one visit of the portal::

    1241160900 109513 0 |user 2:0.000012 ... 1:1.000000 |109498 2:0.306008 ... |109509 ...

that is the time, the article that was displayed, whether it was clicked, six features of the user,
and the pool of articles with six features each. What comes out are the columns of
:mod:`s2vgd.bandits.news`; files are opened and read in :mod:`s2vgd.bandits.news.reading`.

A pool changes a few times an hour, so nearly every line ends in the same 1.5 kB as the one before
it. The parser is quick because it compares those bytes and reads them only when they are new, and
because it reads the new ones (:mod:`s2vgd.bandits.news.pools`), and what comes before them, for all
lines of a block at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from s2vgd.bandits.news.events import N_FEATURES, ArticleTable, Events
from s2vgd.bandits.news.pools import INTEGER, Found, PoolReader, features

MAX_LINE_BYTES = 65_536

_QUOTES_A_KIND = 2
_QUOTED_BYTES = 120

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
        self.tally = Tally()
        self._pools = PoolReader()

    @property
    def articles(self) -> ArticleTable:
        """The articles of the lines that were parsed so far."""
        return self._pools.articles

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

        runs = _runs(block, starts, ends, heads)
        texts = {i: text for i, text in runs.items() if not isinstance(text, Malformed)}
        pools, broken = self._pools.read(list(texts.values()))
        run = np.repeat(np.arange(len(runs)), np.diff([*runs, len(ends)]))  # of each line
        is_pool = np.array([i in texts for i in runs], bool)
        found = pools.find(np.where(is_pool, np.cumsum(is_pool) - 1, -1)[run], heads.displayed)
        kept = found.position >= 0

        said, new_at = list(runs.values()), list(texts)
        quotes = [(new_at[pool], Malformed.ARTICLE, text) for pool, text in broken]
        for i in np.flatnonzero(~kept).tolist():
            problem = said[run[i]]
            if not isinstance(problem, Malformed):
                problem = _why_not(found, i)
            self.tally.skipped[problem] += 1
            quotes.append((i, problem, block[starts[i] : ends[i]]))
        for i, problem, text in sorted(quotes, key=lambda quote: quote[0]):
            self.tally.quote(problem, f"{source}:{first_line + i}", text)
        self.tally.lines += len(kept)
        self.tally.events += int(kept.sum())
        self.tally.reduced += found.n_reduced
        return Events(
            timestamp=heads.timestamp[kept],
            displayed=found.position[kept],
            click=heads.click[kept],
            user=heads.user[kept],
            offsets=found.offsets,
            pool=found.pool,
        )


def _runs(
    block: bytes, starts: np.ndarray, ends: np.ndarray, heads: _Heads
) -> dict[int, bytes | Malformed]:
    """Return the text of the pool, or why there is none, of each run of lines that have the same.

    Keys are the first lines of the runs. Heads that are not usual are parsed.
    """
    runs: dict[int, bytes | Malformed] = {}
    width, rest = len(_USUAL_HEAD), b""
    bounds = zip(starts.tolist(), ends.tolist(), heads.is_usual.tolist(), strict=True)
    for i, (start, end, is_usual) in enumerate(bounds):
        if is_usual and rest and block.startswith(rest, start + width):
            continue
        if is_usual:
            # With the line's end, lest a line that goes on where this one ends seem to be the same.
            rest = block[start + width : end + 1]
            runs[i] = Malformed.NO_ARTICLES if rest.isspace() else rest[:-1]
        else:
            rest = b""
            runs[i] = _unusual(block[start:end], heads, i)
    return runs


def _unusual(line: bytes, heads: _Heads, i: int) -> bytes | Malformed:
    """Parse a line with other widths, spaces or order of features into row i, or say why not.

    Returns the text of its pool.
    """
    if len(line) > MAX_LINE_BYTES:
        return Malformed.TOO_LONG
    if not line.strip():
        return Malformed.BLANK
    head, *blocks = line.split(b"|")
    words = head.split()
    are_numbers = len(words) == 3 and all(map(INTEGER.fullmatch, words))
    if not are_numbers or words[2] not in (b"0", b"1"):
        return Malformed.HEAD
    name, *values = (blocks[0].split() if blocks else None) or [b""]
    user = features(values)
    if name != b"user" or user is None:
        return Malformed.USER
    pool = b"|".join(blocks[1:])
    if not pool.strip():
        return Malformed.NO_ARTICLES
    heads.timestamp[i], heads.displayed[i] = int(words[0]), int(words[1])
    heads.click[i] = words[2] == b"1"
    heads.user[i] = user
    return pool


def _usual_heads(buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> _Heads:
    """Parse the beginning of all usual lines of a block at once."""
    is_usual = (ends - starts > len(_TEMPLATE)) & (ends - starts <= MAX_LINE_BYTES)
    heads = np.zeros((len(starts), len(_TEMPLATE)), np.uint8)
    if is_usual.any():
        heads[is_usual] = sliding_window_view(buffer, len(_TEMPLATE))[starts[is_usual]]
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


def _why_not(found: Found, i: int) -> Malformed:
    """Return why line i displays no usable article of its pool."""
    if found.is_repeated[i]:
        return Malformed.REPEATED
    return Malformed.DISPLAYED if found.is_there[i] else Malformed.NOT_IN_POOL
