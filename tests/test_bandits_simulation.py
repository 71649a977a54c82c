"""Simulations: exact regret, the same numbers however they are cut, and loud divergence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd import files
from s2vgd.bandits import lanes, simulation, worlds
from s2vgd.bandits.agents import Agent, uniform
from s2vgd.bandits.lanes import Lanes
from s2vgd.bandits.learning import Learning
from s2vgd.bandits.linear import lin_ucb
from s2vgd.bandits.rewards import gaussian
from s2vgd.bandits.simulation import simulate
from s2vgd.bandits.stein import stein_thompson
from s2vgd.errors import DivergedError, ModelFileError

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(40, 3)).astype(np.float32), RNG.random(40) < 0.4
WORLD = worlds.mushroom(*TABLE)
# A ring that is overwritten, a cadence, and a floor: all that has to survive an interruption.
STEIN = stein_thompson(
    WORLD.shape,
    hidden=(4,),
    particles=3,
    reward=gaussian(3.0),
    learning=Learning(batch_size=8, learning_rate=0.02, capacity=100, every=2),
    epsilon=0.05,
)


def same_bits(one, other):
    pairs = zip(
        files.tree_to_arrays(one, "t").items(),
        files.tree_to_arrays(other, "t").items(),
        strict=True,
    )
    return all(a == b and x.tobytes() == y.tobytes() for (a, x), (b, y) in pairs)


@pytest.fixture(scope="module")
def whole():
    return simulate(STEIN, WORLD, 600, seeds=(3, 8))


def test_the_regret_of_uniform_is_its_exact_expectation():
    """Of a poisonous mushroom 1.25 a step, of an edible one 2.5."""
    result = simulate(uniform(), WORLD, 5000, seeds=4)
    share = TABLE[1].mean()
    expected = 1.25 * share + 2.5 * (1 - share)
    deviation = result.record.regret.std() / np.sqrt(result.record.regret.size)
    assert abs(result.record.regret.mean() - expected) < 4 * deviation
    assert (result.record.propensity == 0.5).all()


def test_regret_is_that_of_the_best_available_action():
    """Worth 0, 1, 2 in turn, of which the best cannot always be had."""

    def sample(data, key, step):
        available = jnp.stack([jnp.array(True), jnp.array(True), step % 2 == 0])
        return worlds.always(worlds.ContextShape(3), jnp.zeros(1))._replace(available=available), ()

    means = jnp.arange(3.0)
    rules = worlds.Rules(sample, lambda key, hidden, a: means[a], lambda hidden: means)
    world = worlds.World(rules, (), worlds.ContextShape(3, 1))
    record = simulate(uniform(), world, 400).record
    best = np.where(np.arange(400) % 2 == 0, 2, 1)
    np.testing.assert_array_equal(record.regret[0], best - record.action[0])
    np.testing.assert_array_equal(record.reward[0], record.action[0])
    assert (record.action[0, 1::2] < 2).all() and (record.action == 2).any()


def test_resuming_gives_the_bits_of_an_uninterrupted_run(tmp_path, whole):
    arguments = {"seeds": (3, 8), "checkpoint_dir": tmp_path / "c", "checkpoint_every": 70}
    simulate(STEIN, WORLD, 300, **arguments)
    resumed = simulate(STEIN, WORLD, 600, **arguments)
    assert same_bits(resumed.record, whole.record)
    assert same_bits(resumed.states, whole.states)


def test_a_run_that_dies_goes_on_from_its_last_checkpoint(tmp_path, whole, monkeypatch):
    arguments = {"seeds": (3, 8), "checkpoint_dir": tmp_path / "c", "checkpoint_every": 150}
    save, saved = simulation._Store.save, []

    def save_twice_then_die(self, states, record):
        if len(saved) == 2:
            raise KeyboardInterrupt
        save(self, states, record)
        saved.append(record.action.shape[1])

    with monkeypatch.context() as patch:
        patch.setattr(simulation._Store, "save", save_twice_then_die)
        with pytest.raises(KeyboardInterrupt):
            simulate(STEIN, WORLD, 600, **arguments)
    assert saved == [150, 300]
    resumed = simulate(STEIN, WORLD, 600, **arguments)
    assert same_bits(resumed.record, whole.record)


def test_a_checkpoint_of_another_simulation_is_refused_and_resume_false_replaces_it(tmp_path):
    agent, where = lin_ucb(WORLD.shape), {"checkpoint_dir": tmp_path / "c"}
    first = simulate(agent, WORLD, 20, **where)
    with pytest.raises(ModelFileError, match="seeds"):
        simulate(agent, WORLD, 20, seeds=(5,), **where)
    with pytest.raises(ModelFileError, match="data"):
        simulate(agent, worlds.mushroom(TABLE[0] + 1, TABLE[1]), 20, **where)
    with pytest.raises(ModelFileError, match="alpha"):
        simulate(agent, WORLD, 20, settings={"alpha": 2}, **where)
    with pytest.raises(ValueError, match="beyond the 10"):
        simulate(agent, WORLD, 10, **where)
    again = simulate(agent, WORLD, 20, resume=False, **where)
    assert same_bits(first.record, again.record)


def test_a_second_simulation_compiles_nothing_and_is_the_same(whole):
    group = Lanes.of(whole.states, 2).group
    compiled = simulation.compiled(STEIN, WORLD.rules, group)
    before = compiled._cache_size()
    again = simulate(STEIN, worlds.mushroom(*TABLE), 600, seeds=(3, 8))
    assert same_bits(again, whole)
    simulate(STEIN, worlds.mushroom(TABLE[0] * 2, TABLE[1]), 100, seeds=(4, 5))
    assert simulation.compiled(STEIN, WORLD.rules, group) is compiled
    assert compiled._cache_size() == before == 1


@pytest.mark.parametrize(
    ("cores", "fit", "shape"),
    [(1, 1, (1, 1)), (1, 4, (1, 3)), (2, 6, (2, 3)), (4, 1, (3, 1))],
)
def test_how_runs_are_divided_changes_nothing_but_rounding(monkeypatch, cores, fit, shape):
    """One after another, in threads, and all at once."""
    agent, seeds = lin_ucb(WORLD.shape), tuple(range(6))
    monkeypatch.setattr(lanes, "n_cores", lambda: 1)
    at_once = simulate(agent, WORLD, 300, seeds=seeds)
    assert Lanes.of(at_once.states, 6) == (1, 6)
    monkeypatch.setattr(lanes, "n_cores", lambda: cores)
    monkeypatch.setattr(lanes, "CACHE", fit * lanes._n_bytes(at_once.states) // 6)
    assert Lanes.of(at_once.states, 6) == shape
    divided = simulate(agent, WORLD, 300, seeds=seeds)
    for one, other in zip(divided.record, at_once.record, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    for one, other in zip(*map(jax.tree.leaves, (divided.states, at_once.states)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_buffers_do_not_count_where_agents_are_to_fit_into_the_cache():
    """Of the rewards that an agent holds, a step reads a batch."""
    small, large = (
        stein_thompson(WORLD.shape, hidden=(4,), particles=2, learning=Learning(capacity=n))
        for n in (10, 1_000_000)
    )
    states = [
        jax.eval_shape(jax.vmap(agent.init), jax.random.split(jax.random.key(0), 50))
        for agent in (small, large)
    ]
    assert Lanes.of(states[0], 50) == Lanes.of(states[1], 50)


@pytest.mark.optimised
def test_agents_with_the_same_seed_meet_the_same_contexts_and_luck():
    always_eat, record = _constant(worlds.EAT), []
    for agent in (always_eat, uniform()):
        record.append(simulate(agent, WORLD, 300, seeds=(7,)).record)
    eaten = record[1].action == worlds.EAT
    np.testing.assert_array_equal(record[0].reward[eaten], record[1].reward[eaten])
    np.testing.assert_array_equal(record[0].regret[eaten], record[1].regret[eaten])


def _constant(action):
    def act(state, key, context):
        choice = uniform().act((), key, context)
        return choice._replace(action=jnp.int32(action), propensity=jnp.float32(1))

    return Agent(lambda key: (), act, lambda state, *rest: state)


@pytest.mark.optimised
def test_seeds_differ_and_a_run_does_not_depend_on_its_neighbours():
    both = simulate(uniform(), WORLD, 300, seeds=(1, 2)).record
    alone = simulate(uniform(), WORLD, 300, seeds=(2,)).record
    assert same_bits(jax.tree.map(lambda column: column[1:], both), alone)
    assert (both.action[0] != both.action[1]).any()


def test_the_curve_is_the_cumulative_regret_thinned(whole):
    steps, curve = whole.curve(7)
    assert steps[0] == 1 and steps[-1] == 600 and len(steps) == 7
    total = np.cumsum(np.asarray(whole.record.regret, np.float64), axis=1)
    np.testing.assert_allclose(curve, total[:, steps - 1])
    assert len(whole.curve(10_000)[0]) == 600


def test_the_stein_agent_learned(whole):
    late = whole.record.regret[:, -200:].mean()
    share = TABLE[1].mean()
    assert late < 0.8 * (1.25 * share + 2.5 * (1 - share))


def breaking(what, when):
    """An agent that becomes NaN at step `when`, in what it states or in what it knows."""

    def act(state, key, context):
        choice = uniform().act((), key, context)
        bad = (state["t"] + 1 == when) & (what == "propensity")
        return choice._replace(propensity=jnp.where(bad, jnp.nan, choice.propensity))

    def update(state, key, context, action, reward):
        t = state["t"] + 1
        return {"t": t, "w": jnp.where((t == when) & (what == "state w"), jnp.inf, state["w"])}

    return Agent(lambda key: {"t": jnp.int32(0), "w": jnp.zeros(2)}, act, update)


@pytest.mark.parametrize(("what", "step"), [("propensity", 300), ("state w", 400)])
def test_divergence_names_the_step_the_quantity_and_the_seed(what, step):
    with pytest.raises(DivergedError, match=f"step {step} of seed 4: the {what}") as raised:
        simulate(breaking(what, 300), WORLD, 400, seeds=(4,))
    assert raised.value.step == step and raised.value.quantity == what


def test_divergence_tells_of_the_last_good_checkpoint(tmp_path):
    where = tmp_path / "c"
    with pytest.raises(DivergedError, match="last good checkpoint") as raised:
        simulate(
            *(breaking("propensity", 300), WORLD, 400), checkpoint_dir=where, checkpoint_every=100
        )
    assert raised.value.checkpoint == where and files.is_saved(where)


@pytest.mark.parametrize("seeds", [0, (), (1, 1), (-1,)])
def test_impossible_seeds_and_steps_are_named(seeds):
    with pytest.raises(ValueError, match="seeds"):
        simulate(uniform(), WORLD, 10, seeds=seeds)
    with pytest.raises(ValueError, match="steps"):
        simulate(uniform(), WORLD, 0)
