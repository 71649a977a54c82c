"""Result files: what a run is, and one JSON line for each that has finished.

A line is written whole or not at all, and what a killed process left of one is not read. Nothing
here runs or measures anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One method, learned and judged once.

    Parameters
    ----------
    experiment, method, dataset : str
        Names.
    split : int
        Which of the data set's splits into training and test rows.
    seed : int
        Tells repetitions on the same split apart.
    config : mapping
        Settings, as JSON has them. The same run with other settings is another run.
    """

    experiment: str
    method: str
    dataset: str
    split: int
    seed: int
    config: Mapping[str, Any]

    @property
    def key(self) -> str:
        """What tells this run from all others, as text."""
        return _key(vars(self))

    @property
    def random_state(self) -> int:
        """The number that all randomness of the run comes from, another one in each split."""
        return 1000 * self.seed + self.split

    def __str__(self) -> str:
        """Name it in a line of progress."""
        return f"{self.experiment} {self.dataset} {self.method} {self.split}/{self.seed}"


_PARTS = ("experiment", "method", "dataset", "split", "seed", "config")


def key_of(row: Mapping[str, Any]) -> str:
    """Return the key of the run that a line is of."""
    return _key(row)


def _key(parts: Mapping[str, Any]) -> str:
    return json.dumps({name: parts.get(name) for name in _PARTS}, sort_keys=True)


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line to a file in one write, and wait until it is on the disk.

    Raises
    ------
    ValueError
        If the row holds NaN or an infinity, which JSON has no words for.
    """
    line = json.dumps(row, allow_nan=False, ensure_ascii=False).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # what a killed process left must not swallow this line
        if os.write(descriptor, line) != len(line):
            raise OSError(f"could not write a whole line to {path}; is the disk full?")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> list[Row]:
    """Return the lines of a file that are whole; none if there is no file."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue  # half a line, or the empty end of the file
        if isinstance(row, dict):
            rows.append(row)
    return rows


def latest(rows: list[Row]) -> list[Row]:
    """Return the last line of each run: a retried run counts once."""
    return list({key_of(row): row for row in rows}.values())
