"""Agents in use: what they decide, what they learn from late rewards, and what a restart keeps."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import sqlite3
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from s2vgd.bandits import Agent, Choice, ContextShape, Learning, bernoulli, make_context, uniform
from s2vgd.bandits.agents import choose
from s2vgd.bandits.learner import CHUNK, SPARE_EVERY
from s2vgd.bandits.linear import lin_ts
from s2vgd.bandits.live import Decision, Live, SteinThompson, uniform_until
from s2vgd.bandits.log import DecisionLog
from s2vgd.bandits.stein import stein_thompson
from s2vgd.errors import DataError, DivergedError, ModelFileError

SHAPE = ContextShape(3, shared=2)
SMALL = {"hidden": (4,), "particles": 5, "warmup": 0, "learning": Learning(4, 0.05, capacity=64)}
FEATURES = np.random.default_rng(1).normal(size=(400, 2)).astype(np.float32)


def make(**settings):
    return SteinThompson(n_actions=3, context_dim=2, **{**SMALL, **settings})


def worth(decision, context):
    return float(context[0] * (decision.action - 1))


def use(live, stop, made=()):
    """Decide until there are `stop` decisions; rewards are late, out of order, or not yet there."""
    made = list(made)
    for t in range(len(made), stop):
        made.append(live.decide(FEATURES[t]))
        if t % 3 == 2:
            for late in (t, t - 2, t - 1):
                live.reward(made[late].id, worth(made[late], FEATURES[late]))
        if t % 5 == 4:
            live.update()
    return made


def same_decisions(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a.action, a.propensity, a.particle, a.arm) == (
            b.action,
            b.propensity,
            b.particle,
            b.arm,
        )
        np.testing.assert_array_equal(a.propensities, b.propensities)


def same_state(one, other):
    def check(a, b):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

    assert (one.version, one.pending) == (other.version, other.pending)
    jax.tree.map(check, one.state, other.state)


# --- it is the agent, and nothing else ---


def test_decisions_and_learning_are_those_of_the_agent(tmp_path):
    """Against a loop that calls the agent's functions with keys folded as documented."""
    agent = stein_thompson(SHAPE, **SMALL)
    live = make(seed=7, log=tmp_path / "log.db")
    root = jax.random.key(7)
    state = jax.jit(agent.init)(jax.random.fold_in(root, 0))
    act, update = jax.jit(agent.act), jax.jit(agent.update)
    learned = 0
    for block in range(4):
        made = []
        for t in range(5 * block, 5 * block + 5):
            context = make_context(SHAPE, FEATURES[t])
            key = jax.random.fold_in(jax.random.fold_in(root, 1), t)
            choice = act(state, key, context)
            decision = live.decide(FEATURES[t])
            assert decision.action == choice.action
            assert decision.particle == choice.particle
            np.testing.assert_allclose(decision.propensities, choice.propensities, atol=1e-6)
            made.append((decision, context, worth(decision, FEATURES[t])))
        for decision, context, reward in reversed(made):
            live.reward(decision.id, reward)
            key = jax.random.fold_in(jax.random.fold_in(root, 2), learned)
            state = update(state, key, context, jnp.int32(decision.action), jnp.float32(reward))
            learned += 1
        assert live.update() == 5
    np.testing.assert_array_equal(live.state.buffer.rows.reward, state.buffer.rows.reward)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), live.state, state
    )


def test_a_decision_is_of_plain_values_and_is_what_the_log_holds(tmp_path):
    live = make(epsilon=0.3, log=tmp_path / "log.db")
    made = [live.decide(x.tolist()) for x in FEATURES[:30]]
    for number, (decision, event) in enumerate(zip(made, live.log.events(), strict=True)):
        assert isinstance(decision, Decision)
        assert [type(value) for value in decision[:3]] == [str, int, float]
        assert type(decision.particle) is int and decision.arm is None
        assert decision.propensity == decision.propensities[decision.action]
        assert decision.propensities.sum() == pytest.approx(1, abs=1e-6)
        assert decision.propensities.min() >= 0.1 - 1e-6
        assert decision.id == f"{live.log.log_id}-{number}"
        assert (event.action, event.propensity, event.particle) == (
            decision.action,
            decision.propensity,
            decision.particle,
        )
        np.testing.assert_array_equal(event.propensities, decision.propensities)
        np.testing.assert_array_equal(event.shared, FEATURES[number])
    assert len({decision.action for decision in made}) == 3


def test_it_learns_which_action_is_good():
    live = make(seed=3)
    for x in FEATURES[:200]:
        decision = live.decide(x)
        live.reward(decision.id, 10 * worth(decision, x))
        live.update()
    late = [live.decide(x) for x in FEATURES[200:300]]
    best = np.where(FEATURES[200:300, 0] > 0, 2, 0)
    assert np.mean([decision.action for decision in late] == best) > 0.8


def test_until_enough_rewards_are_learned_all_actions_are_as_likely():
    """However late the rewards are; afterwards the agent decides as it does alone."""
    always_last = Agent(
        lambda key: jnp.zeros(()),
        lambda *_: Choice(jnp.int32(2), jnp.ones(()), jnp.array([0.0, 0.0, 1.0]), jnp.int32(0)),
        lambda state, *_: state + 1,
    )
    live = Live(uniform_until(always_last, 3), SHAPE)
    early = [live.decide(FEATURES[0], available=[True, t % 2 == 0, True]) for t in range(60)]
    for t, decision in enumerate(early):
        expected = [1 / 3, 1 / 3, 1 / 3] if t % 2 == 0 else [0.5, 0, 0.5]
        np.testing.assert_allclose(decision.propensities, expected, rtol=1e-6)
        assert decision.particle == -1
    assert min(np.bincount([decision.action for decision in early], minlength=3)) > 4
    for learned in range(5):
        assert live.decide(FEATURES[0]).propensities[2] == pytest.approx(
            1 / 3 if learned < 3 else 1
        )
        live.reward(early[learned].id, 1.0)
        live.update()
    assert live.state.inner == 5
    assert SteinThompson(n_actions=4, context_dim=1, **SMALL | {"warmup": 20}).decide(
        [0.0]
    ).propensity == pytest.approx(0.25)
    assert live.replay() == 65


@pytest.mark.parametrize(
    ("agent", "shape"),
    [
        (uniform(), SHAPE),
        (lin_ts(SHAPE, draws=5), SHAPE),
        (lin_ts(ContextShape(3, 2, 2), model="shared"), ContextShape(3, 2, 2)),
    ],
    ids=["uniform", "linear", "linear on features of actions"],
)
def test_any_agent_can_be_used_saved_and_replayed(tmp_path, agent, shape):
    live = Live(agent, shape, seed=1, log=tmp_path / "log.db")
    rng = np.random.default_rng(0)
    for t in range(20):
        features = rng.normal(size=(3, shape.per_action))
        mask = np.array([True, t % 2 == 0, True])
        decision = live.decide(FEATURES[t], features, available=mask)
        assert mask[decision.action]
        assert decision.propensities[1] == 0 or mask[1]
        live.reward(decision.id, 1.0)
        live.update()
    assert live.replay() == 20
    live.save(tmp_path / "saved")
    live.close()
    with pytest.raises(DataError, match="agent is needed"):
        Live.load(tmp_path / "saved")
    again = Live.load(tmp_path / "saved", agent)
    jax.tree.map(np.testing.assert_array_equal, again.state, live.state)
    assert (again.version, again.pending) == (20, 0)


# --- rewards ---


def test_rewards_may_be_late_out_of_order_and_repeated():
    live = make()
    made = [live.decide(x) for x in FEATURES[:6]]
    assert live.reward(made[4].id, 1.0)
    assert live.update() == 1
    assert live.reward(made[0].id, 2.0)
    assert not live.reward(made[4].id, 1.0)
    assert not live.reward(made[0].id, 2.0)
    assert live.pending == 1
    assert live.update() == 1
    assert live.update() == 0
    assert (live.version, live.pending) == (2, 0)
    buffer = live.state.buffer
    np.testing.assert_array_equal(buffer.rows.reward[:3], [1, 2, 0])
    np.testing.assert_array_equal(buffer.rows.features[:2], FEATURES[[4, 0]])
    assert live.replay() == 6


@pytest.mark.parametrize(
    "value", [np.nan, np.inf, 1e300, 10**400, "much", "1", None, [1.0], [1.0, 2.0]]
)
def test_rewards_that_are_no_numbers_are_refused_and_change_nothing(value):
    live = make()
    decision = live.decide(FEATURES[0])
    with pytest.raises(DataError, match="value must be"):
        live.reward(decision.id, value)
    assert live.pending == 0 and live.reward(decision.id, 1.0)


def test_conflicting_and_unknown_rewards_are_refused_and_change_nothing():
    live, other = make(), make()
    decision = live.decide(FEATURES[0])
    live.reward(decision.id, 1.0)
    with pytest.raises(DataError, match="already has the reward"):
        live.reward(decision.id, 0.5)
    with pytest.raises(DataError, match="unknown; it is not an id of this log"):
        live.reward(other.decide(FEATURES[0]).id, 1.0)
    with pytest.raises(DataError, match="unknown"):
        live.reward(decision.id + "7", 1.0)
    assert live.pending == 1


def test_clicks_must_be_zero_or_one():
    live = make(reward=bernoulli())
    decision = live.decide(FEATURES[0])
    with pytest.raises(DataError, match="0 or 1"):
        live.reward(decision.id, 3)
    assert live.reward(decision.id, True)


def test_learning_in_pieces_is_learning_at_once():
    one, other = make(), make()
    for live in (one, other):
        for x in FEATURES[:75]:
            decision = live.decide(x)
            live.reward(decision.id, worth(decision, x))
    assert one.update() == 75
    assert [other.update(max_rewards=n) for n in (1, 40, 30, 10)] == [1, 40, 30, 4]
    jax.tree.map(np.testing.assert_array_equal, one.state, other.state)
    for wrong in (0, -1, 2.5):
        with pytest.raises((ValueError, TypeError), match="max_rewards"):
            one.update(max_rewards=wrong)


def test_any_number_of_rewards_runs_one_program(tmp_path):
    live = make(log=tmp_path / "log.db").compile()
    assert live.version == 0 and live.log.last_seq == 0
    programs = live._learner._programs
    compiled = programs.init, programs.act.__wrapped__, programs.learn
    assert [program._cache_size() for program in compiled] == [1] * 3
    for count in (1, 2, CHUNK, CHUNK + 1, 3 * CHUNK - 5):
        for x in FEATURES[:count]:
            live.reward(live.decide(x).id, 1.0)
        assert live.update() == count
    live.save(tmp_path / "saved")
    live.close()
    again = SteinThompson.load(tmp_path / "saved")
    again.reward(again.decide(FEATURES[0]).id, 1.0)
    again.update()
    again.replay()
    assert again._learner._programs is programs
    assert [program._cache_size() for program in compiled] == [1] * 3


# --- what is refused ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"context must have shape \(2,\), got nothing"),
        ({"context": [1.0]}, r"context must have shape \(2,\), got shape \(1,\)"),
        ({"context": [[1.0, 2.0]]}, "context must have shape"),
        ({"context": [1.0, np.nan]}, "context must be finite"),
        ({"context": [1.0, 1e300]}, "context must be finite"),
        ({"context": ["a", "b"]}, "context must be numbers"),
        ({"context": [1, 2], "actions": np.zeros((3, 1))}, "actions must have shape"),
        ({"context": [1, 2], "available": [True, True]}, "available must be 3 booleans"),
        ({"context": [1, 2], "available": [0, 1, 2]}, "available must be 3 booleans"),
        ({"context": [1, 2], "available": [False] * 3}, "at least one action"),
    ],
)
def test_bad_contexts_are_refused_by_name_and_change_nothing(arguments, message):
    live, twin = make(), make()
    made = use(live, 4), use(twin, 4)
    before = live.log.last_seq
    with pytest.raises(DataError, match=message):
        live.decide(**arguments)
    assert live.log.last_seq == before
    same_decisions(use(live, 9, made[0]), use(twin, 9, made[1]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_actions": None}, "n_actions, or max_arms"),
        ({"max_arms": 3}, "n_actions, or max_arms"),
        ({"n_actions": 0}, "n_actions must be at least 1"),
        ({"context_dim": -1}, "context_dim"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"particles": 0}, "particles"),
        ({"warmup": -1}, "warmup"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        SteinThompson(**{"n_actions": 3, "context_dim": 2, **SMALL, **settings})


def nan_agent(where):
    def act(state, key, context):
        propensities = jnp.where(state["x"] > 1, jnp.nan, jnp.ones(3) / 3)
        return Choice(jnp.int32(0), propensities[0], propensities, jnp.int32(0))

    def update(state, key, context, action, reward):
        return {"x": jnp.where(reward < 0, jnp.nan if where == "update" else 2.0, state["x"])}

    return Agent(lambda key: {"x": jnp.zeros(())}, act, update)


def test_learning_that_diverges_leaves_the_agent_as_it_was():
    live = Live(nan_agent("update"), SHAPE)
    live.reward(live.decide(FEATURES[0]).id, 1.0)
    live.update()
    live.reward(live.decide(FEATURES[0]).id, -1.0)
    with pytest.raises(DivergedError, match="rewards 2 to 2 led to NaN"):
        live.update()
    assert (live.version, live.pending) == (1, 1)
    assert live.decide(FEATURES[1]).action == 0


def test_learning_that_diverges_costs_nothing_that_was_learned(tmp_path):
    """The state learns in place: what a failure overwrites is made again, from copy and log."""
    agent = stein_thompson(SHAPE, **SMALL, average=4.0)

    def update(state, key, context, action, reward):
        new = agent.update(state, key, context, action, reward)
        average = jax.tree.map(lambda leaf: jnp.where(reward < -1e6, jnp.nan, leaf), new.average)
        return new._replace(average=average)

    fragile = Agent(agent.init, agent.act, update)
    live, twin = (Live(fragile, SHAPE, seed=2, log=tmp_path / name) for name in "ab")
    for one in (live, twin):
        made = use(one, SPARE_EVERY + 30)
        one.update()
    live.reward(live.decide(FEATURES[0]).id, -1e9)
    for _ in range(2):
        with pytest.raises(DivergedError):
            live.update()
        jax.tree.map(np.testing.assert_array_equal, live.state, twin.state)
    twin.decide(FEATURES[0])
    same_decisions([live.decide(FEATURES[1])], [twin.decide(FEATURES[1])])
    assert live.pending == 1 and live.replay() == len(made) + 2


def test_an_update_that_cannot_be_logged_is_made_again(monkeypatch):
    live, twin = make(), make()
    made = use(live, 10), use(twin, 10)
    with monkeypatch.context() as patch:
        patch.setattr(live.log, "update", lambda *_: 1 / 0)
        live.reward(made[0][9].id, worth(made[0][9], FEATURES[9]))
        with pytest.raises(ZeroDivisionError):
            live.update()
    twin.reward(made[1][9].id, worth(made[1][9], FEATURES[9]))
    assert live.update() == twin.update() == 1
    same_state(live, twin)
    same_decisions(use(live, 30, made[0]), use(twin, 30, made[1]))
    assert live.replay() == 30


def test_a_state_that_was_handed_out_stays_as_it_was():
    live = make()
    made = use(live, 5)
    before = live.state
    kept = jax.tree.map(np.array, before)
    use(live, 30, made)
    jax.tree.map(np.testing.assert_array_equal, before, kept)


def test_what_the_state_alone_decides_is_computed_once_for_all_its_decisions():
    calls = []

    def noted(x):
        calls.append(1)
        return np.float32(x + 1)

    def act(state, key, context):
        weight = jax.pure_callback(noted, jax.ShapeDtypeStruct((), jnp.float32), state)
        scores = jnp.outer(jnp.broadcast_to(weight, (4,)), context.shared[:1] * jnp.arange(3.0))
        return choose(key, scores, context.available)

    live = Live(Agent(lambda key: jnp.ones(()), act, lambda state, *_: state + 1), SHAPE)
    for learned in range(1, 4):
        for x in FEATURES[:5]:
            made = live.decide(x)
            assert made.propensities[2 if x[0] > 0 else 0] == 1
        assert len(calls) == learned
        assert [leaf.shape for leaf in live._pupil.held.shown] == [()]
        live.reward(made.id, 0.0)
        live.update()


def test_decisions_without_probabilities_are_not_made():
    live = Live(nan_agent("act"), SHAPE)
    live.reward(live.decide(FEATURES[0]).id, -1.0)
    live.update()
    before = live.log.last_seq
    with pytest.raises(DivergedError, match="no probabilities"):
        live.decide(FEATURES[0])
    assert live.log.last_seq == before


# --- files ---


@pytest.mark.parametrize("way", ["log alone", "saved", "saved in memory"])
def test_resuming_equals_an_uninterrupted_run(tmp_path, way):
    log = None if way == "saved in memory" else tmp_path / "log.db"
    whole = make(seed=5)
    expected = use(whole, 80)

    live = make(seed=5, log=log)
    made = use(live, 32)
    if way != "log alone":
        live.save(tmp_path / "saved")
    if log is not None:
        made = use(live, 50, made)
        live.close()
    resumed = (
        make(seed=5, log=log)
        if log and way == "log alone"
        else SteinThompson.load(tmp_path / "saved")
    )
    same_decisions(use(resumed, 80, made), expected)
    same_state(resumed, whole)
    assert resumed.replay() == 80
    if log is not None:
        assert whole.replay(log) == 80


# A bound does not forget.
@pytest.mark.parametrize("more", [{"half_life": 20.0}, {"bound": 1.5}], ids=["forgetting", "bound"])
def test_a_saved_agent_needs_nothing_but_its_directory(tmp_path, more):
    settings = {
        "reward": bernoulli(),
        "epsilon": 0.1,
        "learning": Learning(4, 0.01, capacity=50, half_life=more.get("half_life")),
        "bound": more.get("bound", 0.0),
        "anchor_scale": 0.5,
        "linear": 2.0,
        "average": 4.0,
        "optimistic": True,
    }
    live = make(seed=2, log=tmp_path / "log.db", durable=True, **settings)
    live.reward(live.decide(FEATURES[0]).id, 1)
    live.save(tmp_path / "saved")
    live.save(tmp_path / "saved")
    expected = live.decide(FEATURES[1])
    live.close()
    again = SteinThompson.load(tmp_path / "saved")
    assert (again.log.n_decisions, again.pending) == (2, 1)
    with pytest.raises(DataError, match="0 or 1"):
        again.reward(expected.id, 0.3)
    assert again.log._connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert again.replay() == 2


def test_a_log_that_was_moved_is_found_where_it_is_said_to_be(tmp_path):
    live = make(log=tmp_path / "log.db")
    use(live, 10)
    live.save(tmp_path / "saved")
    live.close()
    (tmp_path / "log.db").rename(tmp_path / "moved.db")
    with pytest.raises(ModelFileError, match=r"log\.db.*is not there"):
        SteinThompson.load(tmp_path / "saved")
    assert not (tmp_path / "log.db").exists()
    with SteinThompson.load(tmp_path / "saved", log=tmp_path / "moved.db") as again:
        assert again.version == live.version


def test_a_state_and_a_log_that_do_not_belong_together_are_refused(tmp_path):
    live = make(log=tmp_path / "log.db")
    made = use(live, 6)
    live.close()
    early = (tmp_path / "log.db").read_bytes()
    live = make(log=tmp_path / "log.db")
    use(live, 12, made)
    live.save(tmp_path / "saved")
    live.close()
    make(log=tmp_path / "other.db").close()
    make(log=tmp_path / "seed.db", seed=1).close()
    (tmp_path / "log.db").write_bytes(early)
    for log, message in (
        (None, "the end of the log is lost"),
        ("other.db", "not the one that the agent was saved with"),
        ("seed.db", "other values of seed"),
    ):
        with pytest.raises(ModelFileError, match=message):
            SteinThompson.load(tmp_path / "saved", log=log and tmp_path / log)
    make(log=tmp_path / "other.db").close()  # a refusal leaves no lock behind


def test_damaged_foreign_and_newer_directories_are_refused(tmp_path):
    live = make()
    live.save(tmp_path / "saved")
    manifest = tmp_path / "saved" / "manifest.json"
    good = manifest.read_text()
    content = json.loads(good)
    for change, message in (
        ({"version": 2}, "upgrade"),
        ({"kind": "posterior"}, "holds a 'posterior'"),
        ({"metadata": {}}, "checksum"),
    ):
        manifest.write_text(json.dumps(content | change))
        with pytest.raises(ModelFileError, match=message):
            SteinThompson.load(tmp_path / "saved")
    manifest.write_text(good[: len(good) // 2])
    with pytest.raises(ModelFileError, match="not valid JSON"):
        SteinThompson.load(tmp_path / "saved")
    with pytest.raises(ModelFileError, match="does not exist"):
        SteinThompson.load(tmp_path / "nothing")
    Live(uniform(), SHAPE).save(tmp_path / "uniform")
    with pytest.raises(ModelFileError, match="Live"):
        SteinThompson.load(tmp_path / "uniform")
    manifest.write_text(good)
    assert SteinThompson.load(tmp_path / "saved").version == 0


def test_what_cannot_be_described_can_be_used_but_not_saved(tmp_path):
    live = make(optimizer=optax.sgd(1e-3), log=tmp_path / "log.db")
    live.decide(FEATURES[0])
    with pytest.raises(DataError, match="optimizer cannot be described"):
        live.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_log_of_other_settings_is_refused_by_their_names(tmp_path):
    make(log=tmp_path / "log.db").close()
    with pytest.raises(ModelFileError, match=r"settings\.particles, state\."):
        make(particles=6, log=tmp_path / "log.db")
    with pytest.raises(ModelFileError, match=r"other values of settings\.learning\.learning_rate;"):
        make(learning=Learning(4, 0.01, capacity=64), log=tmp_path / "log.db")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("action = 1 - action % 2", "action"),
        ("propensities = zeroblob(12)", "propensities"),
        ("version = 1", "version"),
        ("propensity = 0.123", "propensity"),
        ("particle = 77", "particle"),
    ],
)
def test_replay_stops_at_the_first_difference(tmp_path, change, message):
    live = make(log=tmp_path / "log.db")
    made = use(live, 40)
    at = next(t for t in range(30, 40) if made[t].propensities.max() < 0.9)
    live.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection:
        guard = connection.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'nothing_is_changed'"
        ).fetchone()[0]
        connection.execute("DROP TRIGGER nothing_is_changed")
        connection.execute(
            f"UPDATE events SET {change} WHERE kind = 'decision' AND number = ?", (at,)
        )
        connection.execute(guard)
        connection.commit()
    with pytest.raises(DataError, match=f"decision {at} has {message}"):
        make().replay(tmp_path / "log.db")


def test_an_interrupt_in_the_middle_of_a_decision_does_no_harm():
    live = make()
    connection = live.log._connection

    class Interrupted:
        def execute(self, *statement):
            connection.execute(*statement)
            raise KeyboardInterrupt

    for x in FEATURES[:3]:
        live.log._connection = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            live.decide(x)
        live.log._connection = connection
        live.reward(live.decide(x).id, 1.0)
        live.update()
    assert live.replay() == 6


# --- threads ---


def test_a_decision_does_not_wait_for_an_update_that_runs():
    started, finish = threading.Event(), threading.Event()

    def wait(x):
        started.set()
        assert finish.wait(60)
        return x

    def act(state, key, context):
        propensities = jnp.ones(3) / 3
        return Choice(state.astype(jnp.int32), propensities[0], propensities, jnp.int32(0))

    def update(state, key, context, action, reward):
        return state + jax.pure_callback(wait, jax.ShapeDtypeStruct((), jnp.float32), reward)

    live = Live(Agent(lambda key: jnp.zeros(()), act, update), SHAPE)
    live.reward(live.decide(FEATURES[0]).id, 1.0)
    thread = threading.Thread(target=live.update)
    thread.start()
    try:
        assert started.wait(60)
        before = [live.decide(x) for x in FEATURES[:5]]
        live.reward(before[0].id, 0.0)
        assert thread.is_alive() and live.version == 0 and live.pending == 2
    finally:
        finish.set()
        thread.join()
    assert [decision.action for decision in before] == [0] * 5
    assert (live.version, live.pending) == (1, 1)
    assert live.decide(FEATURES[0]).action == 1
    assert [event.version for event in live.log.events() if hasattr(event, "particle")] == [
        0
    ] * 6 + [1]


def test_decisions_made_while_others_update_all_replay(tmp_path):
    live = make(log=tmp_path / "log.db").compile()
    done, ids, errors = threading.Event(), [], []

    def caught(work):
        def run(*arguments):
            try:
                work(*arguments)
            except BaseException as error:
                errors.append(error)

        return run

    @caught
    def decide(offset):
        for i in range(20_000):  # as a rule 60, but there have to be updates in between
            if i >= 60 and live.version > 3:
                break
            x = FEATURES[(offset + i) % len(FEATURES)]
            decision = live.decide(x)
            ids.append(decision.id)
            live.reward(decision.id, worth(decision, x))

    @caught
    def learn():
        while not done.is_set():
            live.update()

    deciders = [threading.Thread(target=decide, args=(60 * i,)) for i in range(3)]
    learners = [threading.Thread(target=learn) for _ in range(2)]
    for thread in (*deciders, *learners):
        thread.start()
    for thread in deciders:
        thread.join()
    done.set()
    for thread in learners:
        thread.join()
    assert not errors
    live.update()
    assert len(set(ids)) == len(ids) >= 180 and live.pending == 0 and live.version > 3
    assert live.replay() == len(ids)
    live.close()
    again = make(log=tmp_path / "log.db")
    jax.tree.map(np.testing.assert_array_equal, again.state, live.state)


# --- arms with names ---


def pool(**settings):
    return SteinThompson(context_dim=2, **{**SMALL, "max_arms": 3, **settings})


def test_named_arms_come_and_go_and_are_replayed(tmp_path):
    live = pool(log=tmp_path / "log.db", seed=1)
    live.add_arm("a")
    assert live.decide(FEATURES[0]).arm == "a"
    live.add_arm("b")
    made = [live.decide(x) for x in FEATURES[:30]]
    assert {decision.arm for decision in made} == {"a", "b"}
    assert all(("a", "b")[decision.action] == decision.arm for decision in made)
    only = live.decide(FEATURES[1], available=["b"])
    assert (only.arm, only.propensity) == ("b", 1.0)
    live.remove_arm("a")
    assert live.arms == ("b",)
    assert {live.decide(x).arm for x in FEATURES[:10]} == {"b"}
    gone = next(decision for decision in made if decision.arm == "a")
    assert live.reward(gone.id, 1.0)
    live.update()
    assert live.add_arm("c") == 2
    assert live.add_arm("a") == 0
    live.save(tmp_path / "saved")
    live.remove_arm("c")
    assert live.replay() == 42
    live.close()
    for again in (lambda: pool(log=tmp_path / "log.db", seed=1), None):
        with again() if again else SteinThompson.load(tmp_path / "saved") as opened:
            assert opened.arms == ("a", "b")
            assert opened.replay() == 42
    rows = [
        event.arm for event in DecisionLog(tmp_path / "log.db").events() if hasattr(event, "arm")
    ]
    assert rows[1:31] == [decision.arm for decision in made]


def test_a_slot_is_kept_for_its_arm_where_the_network_has_an_output_for_it():
    live = pool()
    for name in "abc":
        live.add_arm(name)
    live.remove_arm("b")
    with pytest.raises(DataError, match=r"no slot is left for arm 'd'.*max_arms, say 6"):
        live.add_arm("d")
    assert live.add_arm("b") == 1


def test_a_slot_is_used_again_where_the_network_sees_features():
    live = pool(action_dim=2)
    for i, name in enumerate("abc"):
        live.add_arm(name, [i, 1.0])
    with pytest.raises(DataError, match="all 3 are in use"):
        live.add_arm("d", [3.0, 1.0])
    old = [live.decide(FEATURES[0], available=["b"]) for _ in range(2)]
    live.remove_arm("b")
    assert live.add_arm("d", [3.0, 1.0]) == 1
    new = live.decide(FEATURES[0], available=["d"])
    live.reward(old[0].id, -1.0)
    live.reward(new.id, 1.0)
    live.update()
    rows = live.state.buffer.rows
    np.testing.assert_array_equal(rows.features[:2, 2:], [[1, 1], [3, 1]])
    assert live.replay() == 3


def test_features_of_an_arm_can_be_given_with_a_decision():
    live = pool(action_dim=2)
    live.add_arm("a", [1.0, 2.0])
    live.add_arm("b")
    with pytest.raises(DataError, match="arm 'b' has no features"):
        live.decide(FEATURES[0])
    live.decide(FEATURES[0], actions={"b": [3.0, 4.0]})
    live.decide(FEATURES[0], actions={"a": [5.0, 6.0]}, available=["a"])
    live.decide(FEATURES[0], available=["a"])
    shown = [event.actions.tolist() for event in live.log.events() if hasattr(event, "actions")]
    zero = [0.0, 0.0]
    assert shown == [[[1, 2], [3, 4], zero], [[5, 6], zero, zero], [[1, 2], zero, zero]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda live: live.decide([1, 2], available=["a", "x"]), "arm 'x' is unknown; .* 'a', 'b'"),
        (lambda live: live.decide([1, 2], available=[]), "no arm to choose from"),
        (lambda live: live.decide([1, 2], available="ab"), "list of names"),
        (lambda live: live.decide([1, 2], available=[True, False, True]), "arm True is unknown"),
        (lambda live: live.decide([1, 2], actions={"x": [1, 2]}), "arm 'x' is unknown"),
        (lambda live: live.decide([1, 2], actions={"a": [1]}), "features of arm 'a' must have"),
        (lambda live: live.decide([1, 2], actions={"a": [1, np.nan]}), "'a' must be finite"),
        (lambda live: live.decide([1, 2], actions=np.zeros((3, 2))), "mapping from names"),
        (lambda live: live.remove_arm("x"), "arm 'x' is unknown"),
        (lambda live: live.add_arm("a", [1, 2]), "arm 'a' is there already"),
        (lambda live: live.add_arm("", [1, 2]), "name must be"),
        (lambda live: live.add_arm(3, [1, 2]), "name must be"),
        (lambda live: live.add_arm("c", [1, 2, 3]), "features of arm 'c' must have shape"),
        (lambda live: live.add_arm("c", "much"), "features of arm 'c' must be numbers"),
    ],
)
def test_mistakes_with_arms_are_refused_by_name_and_change_nothing(call, message):
    live = pool(action_dim=2)
    live.add_arm("a", [1, 2])
    live.add_arm("b", [3, 4])
    before = live.log.last_seq
    with pytest.raises(DataError, match=message):
        call(live)
    assert live.log.last_seq == before and live.arms == ("a", "b")
    live.decide([1, 2])


def test_arms_need_names_from_the_start():
    live = make()
    with pytest.raises(DataError, match="max_arms"):
        live.add_arm("a")
    with pytest.raises(DataError, match="no arm to choose from"):
        pool().decide(FEATURES[0])


# --- death ---

WHOLE = """
import os, sys
import numpy as np
from s2vgd.bandits import Learning
from s2vgd.bandits.live import SteinThompson

live = SteinThompson(
    n_actions=3, context_dim=2, hidden=(4,), particles=5, warmup=0,
    learning=Learning(4, 0.05, capacity=64), log=sys.argv[1],
).compile()


def acknowledge(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


while True:
    number = live.log.n_decisions
    made = live.decide(np.sin([number, 2 * number]))
    acknowledge("decision", made.id, made.action, made.propensity.hex(), made.particle)
    live.reward(made.id, made.action / 2)
    acknowledge("reward", made.id, made.action / 2)
    if number % 5 == 4:
        live.update()
        acknowledge("update", live.version)
"""


def test_a_whole_agent_that_is_killed_loses_nothing_and_replays(tmp_path):
    """Four deaths, with the 96 of tests/test_bandits_log.py a hundred."""
    home = Path(__file__).parent / "test_bandits_log.py"
    spec = importlib.util.spec_from_file_location("log_tests", home)
    log_tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(log_tests)
    # Compiled programs are kept between the deaths, for the sake of the time that this takes.
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    rng = random.Random(0)
    path = tmp_path / "log.db"
    acknowledged = []
    for _ in range(4):
        acknowledged += log_tests.killed_at_random(
            WHOLE, (path,), rng, early=False, spell=0.2, environment=environment
        )
    with make(log=path) as live:
        outcomes = {outcome.decision.number: outcome for outcome in live.log.outcomes(0, 10**9)}
        decided = {e.number: e for e in live.log.events() if hasattr(e, "propensities")}
        assert live.replay() == len(decided) > 20
        for kind, *words in acknowledged:
            if kind == "update":
                assert live.version >= int(words[0])
                continue
            number = live.log.number_of(words[0])
            if kind == "reward":
                assert outcomes[number].value == float(words[1])
            else:
                event = decided[number]
                told = (str(event.action), event.propensity.hex(), str(event.particle))
                assert told == tuple(words[1:])
        assert [words[0] for words in acknowledged].count("decision") >= len(decided) - 4
        assert live.pending + live.state.buffer.seen == len(outcomes)
