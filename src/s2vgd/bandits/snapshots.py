"""Saved states of live agents: a short cut, since all else is in the log that they belong to.

A snapshot is a directory of :mod:`s2vgd.files` with the arrays of one state, what it was learned
from, and the place of the log. A log in memory, which has no place, goes along.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from s2vgd import files
from s2vgd.bandits.learner import Held
from s2vgd.bandits.log import DecisionLog
from s2vgd.errors import ModelFileError

KIND = "live agent"
VERSION = 1

_COUNTS = ("version", "learned", "up_to", "seq")
_METADATA = {"about", "log", "log_id", "durable", *_COUNTS}


class Snapshot(NamedTuple):
    """What a directory holds: arrays by name, and metadata as JSON."""

    arrays: dict[str, np.ndarray]
    metadata: dict[str, Any]

    @property
    def log_content(self) -> bytes | None:
        """The log itself, if it was in memory."""
        return self.arrays["log"].tobytes() if "log" in self.arrays else None

    def restore(self, log: DecisionLog, example: Any) -> tuple[Any, int, int, int]:
        """Return the state, and how it came about, if it came from this log.

        Parameters
        ----------
        log : DecisionLog
            As it is now.
        example : pytree
            A state of the agent that is to go on.

        Raises
        ------
        ModelFileError
            If state and log do not belong together.
        """
        metadata, name = self.metadata, log.path
        log.check(metadata["about"])
        if log.log_id != metadata["log_id"]:
            raise ModelFileError(f"the log {name} is not the one that the agent was saved with")
        if log.last_seq < metadata["seq"]:
            raise ModelFileError(
                f"the log {name} ends at event {log.last_seq}, but the agent was saved at "
                f"{metadata['seq']}: the end of the log is lost"
            )
        state = files.arrays_to_tree(self.arrays, example, "state")
        return state, metadata["version"], metadata["learned"], metadata["up_to"]


def take(held: Held, log: DecisionLog, about: Mapping[str, Any], durable: bool) -> Snapshot:
    """Return a snapshot of a state, and of where its log is now, which may have gone on since."""
    seq = log.last_seq  # before the log itself is read, which must not end earlier
    arrays = files.tree_to_arrays(held.state, "state")
    if log.path is None:
        arrays["log"] = np.frombuffer(log.to_bytes(), np.uint8)
    metadata = {
        "about": about,
        "version": held.version,
        "learned": held.learned,
        "up_to": held.up_to,
        "seq": seq,
        "log": None if log.path is None else str(log.path),
        "log_id": log.log_id,
        "durable": durable,
    }
    return Snapshot(arrays, metadata)


def write(directory: str | os.PathLike[str], snapshot: Snapshot) -> None:
    """Write a snapshot to a directory, atomically."""
    files.save_directory(directory, *snapshot, kind=KIND, version=VERSION)


def read(directory: str | os.PathLike[str]) -> Snapshot:
    """Read a snapshot.

    Raises
    ------
    ModelFileError
        If the directory is damaged, foreign or too new, or the log that it names is not there.
    """
    arrays, metadata, _ = files.load_directory(directory, kind=KIND, max_version=VERSION)
    is_sound = (
        metadata.keys() == _METADATA
        and isinstance(metadata["about"], dict)
        and all(isinstance(metadata[name], int) for name in _COUNTS)
    )
    if not is_sound:
        raise ModelFileError(f"{directory} does not describe a live agent.")
    return Snapshot(arrays, metadata)


def find_log(directory: Any, snapshot: Snapshot, moved_to: Any) -> str | os.PathLike[str] | None:
    """Return where the log of a snapshot is; None if it was in memory."""
    path = snapshot.metadata["log"] if moved_to is None else moved_to
    if path is not None and not Path(path).exists():
        raise ModelFileError(f"the log {path} of {directory} is not there; say where, as log")
    return path
