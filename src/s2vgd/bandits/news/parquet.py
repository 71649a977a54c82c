"""From text files of the Yahoo! Today log to one Parquet file, and from that back to events.

The Parquet file has a row for each event, with the columns of :class:`s2vgd.bandits.news.Events`:
``timestamp``, ``displayed``, ``click``, ``user`` (six numbers) and ``pool`` (a list). What is
common to all rows is in the footer, as JSON under the key ``s2vgd.news``: the table of articles
that the pools point to, and the summary of the conversion. The text is read by
:mod:`s2vgd.bandits.news.reading`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from s2vgd.bandits.news.events import CHUNK_EVENTS, N_FEATURES, ArticleTable, Events
from s2vgd.bandits.news.reading import NewsText, read_ahead
from s2vgd.errors import DataError
from s2vgd.files import replacing
from s2vgd.progress import progress_bar

SIMULATED_PREFIX = "simulated-"

_KEY, _VERSION = "s2vgd.news", 1
_SCHEMA = pyarrow.schema(
    [
        pyarrow.field("timestamp", pyarrow.int64(), nullable=False),
        pyarrow.field("displayed", pyarrow.int32(), nullable=False),
        pyarrow.field("click", pyarrow.bool_(), nullable=False),
        pyarrow.field("user", pyarrow.list_(pyarrow.float32(), N_FEATURES), nullable=False),
        pyarrow.field("pool", pyarrow.list_(pyarrow.int32()), nullable=False),
    ]
)


@dataclass(frozen=True)
class Summary:
    """What a conversion found.

    Parameters
    ----------
    sources : tuple of str
        Names of the text files, without their directories.
    lines, events, clicks : int
        Lines read, events among them, and clicks among those.
    skipped : dict of str to int
        Lines that are not events, by reason.
    reduced : int
        Events of whose pool an article without its features was left out.
    articles, versions : int
        Different articles, and different articles or features of them.
    first, last : int
        The earliest and the latest timestamp.
    quotes : tuple of str
        Examples of what was skipped or left out.
    """

    sources: tuple[str, ...]
    lines: int
    events: int
    clicks: int
    skipped: dict[str, int]
    reduced: int
    articles: int
    versions: int
    first: int
    last: int
    quotes: tuple[str, ...]

    @property
    def days(self) -> float:
        """The time from the first event to the last, in days."""
        return (self.last - self.first) / 86_400

    @property
    def ctr(self) -> float:
        """The share of events with a click, that is the click-through rate of random display."""
        return self.clicks / self.events

    @property
    def is_simulated(self) -> bool:
        """Whether any of the files was written by ``s2vgd news simulate``, by its name."""
        return any(name.startswith(SIMULATED_PREFIX) for name in self.sources)


def convert(
    files: Sequence[str | Path],
    out: str | Path,
    *,
    chunk_events: int = CHUNK_EVENTS,
    progress: bool | None = False,
) -> Summary:
    """Convert text files to one Parquet file, in bounded memory.

    Parameters
    ----------
    files : sequence of path-like
        Files of the log, plain or gzipped, in the order of their days.
    out : path-like
        The Parquet file. It appears when it is complete, replacing what was there, or not at all.
    chunk_events : int
        Events in a row group, the unit in which the file is written and later read.
    progress : bool or None
        As in :func:`s2vgd.progress.progress_bar`.

    Returns
    -------
    summary : Summary
        What was found; the file's footer has it too.

    Raises
    ------
    DataError
        If a file is absent, damaged or also the output, or if there is no event in any.
    """
    text, out = NewsText(files, chunk_events=chunk_events), Path(out)
    if out.exists() and any(out.samefile(path) for path in text.paths):
        raise DataError(f"{out} is one of the files to convert: name another file to write")
    clicks, first, last = 0, None, None
    mebibytes = max(text.total_bytes >> 20, 1)
    with (
        replacing(out) as temporary,
        # Dictionaries cost time and, under zstd, save no space: features hardly ever repeat.
        pyarrow.parquet.ParquetWriter(
            temporary, _SCHEMA, compression="zstd", use_dictionary=False
        ) as writer,
        progress_bar(progress, mebibytes, description="converting (MiB)") as update,
    ):
        update(0, None)
        # Parsing runs in the thread that reads ahead, and the encoding here meanwhile.
        for events in read_ahead(iter(text)):
            writer.write_table(_to_table(events), row_group_size=chunk_events)
            clicks += int(events.click.sum())
            times = int(events.timestamp.min()), int(events.timestamp.max())
            first = times[0] if first is None else min(first, times[0])
            last = times[1] if last is None else max(last, times[1])
            update(min(text.bytes_read >> 20, mebibytes), None)
        update(mebibytes, None)
        tally = text.tally
        if first is None or last is None:
            why = "; ".join(tally.quotes[:2]) or "they are empty"
            raise DataError(f"there is no event in {', '.join(map(str, text.paths))}: {why}")
        summary = Summary(
            sources=tuple(path.name for path in text.paths),
            lines=tally.lines,
            events=tally.events,
            clicks=clicks,
            skipped={kind.value: count for kind, count in tally.skipped.most_common()},
            reduced=tally.reduced,
            articles=len(np.unique(text.articles.ids)),
            versions=len(text.articles),
            first=first,
            last=last,
            quotes=tuple(tally.quotes),
        )
        writer.add_key_value_metadata({_KEY: _encode_footer(text.articles, summary)})
    return summary


class NewsFile:
    """A Parquet file that :func:`convert` wrote: chunks of events in bounded memory.

    Parameters
    ----------
    path : path-like
        The file.
    chunk_events : int
        The most events in a chunk.

    Attributes
    ----------
    articles : ArticleTable
        All articles of the log.
    summary : Summary
        What the conversion found.

    Raises
    ------
    DataError
        If the file is absent, damaged, or of another kind.
    """

    def __init__(self, path: str | Path, *, chunk_events: int = CHUNK_EVENTS) -> None:
        if chunk_events < 1:
            raise DataError(f"chunk_events: expected at least 1, got {chunk_events}")
        self.path, self.chunk_events = Path(path), chunk_events
        if not self.path.is_file():
            raise DataError(f"there is no file {self.path}")
        with self._open() as file:
            metadata = file.metadata.metadata or {}
        if _KEY.encode() not in metadata:
            raise DataError(f"{self.path} was not written by 's2vgd news convert'")
        footer = json.loads(metadata[_KEY.encode()])
        if footer["version"] != _VERSION:
            raise DataError(
                f"{self.path} is of version {footer['version']}, this program reads {_VERSION}"
            )
        self.articles = ArticleTable.from_arrays(
            np.array(footer["articles"]["ids"], np.int64),
            np.array(footer["articles"]["features"], np.float32),
        )
        fields = {**footer["summary"]}
        fields |= {name: tuple(fields[name]) for name in ("sources", "quotes")}
        self.summary = Summary(**fields)

    def __len__(self) -> int:
        return self.summary.events

    def __iter__(self) -> Iterator[Events]:
        """Give chunks of events, from the beginning."""
        with self._open() as file:
            batches = file.iter_batches(batch_size=self.chunk_events)
            while (batch := self._checked(next, batches, None)) is not None:
                yield _from_batch(batch)

    @contextlib.contextmanager
    def _open(self) -> Iterator[pyarrow.parquet.ParquetFile]:
        with self._checked(pyarrow.parquet.ParquetFile, self.path) as file:
            yield file

    def _checked(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path} cannot be read as Parquet: {error}") from error


def _to_table(events: Events) -> pyarrow.Table:
    numbers = pyarrow.array(events.user.ravel())
    return pyarrow.table(
        [
            pyarrow.array(events.timestamp),
            pyarrow.array(events.displayed),
            pyarrow.array(events.click),
            pyarrow.FixedSizeListArray.from_arrays(numbers, N_FEATURES),
            pyarrow.ListArray.from_arrays(events.offsets.astype(np.int32), events.pool),
        ],
        schema=_SCHEMA,
    )


def _from_batch(batch: pyarrow.RecordBatch) -> Events:
    pools = batch.column("pool")
    offsets = pools.offsets.to_numpy().astype(np.int64)
    return Events(
        timestamp=batch.column("timestamp").to_numpy(),
        displayed=batch.column("displayed").to_numpy(),
        click=batch.column("click").to_numpy(zero_copy_only=False),
        user=batch.column("user").flatten().to_numpy().reshape(-1, N_FEATURES),
        offsets=offsets - offsets[0],
        pool=pools.flatten().to_numpy(),
    )


def _encode_footer(articles: ArticleTable, summary: Summary) -> str:
    table = {"ids": articles.ids.tolist(), "features": articles.features.tolist()}
    content = {
        "version": _VERSION,
        "articles": table,
        "summary": dataclasses.asdict(summary),
    }
    return json.dumps(content)
