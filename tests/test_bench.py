"""The benchmark: its ratios, its files, its guard, its page, and that it compares the same work.

The questions themselves are run in small by ``s2vgd bench --quick``.
"""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from s2vgd.bench import (
    QUESTIONS,
    counts,
    fits,
    guard,
    page,
    quality,
    question,
    running,
    table,
    timing,
)
from s2vgd.bench.problems import Regression, TooLarge, check_memory
from s2vgd.bench.records import Record, Row, missing, not_run
from s2vgd.bench.timing import Spread
from s2vgd.cli import app
from s2vgd.errors import DataError

ROOT = Path(__file__).parent.parent


def row(case="a case", ratio=2.0, better="higher", against="a peer", **more):
    return Row(case, against, Spread(ratio, 0.9 * ratio, 1.1 * ratio, 5), better, **more)


def record(*rows, question="step", quick=False):
    about = {"device": {"kind": "cpu", "cores": 2}, "revision": "abc", "load_before": 0.1}
    return Record(question, quick, list(rows), about)


# timing


def test_spread_is_median_and_quartiles():
    found = Spread.of([4.0, 1.0, 3.0, 2.0, 5.0])
    assert found == Spread(3.0, 2.0, 4.0, 5)


def test_contenders_take_turns_in_changing_order_and_ratios_are_within_rounds():
    """A machine that becomes ten times slower in the second round leaves every ratio at two."""
    order = []
    slowness = {0: 1.0, 1: 10.0, 2: 1.0}

    def contender(name, cost):
        def timed():
            order.append(name)
            return cost * slowness[(len(order) - 1) // 2]

        return timed

    taken = timing.in_turns({"ours": contender("ours", 1.0), "peer": contender("peer", 2.0)}, 3)
    assert order == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert timing.ratio(taken["peer"], taken["ours"]) == Spread(2.0, 2.0, 2.0, 3)


def test_no_new_round_begins_after_the_budget_but_three_there_are():
    assert len(timing.in_turns({"one": lambda: 1.0}, 50, budget=-1.0)["one"]) == 3


def test_repeated_returns_the_seconds_of_one_time():
    calls = []
    seconds = timing.repeated(lambda: calls.append(1), 10)()
    assert len(calls) == 10 and 0 <= seconds < 0.1


# records


def test_record_comes_back_from_its_file_as_it_was(tmp_path):
    made = record(row(target=1.5, note="n"), not_run("big", "a peer", "no memory"))
    made.extra["curve"] = [1.0, 2.5]
    assert Record.read(made.write(tmp_path / "new")) == made
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["step.json"]


def test_what_is_no_record_is_refused_by_name(tmp_path):
    (tmp_path / "step.json").write_text('{"rows": 3}')
    with pytest.raises(DataError, match=r"step\.json is not a file of 's2vgd bench'"):
        Record.read(tmp_path / "step.json")


@pytest.mark.parametrize(
    ("better", "ratio", "target", "expected"),
    [("higher", 2.0, 1.5, True), ("higher", 1.0, 1.5, False), ("lower", 1.2, 1.3, True)],
)
def test_target_is_met_on_the_better_side(better, ratio, target, expected):
    assert row(ratio=ratio, better=better, target=target).reaches_target is expected


def test_number_without_a_peer_is_held_against_its_target():
    alone = Row("steps a second", ours=Spread.of([2e6]), target=1e6)
    assert alone.reaches_target is True
    assert not_run("a", "b", "c").reaches_target is None


def test_missing_package_is_named_and_an_installed_one_is_not():
    assert missing("numpy", "no-such-package-at-all") == "package missing: no-such-package-at-all"
    assert missing("numpy") is None


# the guard


@pytest.mark.parametrize(
    ("better", "before", "now", "falls"),
    [
        ("higher", 10.0, 7.1, False),
        ("higher", 10.0, 6.9, True),
        ("higher", 10.0, 15.0, False),
        ("lower", 1.2, 1.7, False),
        ("lower", 1.2, 1.75, True),
        ("lower", 1.2, 0.5, False),
    ],
)
def test_guard_speaks_when_a_ratio_is_worse_by_more_than_thirty_per_cent(
    better, before, now, falls
):
    found = guard.fallen(
        record(row(ratio=before, better=better)), record(row(ratio=now, better=better))
    )
    assert bool(found) is falls


def test_guard_looks_at_ratios_only_and_at_rows_that_both_runs_have():
    """Ten times the time with the same ratio is another machine; new and lost rows are no falls."""
    slow = row(ours=Spread.of([10.0]), theirs=Spread.of([20.0]))
    fast = row(ours=Spread.of([1.0]), theirs=Spread.of([2.0]))
    gone = not_run("another", "a peer", "package missing: torch")
    before = record(fast, row("another", 50.0), Row("alone", ours=Spread.of([1.0])))
    now = record(slow, gone, row("new", 0.1), Row("alone", ours=Spread.of([100.0])))
    assert guard.fallen(before, now) == []


def test_guard_says_which_ratio_fell_and_by_how_much():
    (fall,) = guard.fallen(record(row(ratio=10.0)), record(row(ratio=5.0)))
    assert str(fall) == "step: a case, against a peer: 10 before, 5 now (50 % worse)"


def test_guard_does_not_compare_small_runs_with_large_ones():
    with pytest.raises(DataError, match="--quick"):
        guard.fallen(record(row(), quick=True), record(row()))


def test_guard_takes_a_ratio_of_zero():
    assert guard.fallen(record(row(ratio=0.0)), record(row(ratio=0.0))) == []


# the command


@pytest.fixture
def canned(monkeypatch):
    """Answer every question with one row, whose ratio can be set; no process is started."""
    ratios = {"step": 10.0, "structure": 1.2}

    def run(name, out, *, quick=False, revision=None, heard=lambda line: None):
        if name not in ratios:
            raise running.QuestionError(f"the question {name} failed: no reason")
        better = "higher" if name == "step" else "lower"
        made = record(row(ratio=ratios[name], better=better), question=name, quick=quick)
        heard("a line")
        made.write(out)
        return made

    monkeypatch.setattr(running, "run", run)
    return ratios


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_command_writes_a_file_a_question_and_one_table(canned, tmp_path):
    done = bench("step", "structure", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step.json", "structure.json", "table.md"]
    text = (tmp_path / "table.md").read_text()
    assert question("step").TITLE in text and "| a case | a peer | 10 (9–11) | higher |" in text
    assert "10 (9–11)" in done.stdout


def test_check_ends_with_one_when_a_ratio_fell_and_with_zero_otherwise(canned, tmp_path):
    assert bench("step", "--out", tmp_path / "old").exit_code == 0
    canned["step"] = 8.0
    assert bench("step", "--out", tmp_path / "new", "--check", tmp_path / "old").exit_code == 0
    canned["step"] = 6.0
    done = bench("step", "--out", tmp_path / "new", "--check", tmp_path / "old")
    assert done.exit_code == 1
    assert "40 % worse" in done.output


def test_question_that_fails_does_not_keep_the_others_from_being_asked(canned, tmp_path):
    done = bench("cold", "step", "--out", tmp_path)
    assert done.exit_code == 1
    assert "the question cold failed" in done.output
    assert (tmp_path / "step.json").exists() and (tmp_path / "table.md").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("no-such",), "unknown question 'no-such'"),
        (("step", "--check", "nowhere"), "there is no directory nowhere"),
        (("step", "--out", "x", "--check", "x"), "--check must name another directory"),
    ],
)
def test_bad_input_is_named_and_ends_with_two(canned, tmp_path, monkeypatch, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    done = bench(*arguments)
    assert done.exit_code == 2
    assert complaint in " ".join(done.output.split())


def test_question_runs_in_a_process_of_its_own_and_its_rows_are_heard(tmp_path):
    """The question of the GPU ends at once where there is none: one row that says so."""
    lines = []
    found = running.run("gpu", tmp_path, quick=True, revision="abc", heard=lines.append)
    assert found.quick and found.about["revision"] == "abc"
    assert found.about["device"]["cores"] >= 1 and "jax" in found.about["versions"]
    assert [r.note for r in found.rows] == ["not run: no GPU"]
    assert lines == [table.line(found.rows[0])]


def test_question_that_dies_is_an_error_with_its_last_words(tmp_path):
    with pytest.raises(running.QuestionError, match=r"question nothing failed: .*invalid choice"):
        running.run("nothing", tmp_path)


def test_every_question_has_a_title_and_can_be_asked():
    for name in QUESTIONS:
        asked = question(name)
        assert asked.TITLE and callable(asked.ask)


# the work that is compared


def tiny():
    return Regression((3, 4, 2), rows=5, total=50)


def naive_update(problem, flat, h):
    """Return eq. (svgd_update) by a double sum, with gradients by hand-written backpropagation."""
    x, y = (a.astype(float) for a in problem.batch())
    gradients = []
    for theta in flat.astype(float):
        w0, b0, w1, b1 = (part[0] for part in problem.split(theta[None]))
        before = x @ w0 + b0
        hidden = np.maximum(before, 0)
        error = (y - hidden @ w1 - b1) * problem.total / problem.rows / problem.noise**2
        back = (error @ w1.T) * (before > 0)
        parts = [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
        gradients.append(np.concatenate([part.ravel() for part in parts]) - theta)
    m = len(flat)
    update = np.zeros(flat.shape)
    for i in range(m):
        for j in range(m):
            apart = flat[j].astype(float) - flat[i]
            k = math.exp(-(apart @ apart) / h)
            update[i] += (k * gradients[j] - 2 / h * k * apart) / m
    return update


def test_our_contender_makes_the_update_of_the_paper_on_the_stated_log_joint():
    from s2vgd.bench import ours

    problem = tiny()
    start = problem.start(3)
    loop = ours.svgd_loop(problem, 3, "sgd", bandwidth=7.0)
    loop.steps(1)
    expected = naive_update(problem, start, 7.0)
    np.testing.assert_allclose(loop.particles() - start, expected, rtol=1e-3, atol=1e-3)


def test_blackjax_makes_the_same_update_as_ours():
    from s2vgd.bench.step import difference

    assert difference("BlackJAX", tiny(), 4) < 1e-5


def test_problem_splits_and_joins_particles_without_loss():
    problem = tiny()
    flat = problem.start(6)
    assert flat.shape == (6, problem.size) == (6, 3 * 4 + 4 + 4 * 2 + 2)
    np.testing.assert_array_equal(problem.join(problem.split(flat)), flat)


def test_more_memory_than_there_is_is_refused_and_said():
    with pytest.raises(TooLarge, match=r"would need 1000000000\.0 GB") as caught:
        check_memory(1e18)
    assert caught.value.needed == 1e18
    assert check_memory(1000.0) == 1000


def test_gpu_question_trains_its_many_particles_and_says_what_memory_they_take():
    from s2vgd.bench import gpu

    extra = {}
    sizes = gpu.Sizes(
        rows=40, hidden=(4,), particles=2, batch=10, large_batch=20, many=3, side=16, rounds=2
    )
    data, source = gpu.images(sizes.rows)
    assert data.x.shape == (40, 784) and source
    found = next(gpu.crowd(data, sizes, extra))
    assert found.note == "all particles finite"
    assert extra["many_particles"]["planned_bytes"]["argument"] > 0


def test_gpu_question_counts_the_errors_of_what_was_trained_with_rounded_products(monkeypatch):
    """On two digits that are easy to tell apart, one in 20 named wrong."""
    from s2vgd.bench import gpu

    rng = np.random.default_rng(0)
    digits = rng.integers(0, 2, 70_000)
    images = rng.random((70_000, 784), np.float32) * 0.1
    images[:, :20] += digits[:, None]
    digits[::20] = 1 - digits[::20]
    monkeypatch.setattr(gpu, "mnist", lambda rows: (images[rows], digits[rows]))
    sizes = gpu.Sizes(rows=200, hidden=(4,), particles=2, batch=20, trained=30)
    found = list(gpu.errors(sizes))
    assert [r.case.split()[-1] for r in found] == ["default", "bfloat16"]
    assert all(4 < r.ours.low <= r.ours.high < 7 for r in found)

    def nothing(rows):
        raise OSError("no such file")

    monkeypatch.setattr(gpu, "mnist", nothing)
    (row,) = gpu.errors(sizes)
    assert "not run: MNIST cannot be read (no such file)" in row.note


def test_the_quickest_rung_that_is_high_enough_is_repeated_with_other_seeds(monkeypatch):
    seconds, scores = {1: 3.0, 2: 1.0, 3: 2.0, 4: 0.5}, {1: -2.0, 2: -1.0, 3: 0.0, 4: -9.0}

    def run(method, dataset, seed, budget, **_):
        n = budget["steps"]
        if n == 5:
            raise fits.OverTime("took more than 1 s")
        return fits.Fit(seconds[n] + seed, 0.25, 9.0, scores[n], 1.0)

    monkeypatch.setattr(fits, "run", run)
    ladder = [{"steps": n} for n in (1, 4, 2, 3, 5)]
    found = quality.climb("a", "b", -1.5, ladder, quality.Sizes(repeats=3))
    assert found.seconds == (1.25, 2.25, 3.25)
    assert found.best == "best 0.00 after 2.2 s"
    assert found.rungs[-1] == {"budget": {"steps": 5}, "reason": "took more than 1 s"}
    assert quality.climb("a", "b", 1.0, ladder, quality.Sizes()).seconds == ()


def test_what_was_compiled_before_is_measured_after_a_first_time(monkeypatch):
    """On the rung that was enough, in one directory, whose first fit does not count."""
    places = []

    def run(method, dataset, seed, budget, *, environment, limit):
        places.append(environment["JAX_COMPILATION_CACHE_DIR"])
        assert budget == {"steps": 2}
        return fits.Fit(10.0 if seed == 0 else float(seed), 0.5, 20.0, -1.0, 1.0)

    monkeypatch.setattr(fits, "run", run)
    rungs = [{"budget": {"steps": 1}}, {"budget": {"steps": 2}, "repeats": []}]
    again = quality.compiled_before("b", quality.Climb(rungs, (12.0,)), quality.Sizes(repeats=3))
    assert again.seconds == (1.5, 2.5, 3.5)
    assert len(places) == 4 and len(set(places)) == 1


def test_counts_are_those_of_the_products_written_out():
    """Three products a layer of 2 B l1 l2 operations, two in the first."""
    widths, m, b = (5, 7, 3), 4, 10
    expected = m * (2 * (2 * b * 5 * 7) + 3 * (2 * b * 7 * 3))
    assert counts.network_products(widths, m, b) == expected
    assert counts.svgd_products(4, 100) == 3 * 2 * 4 * 4 * 100
    assert counts.weights_bytes(4, 100) == 1600


# the page


def test_page_has_a_block_for_every_question_and_takes_its_figures_from_the_files(tmp_path):
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    for name in QUESTIONS:
        assert f"<!-- bench:{name}:begin -->" in text
    record(row(ratio=123.0)).write(tmp_path)
    new = page.filled(text, tmp_path)
    assert "| a case | a peer | 123 (111–135) |" in new
    assert new.count("Not run yet") == len(QUESTIONS) - 1
    assert page.filled(new, tmp_path) == new


def test_page_in_the_documentation_is_what_the_result_files_say():
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert page.filled(text, ROOT / "results" / "bench") == text


def test_files_of_the_results_are_readable_by_the_present_code():
    for name in QUESTIONS:
        path = ROOT / "results" / "bench" / f"{name}.json"
        assert not path.exists() or Record.read(path).question == name


def test_row_that_was_not_run_has_no_figures_in_the_table():
    text = table.markdown_table(record(not_run("big", "a peer", "would need 12 GB of memory")))
    assert text.splitlines()[-1] == "| big | a peer | not run: would need 12 GB of memory |"


def test_json_of_a_record_has_no_more_digits_than_were_measured(tmp_path):
    made = record(replace(row(), ours=Spread.of([1.23456789])))
    written = json.loads(made.write(tmp_path).read_text())
    assert written["rows"][0]["ours"]["median"] == 1.2346
