"""The bandit experiments: agents by name, grids, pairs of runs, and what the report says."""

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp

from s2vgd import bandits
from s2vgd.experiments import bandit_agents, demo_bandit, harness, mushroom, worlds
from s2vgd.experiments.records import Run
from s2vgd.experiments.sections import label
from s2vgd.experiments.sections import mushroom as mushroom_section
from s2vgd.experiments.sections import worlds as worlds_section
from s2vgd.experiments.summary import Estimate
from s2vgd.priors import FixedPrior

# -- agents ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", bandit_agents.BUILDERS)
def test_every_method_is_built_from_its_settings_and_its_network_is_the_papers(method):
    shape = bandits.ContextShape(2, 4)
    agent = bandit_agents.build(method, shape, mushroom.settings(10.0)[method])
    assert isinstance(agent, bandits.Agent)
    of_networks = "hidden" in mushroom.settings(10.0)[method]
    assert of_networks == (method not in ("linucb", "lints", "lints_unknown", "uniform"))
    if of_networks:
        assert mushroom.settings(10.0)[method]["hidden"] == [50]


def test_settings_as_json_mean_what_they_say_in_python():
    """Equal settings give the same agent, so identity shows that nothing was lost on the way."""
    shape = bandits.ContextShape(3, 4)
    built = bandit_agents.build(
        "s2vgd",
        shape,
        {
            **{"hidden": [5, 6], "particles": 3, "reflections": 2, "scales": None},
            **{"reward": ["categorical", [-10.0, 0.0, 5.0]], "prior": {"scale_variance": 0.5}},
            "learning": {"batch_size": 7, "every": 2},
        },
    )
    assert built is bandits.stein_thompson(
        shape,
        hidden=(5, 6),
        particles=3,
        reflections=2,
        scales=None,
        reward=bandits.categorical([-10.0, 0.0, 5.0]),
        prior=FixedPrior(scale_variance=0.5),
        learning=bandits.Learning(batch_size=7, every=2),
    )


def test_the_papers_rows_keep_its_batch_step_size_and_cadence():
    for std in (1.0, 10.0):
        table = mushroom.settings(std)
        for method in ("s2vgd_paper", "svgd_paper", "epsilon_greedy_1_paper"):
            learning = bandits.Learning(**table[method]["learning"])
            assert (learning.batch_size, learning.learning_rate) == (64, 1e-3)
            assert (learning.every, learning.steps) == (1, 1)
        assert table["s2vgd_paper"]["reward"] == ["gaussian", std]
        for method in ("epsilon_greedy_3", "epsilon_greedy_3_paper"):
            assert table[method]["reward"] == ["gaussian", None]
            assert table[method]["epsilon"] == 0.03


def test_an_unknown_agent_is_not_run():
    with pytest.raises(harness.NotRun, match="no bandit agent is named nobody"):
        bandit_agents.build("nobody", bandits.ContextShape(2, 1), {})


# -- grids and runs ----------------------------------------------------------------------------


@pytest.mark.parametrize("module", [mushroom, worlds])
def test_the_grid_has_fresh_seeds_that_are_those_of_the_simulations(module):
    runs = module.grid(module.CONFIG)
    assert len({run.key for run in runs}) == len(runs)
    seeds = {run.random_state for run in runs}
    first, n = {"mushroom": (mushroom.SEEDS[0], 10), "worlds": (mushroom.FRESH, 5)}[module.NAME]
    assert seeds == set(range(first, first + n)) and first >= mushroom.FRESH
    assert all(run.split == run.random_state for run in runs)
    assert len(runs) == len(seeds) * len(module.CONFIG.methods) * len(module.CONFIG.datasets)
    assert max(run.split for run in module.grid(module.QUICK)) < mushroom.FRESH


def run_of(module, method, split, dataset="mushroom", **config):
    tiny = harness.changed(
        module.QUICK,
        {"methods": (method,), "splits": (split, split + 1), "datasets": (dataset,), **config},
    )
    (run,) = module.grid(tiny)
    return run


def test_a_run_has_the_regrets_of_its_own_decisions():
    run = run_of(mushroom, "uniform", 3, steps=60, checkpoints=(20, 50, 100), last=10, points=7)
    outcome = mushroom.execute(run)
    world = mushroom.world("mushroom")
    record = bandits.simulate(bandits.uniform(), world, 60, seeds=[3]).record
    total = record.regret[0].cumsum()
    assert outcome.metrics == {
        "regret": pytest.approx(total[59]),
        "regret_20": pytest.approx(total[19]),
        "regret_50": pytest.approx(total[49]),
        "wrong": pytest.approx(np.mean(record.regret[0, -10:] > 0)),
        "entropy": pytest.approx(np.log(2)),
    }
    steps = outcome.details["steps"]
    assert len(steps) == 7 and steps[-1] == 60
    np.testing.assert_allclose(outcome.details["regret"], total[np.array(steps) - 1])


@pytest.mark.parametrize(("module", "dataset"), [(mushroom, "mushroom"), (worlds, "nonlinear")])
def test_seeds_together_find_what_they_find_alone(module, dataset):
    runs = [run_of(module, "linucb", split, dataset, steps=60) for split in (3, 7)]
    together = module.execute_together(runs)
    for run, outcome in zip(runs, together, strict=True):
        assert outcome.metrics == pytest.approx(module.execute(run).metrics)
    assert together[0].metrics["regret"] != together[1].metrics["regret"]


def test_blundells_rewards_cost_more_for_the_same_mistakes():
    regret = {
        name: mushroom.execute(run_of(mushroom, "uniform", 3, name, steps=60)).metrics["regret"]
        for name in mushroom.BAD
    }
    # A poisonous mushroom eaten costs 2.5 in expectation, and 15 with Blundell's rewards.
    assert regret["mushroom"] < regret["mushroom-blundell"] <= 6 * regret["mushroom"]


def test_methods_with_the_same_seed_meet_the_same_mushrooms(monkeypatch):
    """Two agents that always do the same, one this and one that, digest what they are shown."""
    weights = np.arange(117, dtype=np.float32)

    def stubborn(action):
        def act(state, key, context):
            choice = bandits.uniform().act((), key, context)
            return choice._replace(action=choice.action * 0 + action)

        def update(state, key, context, action, reward):
            return 0.9 * state + context.shared @ weights

        return bandits.Agent(lambda key: np.float32(0), act, update)

    digests, wrong = [], []
    for action in (0, 1):
        agent = stubborn(action)
        monkeypatch.setitem(bandit_agents.BUILDERS, "stubborn", lambda shape, agent=agent: agent)
        played = bandits.simulate(agent, mushroom.world("mushroom"), 30, seeds=[4, 5])
        digests.append(played.states.tolist())
        wrong.append(mushroom.execute(run_of(mushroom, "stubborn", 4, steps=30)).metrics["wrong"])
    assert digests[0] == digests[1] and digests[0][0] != digests[0][1]
    # Each mushroom is to be eaten or to be left, so the mistakes of both add up to all of them.
    assert sum(wrong) == pytest.approx(1.0)


def test_regret_in_a_world_is_relative_to_chance_on_the_same_seed():
    run = run_of(worlds, "linucb", 2, "nonlinear", steps=80)
    metrics = worlds.execute(run).metrics
    world = worlds.world("nonlinear")
    of_chance = bandits.simulate(bandits.uniform(), world, 80, seeds=[2]).record.regret.sum()
    assert metrics["relative"] == pytest.approx(100 * metrics["regret"] / of_chance, rel=1e-4)
    chance = worlds.execute(run_of(worlds, "uniform", 2, "nonlinear", steps=80)).metrics
    assert chance["relative"] == 100.0


def test_worlds_without_a_file_are_not_run_and_others_are_what_their_names_say():
    assert worlds.world("wheel-0.5").shape == bandits.ContextShape(5, 2)
    assert worlds.needs(run_of(worlds, "linucb", 0, "wheel-0.5")) == ()
    assert worlds.needs(run_of(worlds, "linucb", 0, "shuttle")) == ("shuttle",)
    with pytest.raises(harness.NotRun, match="none is named moon"):
        worlds.world("moon")


def test_numbers_are_standardised_and_zeros_and_ones_left_alone():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(7, 3, 50), rng.integers(0, 2, 50), np.full(50, 4.0)])
    found = worlds.standardised(x)
    np.testing.assert_allclose(found[:, 0], (x[:, 0] - x[:, 0].mean()) / x[:, 0].std())
    np.testing.assert_array_equal(found[:, 1], x[:, 1])
    np.testing.assert_array_equal(found[:, 2], 0.0)


# -- the section on mushrooms ------------------------------------------------------------------


def line(method, split, metrics=None, dataset="mushroom", experiment="mushroom", **more):
    regrets = {} if metrics is None else {"metrics": metrics}
    curve = {"steps": [1, 10], "regret": [0.0, 5.0]}
    return {
        **vars(Run(experiment, method, dataset, split, 0, {"steps": 50_000})),
        **regrets,
        "details": curve,
        **more,
    }


def played(method, at_end, early=500.0, start=200.0, first=mushroom.FRESH, **more):
    return [
        line(
            method,
            first + i,
            {"regret_1000": start, "regret_10000": early, "regret_50000": float(v), "wrong": 0.01},
            **more,
        )
        for i, v in enumerate(at_end)
    ]


def said(section, start):
    found = [claim for claim in section.claims if start in claim]
    assert len(found) == 1, section.claims
    return found[0]


def cells(table):
    return {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}


def test_the_interval_of_a_paired_difference_is_students():
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(900, 150, 10), rng.normal(1000, 200, 12)
    section = mushroom_section.section([*played("s2vgd", ours), *played("svgd", theirs)])
    low, high = ttest_1samp(ours - theirs[:10], 0).confidence_interval(0.95)
    mean = np.mean(ours - theirs[:10])
    wanted = f"{mean:+,.0f} [{low:+,.0f}, {high:+,.0f}] (10 pairs)".replace("-", "−")
    assert cells(section.tables[1])["S²VGD − SVGD"]["at 50,000"] == wanted
    assert wanted in said(section, "The paired difference S²VGD − SVGD")


@pytest.mark.parametrize("n", [3, 4, 10, 40])
def test_students_interval_against_scipy(n):
    found = mushroom_section.t_interval(Estimate(-120.0, 45.0, n))
    np.testing.assert_allclose(found, t.interval(0.95, n - 1, -120.0, 45.0), rtol=1e-4)


def test_two_seeds_give_no_interval_and_equal_differences_an_empty_one():
    assert mushroom_section.t_interval(Estimate(1.0, 1.0, 2)) is None
    assert mushroom_section.t_interval(Estimate(1.0, 0.0, 5)) == (1.0, 1.0)


def test_the_difference_to_svgd_is_told_whatever_its_sign():
    flat = np.linspace(-10, 10, 10)
    for shift, reading in (
        (-300, "better than SVGD"),
        (300, "worse than SVGD"),
        (0, "could be chance"),
    ):
        rows = [*played("s2vgd", 1000 + shift + flat), *played("svgd", 1000 - flat)]
        text = said(mushroom_section.section(rows), "The paired difference S²VGD − SVGD")
        assert reading in text


def test_targets_are_judged_both_ways():
    rivals = mushroom_section.GREEDY + mushroom_section.GREEDY_PAPER
    greedy = [row for m in rivals for row in played(m, [5000.0] * 10)]
    spread = np.linspace(-50, 50, 10)
    good = mushroom_section.section(
        [*played("s2vgd", 700 + spread), *played("linucb", 1000 - spread), *greedy]
    )
    reached = [c for c in good.claims if c.startswith("Target")]
    assert len(reached) == 7 and all(" Reached" in claim for claim in reached)
    assert "7.1 times below greedy, learned noise" in said(
        good, "ε-greedy agents with learned noise at"
    )

    collapsed = [*(1500 + spread)[:9], 51_595.0]
    bad = mushroom_section.section(
        [
            *played("s2vgd", collapsed, early=651.0),
            *played("linucb", 1000 - spread),
            *greedy,
        ]
    )
    missed = [c for c in bad.claims if c.startswith("Target")]
    assert len(missed) == 7 and all(" Not reached" in claim for claim in missed)
    assert "the worst has 51,595" in said(bad, "no seed of S²VGD")


@pytest.mark.parametrize(("method", "plain"), mushroom_section.LATER.items())
def test_settings_that_came_later_are_judged_by_their_own_rows(method, plain):
    names = [label(m) for m in (method, plain)]
    rows = [*played("s2vgd", [700.0] * 10), *played(method, [3000.0] * 10)]
    rows += [*played(plain, [2900.0] * 10), *played("linucb", [500.0] * 10)]
    section = mushroom_section.section(rows)
    assert "Not reached: the worst has 3,000" in said(section, f"no seed of {names[0]} ")
    assert "Reached: the worst has 700" in said(section, "no seed of S²VGD above")
    differences = cells(section.tables[1])
    assert differences[f"{names[0]} − {names[1]}"]["at 50,000"].startswith("+100 ")
    assert differences[f"{names[0]} − LinUCB"]["at 50,000"].startswith("+2,500 ")


def test_a_lead_over_linucb_that_could_be_chance_is_not_reached():
    rng = np.random.default_rng(0)
    rows = [*played("s2vgd", rng.normal(990, 300, 10)), *played("linucb", [1000.0] * 10)]
    text = said(mushroom_section.section(rows), "ahead of LinUCB")
    assert "Not reached" in text and "could be chance" in text


def test_a_seed_that_failed_is_counted_and_fails_the_target():
    rows = played("s2vgd", [700.0] * 9)
    rows.append(line("s2vgd", mushroom.FRESH + 9, error={"type": "DivergedError", "message": ""}))
    section = mushroom_section.section(rows)
    assert cells(section.tables[0])["S²VGD"]["seeds"] == "9, 1 failed"
    assert "Not reached: the worst has 700, and 1 seeds failed" in said(section, "no seed of S²VGD")
    assert said(section, "9 seeds, and 10 were asked for")


def test_what_is_missing_is_not_run_and_nothing_is_concluded_without_ours():
    section = mushroom_section.section(played("svgd", [900.0] * 3))
    table = cells(section.tables[0])
    assert table["SVGD"]["at 50,000"] == "900 ± 0 (3)" and table["SVGD"]["seeds"] == "3"
    assert table["S²VGD"]["at 50,000"] == table["uniform"]["worst seed"] == "not run"
    assert cells(section.tables[1])["S²VGD − SVGD"]["at 50,000"] == "not run"
    assert all(c.endswith((" Not run.", ": not run.")) for c in section.claims), section.claims
    empty = mushroom_section.section([])
    assert empty.claims == [
        "Nothing of it has been run in full settings, so no claim can be judged."
    ]
    assert empty.drawings == [] and all(
        cell in ("not run", "0") for row in empty.tables[0].rows for cell in row[1:]
    )


def test_seeds_that_settings_were_chosen_on_are_not_shown():
    rows = [*played("s2vgd", [1.0] * 16, first=0), *played("s2vgd", [700.0] * 3)]
    section = mushroom_section.section(rows)
    assert cells(section.tables[0])["S²VGD"]["at 50,000"] == "700 ± 0 (3)"


def test_shorter_runs_have_a_dash_and_no_claim():
    rows = [
        line(m, mushroom.FRESH + i, {"regret_1000": 100.0})
        for m in ("s2vgd", "svgd")
        for i in range(3)
    ]
    section = mushroom_section.section(rows)
    assert cells(section.tables[0])["S²VGD"]["at 50,000"] == "–"
    difference = cells(section.tables[1])["S²VGD − SVGD"]
    assert difference["at 50,000"] == "–" and difference["at 1,000"] == "+0 [+0, +0] (3 pairs)"


def test_the_figure_has_a_line_for_each_seed_and_one_for_their_mean():
    rows = [*played("s2vgd", [700.0] * 3), *played("svgd", [900.0] * 2)]
    (drawing,) = mushroom_section.section(rows).drawings
    (axis,) = drawing.figure.axes
    assert len(axis.lines) == 3 + 1 + 2 + 1


def test_the_papers_claim_follows_the_means():
    def rows(ours, start):
        return [
            *played("s2vgd", ours, start=start),
            *played("svgd", [900.0] * 3),
            *(row for m in ("vmg", *mushroom_section.GREEDY) for row in played(m, [2000.0] * 3)),
        ]

    good = said(mushroom_section.section(rows([700.0] * 3, 150.0)), "Claim: S²VGD has lower")
    assert "It holds up" in good and "S²VGD has the lowest mean, 700" in good
    for ours, start in (([950.0] * 3, 150.0), ([700.0] * 3, 250.0)):
        bad = said(mushroom_section.section(rows(ours, start)), "Claim: S²VGD has lower")
        assert "It does not hold up" in bad


# -- the section on the other worlds -----------------------------------------------------------


def world_rows(values, splits=3):
    return [
        line(
            method,
            mushroom.FRESH + i,
            {"regret": 10.0 * value, "relative": value + 0.1 * i},
            dataset=name,
            experiment="worlds",
        )
        for (name, method), value in values.items()
        for i in range(splits)
    ]


def test_worlds_are_ranked_where_all_agents_have_run():
    values = {("shuttle", "s2vgd"): 5.0, ("shuttle", "svgd"): 6.0, ("shuttle", "linucb"): 7.0}
    values |= {("adult", "s2vgd"): 50.0, ("adult", "svgd"): 40.0, ("adult", "linucb"): 60.0}
    values |= {("nonlinear", "linucb"): 1.0}  # the others have not run there
    section = worlds_section.section(world_rows(values))
    table = cells(section.tables[0])
    assert {table[m]["mean rank"] for m in ("S²VGD", "SVGD")} == {"1.5"}
    assert table["LinUCB"]["mean rank"] == "3.0" and table["uniform"]["mean rank"] == "–"
    assert table["S²VGD"]["shuttle"] == "5.1 ± 0.1 (3)"
    assert table["S²VGD"]["nonlinear"] == table["uniform"]["adult"] == "not run"
    assert cells(section.tables[1])["S²VGD"]["shuttle"] == "50 ± 0 (3)"
    against = said(section, "less regret than SVGD")
    assert "in 1 of 2 worlds" in against and "in 1 (shuttle), and more by as much in 1 (adult)" in (
        against
    )
    assert "in 2 of 2 worlds" in said(section, "less regret than LinUCB")


def test_agents_that_lose_against_chance_are_named():
    section = worlds_section.section(world_rows({("adult", "svgd"): 130.0, ("adult", "s2vgd"): 9}))
    assert said(section, "No better than chance") == "No better than chance: SVGD in adult."


def test_worlds_from_nothing_are_not_run():
    section = worlds_section.section([])
    assert section.claims == [
        "Nothing of it has been run in full settings, so no claim can be judged."
    ]
    assert {cell for row in section.tables[0].rows for cell in row[1:]} == {"not run", "–"}


# -- the demonstration's bandit ----------------------------------------------------------------


def test_the_demonstrations_sentences_follow_the_regrets():
    agents = {
        name: {"regret": regret}
        for name, regret in (
            ("S²VGD", [10.0, 30.0]),
            ("LinUCB", [20.0, 20.0]),
            ("uniform", [100.0, 100.0]),
        )
    }
    first, second, last = demo_bandit._read(agents)
    assert first.endswith("S²VGD 20 %, LinUCB 20 %.")
    assert second == "S²VGD has less regret than LinUCB with 1 of 2 seeds."
    assert last.startswith("2 seeds settle nothing")
