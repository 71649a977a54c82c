"""Data sets of the paper and its field, by name.

The nine UCI regression sets and Mushroom are part of the package. The larger ones are looked for
in the directory named by ``S2VGD_DATA``, then in the user's cache (``S2VGD_CACHE`` overrides where
that is), then downloaded from the canonical address; every file is checked against its published
checksum.

>>> from s2vgd import datasets
>>> yacht = datasets.load("yacht")
>>> train, test = yacht.splits[0]
"""

from __future__ import annotations

import difflib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from s2vgd.datasets import catalogue, storage
from s2vgd.datasets.dataset import Dataset, Task
from s2vgd.datasets.toy import toy_classification, toy_function, toy_regression
from s2vgd.errors import DataError

__all__ = [
    "Dataset",
    "DatasetInfo",
    "fetch",
    "info",
    "load",
    "names",
    "toy_classification",
    "toy_function",
    "toy_regression",
]


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a data set without reading it.

    Attributes
    ----------
    where : {"embedded", "directory", "cache", "not present"}
        In the package; in the directory named by ``S2VGD_DATA``; in the cache; or to be
        downloaded. A set of several files is where its last found file is, and not present
        unless all are.
    paths : tuple of Path
        The files found so far.
    """

    name: str
    task: Task
    n_rows: int
    n_features: int
    licence: str
    source: str
    note: str
    where: Literal["embedded", "directory", "cache", "not present"]
    paths: tuple[Path, ...]


def names() -> list[str]:
    """Return the names that `load` knows."""
    return list(catalogue.entries())


def load(name: str, *, download: bool = True) -> Dataset:
    """Read a data set.

    Parameters
    ----------
    name : str
        One of `names`, in any case.
    download : bool
        Whether files that are not on this machine may be downloaded.

    Raises
    ------
    DataError
        If the name is unknown, a file is damaged, or one is missing and could not (or was not
        to) be downloaded. A damaged file is never used.
    """
    entry = _entry(name)
    files = storage.obtain(entry.files, download=download, progress=False)
    with ExitStack() as stack:
        table = entry.read(*[stack.enter_context(file.open()) for file in files])
    return Dataset(
        name=entry.name,
        task=entry.task,
        licence=entry.licence,
        source=entry.source,
        note=entry.note,
        n_splits=entry.n_splits,
        hidden_units=entry.hidden_units,
        **vars(table),
    )


def info(name: str) -> DatasetInfo:
    """Describe a data set and say where it is, without reading or downloading anything."""
    entry = _entry(name)
    located = [storage.locate(file) for file in entry.files]
    found = [file for file in located if file is not None]
    return DatasetInfo(
        name=entry.name,
        task=entry.task,
        n_rows=entry.n_rows,
        n_features=entry.n_features,
        licence=entry.licence,
        source=entry.source,
        note=entry.note,
        where=found[-1].place if len(found) == len(located) else "not present",
        paths=_unique_paths(found),
    )


def fetch(name: str, *, progress: bool = False) -> tuple[Path, ...]:
    """Make sure that a data set is on this machine and intact, downloading what is not.

    Parameters
    ----------
    name : str
        One of `names`.
    progress : bool
        Whether to show a progress bar for each download.

    Returns
    -------
    tuple of Path
        Its files. Read them with `load`.
    """
    files = storage.obtain(_entry(name).files, download=True, progress=progress)
    return _unique_paths(files)


def _unique_paths(files: list[storage.Located]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(file.path for file in files))


def _entry(name: str) -> catalogue.Entry:
    known = catalogue.entries()
    wanted = name.lower()
    if wanted in known:
        return known[wanted]
    close = [known_name for known_name in known if known_name in wanted or wanted in known_name]
    close = difflib.get_close_matches(wanted, known, n=1) or close
    hint = f" Did you mean {close[0]!r}?" if wanted and close else ""
    raise DataError(f"unknown data set {name!r}.{hint} Known: {', '.join(known)}")
