"""The experiment on control: its grid, one tiny run, and what the report says of many."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from s2vgd.control import SteinPolicyGradient
from s2vgd.control.gradients import A2C
from s2vgd.experiments import control, demo_control, harness, plots
from s2vgd.experiments.control import FRESH
from s2vgd.experiments.records import Run
from s2vgd.experiments.sections import control as control_section
from s2vgd.experiments.sections.control_claims import TARGETS, number

# -- the grid ----------------------------------------------------------------------------------


def test_the_grid_crosses_tasks_estimators_and_agents_on_five_fresh_seeds():
    runs = control.grid(control.CONFIG)
    assert len({run.key for run in runs}) == len(runs) == 3 * 2 * 5 * 5
    assert {run.random_state for run in runs} == set(range(FRESH, FRESH + 5))
    iterations = {run.dataset: run.config["iterations"] for run in runs}
    assert iterations == {"cartpole": 100, "swing-up": 500, "double-pendulum": 300}
    tips = {run.dataset: run.config["task"].get("tip") for run in runs}
    assert tips == {"cartpole": None, "swing-up": None, "double-pendulum": "rllab"}
    assert max(run.split for run in control.grid(control.QUICK)) < FRESH
    assert all(control.needs(run) == () for run in runs)


def test_methods_differ_in_what_their_names_say_and_act_for_as_many_steps():
    table = control.settings()
    assert tuple(table) == control.METHODS
    for method, found in table.items():
        agent, _, estimator = method.rpartition("_")
        assert found["estimator"] == estimator and found["activation"] == "tanh"
        assert (found["kernel"] is None) == (agent in ("independent", "single"))
        assert (found["reflections"] > 0) == (found["scales"] is not None) == (agent == "s2vgd")
        assert found["hidden"] == ([25, 16] if agent == "svgd_star" else [25, 10])
        assert found["particles"] == (1 if agent == "single" else 16)
        assert found["particles"] * found["environments"] == 160


def test_learning_rates_are_a_grid_of_their_own_and_otherwise_the_chosen_ones():
    (run,) = tiny(chosen={"cartpole": {"svgd_a2c": 0.5}}, methods=("svgd_a2c",))
    assert run.config["agent"]["learning_rate"] == 0.5
    runs = tiny(learning_rates=control.RATES, methods=("svgd_a2c", "single_a2c"))
    assert sorted(r.config["agent"]["learning_rate"] for r in runs) == sorted(2 * control.RATES)
    assert len({run.key for run in runs}) == 6
    for rates in control.LEARNING_RATES.values():
        assert set(rates) == set(control.METHODS) and set(rates.values()) <= set(control.RATES)


def test_iterations_are_one_number_or_one_for_some_tasks():
    config = harness.changed(control.CONFIG, {"iterations": {"swing-up": 1000}})
    found = {run.dataset: run.config["iterations"] for run in control.grid(config)}
    assert found == {"cartpole": 100, "swing-up": 1000, "double-pendulum": 300}
    config = harness.changed(control.CONFIG, {"iterations": 7})
    assert {run.config["iterations"] for run in control.grid(config)} == {7}


def test_a_method_that_is_in_no_table_is_not_run():
    (run,) = tiny(methods=("pbp",))
    with pytest.raises(harness.NotRun, match="by the name of pbp"):
        control.execute(run)


# -- one run -----------------------------------------------------------------------------------


def tiny(**changes):
    changes = {"methods": ("s2vgd_a2c",), "splits": (3, 4), **changes}
    return control.grid(harness.changed(control.QUICK, changes))


@pytest.fixture(scope="module")
def ran():
    (run,) = tiny(
        settings=control.settings(3, 2, hidden=(5,)),
        iterations=3,
        checkpoints=(1, 3, 9),
        episodes=2,
    )
    # Short episodes: what is compiled takes longer than what is run.
    run = dataclasses.replace(run, config={**run.config, "task": {"max_steps": 12}})
    return run, control.execute(run)


def test_seeds_together_find_what_they_find_alone(ran):
    run, alone = ran
    other = dataclasses.replace(run, split=run.split + 1)
    found, another = control.execute_together([run, other])
    assert found.metrics == pytest.approx(alone.metrics, rel=1e-2)
    assert found.details["iterations"] == alone.details["iterations"]
    assert another.metrics["mean"] != found.metrics["mean"]


def test_a_run_has_the_scores_of_its_own_policies_at_every_checkpoint(ran):
    run, outcome = ran
    metrics = outcome.metrics
    names = {
        *("mean", "best", "best_fresh", "mixture"),
        *("discounted_mean", "discounted_best", "discounted_mixture"),
    }
    every = {*names, *(f"deterministic_{name}" for name in names), "area"}
    every |= {"coverage", "coverage_of_each", "entropy"}
    every |= {"parameter_distance", "behaviour_distance"}
    at = {f"{name}_{n}" for name in every for n in (1, 3)}
    assert set(metrics) == {*every, *at, "parameters", "environment_steps"}
    assert all(metrics[name] == metrics[f"{name}_3"] for name in every)
    assert metrics["environment_steps"] == 3 * 3 * 2 * 12

    agent = {**run.config["agent"], "hidden": (5,), "estimator": A2C(decay=run.config["decay"])}
    again = SteinPolicyGradient("cartpole", settings={"max_steps": 12}, seed=3, **agent)
    again.train(1, progress=False)
    assert metrics["area_1"] == pytest.approx(again.history["return"][0])
    again.train(3, progress=False)
    played = again.policies.evaluate(episodes=2, seed=1_000_003)
    assert metrics["mean"] == pytest.approx(played.returns.mean(), rel=1e-6)
    assert metrics["best"] == pytest.approx(played.returns.mean(axis=1).max(), rel=1e-6)
    assert metrics["area"] == pytest.approx(again.history["return"].mean(), rel=1e-6)
    assert (
        metrics["mean"] != metrics["deterministic_mean"] > metrics["deterministic_discounted_mean"]
    )


def test_a_run_writes_down_its_curve_and_counts_the_parameters_of_one_policy(ran):
    _, outcome = ran
    curve = outcome.details
    assert curve["iterations"] == [1, 2, 3] and curve["steps_per_iteration"] == 3 * 2 * 12
    assert all(best >= mean for best, mean in zip(curve["best"], curve["mean"], strict=True))
    assert outcome.metrics["area"] == pytest.approx(np.mean(curve["mean"]), abs=0.01)
    # Of each matrix: C and the bias, both diagonals, and min(K, side - 1) reflections with K = 1
    # on either side; besides, the standard deviation.
    layers = ((4, 5), (5, 1))
    plain = sum(n * m + m for n, m in layers)
    structure = sum(side + min(1, side - 1) * side for sides in layers for side in sides)
    assert outcome.metrics["parameters"] == plain + structure + 1


# -- the section -------------------------------------------------------------------------------


def line(method, split, metrics=None, dataset="cartpole", rate=0.01, **more):
    lasting = {"iterations": control.ITERATIONS[dataset]}
    config = {**lasting, "agent": {"learning_rate": rate}, **more.pop("config", {})}
    found = {} if metrics is None else {"metrics": metrics}
    details = {"iterations": [1, 2], "mean": [1.0, 2.0], "best": [2.0, 3.0]}
    details["steps_per_iteration"] = 80_000
    run = Run("control", method, dataset, split, 0, config)
    return {**vars(run), **found, "details": details, **more}


def trained(method, areas, dataset="cartpole", first=FRESH, mean=5000.0, best=5000.0, **more):
    n = control.ITERATIONS[dataset]
    scores = {f"mean_{n}": mean, f"best_{n}": best, "mean_25": mean, "mean": mean}
    scores["parameters"] = 400.0
    return [
        line(
            method, first + i, {**scores, f"area_{n}": float(a), "area": float(a)}, dataset, **more
        )
        for i, a in enumerate(areas)
    ]


def said(section, start):
    found = [claim for claim in section.claims if start in claim]
    assert len(found) == 1, section.claims
    return found[0]


def table(section, name):
    (found,) = [t for t in section.tables if t.name == name]
    return [dict(zip(found.header, row, strict=True)) for row in found.rows]


def everywhere(methods_and_areas, **more):
    return [
        row
        for task in control.ITERATIONS
        for estimator in control.ESTIMATORS
        for agent, areas in methods_and_areas.items()
        for row in trained(f"{agent}_{estimator}", areas, task, **more)
    ]


def test_targets_are_judged_by_the_means_over_seeds_at_their_iterations():
    section = control_section.section(
        [
            line("s2vgd_a2c", FRESH + i, {"mean_25": m, "mean_100": 4960.0, "best_100": 4998.0})
            for i, m in enumerate((4400.0, 4601.0))
        ]
    )
    by_target = {
        (r["task"], r["gradient"], r["iterations"]): r for r in table(section, "control_targets")
    }
    assert len(by_target) == len(TARGETS)
    first, second = by_target["Cartpole", "A2C", "25"], by_target["Cartpole", "A2C", "100"]
    assert first["verdict"] == "reached" and first["found"] == "4,500 ± 142"
    assert second["verdict"] == "not reached" and second["at least"] == "4,950 / 4,999"
    others = [r for key, r in by_target.items() if key[:2] != ("Cartpole", "A2C")]
    assert {r["verdict"] for r in others} == {r["found"] for r in others} == {"not run"}
    text = said(section, "Targets for the returns")
    assert "1 of 7 reached: Cartpole with A2C at 25 (4,500)" in text
    assert "1 of 7 not reached: Cartpole with A2C at 100 (4,960 / 4,998)" in text
    assert "5 of 7 not run" in text and "2 of 2 not run" in said(section, "Aims beyond them")
    assert said(section, "5 seeds were asked for")


def test_aims_are_judged_by_longer_trainings_which_enter_nothing_else():
    scores = {"mean_1000": 200.0, "best_1000": 410.0, "mean_500": 7.0, "best_500": 8.0}
    longer = [
        line("s2vgd_a2c", FRESH + i, scores, "swing-up", config={"iterations": 1000})
        for i in range(5)
    ]
    standard = trained("s2vgd_a2c", [1.0] * 3, "swing-up", mean=130.0, best=330.0)
    section = control_section.section([*longer, *standard])
    found = {r["iterations"]: r for r in table(section, "control_targets") if r["seeds"] != "0"}
    assert found["500"]["found"] == "130 ± 0 / 330 ± 0" and found["500"]["seeds"] == "3"
    assert found["1000"]["found"] == "200 ± 0 / 410 ± 0" and found["1000"]["seeds"] == "5"
    assert found["1000"]["verdict"] == "reached"
    assert "1 of 2 reached: Cartpole Swing-Up with A2C at 1000 (200 / 410)" in said(
        section, "Aims beyond them"
    )


def test_a_seed_that_failed_fails_the_target():
    error = {"type": "DivergedError", "message": ""}
    rows = [*trained("s2vgd_a2c", [1.0] * 4), line("s2vgd_a2c", FRESH + 4, error=error)]
    section = control_section.section(rows)
    assert "2 of 7 not reached: Cartpole with A2C at 25 (5,000, 1 seeds failed)" in said(
        section, "Targets for the returns"
    )
    assert table(section, "control_cartpole")[0]["seeds"] == "4, 1 failed"
    alone = control_section.section(
        [line("s2vgd_a2c", FRESH, error=error), *trained("svgd_a2c", [1.0])]
    )
    assert "(1 seeds failed)" in said(alone, "Targets for the returns")


def test_the_difference_of_areas_is_paired_by_seed_with_students_interval():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(4500, 100, 5), rng.normal(4300, 100, 5)
    rows = [*trained("s2vgd_a2c", ours), *trained("svgd_a2c", theirs)]
    section = control_section.section(rows[::-1])  # the order of lines does not matter
    cell = table(section, "control_area")[0]["− SVGD"]
    interval = ttest_1samp(ours - theirs, 0).confidence_interval(0.95)
    numbers = [float(part.strip("[],")) for part in cell.replace("−", "-").split(" (")[0].split()]
    assert numbers == pytest.approx([np.mean(ours - theirs), *interval], abs=0.51)
    assert cell.endswith("(5 pairs)")
    assert table(section, "control_area")[1]["− SVGD"] == "not run"


def test_the_area_is_reached_only_if_no_panel_is_behind_or_missing():
    wave = 10 * np.array([1.0, -1.0, 0.5, -0.5, 0.0])
    good = said(
        control_section.section(everywhere({"s2vgd": 300 + wave, "svgd": np.full(5, 100.0)})),
        "area under the learning curve",
    )
    assert "Reached: at or ahead in Cartpole with A2C" in good and "behind" not in good
    assert good.count("more than chance") == 6
    doubtful = said(
        control_section.section(everywhere({"s2vgd": 100 + 30 * wave, "svgd": np.full(5, 99.0)})),
        "area under the learning curve",
    )
    assert "Reached" in doubtful and doubtful.count("could be chance") == 6
    rows = everywhere({"s2vgd": 300 + wave, "svgd": np.full(5, 100.0)})
    part = [row for row in rows if row["dataset"] != "swing-up"]
    missing = said(control_section.section(part), "area under the learning curve")
    assert "Not judged yet" in missing and "not run in Cartpole Swing-Up with A2C" in missing
    worse = said(
        control_section.section(
            [
                *part,
                *trained("s2vgd_a2c", 50 + wave, "swing-up"),
                *trained("svgd_a2c", np.full(5, 100.0), "swing-up"),
            ]
        ),
        "area under the learning curve",
    )
    assert "Not reached" in worse and "behind in Cartpole Swing-Up with A2C (−50 [" in worse


def test_tuning_seeds_have_their_own_table_and_do_not_enter_the_others():
    tuning = [
        row
        for rate, mean in zip(control.RATES, (1.0, 3.0, 2.0), strict=True)
        for row in trained("s2vgd_a2c", [9.0, 9.0], first=0, rate=rate, mean=mean)
    ]
    fresh = trained("s2vgd_a2c", [7.0] * 3, rate=control.RATES[1])
    section = control_section.section([*tuning, *fresh])
    row = table(section, "control_tuning")[0]
    assert [row[f"{rate:g}"] for rate in control.RATES] == ["1 ± 0", "3 ± 0", "2 ± 0"]
    assert row["shown"] == "0.003" and table(section, "control_cartpole")[0]["area"] == "7 ± 0"
    assert not any("learning rate" in claim for claim in section.claims)

    other = control_section.section([*tuning, *trained("s2vgd_a2c", [7.0] * 3, rate=0.03)])
    assert "tuning favours: S²VGD, A2C in Cartpole." in said(other, "Not run with")
    untuned = control_section.section(fresh)
    assert said(untuned, "For 1 of 1 cells the learning rate has not been chosen")


def test_what_is_missing_is_not_run_and_trials_are_no_evidence():
    empty = control_section.section([])
    nothing = "Nothing of it has been run in full settings, so no claim can be judged."
    assert empty.claims == [nothing] and empty.drawings == []
    returns = table(empty, "control_swing_up")
    assert {v for row in returns for k, v in row.items() if k not in ("method", "seeds")} == {
        "not run"
    }
    trial = [
        line(m, 0, {"mean": 9.0, "mean_25": 9e9, "area": 3.0}, config={"quick": True})
        for m in ("s2vgd_a2c", "svgd_a2c")
    ]
    section = control_section.section(trial)
    assert section.claims[-1] == nothing and "trial" in section.drawings[0].caption
    assert table(section, "control_cartpole")[0]["mean"] == "9"
    assert {row["verdict"] for row in table(section, "control_targets")} == {"not run"}


def test_the_figure_has_six_panels_with_published_lines_where_there_are_any():
    rows = [*trained("s2vgd_a2c", [1.0] * 3), *trained("svgd_a2c", [1.0] * 2)]
    (drawing,) = control_section.section(rows).drawings
    axes = drawing.figure.axes
    assert len(axes) == 6
    assert len(axes[0].lines) == 2 * 2 and len(axes[0].collections) == 2
    for axis in (axes[1], axes[4]):
        assert sorted(line.get_ydata()[0] for line in axis.lines) == [234.0, 405.0]
    assert sorted(line.get_ydata()[0] for line in axes[2].lines) == [-911.0, -341.0]
    texts = [text.get_text() for text in axes[2].texts]
    assert "not run" in texts and "SVPG, best of 16" in texts
    assert "best of 16" in drawing.caption


def test_the_band_of_the_figure_is_one_standard_deviation_over_seeds():
    seeds = [
        {"iterations": [1, 2], "mean": [v, v], "best": [v, v], "steps_per_iteration": 10}
        for v in (1.0, 2.0, 6.0)
    ]
    axis = plots.learning({"t": {"e": {"m": seeds}}}, {}).axes[0]
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((3 - math.sqrt(7), 3 + math.sqrt(7)))
    assert axis.get_xlabel() == "iterations of 10 steps"


# -- the demonstration's policies --------------------------------------------------------------


def test_the_demonstrations_sentences_follow_the_curve():
    found = {
        "curve": {"iterations": [1, 2, 3], "mean": [100.0, 2000.0, 4000.0]},
        **{"environment_steps": 240_000, "seconds": 1.25},
    }
    found["curve"]["best"] = [200.0, 4750.0, 4999.0]
    first, second, third = demo_control.read(found)
    assert "from 100 to 4,000" in first and "from 200 to 4,999" in first
    assert second == "The best policy had 95 % of it in iteration 2."
    assert third.startswith("240,000 steps of the task took 1.2 seconds")
    found["curve"]["best"] = [200.0, 300.0, 4749.0]
    assert "not solved" in demo_control.read(found)[1]


def test_numbers_have_a_true_minus():
    assert number(-1234.5, 1) == "−1,234.5"
