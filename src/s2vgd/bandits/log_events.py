"""The events of a decision log, and how they are read from the rows of its file.

Tables are in :mod:`s2vgd.bandits.log_file`. Of JAX nothing is needed here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from s2vgd.errors import ModelFileError

FLOATS = np.dtype("<f4")
BOOLS = np.dtype("?")


class Decided(NamedTuple):
    """A decision: its place in the sequence and what :class:`~s2vgd.bandits.live.Decision` says.

    `version` is that of the state that decided; `shared` (F,), `actions` (A, G) and `available`
    (A,) are the context, `propensities` is (A,).
    """

    seq: int
    time: float
    number: int
    version: int
    action: int
    arm: str | None
    propensity: float
    particle: int
    shared: np.ndarray
    actions: np.ndarray
    available: np.ndarray
    propensities: np.ndarray

    @property
    def context(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Shared features, features of the actions, and availability."""
        return self.shared, self.actions, self.available


class Rewarded(NamedTuple):
    """The reward of decision `number`."""

    seq: int
    time: float
    number: int
    value: float


class Updated(NamedTuple):
    """State `version` was made by learning the rewards up to event `up_to`, in their order."""

    seq: int
    time: float
    version: int
    up_to: int


class ArmChanged(NamedTuple):
    """An arm came (`added`) to a slot, with features (G,) or None, or went."""

    seq: int
    time: float
    added: bool
    name: str
    slot: int
    features: np.ndarray | None


class Outcome(NamedTuple):
    """A reward with the decision that it belongs to; `seq` is that of the reward."""

    seq: int
    value: float
    decision: Decided


Event = Decided | Rewarded | Updated | ArmChanged


def to_blob(array: np.ndarray, dtype: np.dtype[Any]) -> bytes:
    """Return an array as it is kept in the file."""
    return np.ascontiguousarray(array, dtype).tobytes()


class Reader(NamedTuple):
    """Makes events of rows.

    Parameters
    ----------
    name : str
        Of the log, for messages.
    shape : tuple of int
        A, F and G of the contexts.
    """

    name: str
    shape: tuple[int, ...]

    def event(self, row: tuple[Any, ...]) -> Event:
        """Read a row of any kind: the columns of a decision, then kind, value, up_to and slot."""
        kind, value, up_to, slot = row[12:]
        seq, when, number, version, _, arm = row[:6]
        if kind == "decision":
            return self.decided(row[:12])
        if kind == "reward":
            return Rewarded(seq, when, number, value)
        if kind == "update":
            return Updated(seq, when, version, up_to)
        features = None if row[9] is None else self._array(seq, row[9], FLOATS, self.shape[2:])
        return ArmChanged(seq, when, kind == "add", arm, slot, features)

    def decided(self, row: tuple[Any, ...]) -> Decided:
        """Read the columns of a decision."""
        n_actions, n_shared, n_own = self.shape
        seq: int = row[0]
        if not isinstance(row[4], int) or not 0 <= row[4] < n_actions:
            raise ModelFileError(f"the log {self.name} is damaged: event {seq} has no such action")
        parts = (
            (FLOATS, (n_shared,)),
            (FLOATS, (n_actions, n_own)),
            (BOOLS, (n_actions,)),
            (FLOATS, (n_actions,)),
        )
        blobs = zip(row[8:12], parts, strict=True)
        return Decided._make((*row[:8], *(self._array(seq, blob, *part) for blob, part in blobs)))

    def _array(
        self, seq: int, blob: Any, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> np.ndarray:
        try:
            return np.frombuffer(blob, dtype).reshape(shape)
        except (TypeError, ValueError):
            raise ModelFileError(
                f"the log {self.name} is damaged: event {seq} does not fit {shape}"
            ) from None
