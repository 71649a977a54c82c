"""Table files: CSV (also with tabs or semicolons, also compressed) and Parquet, in and out.

Cells of a CSV file are delivered as text, exactly as written: what they mean is decided once,
from the whole training table, by :class:`s2vgd.tabular.TableCodec`. Guessing types here would
guess differently for each piece of a file.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import lzma
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from s2vgd.errors import DataError
from s2vgd.files import replacing

_TEXT_SUFFIXES = {"", ".csv", ".tsv", ".tab", ".txt", ".data"}
_PARQUET_SUFFIXES = {".parquet", ".pq"}
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_BLOCK_BYTES = 8 * 2**20


def read_table(path: Path) -> pd.DataFrame:
    """Read a whole table file."""
    return next(iter_table(path, rows=sys.maxsize))


def iter_table(path: Path, rows: int) -> Iterator[pd.DataFrame]:
    """Read a table file in pieces of `rows` rows (the last may have fewer), in bounded memory.

    Parameters
    ----------
    path : Path
        Parquet or CSV by its suffix. In a CSV file the first line names the columns; commas,
        semicolons or tabs separate the cells, whichever the first line has most of; columns
        without a name, such as the row index that pandas writes, are left out.
    rows : int
        Rows in a piece.

    Raises
    ------
    DataError
        If the file is absent, empty, damaged, ragged, has no rows, or repeats a column name.
    """
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if path.is_dir():
        raise DataError(f"{path} is a directory, not a table")
    is_parquet = _is_parquet(path)
    try:
        with _open_parquet(path) if is_parquet else _open_csv(path) as batches:
            pieces = _even_pieces(batches, rows)
            first = next(pieces, None)
            if first is None:
                raise DataError(f"{path} has no rows")
            yield first.to_pandas()
            yield from (piece.to_pandas() for piece in pieces)
    except (pyarrow.ArrowException, EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
        form = "Parquet" if is_parquet else "CSV in UTF-8"
        raise DataError(f"{path} cannot be read as {form}: {error}") from error


def _is_parquet(path: Path) -> bool:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in _OPENERS:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in _TEXT_SUFFIXES | _PARQUET_SUFFIXES:
        raise DataError(f"{path} is neither CSV (.csv, .tsv, .csv.gz, ...) nor Parquet (.parquet)")
    return suffix in _PARQUET_SUFFIXES


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[Iterable[pyarrow.RecordBatch]]:
    with pyarrow.parquet.ParquetFile(path) as file:
        _check_names(path, file.schema_arrow.names)
        yield file.iter_batches()


@contextlib.contextmanager
def _open_csv(path: Path) -> Iterator[Iterable[pyarrow.RecordBatch]]:
    with _OPENERS.get(path.suffix.lower(), open)(path, "rb") as file:
        try:
            first_line = file.readline().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not text in UTF-8: {error}") from error
        if not first_line.strip():
            raise DataError(
                f"{path} is empty: a first line with the names of the columns is needed"
            )
        delimiter = _delimiter(first_line)
        header = [name.strip() for name in next(csv.reader([first_line], delimiter=delimiter))]
        named = [name for name in header if name]
        _check_names(path, named)
        placeholders = [name or f"\0{i}" for i, name in enumerate(header)]
        try:
            yield pyarrow.csv.open_csv(
                file,
                # One thread, because only then do messages say which row was wrong.
                pyarrow.csv.ReadOptions(
                    use_threads=False, block_size=_BLOCK_BYTES, column_names=placeholders
                ),
                pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(placeholders, pyarrow.string()),
                    include_columns=named,
                ),
            )
        except pyarrow.ArrowInvalid as error:
            if "Empty CSV file" not in str(error):
                raise
            raise DataError(f"{path} has no rows") from None


def _check_names(path: Path, names: list[str]) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path} has more than one column named {', '.join(map(repr, repeated))}")


def _delimiter(header: str) -> str:
    """Return whichever of comma, semicolon and tab the header uses most outside quotes."""
    bare = re.sub(r'"[^"]*"', "", header)
    return max(",;\t", key=bare.count)


def _even_pieces(batches: Iterable[pyarrow.RecordBatch], rows: int) -> Iterator[pyarrow.Table]:
    """Cut batches of any length into pieces of one length, so that compiled code is reused."""
    held: list[pyarrow.Table] = []
    for batch in batches:
        held.append(pyarrow.Table.from_batches([batch]))
        if sum(piece.num_rows for piece in held) >= rows:
            table = pyarrow.concat_tables(held)
            whole = table.num_rows // rows * rows
            yield from (table.slice(start, rows) for start in range(0, whole, rows))
            held = [table.slice(whole)]
    if sum(piece.num_rows for piece in held) > 0:
        yield pyarrow.concat_tables(held)


@contextlib.contextmanager
def table_writer(path: Path | None) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Give a function that appends rows to a table; the file appears when it is complete.

    Parameters
    ----------
    path : Path or None
        Parquet or CSV by its suffix; None is CSV on standard output, which likewise gets
        everything at the end or nothing.
    """
    if path is None:
        with tempfile.TemporaryDirectory() as directory:
            table = Path(directory) / "table.csv"
            with table_writer(table) as write:
                yield write
            with open(table, encoding="utf-8", newline="") as file:
                shutil.copyfileobj(file, sys.stdout)
        return
    is_parquet = _is_parquet(path)
    opener = _OPENERS.get(path.suffix.lower(), open)
    separator = "\t" if {".tsv", ".tab"} & set(path.suffixes[-2:]) else ","
    with replacing(path) as temporary, contextlib.ExitStack() as closing:
        sink: Any = None

        def write(frame: pd.DataFrame) -> None:
            nonlocal sink
            is_first = sink is None
            if is_parquet:
                table = pyarrow.Table.from_pandas(frame, preserve_index=False)
                if is_first:
                    writer = pyarrow.parquet.ParquetWriter(temporary, table.schema)
                    sink = closing.enter_context(writer)
                sink.write_table(table)
            else:
                if is_first:
                    text = opener(temporary, "wt", encoding="utf-8", newline="")
                    sink = closing.enter_context(text)
                frame.to_csv(sink, index=False, header=is_first, sep=separator)

        yield write
