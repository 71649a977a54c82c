"""The decision log: what was decided, what came of it and what was learned, in one SQLite file.

Events are appended in one sequence, each in a transaction of its own that is committed before the
call returns, and nothing is ever changed or removed. The file says for whom it was written and in
which version of this format. What the events mean to an agent is in :mod:`s2vgd.bandits.live`; of
JAX nothing is needed here.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from s2vgd.bandits.log_events import (
    BOOLS,
    FLOATS,
    ArmChanged,
    Event,
    Outcome,
    Reader,
    Updated,
    to_blob,
)
from s2vgd.bandits.log_file import differences, open_file
from s2vgd.errors import DataError, ModelFileError

if TYPE_CHECKING:
    from s2vgd.bandits.evaluation import LoggedData

_PAGE = 512
_INSERT_DECISION = """INSERT INTO events (seq, time, kind, number, version, action, arm, propensity,
  particle, shared, actions, available, propensities)
  VALUES (?, ?, 'decision', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_INSERT_REWARD = "INSERT INTO events (seq, time, kind, number, value) VALUES (?, ?, 'reward', ?, ?)"
_INSERT_UPDATE = (
    "INSERT INTO events (seq, time, kind, version, up_to) VALUES (?, ?, 'update', ?, ?)"
)
_INSERT_ARM = "INSERT INTO events (seq, time, kind, arm, slot, actions) VALUES (?, ?, ?, ?, ?, ?)"
_COUNT = """SELECT (SELECT coalesce(max(seq), 0) FROM events),
  (SELECT coalesce(max(number), -1) + 1 FROM events),
  (SELECT count(*) FROM events WHERE kind = 'reward'),
  (SELECT coalesce(max(version), 0) FROM events WHERE up_to IS NOT NULL)"""
_DECISION = """d.seq, d.time, d.number, d.version, d.action, d.arm, d.propensity, d.particle,
  d.shared, d.actions, d.available, d.propensities"""


class Counts(NamedTuple):
    """Where a log stands: its last event, and how many of three kinds there are.

    There are as many updates as the `version` of the newest state.
    """

    last_seq: int
    n_decisions: int
    n_rewards: int
    version: int


class DecisionLog:
    """An append-only log in one SQLite file, written by one process at a time.

    Parameters
    ----------
    path : path-like, optional
        The file, made if it is missing. None keeps the log in memory.
    about : mapping, optional
        For whom the log is: JSON, with the sizes (A, F, G) of a context as ``"shape"``. It is
        needed to make a log, and compared with what an existing log says.
    durable : bool
        Whether every event is synced to the disk before the call returns, which makes it safe
        against power loss. Otherwise it is safe against the death of the process.
    readonly : bool
        Read an existing log, which may be being written to meanwhile.
    content : bytes, optional
        What :meth:`to_bytes` returned, for a log in memory.

    Raises
    ------
    ModelFileError
        If the file is damaged, foreign, too new, for somebody else, or being written to by another.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        about: Mapping[str, Any] | None = None,
        *,
        durable: bool = False,
        readonly: bool = False,
        content: bytes | None = None,
    ) -> None:
        self.path = None if path is None else Path(path).absolute()
        self._guard = threading.RLock()
        self._process = os.getpid()
        self._counts: Counts | None = None
        with self._naming_the_file():
            file = open_file(self.path, about, durable=durable, readonly=readonly, content=content)
            self._connection, self._writer_lock, meta = file
            try:
                self.log_id = meta["id"]
                self.about: dict[str, Any] = json.loads(meta["about"])
                shape = tuple(int(size) for size in self.about["shape"])
                self._reader = Reader(self._name, shape)
                if about is not None:
                    self._compare(about)
                self.counts  # noqa: B018  (read now, so that damage is found now)
            except BaseException:
                self.close()
                raise

    def check(self, about: Mapping[str, Any]) -> None:
        """Raise ModelFileError, naming what differs, unless the log is for this."""
        with self._naming_the_file():
            self._compare(about)

    def _compare(self, about: Mapping[str, Any]) -> None:
        if differing := differences(self.about, json.loads(json.dumps(about))):
            raise ModelFileError(
                f"it belongs to another agent, with other values of {', '.join(differing[:5])}; "
                "choose another file, or the settings that it has"
            )

    def _refusal(self, reason: str) -> ModelFileError:
        return ModelFileError(f"cannot write to the log {self._name}: {reason}")

    @property
    def _name(self) -> str:
        return "in memory" if self.path is None else str(self.path)

    @contextlib.contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise self._refusal(f"somebody else has written to it ({error})") from error
        except (sqlite3.Error, OSError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise ModelFileError(f"cannot use the log {self._name}: {error}") from error
        except ModelFileError as error:
            raise ModelFileError(f"cannot use the log {self._name}: {error}") from error

    @property
    def counts(self) -> Counts:
        """Where the log stands."""
        counts = self._counts
        return self._counted() if counts is None else counts

    def _counted(self) -> Counts:
        with self._guard:
            if self._counts is None:
                with self._naming_the_file():
                    self._counts = Counts(*self._connection.execute(_COUNT).fetchone())
            return self._counts

    @property
    def last_seq(self) -> int:
        """The number of the last event."""
        return self.counts.last_seq

    @property
    def n_decisions(self) -> int:
        """How many decisions there are, which is the number of the next one."""
        return self.counts.n_decisions

    @property
    def n_rewards(self) -> int:
        """How many decisions have rewards."""
        return self.counts.n_rewards

    @property
    def version(self) -> int:
        """How many updates there were."""
        return self.counts.version

    # -- writing -----------------------------------------------------------------------------

    def _append(self, statement: str, *values: Any, **grown: int) -> None:
        """Append one event, committed when this returns, after which the counts have grown."""
        with self._guard, self._naming_the_file():
            if os.getpid() != self._process:
                raise ModelFileError("it was opened before the process forked; open it after")
            before = self.counts
            seq = before.last_seq + 1
            # An interrupt may come between the commit and its count: until then nothing is known.
            self._counts = None
            try:
                self._connection.execute(statement, (seq, time.time(), *values))
            except Exception:
                self._counts = before
                raise
            self._counts = before._replace(last_seq=seq, **grown)

    def decide(
        self,
        version: int,
        context: tuple[np.ndarray, np.ndarray, np.ndarray],
        action: int,
        propensity: float,
        propensities: np.ndarray,
        particle: int,
        arm: str | None = None,
    ) -> str:
        """Append a decision and return its id.

        Parameters
        ----------
        version : int
            Of the state that decided, the newest in the log.
        context : tuple of arrays
            Shared features (F,), features of the actions (A, G) and availability (A,).
        action, propensity, propensities, particle, arm
            See :class:`~s2vgd.bandits.live.Decision`.
        """
        shared, actions, available = context
        blobs = (
            to_blob(shared, FLOATS),
            to_blob(actions, FLOATS),
            to_blob(available, BOOLS),
            to_blob(propensities, FLOATS),
        )
        with self._guard:
            now = self.counts
            if version != now.version:
                raise self._refusal(f"version {version} decides, but {now.version} was learned")
            number = now.n_decisions
            values = (number, version, action, arm, propensity, particle, *blobs)
            self._append(_INSERT_DECISION, *values, n_decisions=number + 1)
        return f"{self.log_id}-{number}"

    def reward(self, decision_id: str, value: float) -> bool:
        """Append the reward of a decision; False if the same was there already.

        Raises
        ------
        DataError
            If no decision has this id, or it has another reward.
        """
        number = self.number_of(decision_id)
        value = float(value)
        if not math.isfinite(value):
            raise DataError(f"value must be finite, got {value}")
        with self._guard:
            try:
                self._append(_INSERT_REWARD, number, value, n_rewards=self.n_rewards + 1)
            except ModelFileError:  # as a rule it is news, and no question need be asked before
                known = self._fetch_one(
                    "SELECT value FROM events WHERE number = ? AND kind = 'reward'", (number,)
                )
                if known is None:
                    raise
                if known[0] != value:
                    raise DataError(
                        f"decision {decision_id!r} already has the reward {known[0]}, got {value}"
                    ) from None
                return False
        return True

    def update(self, version: int, up_to: int) -> None:
        """Append that state `version` has learned the rewards up to event `up_to`."""
        with self._guard:
            if version != self.version + 1:
                raise self._refusal(f"version {version} cannot follow {self.version}")
            self._append(_INSERT_UPDATE, version, up_to, version=version)

    def change_arm(
        self, added: bool, name: str, slot: int, features: np.ndarray | None = None
    ) -> None:
        """Append that an arm came to a slot, or went from it."""
        blob = None if features is None else to_blob(features, FLOATS)
        self._append(_INSERT_ARM, "add" if added else "remove", name, slot, blob)

    def number_of(self, decision_id: str) -> int:
        """Return the number of a decision, or say that there is none with this id."""
        if not isinstance(decision_id, str):
            raise DataError(f"decision_id must be the id of a decision, got {decision_id!r}")
        log_id, _, digits = decision_id.rpartition("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 19:
            number = int(digits)
            if decision_id == f"{self.log_id}-{number}" and number < self.n_decisions:
                return number
        foreign = "" if log_id == self.log_id else "; it is not an id of this log"
        raise DataError(f"decision_id {decision_id!r} is unknown{foreign}")

    # -- reading -----------------------------------------------------------------------------

    def events(self, after: int = 0, until: int | None = None) -> Iterator[Event]:
        """Yield the events with ``after < seq <= until`` in their order."""
        query = f"""SELECT {_DECISION}, d.kind, d.value, d.up_to, d.slot FROM events AS d
          WHERE d.seq > ? AND d.seq <= ? ORDER BY d.seq LIMIT {_PAGE}"""
        last = self.last_seq if until is None else until
        while rows := self._fetch(query, (after, last)):
            yield from map(self._reader.event, rows)
            after = rows[-1][0]

    def outcomes(self, after: int, until: int, limit: int = -1) -> list[Outcome]:
        """Return the rewards with ``after < seq <= until``, with their decisions, in their order.

        Parameters
        ----------
        after, until : int
            Numbers of events.
        limit : int
            The most to return; all by default.
        """
        query = f"""SELECT {_DECISION}, r.seq, r.value FROM events AS r
          JOIN events AS d ON d.number = r.number AND d.kind = 'decision'
          WHERE r.seq > ? AND r.seq <= ? AND r.kind = 'reward' ORDER BY r.seq LIMIT ?"""
        rows = self._fetch(query, (after, until, limit))
        return [Outcome(row[-2], row[-1], self._reader.decided(row[:-2])) for row in rows]

    def updates(self, after_version: int = 0) -> list[Updated]:
        """Return the updates that made later versions than this, in their order."""
        query = """SELECT seq, time, version, up_to FROM events
          WHERE up_to IS NOT NULL AND version > ? ORDER BY seq"""
        return [Updated(*row) for row in self._fetch(query, (after_version,))]

    def arm_changes(self) -> list[ArmChanged]:
        """Return how arms came and went, in order."""
        query = f"""SELECT {_DECISION}, d.kind, d.value, d.up_to, d.slot FROM events AS d
          WHERE d.slot IS NOT NULL ORDER BY d.seq"""
        changes = map(self._reader.event, self._fetch(query, ()))
        return [change for change in changes if isinstance(change, ArmChanged)]

    def logged_data(self) -> LoggedData:
        """Return the decisions that have rewards, in their order, for off-policy evaluation.

        The contexts are [shared features, features of action 0, of action 1, ...], F + A G columns.

        Raises
        ------
        DataError
            If no decision has a reward yet.
        """
        from s2vgd.bandits.evaluation import LoggedData

        kept = sorted(self.outcomes(0, self.last_seq), key=lambda o: o.decision.number)
        if not kept:
            raise DataError(f"the log {self._name} has no rewards to evaluate on")
        made = [outcome.decision for outcome in kept]
        contexts = np.array([np.concatenate([d.shared, d.actions.ravel()]) for d in made])
        return LoggedData(
            actions=np.array([d.action for d in made]),
            rewards=np.array([outcome.value for outcome in kept]),
            propensities=np.array([d.propensity for d in made]),
            n_actions=self._reader.shape[0],
            contexts=contexts if contexts.shape[1] else None,
            availability=np.array([d.available for d in made]),
        )

    def to_bytes(self) -> bytes:
        """Return the whole log as the bytes of a database."""
        with self._guard, self._naming_the_file():
            return self._connection.serialize()

    def close(self) -> None:
        """Close the file and let others write to it."""
        with self._guard:
            self._connection.close()
            if self._writer_lock is not None:
                os.close(self._writer_lock)
                self._writer_lock = None

    def _fetch(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        with self._guard, self._naming_the_file():
            return self._connection.execute(query, values).fetchall()

    def _fetch_one(self, query: str, values: tuple[Any, ...]) -> Any:
        with self._guard, self._naming_the_file():
            return self._connection.execute(query, values).fetchone()
