"""The SQLite file of a decision log: its tables, and the checks before it is believed.

Events are in :mod:`s2vgd.bandits.log_events`, and who appends them in :mod:`s2vgd.bandits.log`. A
file that is damaged, foreign, newer or made to mislead is refused before anything in it is used:
its tables, views and triggers must be those below to the letter. Of JAX nothing is needed here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from s2vgd.errors import ModelFileError

try:
    import fcntl
except ImportError:  # Windows has no such locks; there, one writer at a time is up to the user.
    fcntl = None  # type: ignore[assignment]

APPLICATION_ID = 0x53325647
"""``S2VG``, in the header of the file: what distinguishes a decision log from other databases."""
VERSION = 1

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
  seq INTEGER PRIMARY KEY,
  kind TEXT NOT NULL CHECK (kind IN ('decision', 'reward', 'update', 'add', 'remove')),
  time REAL NOT NULL,
  number INTEGER,
  version INTEGER,
  action INTEGER,
  arm TEXT,
  propensity REAL,
  particle INTEGER,
  shared BLOB,
  actions BLOB,
  available BLOB,
  propensities BLOB,
  value REAL,
  up_to INTEGER,
  slot INTEGER,
  UNIQUE (number, kind)
);
CREATE INDEX updates ON events (up_to) WHERE up_to IS NOT NULL;
CREATE INDEX arms ON events (slot) WHERE slot IS NOT NULL;
CREATE TRIGGER nothing_is_changed BEFORE UPDATE ON events
  BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER nothing_is_removed BEFORE DELETE ON events
  BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE VIEW decisions AS
  SELECT meta.value || '-' || d.number AS id, d.seq, d.time, d.number, d.version, d.action, d.arm,
    d.propensity, d.particle, d.shared, d.actions, d.available, d.propensities,
    r.value AS reward, r.time AS reward_time
  FROM events AS d JOIN meta ON meta.key = 'id'
  LEFT JOIN events AS r ON r.number = d.number AND r.kind = 'reward'
  WHERE d.kind = 'decision';
"""


class OpenFile(NamedTuple):
    """An open log.

    Attributes
    ----------
    connection : sqlite3.Connection
        Every statement is a transaction of its own.
    writer_lock : int or None
        Descriptor to close when writing is over.
    meta : dict
        ``"id"``, ``"about"`` (JSON) and ``"created"``.
    """

    connection: sqlite3.Connection
    writer_lock: int | None
    meta: dict[str, str]


def open_file(
    path: Path | None,
    about: Mapping[str, Any] | None,
    *,
    durable: bool,
    readonly: bool,
    content: bytes | None,
) -> OpenFile:
    """Open a log, or make one; see :class:`~s2vgd.bandits.log.DecisionLog` for the parameters."""
    with contextlib.ExitStack() as undo:
        writer_lock = None
        if path is not None:
            _check_header(path, must_exist=readonly)
            if not readonly:
                writer_lock = _lock(path)
                if writer_lock is not None:
                    undo.callback(os.close, writer_lock)
        connection = _connect(path, readonly, content)
        undo.callback(connection.close)
        if _is_empty(connection):
            if about is None:
                raise ModelFileError("it holds no decision log")
            _create(connection, about)
        _check_format(connection)
        if path is not None and not readonly:
            _set_safety(connection, durable)
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        if not {"id", "about"} <= meta.keys():
            raise ModelFileError("it does not say for whom it was written")
        undo.pop_all()
    return OpenFile(connection, writer_lock, meta)


def differences(one: Any, other: Any, name: str = "") -> list[str]:
    """Return the names of what differs between two JSON objects."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        prefix = f"{name}." if name else ""
        return [
            found
            for key in keys
            for found in differences(one.get(key), other.get(key), f"{prefix}{key}")
        ]
    return [] if one == other else [name]


def _check_header(path: Path, *, must_exist: bool) -> None:
    """Raise unless the file is a database, or missing or empty where it may be."""
    if not path.exists():
        if must_exist:
            raise ModelFileError("it does not exist")
        if not path.parent.is_dir():
            raise ModelFileError(f"there is no directory {path.parent}")
        return
    if not path.is_file():
        raise ModelFileError("it is not a file")
    with open(path, "rb") as file:
        if file.read(16) not in (b"", b"SQLite format 3\0"):
            raise ModelFileError("it is not a SQLite database")


def _lock(path: Path) -> int | None:
    """Become the only writer; the lock ends with the process, however that ends."""
    if fcntl is None:
        return None
    # Not the database itself: closing any handle of that drops the locks which SQLite holds on it.
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ModelFileError("it is already open for writing, here or in another process") from None
    except OSError:
        pass  # some network file systems cannot lock
    return descriptor


def _connect(path: Path | None, readonly: bool, content: bytes | None) -> sqlite3.Connection:
    options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
    if path is not None:
        mode = "ro" if readonly else "rwc"
        connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, **options)
    else:
        connection = sqlite3.connect(":memory:", **options)
        if content is not None:
            with contextlib.closing(sqlite3.connect(":memory:")) as given:
                given.deserialize(content)
                given.backup(connection)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _is_empty(connection: sqlite3.Connection) -> bool:
    marks = [
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("application_id", "user_version")
    ]
    return marks == [0, 0] and not _objects(connection)


def _objects(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    query = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    return connection.execute(query).fetchall()


@functools.cache
def _expected_objects() -> list[tuple[str, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return _objects(connection)


def _create(connection: sqlite3.Connection, about: Mapping[str, Any]) -> None:
    """Make the tables in one transaction, so that a log exists whole or not at all."""
    text = json.dumps(about, allow_nan=False)
    connection.executescript(
        f"BEGIN; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
        + _SCHEMA
    )
    rows = [("id", secrets.token_hex(4)), ("about", text), ("created", str(time.time()))]
    connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
    connection.execute("COMMIT")


def _check_format(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise ModelFileError("it is a database, but no decision log")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise ModelFileError(
            f"it has version {version} of the format, and this s2vgd reads up to {VERSION}; "
            "upgrade s2vgd"
        )
    if version < 1 or _objects(connection) != _expected_objects():
        raise ModelFileError(f"its tables are not those of a decision log of version {version}")
    if (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise ModelFileError(f"it is damaged: {found}")


def _set_safety(connection: sqlite3.Connection, durable: bool) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise ModelFileError(f"no write-ahead log is possible there ({mode}); use a local disk")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    if durable:  # what it takes on macOS; without meaning elsewhere
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
