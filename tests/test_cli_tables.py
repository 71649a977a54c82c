"""Table files: what is read from CSV and Parquet, in which pieces, and what is refused."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

from s2vgd.cli.tables import iter_table, read_table, table_writer
from s2vgd.errors import DataError


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_cells_arrive_as_they_are_written(tmp_path):
    path = write(tmp_path / "t.csv", 'a,b\n007,"x, y"\n1.0,\nNA,"two\nlines"\n')
    frame = read_table(path)
    assert frame.to_dict("list") == {"a": ["007", "1.0", "NA"], "b": ["x, y", "", "two\nlines"]}


@pytest.mark.parametrize(
    "content",
    [
        "a,b\n1,2\n",
        "a;b\n1;2\n",
        "a\tb\n1\t2\n",
        "\ufeffa,b\r\n1,2\r\n",
        " a , b \n1,2\n\n",
        ",a,b\n0,1,2\n",
        '"a",b,\n1,2,\n',
    ],
    ids=["comma", "semicolon", "tab", "bom", "spaces", "pandas-index", "trailing-comma"],
)
def test_common_dialects_give_the_same_table(tmp_path, content):
    frame = read_table(write(tmp_path / "t.csv", content))
    assert frame.to_dict("list") == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_compressed_csv(tmp_path, suffix, compress):
    path = write(tmp_path / f"t.csv.{suffix}", compress(b"a,b\n1,2\n"))
    assert read_table(path).to_dict("list") == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "", "is empty"),
        ("t.csv", "\n1,2\n", "is empty"),
        ("t.csv", "a,b\n", "has no rows"),
        ("t.csv", "a,b,a\n1,2,3\n", "more than one column named 'a'"),
        ("t.csv", "a,b\n1,2\n3\n", r"Row #2: Expected 2 columns, got 1"),
        ("t.csv", "a,b\n1,2\n3,4,5\n", r"Row #2: Expected 2 columns, got 3"),
        ("t.csv", "a,b\n1,caf\xe9\n".encode("latin-1"), "UTF-8"),
        ("t.csv", "caf\xe9,b\n1,2\n".encode("latin-1"), "not text in UTF-8"),
        (
            "t.csv.gz",
            gzip.compress(b"a,b\n" + b"1,2\n" * 9999, mtime=0)[:-30],
            "cannot be read as CSV",
        ),
        ("t.csv.gz", "a,b\n1,2\n", "cannot be read as CSV"),
        ("t.parquet", "not parquet", "cannot be read as Parquet"),
        ("t.xlsx", "PK", "neither CSV .* nor Parquet"),
    ],
)
def test_unusable_files(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        read_table(write(tmp_path / name, content))


def test_absent_files_and_directories(tmp_path):
    with pytest.raises(DataError, match="no file"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match="is a directory"):
        read_table(tmp_path)


def test_parquet_without_rows_or_with_repeated_names(tmp_path):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": pyarrow.array([], "int64")}), path)
    with pytest.raises(DataError, match="no rows"):
        read_table(path)
    twice = pyarrow.Table.from_arrays([pyarrow.array([1])] * 2, names=["a", "a"])
    pyarrow.parquet.write_table(twice, path)
    with pytest.raises(DataError, match="more than one column named 'a'"):
        read_table(path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_pieces_have_one_length_and_keep_the_order(tmp_path, suffix, monkeypatch):
    """Row groups and read blocks of the file must not show, or each would be compiled anew."""
    monkeypatch.setattr("s2vgd.cli.tables._BLOCK_BYTES", 64)
    frame = pd.DataFrame({"a": range(103)})
    path = tmp_path / f"t.{suffix}"
    if suffix == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, row_group_size=7)
    pieces = list(iter_table(path, 20))
    assert [len(piece) for piece in pieces] == [20] * 5 + [3]
    np.testing.assert_array_equal(pd.concat(pieces)["a"].astype(int), frame["a"])


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
def test_written_tables_read_back(tmp_path, name):
    frame = pd.DataFrame({"x": [0.1, 1 / 3], "label": ["a, b", "c"]})
    with table_writer(tmp_path / name) as append:
        append(frame)
        append(frame)
    back = read_table(tmp_path / name)
    np.testing.assert_array_equal(back["x"].astype(float), [0.1, 1 / 3] * 2)
    assert list(back["label"]) == ["a, b", "c"] * 2
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_an_interrupted_table_never_appears(tmp_path, name):
    with pytest.raises(RuntimeError, match="stop"), table_writer(tmp_path / name) as append:
        append(pd.DataFrame({"x": [1]}))
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written(tmp_path):
    for path, message in [
        (tmp_path / "no" / "t.csv", "no directory"),
        (tmp_path, "is a directory"),
    ]:
        with pytest.raises(DataError, match=message), table_writer(path):
            pass
