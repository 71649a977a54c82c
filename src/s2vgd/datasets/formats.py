"""Readers of the file formats: unpacked binary streams in, a `Table` out.

Where the streams come from, and licences and splits, are not known here.
"""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from s2vgd.errors import DataError


@dataclass(frozen=True, eq=False)
class Table:
    """The content of a data set; the fields are those of `s2vgd.datasets.Dataset`."""

    x: np.ndarray
    y: np.ndarray
    feature_names: tuple[str, ...]
    target_name: str
    classes: tuple[str, ...] = ()
    raw: np.ndarray | None = None
    raw_names: tuple[str, ...] = ()
    n_train: int | None = None


def read_benchmark(
    stream: IO[bytes], *, columns: Sequence[str], features: Sequence[int], target: int
) -> Table:
    """Read a whitespace-separated numeric table of the UCI regression benchmark."""
    values = np.loadtxt(stream, dtype=np.float64, ndmin=2)
    return Table(
        x=values[:, list(features)],
        y=values[:, target],
        feature_names=tuple(columns[i] for i in features),
        target_name=columns[target],
    )


def read_mushroom(stream: IO[bytes], *, columns: Sequence[str]) -> Table:
    """Read UCI Mushroom: the class, then categorical attributes, one letter each."""
    letters = _rows(stream, len(columns))
    x, feature_names = encode(letters[:, 1:], columns[1:])
    return Table(
        x=x,
        y=_class_indices(letters[:, 0], ("e", "p")),
        feature_names=feature_names,
        target_name=columns[0],
        classes=("edible", "poisonous"),
        raw=letters[:, 1:],
        raw_names=tuple(columns[1:]),
    )


ADULT_COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)
_ADULT_NUMERIC = frozenset(
    ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
)


def read_adult(train: IO[bytes], test: IO[bytes]) -> Table:
    """Read UCI Adult: 14 attributes and the income class, the training file first.

    The test file starts with a comment line (``|1x3 Cross validator``) and its labels end in a
    full stop. Missing values (``?``) become a level of their column. The levels are those of the
    two files together, so that both have the same columns.
    """
    parts = [_rows(stream, len(ADULT_COLUMNS) + 1) for stream in (train, test)]
    rows = np.concatenate(parts)
    x, feature_names = encode(rows[:, :-1], ADULT_COLUMNS, numeric=_ADULT_NUMERIC)
    classes = ("<=50K", ">50K")
    return Table(
        x=x,
        y=_class_indices(np.char.rstrip(rows[:, -1], "."), classes),
        feature_names=feature_names,
        target_name="income",
        classes=classes,
        raw=rows[:, :-1],
        raw_names=ADULT_COLUMNS,
        n_train=len(parts[0]),
    )


SHUTTLE_CLASSES = (
    "Rad Flow",
    "Fpv Close",
    "Fpv Open",
    "High",
    "Bypass",
    "Bpv Close",
    "Bpv Open",
)


def read_shuttle(train: IO[bytes], test: IO[bytes]) -> Table:
    """Read Statlog Shuttle: nine integers and the class 1-7 a line, the training file first."""
    parts = [np.loadtxt(stream, dtype=np.float64, ndmin=2) for stream in (train, test)]
    values = np.concatenate(parts)
    return Table(
        x=values[:, :-1],
        y=values[:, -1].astype(np.int64) - 1,
        feature_names=("time", *(f"x{i}" for i in range(2, 10))),
        target_name="state",
        classes=SHUTTLE_CLASSES,
        n_train=len(parts[0]),
    )


COVERTYPE_CLASSES = (
    "Spruce/Fir",
    "Lodgepole Pine",
    "Ponderosa Pine",
    "Cottonwood/Willow",
    "Aspen",
    "Douglas-fir",
    "Krummholz",
)
COVERTYPE_FEATURES = (
    "Elevation",
    "Aspect",
    "Slope",
    "Horizontal_Distance_To_Hydrology",
    "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways",
    "Hillshade_9am",
    "Hillshade_Noon",
    "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points",
    *(f"Wilderness_Area{i}" for i in range(1, 5)),
    *(f"Soil_Type{i}" for i in range(1, 41)),
)


def read_covertype(stream: IO[bytes]) -> Table:
    """Read UCI Covertype: 54 integers and the cover type 1-7 a line, comma-separated."""
    values = _numeric_csv(stream)
    return Table(
        x=values[:, :-1],
        y=values[:, -1].astype(np.int64) - 1,
        feature_names=COVERTYPE_FEATURES,
        target_name="Cover_Type",
        classes=COVERTYPE_CLASSES,
    )


def read_year(stream: IO[bytes], *, n_train: int = 463_715) -> Table:
    """Read YearPredictionMSD: the year, then 12 timbre means and 78 covariances, comma-separated.

    The first `n_train` rows train and the rest test; the producers of the data ask for this
    split because it keeps each artist on one side.
    """
    values = _numeric_csv(stream)
    means = (f"timbre_mean{i}" for i in range(1, 13))
    covariances = (f"timbre_covariance{i}" for i in range(1, 79))
    return Table(
        x=values[:, 1:],
        y=values[:, 0],
        feature_names=(*means, *covariances),
        target_name="year",
        n_train=n_train,
    )


def read_images(*streams: IO[bytes], classes: Sequence[str], n_train: int | None = None) -> Table:
    """Read pairs of IDX files (images, labels), one pair after the other; a pixel is 0-255.

    The images are float32, in which the pixels are exact, at half the memory of float64.
    """
    arrays = [_read_idx(stream) for stream in streams]
    images = np.concatenate(arrays[0::2])
    height, width = images.shape[1:]
    names = (f"pixel_{row}_{column}" for row in range(height) for column in range(width))
    return Table(
        x=images.reshape(len(images), -1).astype(np.float32),
        y=np.concatenate(arrays[1::2]).astype(np.int64),
        feature_names=tuple(names),
        target_name="label",
        classes=tuple(classes),
        n_train=n_train,
    )


def encode(
    values: np.ndarray, names: Sequence[str], numeric: Iterable[str] = ()
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Turn a table of strings into numbers: one indicator for each observed level, in order.

    Parameters
    ----------
    values : ndarray of shape (N, A) of str
        The attributes.
    names : sequence of A str
        Their names.
    numeric : iterable of str
        The attributes that are numbers already, which stay one column each.

    Returns
    -------
    x : ndarray of shape (N, F)
        The columns, in the order of the attributes; levels are sorted.
    feature_names : tuple of str
        ``name`` for a number, ``name=level`` for an indicator.
    """
    numeric = frozenset(numeric)
    blocks: list[np.ndarray] = []
    feature_names: list[str] = []
    for name, column in zip(names, values.T, strict=True):
        if name in numeric:
            blocks.append(column.astype(np.float64)[:, None])
            feature_names.append(name)
        else:
            levels = np.unique(column)
            blocks.append((column[:, None] == levels).astype(np.float64))
            feature_names.extend(f"{name}={level}" for level in levels)
    return np.concatenate(blocks, axis=1), tuple(feature_names)


def _read_idx(stream: IO[bytes]) -> np.ndarray:
    """Read an array of bytes in IDX format: big-endian magic, shape, then the values."""
    zeros, kind, n_axes = struct.unpack(">HBB", stream.read(4))
    if zeros != 0 or kind != 0x08:
        raise DataError("not an IDX file of unsigned bytes")
    shape = struct.unpack(f">{n_axes}I", stream.read(4 * n_axes))
    return np.frombuffer(stream.read(), dtype=np.uint8).reshape(shape)


def _rows(stream: IO[bytes], n_columns: int) -> np.ndarray:
    """Split a comma-separated file into an (N, n_columns) array of str.

    Blank lines and comment lines, which start with ``|``, are passed over.
    """
    lines = csv.reader(io.TextIOWrapper(stream, "ascii"), skipinitialspace=True)
    rows = [row for row in lines if row and not row[0].startswith("|")]
    for number, row in enumerate(rows, start=1):
        if len(row) != n_columns:
            raise DataError(f"row {number} has {len(row)} fields, expected {n_columns}: {row}")
    return np.array(rows)


def _numeric_csv(stream: IO[bytes]) -> np.ndarray:
    import pandas as pd  # three times as fast as NumPy here, which matters at 75-450 MB

    return pd.read_csv(stream, header=None, dtype=np.float64).to_numpy()


def _class_indices(labels: np.ndarray, values: Sequence[str]) -> np.ndarray:
    indices = np.full(len(labels), -1, dtype=np.int64)
    for index, value in enumerate(values):
        indices[labels == value] = index
    if (indices < 0).any():
        unknown = sorted(set(labels[indices < 0].tolist()))
        raise DataError(f"unknown class labels {unknown}; expected {list(values)}")
    return indices
