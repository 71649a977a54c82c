"""Agents replayed on news: equal to one event at a time, on tiny logs, and what is said of them."""

from __future__ import annotations

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd import bandits
from s2vgd.bandits import ContextShape, Learning, replay_agents
from s2vgd.bandits.agents import Agent, Choice
from s2vgd.bandits.contexts import Context
from s2vgd.bandits.news import ClickModel, NewsFile, SimulatedLog, convert, simulate
from s2vgd.bandits.replay import Block, replay, replay_blocks, replay_fixed
from s2vgd.bandits.replay_agents import AgentPolicy
from s2vgd.errors import DataError, DivergedError
from s2vgd.experiments import harness, news, particles, records
from s2vgd.experiments.mushroom import FRESH
from s2vgd.experiments.records import Run
from s2vgd.experiments.sections import news as section
from s2vgd.experiments.sections import particles as particle_section

# Pairs of float32 that stand for one number are at the mercy of how sums are compiled.
pytestmark = pytest.mark.optimised

WIDTH, SEED, CADENCE = 20, 3, 5
LEARNING = Learning(batch_size=8, learning_rate=0.03, every=5)
NETWORK = {
    "hidden": (4,),
    "reward": bandits.bernoulli(),
    "learning": LEARNING,
    "warmup": 0,
}
STEIN = functools.partial(bandits.stein_thompson, particles=3, epsilon=0.2, **NETWORK)
UCB = functools.partial(bandits.lin_ucb, alpha=0.3)
BUILDERS = {
    "disjoint LinUCB": (UCB, ("inverse", "moment", "squares", "n_rows")),
    "hybrid LinUCB": (functools.partial(UCB, model="hybrid"), ("inverse", "cross", "own")),
    "disjoint LinTS": (
        functools.partial(bandits.lin_ts, noise=0.2, draws=2),
        ("inverse", "moment", "squares", "n_rows"),
    ),
    "Stein Thompson": (STEIN, ()),
}


@pytest.fixture(scope="module")
def log():
    """Return 2,500 events of one day in which some forty articles come and go."""
    return news.simulated(0, 1, 2_500)


class OneByOne:
    """The same agent in plain Python: a dictionary holds what belongs to each article.

    It learns when as many rewards have come together as a replay in blocks hands over.
    """

    def __init__(self, build, own, width, cadence):
        self.agent, self.own, self.width, self.cadence = build(shape(width)), own, width, cadence
        init, self.act_key, self.update_key = jax.random.split(jax.random.key(SEED), 3)
        self.state = self.fresh = jax.device_get(jax.jit(self.agent.init)(init))
        self.articles, self.kept, self.number, self.chosen = {}, [], -1, []
        self.act, self.update = jax.jit(self.agent.act), jax.jit(self.agent.update)

    def choose(self, user, articles, article_ids):
        self.number += 1
        key = jax.random.fold_in(self.act_key, self.number)
        choice = self.act(self.of(article_ids), key, self.context(user, articles))
        self.chosen.append(int(choice.action))
        return self.chosen[-1]

    def learn(self, user, articles, article_ids, index, click):
        self.kept.append((self.number, user, articles, article_ids, index, click))
        if len(self.kept) == self.cadence:
            for number, user, articles, ids, index, click in self.kept:
                key = jax.random.fold_in(self.update_key, number)
                told = self.context(user, articles), jnp.int32(index), jnp.float32(click)
                self.state = jax.device_get(self.update(self.of(ids), key, *told))
                for name in self.own:
                    for i, article in enumerate(ids.tolist()):
                        self.articles[name, article] = getattr(self.state, name)[i]
            self.kept = []

    def of(self, ids):
        """Return the state for the articles of a pool; unknown ones and padding begin afresh."""
        parts = {}
        for name in self.own:
            fresh = getattr(self.fresh, name)
            known = [self.articles.get((name, i), fresh[0]) for i in ids.tolist()]
            parts[name] = np.stack([*known, *fresh[len(known) :]])
        return self.state._replace(**parts) if parts else self.state

    def context(self, user, articles):
        features = np.zeros((self.width, 6), np.float32)
        features[: len(articles)] = articles
        return Context(user, features, np.arange(self.width) < len(articles))


class Remembering(AgentPolicy):
    """A policy that writes its choices down by the event's position in the log."""

    def choose_block(self, block):
        choice = super().choose_block(block)
        self.__dict__.setdefault("chosen", {}).update(
            zip(block.number[block.live.any(1)].tolist(), choice.tolist(), strict=False)
        )
        return choice


def shape(width):
    return ContextShape(width, shared=6, per_action=6)


def assert_same(first, second):
    for name in type(first).__dataclass_fields__:
        one, other = getattr(first, name), getattr(second, name)
        np.testing.assert_allclose(one, other, rtol=1e-12, err_msg=name)


# Agents as policies


@pytest.mark.parametrize("name", BUILDERS)
def test_an_agent_in_blocks_decides_as_it_does_one_event_at_a_time(log, name):
    """Every decision of four hours, with updates of five rewards at the same moments."""
    build, own = BUILDERS[name]
    chunks = news.HeldLog(log.articles, log.chunks[:50], log.truth)
    single = OneByOne(build, own, WIDTH, CADENCE)
    expected = replay(single, chunks, every=25)
    policy = Remembering(build, SEED, width=WIDTH)
    result = replay_blocks(policy, chunks, update_every=CADENCE, block=64, every=25)
    assert [policy.chosen[i] for i in range(result.events)] == single.chosen
    assert_same(result, expected)
    assert result.accepted > 2 * CADENCE and len(set(single.chosen)) > 2


def test_articles_keep_what_was_learned_as_if_each_had_a_slot_for_ever(log, monkeypatch):
    """LinUCB with a regression for every article of the log; room for them is made as they come."""
    slots = {article: i for i, article in enumerate(log.articles.ids.tolist())}
    large = UCB(shape(len(slots)))
    act, update = jax.jit(large.act), jax.jit(large.update)

    class Large:
        def __init__(self):
            self.state, self.kept = large.init(jax.random.key(0)), []

        def context(self, user, articles, ids):
            features, available = np.zeros((len(slots), 6), np.float32), np.zeros(len(slots), bool)
            rows = [slots[i] for i in ids.tolist()]
            features[rows], available[rows] = articles, True
            return Context(user, features, available)

        def choose(self, user, articles, ids):
            choice = act(self.state, jax.random.key(0), self.context(user, articles, ids))
            return [slots[i] for i in ids.tolist()].index(int(choice.action))

        def learn(self, user, articles, ids, index, click):
            self.kept.append((self.context(user, articles, ids), slots[int(ids[index])], click))
            if len(self.kept) == CADENCE:
                for context, action, click in self.kept:
                    told = context, jnp.int32(action), jnp.float32(click)
                    self.state = update(self.state, jax.random.key(0), *told)
                self.kept = []

    assert len(slots) > 1.5 * WIDTH  # articles come and go
    log = news.HeldLog(log.articles, log.chunks[::2], log.truth)
    expected = replay(Large(), log, every=25)
    monkeypatch.setattr(replay_agents, "_ARTICLES", len(slots) - 5)
    policy = AgentPolicy(UCB, SEED, width=WIDTH)
    assert_same(replay_blocks(policy, log, update_every=CADENCE, block=64, every=25), expected)


def test_a_pool_that_is_larger_than_expected_changes_nothing(log):
    small, large = (AgentPolicy(UCB, SEED, width=width) for width in (2, 24))
    results = [
        replay_blocks(policy, log, update_every=CADENCE, block=64, every=25)
        for policy in (small, large)
    ]
    assert_same(*results)
    assert small.width == large.width == 24


def test_a_second_policy_with_equal_settings_compiles_nothing(log):
    counts = []
    for seed in (0, 1):
        policy = AgentPolicy(STEIN, seed, width=WIDTH)
        replay_blocks(policy, log, update_every=CADENCE, block=64)
        counts.append([f._cache_size() for f in (replay_agents._choose, replay_agents._learn)])
    assert counts[0] == counts[1]


def test_articles_are_drawn_at_random_until_the_warm_up_is_over(log):
    def replayed(build, warmup):
        policy = Remembering(build, SEED, warmup=warmup, width=WIDTH)
        result = replay_blocks(policy, log, update_every=CADENCE, block=64, every=CADENCE)
        return np.array([policy.chosen[i] for i in range(result.events)]), result.point_events

    random, _ = replayed(lambda shape: bandits.uniform(), 0)
    chosen, points = replayed(UCB, 4 * CADENCE - 1)
    over = points[3]  # learning is by fives: the fourth ends the warm-up
    np.testing.assert_array_equal(chosen[:over], random[:over])
    assert np.mean(chosen[over:] == random[over:]) < 0.2


def test_an_article_that_comes_back_is_remembered():
    """Article 7 is clicked ten times and goes; ten blocks later it is preferred to a new one."""

    def block_of(*ids):
        user = np.ones((1, 6), np.float32)
        articles = np.ones((1, len(ids), 6), np.float32)
        first = np.zeros(1, np.int64)
        return Block(first, first, user, articles, np.array([ids]), np.ones((1, len(ids)), bool))

    policy = AgentPolicy(functools.partial(bandits.lin_ucb, alpha=0.01), 0, width=2)
    for _ in range(10):
        policy.learn_block(block_of(7, 8), np.array([0]), np.array([True]))
    for i in range(10):
        policy.learn_block(block_of(100 + i, 200 + i), np.array([1]), np.array([False]))
    assert policy.choose_block(block_of(7, 9)).tolist() == [0]
    assert policy.choose_block(block_of(9, 7)).tolist() == [1]


def test_agents_that_cannot_be_replayed_are_refused():
    """A network with outputs side by side mixes the actions; another begins unlike for each."""
    with pytest.raises(ValueError, match="build: a part of the agent's state"):
        AgentPolicy(functools.partial(STEIN, view="outputs"), 0)

    def unlike(shape):
        inner = UCB(shape)
        return Agent(lambda key: jnp.arange(shape.actions), inner.act, inner.update)

    with pytest.raises(ValueError, match="begin alike"):
        AgentPolicy(unlike, 0)
    with pytest.raises(ValueError, match="width"):
        AgentPolicy(UCB, 0, width=1)


def test_an_opinion_that_is_not_a_number_raises(log):
    def lost(shape):
        def act(state, key, context):
            nothing = jnp.full(len(context.available), jnp.nan)
            return Choice(jnp.int32(0), nothing[0], nothing, jnp.int32(0))

        return Agent(lambda key: (), act, lambda state, *told: state)

    with pytest.raises(DivergedError, match="event 0"):
        replay_blocks(AgentPolicy(lost, 0), log, update_every=CADENCE)


# The experiments


def tiny(method, dataset="simulated", split=0, **more):
    config = news.Config(
        methods=(method,), datasets=(dataset,), splits=(split, split + 1), events=2_500, days=1
    )
    (run,) = news.grid(harness.changed(config, {"every": 50, "warmup": 20, **more}))
    return run


def test_the_grids_have_the_papers_methods_and_fresh_logs():
    runs = news.grid(news.CONFIG)
    assert {r.method for r in runs} >= {"s2vgd", "svgd", "vmg", "linucb", "uniform"}
    assert {r.split for r in runs} == set(range(FRESH, FRESH + 5))
    assert {r.dataset for r in runs} == {"simulated", "r6a"}
    for run in runs:
        agent = run.config["agent"]
        assert run.config["every"] == 20_000
        assert "hidden" not in agent or agent["hidden"] == [50]
        assert "learning" not in agent or agent["learning"]["batch_size"] == 100
        assert ("events" in run.config) == (run.dataset == "simulated")
    runs = particles.grid(particles.CONFIG)
    sizes = {r.config["agent"]["particles"] for r in runs}
    assert sizes == {1, 2, 5, 10, 20, 50} and {r.split for r in runs} == set(
        range(FRESH, FRESH + 10)
    )
    assert len({r.key for r in runs}) == len(runs) == 2 * 10 * 6 * 2
    assert {r.config["days"] for r in runs} == {1}


def test_the_best_policy_has_the_models_value_and_random_display_that_of_one(log):
    """The true rates against :meth:`SimulatedLog.true_ctr`, a sum written by somebody else."""
    drawn = SimulatedLog(ClickModel(0, 1), 2_500)
    best = news.execute(tiny("best"))
    truth = drawn.true_ctr(best_of(drawn)) / mean_rate(drawn)
    np.testing.assert_allclose(best.metrics["true_normalised_ctr"], truth, rtol=1e-6)
    assert truth > 1.5
    uniform = news.execute(tiny("uniform"))
    # 2,500 choices among about 20 whose probabilities spread by less than their mean.
    assert abs(uniform.metrics["true_normalised_ctr"] - 1) < 4 / 50
    low, high = uniform.details["interval"]
    assert low < 1 < high and low < uniform.metrics["normalised_ctr"] < high


def best_of(drawn):
    visits = drawn.model.all_visits(drawn.n_events)
    return lambda block: np.argmax(next(visits).probability, axis=1)


def mean_rate(drawn):
    """Return the true rate of random display, events weighted by one over the size of the pool."""
    total = weight = 0.0
    for visits in drawn.model.all_visits(drawn.n_events):
        n, size = visits.probability.shape
        total += visits.probability.mean(axis=1).sum() / size
        weight += n / size
    return total / weight


def test_a_run_is_the_replay_of_its_agent_and_the_same_again(log):
    run = tiny("linucb", settings={"linucb": {"alpha": 0.3}})
    outcome = news.execute(run)
    policy = AgentPolicy(UCB, run.random_state, warmup=20, width=WIDTH)
    expected = replay_blocks(policy, log, update_every=20, every=50)
    assert outcome.metrics["normalised_ctr"] == expected.normalised_ctr
    assert outcome.metrics["observations"] == expected.accepted
    np.testing.assert_allclose(outcome.details["normalised"], expected.normalised_curve, atol=1e-5)
    assert outcome.details["observations"] == expected.point_accepted.tolist()
    assert len(outcome.details["observations"]) >= 2
    assert news.execute(run) == outcome


@pytest.mark.parametrize("method", [m for m in news.CONFIG.methods if m != news.BEST])
def test_every_method_is_built_from_its_settings_and_can_be_replayed(method):
    """Shapes alone, since nothing has to be compiled for them."""
    agent = news.agent(method, news.CONFIG.settings[method], shape(WIDTH))
    key = jax.random.key(0)
    context = Context(jnp.zeros(6), jnp.zeros((WIDTH, 6)), jnp.ones(WIDTH, bool))
    state = jax.eval_shape(agent.init, key)
    choice = jax.eval_shape(agent.act, state, key, context)
    assert choice.propensities.shape == (WIDTH,)
    told = context, jnp.int32(0), jnp.float32(1)
    after = jax.eval_shape(agent.update, state, key, *told)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)


def test_particles_differ_in_their_number_alone():
    small = {"hidden": [4], "warmup": 0, "learning": {"batch_size": 8, "every": 20}}
    changes = {
        "events": 2_500,
        "every": 50,
        "warmup": 0,
        "methods": ("svgd",),
        "settings": {"svgd": small},
    }
    one, five = particles.grid(harness.changed(particles.QUICK, changes))
    assert (one.config["agent"]["particles"], five.config["agent"]["particles"]) == (1, 5)
    assert {**one.config["agent"], "particles": 5} == five.config["agent"]
    assert particles.execute(one).metrics["observations"] > 50


@pytest.fixture
def real(tmp_path, monkeypatch):
    """Make a file that passes for the real one, of two days, and return where to put it."""
    monkeypatch.setenv("S2VGD_DATA", str(tmp_path))
    monkeypatch.setenv("S2VGD_CACHE", str(tmp_path / "cache"))
    written = simulate(tmp_path / "text", 1_500, 2, 5)
    named = [shutil.copy(f, tmp_path / f.name.removeprefix("simulated-")) for f in written]
    (tmp_path / "news").mkdir()
    return tmp_path / "news" / "r6a.parquet", named, written


def test_the_real_log_is_found_cut_to_its_first_days_and_replayed(real):
    path, named, _ = real
    convert(named, path)
    drawn = list(SimulatedLog(ClickModel(5, 2), 1_500))
    for days in (1, 2):
        outcome = news.execute(tiny("uniform", "r6a", days=days))
        first = [chunk for chunk in drawn if chunk.timestamp[0] < drawn[0].timestamp[0] + 86_400]
        whole = first if days == 1 else drawn
        assert sum(map(len, news.FirstDays(NewsFile(path), days))) == sum(map(len, whole))
        clicks = np.concatenate([chunk.click / chunk.pool_sizes for chunk in whole]).sum()
        weights = np.concatenate([1 / chunk.pool_sizes for chunk in whole]).sum()
        assert outcome.metrics["random_ctr"] == pytest.approx(clicks / weights)
        assert "true_normalised_ctr" not in outcome.metrics
    with pytest.raises(harness.NotRun, match="truth missing"):
        news.execute(tiny("best", "r6a"))


def test_without_the_real_log_runs_are_not_run_and_a_simulated_one_is_refused(real, tmp_path):
    path, _, simulated = real
    runs = [tiny("uniform", "r6a")]
    tally = harness.reproduce(runs, tmp_path / "out", download=False, revision="abc", show=False)
    (row,) = records.read(tmp_path / "out" / "news.jsonl")
    assert tally.not_run == 1 and row["not_run"].startswith("file missing: news/r6a.parquet")
    convert(simulated, path)
    with pytest.raises(DataError, match="converted from simulated files"):
        news.execute(runs[0])


# The report


def line(method, split, rate, true=None, dataset="simulated", experiment="news", **config):
    metrics = {"normalised_ctr": rate, "ctr": 0.04 * rate, "observations": 100_000.0}
    metrics |= {} if true is None else {"true_normalised_ctr": true}
    curve = {"observations": [20_000, 40_000], "normalised": [1.0, rate]}
    run = Run(experiment, method, dataset, split, 0, config)
    return {**vars(run), "metrics": metrics, "details": curve, "seconds": 1.0}


def test_the_table_has_means_and_paired_differences_with_students_interval():
    """Of the differences 0.1, 0.2, 0.3: mean 0.2, and 4.3027 standard errors to either side."""
    rows = [line("s2vgd", FRESH + i, 1.5 + 0.1 * i, 1.6) for i in range(3)]
    rows += [line("linucb", FRESH + i, 1.4, 1.5) for i in range(3)]
    rows += [line("s2vgd", 3, 9.0, 9.0)]  # a log that settings were chosen on
    (table, *_) = section.section(rows).tables
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["S²VGD"][:2] == ["1.600 ± 0.058 (3)", "1.600 ± 0.000 (3)"]
    half = 4.302653 * 0.1 / 3**0.5
    expected = f"+0.200 [{0.2 - half:+.3f}, {0.2 + half:+.3f}]".replace("-", "−")
    assert cells["LinUCB, disjoint"][2] == expected
    assert cells["LinUCB, disjoint"][-1] == "100,000" and cells["SVGD"][0] == "not run"


def test_what_is_simulated_says_so_and_claims_follow_the_numbers():
    rows = [
        line(method, FRESH + i, rate + 0.01 * i, rate + 0.01 * i)
        for method, rate in (("s2vgd", 1.6), ("svgd", 1.5), ("vmg", 1.7), ("best", 2.5))
        for i in range(3)
    ]
    made = section.section(rows)
    (drawing,) = made.drawings
    (axis,) = drawing.figure.axes
    assert "(simulated)" in made.title and "simulated" in drawing.caption
    assert "simulated" in axis.get_title() and "simulated" in made.tables[0].title
    said = " ".join(made.claims)
    assert "does not hold up" in said and "better than SVGD and worse than VMG" in said
    assert "2.51 times the rate of random display, S²VGD 1.61 times" in said
    real = [{**row, "dataset": "r6a"} for row in rows if row["method"] != "best"]
    mixed = section.section(rows + real)
    assert "in part simulated" in mixed.title and len(mixed.tables) == 2
    assert "simulated" not in section.section(real).title


def test_particles_are_judged_by_steps_and_by_pairs():
    rows = [
        line(method, FRESH + i, rate + 0.01 * i, experiment="particles", agent={"particles": m})
        for method, by in (("s2vgd", 0.1), ("svgd", 0.0))
        for m, rate in ((1, 1.2 + by), (5, 1.4 + by), (20, 1.3 + by))
        for i in range(3)
    ]
    made = particle_section.section(rows)
    said = " ".join(made.claims)
    assert (
        "rises in 1 of 2 steps" in said and "+0.100 [+0.100, +0.100] from M = 1 to M = 20" in said
    )
    assert "S²VGD has higher rates than SVGD at every M. It holds up." in said
    cells = {row[0]: row[1:] for row in made.tables[0].rows}
    assert cells["S²VGD"][0] == "1.310 ± 0.006 (3)" and cells["SVGD"][1] == "not run"
    assert "simulated" in made.drawings[0].caption and "(simulated)" in made.title


def test_trials_and_nothing_are_not_judged():
    rows = [line(m, i, 1.5, quick=True) for m in ("s2vgd", "svgd") for i in range(3)]
    for made in (section.section(rows), section.section([])):
        assert made.claims[-1].startswith("Nothing of it has been run in full settings")
    one_log = [line("s2vgd", 2000, 1.5)]
    assert section.section(one_log).claims[-1].startswith("Too little of it has been run")
    assert "trial" in section.section(rows).drawings[0].caption


def test_a_replay_of_the_best_policy_agrees_with_the_truth_within_its_interval(log):
    """One run of 95 % intervals at a fixed seed; the true rate is exact for these visits."""
    result = replay_fixed(news.Best(log.truth).choose_block, log)
    low, high = result.normalised_interval()
    assert low < log.truth.normalised(log.truth.probability.max(axis=1)) < high
