"""The grid of runs: what is written down, what survives a kill, and what a failure costs."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from s2vgd.cli import app
from s2vgd.experiments import harness, measure, records
from s2vgd.experiments.records import Run

SOURCE = Path(harness.__file__).parents[2]
FAKE = """
    import os, time, warnings
    from pathlib import Path

    import jax

    from s2vgd.experiments.harness import Grid, NotRun, Outcome

    CONFIG = QUICK = Grid(methods=("good",), datasets=("none",))

    def needs(run):
        return ()

    def execute(run):
        with open(run.config["log"], "a") as log:
            log.write(f"{run.method} {run.split}\\n")
        time.sleep(run.config.get("pause", 0))
        if run.method == "bad":
            raise ValueError("as it\\nwas told")
        if run.method == "absent" and not Path(run.config["file"]).exists():
            raise NotRun("file missing: " + run.dataset)
        if run.method == "nan":
            return Outcome({"value": float("nan")})
        if run.method == "nan_details":
            return Outcome({"value": 1.0}, {"curve": [float("inf")]})
        if run.method == "needs_package":
            import a_package_that_nobody_has
        if run.method == "broken_import":
            import s2vgd.a_module_that_was_removed
        if run.method == "warns":
            for _ in range(2):
                warnings.warn("the chains\\n complain")
        if run.method == "dies":
            os._exit(7)
        if run.method == "draw":
            x = jax.random.normal(jax.random.key(run.random_state), (40, 40))
            return Outcome({"value": float((x @ x).std())})
        return Outcome({"value": 10.0 * run.split + run.seed}, {"curve": [1, 2]}, {"other": "1.0"})

    def execute_together(runs):
        with open(runs[0].config["log"], "a") as log:
            log.write(f"{runs[0].method} {[run.split for run in runs]}\\n")
        if any(run.method == "sometimes" and run.split == 1 for run in runs):
            raise ValueError("one of them")
        return [Outcome({"value": 10.0 * run.split + run.seed}) for run in runs]
"""
MODULES = {"fake": "fake_experiment"}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Make a grid of runs of a made-up experiment, which logs what it executes."""
    (tmp_path / "fake_experiment.py").write_text(textwrap.dedent(FAKE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_experiment", raising=False)
    config = {"log": str(tmp_path / "log"), "file": str(tmp_path / "file")}

    def runs(*methods, splits=3):
        return [Run("fake", m, "none", i, 0, config) for m in methods for i in range(splits)]

    return runs


def executed(tmp_path):
    return (tmp_path / "log").read_text().splitlines()


def reproduce(runs, out, **settings):
    return harness.reproduce(runs, out, modules=MODULES, show=False, download=False, **settings)


def by_key(out):
    return {(r["method"], r["split"]): r for r in records.read(out / "fake.jsonl")}


def test_a_line_holds_the_scores_and_all_that_is_known_about_the_run(fake, tmp_path):
    reproduce(fake("good", splits=1), tmp_path, command="s2vgd reproduce fake", revision="abc")
    (row,) = records.read(tmp_path / "fake.jsonl")
    assert row["metrics"] == {"value": 0.0} and row["details"] == {"curve": [1, 2]}
    assert {k: row[k] for k in ("experiment", "method", "dataset", "split", "seed")} == {
        "experiment": "fake",
        "method": "good",
        "dataset": "none",
        "split": 0,
        "seed": 0,
    }
    assert row["command"] == "s2vgd reproduce fake" and row["revision"] == "abc"
    assert row["versions"]["jax"] == jax.__version__ and row["versions"]["other"] == "1.0"
    assert row["device"]["kind"] == jax.devices()[0].device_kind
    assert row["seconds"] >= 0 and row["compile_seconds"] == 0 and row["peak_memory_mb"] > 1
    assert row["finished"].endswith("+00:00")


def test_a_package_without_metadata_costs_no_result(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(harness.measure, "_PACKAGES", ("jax", "no-such-package"))
    reproduce(fake("good", splits=1), tmp_path)
    (row,) = records.read(tmp_path / "fake.jsonl")
    assert row["metrics"] == {"value": 0.0}
    assert row["versions"]["no-such-package"] == "unknown"


def test_what_is_finished_is_not_run_again(fake, tmp_path):
    first = reproduce(fake("good", splits=2), tmp_path)
    second = reproduce(fake("good", splits=3), tmp_path)
    assert (first.finished, second.finished, second.kept) == (2, 1, 2)
    assert executed(tmp_path) == ["good 0", "good 1", "good 2"]


def test_the_same_run_with_other_settings_is_another_run(fake, tmp_path):
    (run,) = fake("good", splits=1)
    reproduce([run], tmp_path)
    other = Run("fake", "good", "none", 0, 0, {**run.config, "pause": 0.0})
    assert reproduce([other], tmp_path).finished == 1
    assert len(records.latest(records.read(tmp_path / "fake.jsonl"))) == 2


def test_a_killed_grid_goes_on_where_it_was(fake, tmp_path):
    script = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from pathlib import Path
        from s2vgd.experiments import harness
        from s2vgd.experiments.records import Run
        config = {{"log": {str(tmp_path / "log")!r}, "pause": 0.3}}
        runs = [Run("fake", "good", "none", i, 0, config) for i in range(6)]
        harness.reproduce(runs, Path({str(tmp_path)!r}), modules={MODULES!r}, show=False)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    path = tmp_path / "fake.jsonl"
    with subprocess.Popen(command, env=environment) as process:
        deadline = time.monotonic() + 60
        while len(records.read(path)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    before = [row["split"] for row in records.read(path)]
    assert 2 <= len(before) < 6
    started = len(executed(tmp_path))
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert [row["split"] for row in records.read(path)] == list(range(6))
    assert executed(tmp_path)[started:] == [f"good {i}" for i in range(len(before), 6)]


def test_half_a_line_is_ignored_and_does_not_swallow_the_next(tmp_path):
    path = tmp_path / "a.jsonl"
    records.append(path, {"split": 0})
    with open(path, "a") as file:
        file.write('{"split": 1, "metr')
    assert records.read(path) == [{"split": 0}]
    records.append(path, {"split": 2})
    assert records.read(path) == [{"split": 0}, {"split": 2}]


def test_lines_written_at_the_same_time_stay_whole(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"split": i, "details": [i] * 20_000} for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda row: records.append(path, row), rows))
    assert sorted(records.read(path), key=lambda row: row["split"]) == rows
    assert len(path.read_text().split()) == len(json.dumps(rows).split())  # and nothing besides


def test_a_row_that_json_cannot_hold_leaves_the_file_as_it_was(tmp_path):
    records.append(tmp_path / "a.jsonl", {"split": 0})
    with pytest.raises(ValueError, match="JSON"):
        records.append(tmp_path / "a.jsonl", {"value": float("nan")})
    assert (tmp_path / "a.jsonl").read_text() == '{"split": 0}\n'


def test_a_failed_run_is_written_down_and_the_others_go_on(fake, tmp_path):
    tally = reproduce(fake("bad", "nan", "nan_details", "good", splits=1), tmp_path)
    assert (tally.finished, tally.failed, tally.not_run) == (1, 3, 0)
    rows = by_key(tmp_path)
    assert rows["bad", 0]["error"] == {"type": "ValueError", "message": "as it\nwas told"}
    assert rows["nan", 0]["error"]["type"] == "FloatingPointError"
    assert "metrics" not in rows["nan", 0] and "metrics" not in rows["nan_details", 0]
    assert rows["good", 0]["metrics"] == {"value": 0.0}


def test_what_a_run_warns_of_is_written_down_once_and_not_shown(fake, tmp_path, recwarn):
    reproduce(fake("warns", splits=1), tmp_path)
    assert by_key(tmp_path)["warns", 0]["warnings"] == ["the chains complain"]
    assert not recwarn


def test_a_failed_run_is_made_again_only_when_asked(fake, tmp_path):
    runs = fake("bad", "good", splits=1)
    for retry in (False, False, True):
        reproduce(runs, tmp_path, retry=retry)
    assert executed(tmp_path) == ["bad 0", "good 0", "bad 0"]
    assert len(records.latest(records.read(tmp_path / "fake.jsonl"))) == 2


def test_what_cannot_be_run_here_is_no_failure_and_is_run_as_soon_as_it_can(fake, tmp_path):
    runs = fake("absent", splits=1)
    assert reproduce(runs, tmp_path).not_run == 1
    assert reproduce(runs, tmp_path).not_run == 1
    (row,) = records.read(tmp_path / "fake.jsonl")  # said once
    assert row["not_run"] == "file missing: none" and "error" not in row
    (tmp_path / "file").touch()
    assert reproduce(runs, tmp_path).finished == 1
    assert reproduce(runs, tmp_path).kept == 1


def test_a_missing_package_is_not_run_but_a_broken_import_of_ours_has_failed(fake, tmp_path):
    tally = reproduce(fake("needs_package", "broken_import", splits=1), tmp_path)
    assert (tally.not_run, tally.failed) == (1, 1)
    said = by_key(tmp_path)["needs_package", 0]["not_run"]
    assert said == "package missing: a_package_that_nobody_has is not installed"


def test_a_process_that_dies_costs_its_own_run_only(fake, tmp_path):
    tally = reproduce(fake("good", "dies", splits=2), tmp_path, workers=2)
    assert (tally.finished, tally.failed) == (2, 2)
    assert by_key(tmp_path)["dies", 1]["error"] == {
        "type": "ProcessDied",
        "message": "the process ended with code 7",
    }


def test_workers_find_what_one_process_finds(fake, tmp_path):
    runs = fake("draw", splits=4)
    for workers, out in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        assert reproduce(runs, out, workers=workers).finished == 4
    one, two = by_key(tmp_path / "one"), by_key(tmp_path / "two")
    assert len({row["metrics"]["value"] for row in one.values()}) == 4
    for key, row in one.items():
        assert two[key]["metrics"] == pytest.approx(row["metrics"], rel=1e-6)
        assert two[key]["device"]["cores"] == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_runs_that_differ_in_split_alone_are_made_together_and_written_one_by_one(
    fake, tmp_path, workers
):
    runs = sorted(fake("a", "b", splits=5), key=lambda run: run.split)
    tally = reproduce(runs, tmp_path / "out", together=3, workers=workers)
    assert tally.finished == 10
    assert set(executed(tmp_path)) == {f"{m} {s}" for m in "ab" for s in ([0, 1, 2], [3, 4])}
    rows = by_key(tmp_path / "out")
    for run in runs:
        assert rows[run.method, run.split]["metrics"]["value"] == 10.0 * run.split
    assert sorted(row["together"] for row in rows.values()) == [2] * 4 + [3] * 6


def test_what_fails_together_is_made_again_one_by_one(fake, tmp_path):
    runs = fake("sometimes")
    tally = reproduce(runs, tmp_path / "out", together=3)
    assert tally.finished == 3 and tally.failed == 0
    assert executed(tmp_path)[0] == "sometimes [0, 1, 2]"
    assert executed(tmp_path)[1:] == ["sometimes 0", "sometimes 1", "sometimes 2"]
    for row in by_key(tmp_path / "out").values():
        assert "together" not in row
        assert "ValueError: one of them" in row["warnings"][0], "why it was made again"


def test_compile_time_is_what_jax_reports_and_zero_the_second_time():
    @jax.jit
    def function(x):
        return jnp.linalg.svd(jnp.sin(x) @ x.T)[1]

    x = np.ones((7, 7), np.float32)
    with measure.measured() as first:
        function(x).block_until_ready()
    with measure.measured() as second:
        function(x).block_until_ready()
    assert 0 < first.compile_seconds <= first.seconds
    assert second.compile_seconds == 0


def test_peak_memory_is_that_of_the_run_and_not_of_what_was_before():
    with measure.measured() as large:
        np.ones(2**25).sum()  # a quarter of a gigabyte, given back at once
    with measure.measured() as small:
        np.ones(8).sum()
    assert large.peak_memory_mb > small.peak_memory_mb + 200


def test_a_run_has_a_random_state_of_its_own_in_each_split_and_seed():
    states = {Run("e", "m", "d", i, j, {}).random_state for i in range(20) for j in range(5)}
    assert len(states) == 100


def invoke(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def test_the_command_runs_a_grid_and_says_how_to_run_it_again(tmp_path):
    settings = '{"gp": {"max_rows": 40}}'
    asked = ["table1", "--methods", "gp", "--datasets", "yacht", "--splits", "1:2"]
    done = invoke(*asked, "--set", f"settings={settings}", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "1 finished, 0 failed, 0 not run" in done.output
    (row,) = records.read(tmp_path / "table1.jsonl")
    assert row["config"] == {"hidden": [50], "batch_size": 100, "max_rows": 40}
    assert row["command"].startswith("s2vgd reproduce table1 --methods gp --datasets yacht")
    assert "--splits 1:2" in row["command"] and str(tmp_path) not in row["command"]
    assert set(row["metrics"]) >= {"rmse", "log_likelihood", "crps", "coverage_90"}


def test_a_data_file_that_is_missing_makes_runs_not_run(tmp_path, monkeypatch):
    monkeypatch.delenv("S2VGD_DATA", raising=False)
    monkeypatch.setenv("S2VGD_CACHE", str(tmp_path / "cache"))
    done = invoke("table2", "hyper", "--quick", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "0 finished, 0 failed, 8 not run" in done.output
    for name in ("table2", "hyper"):
        for line in (tmp_path / f"{name}.jsonl").read_text().splitlines():
            assert json.loads(line)["not_run"].startswith("file missing")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table9"], "unknown experiment 'table9'"),
        (["table1", "--methods", "sgdd"], "unknown 'sgdd'"),
        (["table1", "--datasets", "iris"], "unknown 'iris'"),
        (["table1", "--splits", "3"], "first:last"),
        (["table1", "--set", "colour=3"], "no setting 'colour'"),
        (["table1", "--set", "colour"], "name=value"),
    ],
)
def test_a_wrong_word_on_the_command_line_is_named(tmp_path, arguments, said):
    done = invoke(*arguments, "--out", tmp_path)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())
