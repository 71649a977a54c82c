"""The decision log: what was acknowledged is there, once, whatever happens to the process."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import s2vgd
from s2vgd.bandits.evaluation import SelfNormalisedIPS
from s2vgd.bandits.log import DecisionLog
from s2vgd.bandits.log_events import ArmChanged, Decided, Rewarded, Updated
from s2vgd.bandits.log_file import APPLICATION_ID
from s2vgd.errors import DataError, ModelFileError

ABOUT = {"shape": [3, 2, 1], "seed": 0, "settings": {"hidden": [4], "particles": 3}}


def context(number=0):
    rng = np.random.default_rng(number)
    shared, actions = rng.normal(size=2), rng.normal(size=(3, 1))
    return shared.astype(np.float32), actions.astype(np.float32), np.array([True, number % 2, True])


def decide(log, number=0):
    propensities = np.array([0.25, 0.0, 0.75], np.float32)
    return log.decide(log.version, context(number), 2, 0.75, propensities, 1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.db"


@pytest.fixture
def log(path):
    with contextlib.closing(DecisionLog(path, ABOUT)) as log:
        yield log


@contextlib.contextmanager
def sqlite(path):
    """Open the file as anybody could."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


# --- what goes in comes out ---


def test_events_come_back_in_their_order_with_what_they_held(log):
    before = time.time()
    ids = [decide(log, number) for number in range(2)]
    log.reward(ids[1], -1.5)
    log.change_arm(True, "a", 0, np.array([0.5], np.float32))
    log.update(1, 3)
    log.change_arm(False, "a", 0)
    ids.append(decide(log, 2))
    events = list(log.events())
    assert [event.seq for event in events] == [1, 2, 3, 4, 5, 6, 7]
    kinds = [Decided, Decided, Rewarded, ArmChanged, Updated, ArmChanged, Decided]
    assert [type(event) for event in events] == kinds
    assert all(before <= event.time <= time.time() for event in events)
    for number, event in zip(range(3), (events[0], events[1], events[6]), strict=True):
        assert event.number == number
        assert ids[number] == f"{log.log_id}-{number}"
        for held, given in zip(event.context, context(number), strict=True):
            np.testing.assert_array_equal(held, given)
        assert (event.action, event.propensity, event.particle, event.arm) == (2, 0.75, 1, None)
        np.testing.assert_array_equal(event.propensities, [0.25, 0, 0.75])
    assert [events[0].version, events[6].version] == [0, 1]
    assert events[2][2:] == (1, -1.5)
    assert events[3][2:] == (True, "a", 0, np.array([0.5], np.float32))
    assert events[4][2:] == (1, 3)
    assert events[5][2:] == (False, "a", 0, None)
    assert list(log.events(after=2, until=4)) == events[2:4]
    assert log.updates() == [events[4]] and log.updates(1) == []
    assert log.arm_changes() == [events[3], events[5]]


def test_rewards_of_many_pages_are_read_in_the_order_in_which_they_came(log):
    ids = [decide(log, number % 5) for number in range(600)]
    order = np.random.default_rng(0).permutation(600)
    for number in order:
        log.reward(ids[number], float(number))
    found = log.outcomes(0, log.last_seq)
    assert [outcome.decision.number for outcome in found] == order.tolist()
    assert [outcome.value for outcome in found] == order.tolist()
    part = log.outcomes(found[9].seq, found[40].seq, limit=7)
    assert [outcome.seq for outcome in part] == [outcome.seq for outcome in found[10:17]]
    assert len(list(log.events())) == 1200


def test_the_file_can_be_read_with_sqlite_alone(log, path):
    ids = [decide(log, number) for number in range(3)]
    log.reward(ids[1], 0.5)
    with sqlite(path) as connection:
        rows = connection.execute(
            "SELECT id, action, propensity, reward, shared FROM decisions ORDER BY number"
        ).fetchall()
    assert [row[0] for row in rows] == ids
    assert [row[1:4] for row in rows] == [(2, 0.75, None), (2, 0.75, 0.5), (2, 0.75, None)]
    np.testing.assert_array_equal(np.frombuffer(rows[2][4], "<f4"), context(2)[0])


@pytest.mark.filterwarnings("ignore:snips")
def test_evaluation_gets_the_rewarded_decisions_with_their_propensities(log):
    ids = [decide(log, number) for number in range(40)]
    for number in (30, 7, 21):
        log.reward(ids[number], float(number))
    data = log.logged_data()
    assert data.n_actions == 3
    np.testing.assert_array_equal(data.rewards, [7, 21, 30])
    np.testing.assert_array_equal(data.propensities, [0.75] * 3)
    np.testing.assert_array_equal(data.availability[:, 1], [True, True, False])
    shared, actions, _ = context(21)
    np.testing.assert_array_equal(data.contexts[1], [*shared, *actions[:, 0]])
    policy = np.tile([0.0, 0.0, 1.0], (3, 1))
    assert SelfNormalisedIPS().estimate(data, policy).value == pytest.approx(58 / 3)


def test_evaluation_without_rewards_is_refused(log):
    decide(log)
    with pytest.raises(DataError, match="no rewards"):
        log.logged_data()


# --- rewards ---


def test_the_same_reward_counts_once_and_another_is_refused(log):
    decision = decide(log)
    assert log.reward(decision, 1.0) is True
    before = log.last_seq
    assert log.reward(decision, 1.0) is False
    with pytest.raises(DataError, match=r"already has the reward 1\.0, got 2\.0"):
        log.reward(decision, 2.0)
    assert (log.last_seq, log.n_rewards) == (before, 1)


@pytest.mark.parametrize(
    "wrong", ["", "7", "{}-1", "{}-00", "{}--0", "{}-²", "{}-" + "9" * 5000, 0]
)
def test_unknown_ids_are_refused_and_change_nothing(log, wrong):
    decide(log)
    wrong = wrong.format(log.log_id) if isinstance(wrong, str) else wrong
    with pytest.raises(DataError, match="decision_id"):
        log.reward(wrong, 1.0)
    assert (log.last_seq, log.n_rewards) == (1, 0)


def test_an_id_of_another_log_is_told_from_an_unknown_one(log):
    other = DecisionLog(None, ABOUT)
    decide(log)
    with pytest.raises(DataError, match="not an id of this log"):
        log.reward(decide(other), 1.0)


# --- it is append-only, and has one writer ---


def test_events_cannot_be_changed_or_removed(log, path):
    log.reward(decide(log), 1.0)
    with sqlite(path) as connection:
        for statement in ("UPDATE events SET value = 2", "DELETE FROM events"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)


def test_versions_follow_one_another(log):
    with pytest.raises(ModelFileError, match="version 2 cannot follow 0"):
        log.update(2, 0)
    with pytest.raises(ModelFileError, match="version 1 decides"):
        log.decide(1, context(), 0, 1.0, np.ones(3, np.float32), 0)
    assert log.last_seq == 0


def test_a_second_writer_is_refused_until_the_first_has_closed(path):
    first = DecisionLog(path, ABOUT)
    with pytest.raises(ModelFileError, match="already open for writing"):
        DecisionLog(path, ABOUT)
    first.close()
    DecisionLog(path, ABOUT).close()


def test_a_writer_that_slipped_in_is_noticed(log, path):
    decide(log)
    with sqlite(path) as connection:
        connection.execute("INSERT INTO events (seq, kind, time) VALUES (2, 'update', 0)")
    with pytest.raises(ModelFileError, match="somebody else has written"):
        decide(log)


def test_a_forked_process_is_refused(log, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ModelFileError, match="forked"):
        decide(log)


def test_the_log_can_be_read_while_it_is_written(log, path):
    decide(log)
    with contextlib.closing(DecisionLog(path, readonly=True)) as reader:
        log.reward(decide(log), 1.0)
        assert len(list(reader.events(until=3))) == 3
        with pytest.raises(ModelFileError, match="readonly"):
            decide(reader)


def test_threads_append_without_losing_anything(log):
    ids = []

    def work(number):
        for _ in range(50):
            decision = decide(log, number)
            ids.append(decision)
            log.reward(decision, float(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == log.n_decisions == log.n_rewards == 200
    assert [event.seq for event in log.events()] == list(range(1, 401))


@pytest.mark.parametrize(("durable", "synchronous"), [(False, 1), (True, 2)])
def test_safety_is_what_was_asked_for(path, durable, synchronous):
    with contextlib.closing(DecisionLog(path, ABOUT, durable=durable)) as log:
        read = {
            name: log._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "checkpoint_fullfsync")
        }
    assert read == {
        "journal_mode": "wal",
        "synchronous": synchronous,
        "checkpoint_fullfsync": int(durable),
    }


def test_a_full_disk_is_reported_and_leaves_no_gap(log):
    decide(log)
    pages = log._connection.execute("PRAGMA page_count").fetchone()[0]
    log._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ModelFileError, match="full"):
        for _ in range(200):
            decide(log)
    made = log.n_decisions
    log._connection.execute("PRAGMA max_page_count = 100000")
    decide(log)
    assert [event.seq for event in log.events()] == list(range(1, made + 2))


def test_an_interrupt_between_commit_and_count_leaves_no_gap(log):
    class Interrupted:
        def execute(self, *statement):
            connection.execute(*statement)
            raise KeyboardInterrupt

    connection, log._connection = log._connection, Interrupted()
    with pytest.raises(KeyboardInterrupt):
        decide(log)
    log._connection = connection
    assert decide(log) == f"{log.log_id}-1"
    assert [event.seq for event in log.events()] == [1, 2]


# --- files that are not what they should be ---


def test_a_log_for_another_agent_is_refused_by_what_differs(log, path):
    log.close()
    other = {"shape": [3, 2, 1], "seed": 1, "settings": {"hidden": [5], "particles": 3}}
    with pytest.raises(ModelFileError, match=r"other values of seed, settings\.hidden;"):
        DecisionLog(path, other)
    DecisionLog(path, ABOUT).close()


@pytest.mark.parametrize("content", [b"hello, this is no log at all", b"SQLite format 3\0" * 99])
def test_files_that_are_no_database_are_refused_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=str(path)):
        DecisionLog(path, ABOUT)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused_and_left_alone(path):
    with sqlite(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    content = path.read_bytes()
    with pytest.raises(ModelFileError, match="no decision log"):
        DecisionLog(path, ABOUT)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("PRAGMA user_version = 2", "version 2 of the format.*upgrade"),
        ("PRAGMA application_id = 5", "no decision log"),
        ("CREATE TABLE more (x)", "tables are not those"),
        (
            "CREATE TRIGGER trap AFTER INSERT ON events BEGIN DELETE FROM meta; END",
            "tables are not those",
        ),
        ("DROP TRIGGER nothing_is_removed", "tables are not those"),
        ("DELETE FROM meta", "for whom"),
        ("UPDATE meta SET value = '{' WHERE key = 'about'", "cannot use the log"),
    ],
)
def test_newer_foreign_and_altered_logs_are_refused(log, path, statement, message):
    decide(log)
    log.close()
    with sqlite(path) as connection:
        connection.execute(statement)
    for readonly in (True, False):
        with pytest.raises(ModelFileError, match=message):
            DecisionLog(path, ABOUT, readonly=readonly)


def test_a_truncated_or_overwritten_log_is_refused(log, path):
    for number in range(300):
        decide(log, number)
    log.close()
    content = path.read_bytes()
    size = len(content)
    damaged = [content[: size // 2 // 4096 * 4096], content[: size - 100]]
    damaged.append(content[:8192] + b"\xff" * 8192 + content[16384:])
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(ModelFileError, match=str(path)):
            DecisionLog(path, ABOUT)
    path.write_bytes(content)
    DecisionLog(path, ABOUT).close()


def test_a_decision_that_does_not_fit_the_shape_is_reported(log, path):
    with sqlite(path) as connection:
        connection.execute(
            "INSERT INTO events (seq, kind, time, number, version, action, shared) "
            "VALUES (1, 'decision', 0, 0, 0, 1, x'00')"
        )
    with pytest.raises(ModelFileError, match="damaged: event 1"):
        list(log.events(until=1))


@pytest.mark.parametrize("place", ["missing.db", "no/such/directory.db", "."])
def test_places_where_no_log_can_be_read_are_refused(tmp_path, place):
    with pytest.raises(ModelFileError, match=r"not exist|not a file"):
        DecisionLog(tmp_path / place, readonly=True)


def test_what_a_death_during_creation_leaves_is_made_whole(path):
    path.touch()
    DecisionLog(path, ABOUT).close()
    path.unlink()
    with sqlite(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    with contextlib.closing(DecisionLog(path, ABOUT)) as log:
        assert decide(log).endswith("-0")


def test_the_application_id_is_documented():
    assert APPLICATION_ID.to_bytes(4, "big") == b"S2VG"
    page = Path(__file__).parent.parent / "docs" / "live.md"
    assert str(APPLICATION_ID) in page.read_text(encoding="utf-8")


# --- death ---

LIGHT = """
import os, sys, types
import numpy as np
import s2vgd

# The package of agents imports JAX, which the log does not need, and takes its time.
package = types.ModuleType("s2vgd.bandits")
package.__path__ = [os.path.join(s2vgd.__path__[0], "bandits")]
sys.modules["s2vgd.bandits"] = package
from s2vgd.bandits.log import DecisionLog

assert "jax" not in sys.modules
path, about, durable = sys.argv[1], {"shape": [3, 2, 1], "seed": 0}, sys.argv[2] == "durable"
log = DecisionLog(path, about, durable=durable)
rng = np.random.default_rng(log.last_seq)


def acknowledge(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


def reward(number):
    log.reward(f"{log.log_id}-{number}", number / 4)
    acknowledge("reward", number)


# A client that got no answer before the death sends its reward again.
for number in range(max(log.n_decisions - 5, 0), log.n_decisions):
    reward(number)
while True:
    number = log.n_decisions
    shared, actions = np.full(2, number, np.float32), np.zeros((3, 1), np.float32)
    propensities = np.array([0.5, 0.25, 0.25], np.float32)
    made = log.decide(log.version, (shared, actions, np.ones(3, bool)), 1, 0.25, propensities, 0)
    assert made == f"{log.log_id}-{number}"
    acknowledge("decision", number)
    reward(rng.integers(number + 1))
    if number % 7 == 0:
        log.update(log.version + 1, log.last_seq)
        acknowledge("update", log.version)
"""


def killed_at_random(code, arguments, rng, *, early, spell=0.02, environment=None):
    """Run a child, kill it, and return the words that it had acknowledged."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    root = str(Path(s2vgd.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": root, **(environment or {})}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
    received = b""
    try:
        if early:
            time.sleep(rng.uniform(0.05, 0.3))
        else:
            received = os.read(child.stdout.fileno(), 65536)
            assert received, "the child died of itself"
            time.sleep(rng.uniform(0, spell))
    finally:
        child.send_signal(signal.SIGKILL)
        received += child.stdout.read()
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
    # A line is complete or was not sent: it is one write, shorter than the buffer of a pipe.
    return [tuple(line.split()) for line in received.decode().splitlines()]


@pytest.mark.parametrize("safety", ["usual", "durable"])
def test_killed_writers_lose_nothing_acknowledged_and_count_nothing_twice(path, safety):
    """96 deaths in all, a tenth of them while the process starts and opens or makes the log."""
    rng = random.Random(safety)
    acknowledged = {"decision": set(), "reward": set(), "update": set()}
    for death in range(48):
        early = death % 10 == 0
        for kind, number in killed_at_random(LIGHT, (path, safety), rng, early=early):
            acknowledged[kind].add(int(number))
        if death == 0:
            continue
        with contextlib.closing(DecisionLog(path, {"shape": [3, 2, 1], "seed": 0})) as log:
            events = list(log.events())
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        decisions = [event for event in events if isinstance(event, Decided)]
        rewards = [event for event in events if isinstance(event, Rewarded)]
        updates = [event.version for event in events if isinstance(event, Updated)]
        numbers = [event.number for event in decisions]
        assert numbers == list(range(len(numbers)))
        assert all((event.shared == event.number).all() for event in decisions)
        assert len({event.number for event in rewards}) == len(rewards)
        assert all(event.value == event.number / 4 for event in rewards)
        assert updates == list(range(1, len(updates) + 1))
        found = {
            "decision": set(numbers),
            "reward": {event.number for event in rewards},
            "update": set(updates),
        }
        assert all(acknowledged[kind] <= found[kind] for kind in found)
        # What is there without an acknowledgement was under way at one of the deaths.
        assert sum(len(found[kind] - acknowledged[kind]) for kind in found) <= death + 1
    assert len(acknowledged["decision"]) > 40
    assert len(acknowledged["reward"]) > 20
    assert len(acknowledged["update"]) > 2
