"""Text files of the Yahoo! Today click log, plain or gzipped, as a stream of chunks of events.

Reading and decompression run in a thread of their own, a block ahead of the parser of
:mod:`s2vgd.bandits.news.lines`. At no time is more than a chunk and a few blocks in memory, however
long the files or their lines are.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from s2vgd.bandits.news.events import CHUNK_EVENTS, ArticleTable, Events
from s2vgd.bandits.news.lines import MAX_LINE_BYTES, Parser, Tally
from s2vgd.errors import DataError

_BLOCK_BYTES = 2**21

_T = TypeVar("_T")


class NewsText:
    """Events of text files, plain or gzipped, in order and in bounded memory.

    Parameters
    ----------
    paths : sequence of path-like
        The files, in the order of their days. They may be plain or gzipped, whatever their names.
    chunk_events : int
        Events in a chunk; the last chunk may have fewer.

    Attributes
    ----------
    articles : ArticleTable
        The articles seen so far.
    tally : Tally
        What was read and skipped so far.
    bytes_read : int
        How much of the files was read, before decompression.

    Raises
    ------
    DataError
        While iterating, if a file is absent or is gzipped and damaged or cut off.
    """

    def __init__(self, paths: Sequence[str | Path], *, chunk_events: int = CHUNK_EVENTS) -> None:
        if chunk_events < 1:
            raise DataError(f"chunk_events: expected at least 1, got {chunk_events}")
        self.paths = tuple(map(Path, paths))
        for path in self.paths:
            if not path.is_file():
                raise DataError(f"there is no file {path}")
        self.chunk_events = chunk_events
        self.bytes_read = 0
        self._parser = Parser()

    @property
    def total_bytes(self) -> int:
        """The size of all files, before decompression."""
        return sum(path.stat().st_size for path in self.paths)

    @property
    def articles(self) -> ArticleTable:
        """The articles seen so far."""
        return self._parser.articles

    @property
    def tally(self) -> Tally:
        """What was read and skipped so far."""
        return self._parser.tally

    def __iter__(self) -> Iterator[Events]:
        """Give chunks of events, from the beginning of the first file."""
        parser = self._parser = Parser()
        self.bytes_read = 0
        held: list[Events] = []
        for path in self.paths:
            lines_before, bytes_before = parser.tally.lines, self.bytes_read
            for block, position in read_ahead(_blocks_of_lines(path)):
                first_line = parser.tally.lines - lines_before + 1
                held.append(parser.parse(block, path.name, first_line))
                self.bytes_read = bytes_before + position
                if sum(map(len, held)) >= self.chunk_events:
                    *chunks, rest = _cut(Events.concatenate(held), self.chunk_events)
                    yield from chunks
                    held = [rest]
        if sum(map(len, held)):
            yield Events.concatenate(held)


def _cut(events: Events, size: int) -> Iterator[Events]:
    """Give pieces of one size, and then what is left: less than that, maybe nothing."""
    for start in range(0, len(events) + 1, size):
        yield events.take(slice(start, start + size))


def read_ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Give the items of an iterator, getting the next one in a thread meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, items, None)
        while (item := upcoming.result()) is not None:
            upcoming = thread.submit(next, items, None)
            yield item


def _blocks_of_lines(path: Path) -> Iterator[tuple[bytes, int]]:
    """Give blocks of whole lines, and the position in the file after each.

    A line that has no end is cut a little above ``MAX_LINE_BYTES``, so that it is recognised as too
    long without being kept.
    """
    begun = b""
    try:
        with open(path, "rb") as raw:
            is_gzip = raw.peek(2)[:2] == b"\x1f\x8b"
            with gzip.GzipFile(fileobj=raw) if is_gzip else raw as file:
                while block := file.read(_BLOCK_BYTES):
                    end = block.rfind(b"\n") + 1
                    if end:
                        yield begun + block[:end], raw.tell()
                        begun = b""
                    begun = (begun + block[end:])[: MAX_LINE_BYTES + 2]
    except EOFError as error:
        raise DataError(f"{path} is cut off: its gzip stream has no end") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    yield begun, path.stat().st_size
