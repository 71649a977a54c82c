"""Grids on a Ray cluster, a real local one: the files of the default engine, and lost workers."""

import importlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import ray
from typer.testing import CliRunner

from s2vgd._threads import n_cores
from s2vgd.cli import app
from s2vgd.experiments import engines, harness, records
from s2vgd.experiments.records import Run

SOURCE = Path(harness.__file__).parents[2]
FAKE = """
    import os, time
    from pathlib import Path

    import jax

    from s2vgd.experiments.harness import Grid, Outcome

    CONFIG = QUICK = Grid(methods=("draw",), datasets=("none",))

    def needs(run):
        return ()

    def rest(seconds):
        began = time.time()
        time.sleep(seconds)
        return began, time.time()

    def fail(task):
        raise KeyError("which was not foreseen")

    def execute(run):
        with open(run.config["log"], "a") as log:
            log.write(f"{run.method} {run.split} {os.getpid()}\\n")
        if run.method == "fragile" and not Path(run.config["killed"]).exists():
            time.sleep(60)
        if run.method == "deadly":
            os._exit(7)
        x = jax.random.normal(jax.random.key(run.random_state), (40, 40))
        details = {"threads": os.environ.get("OMP_NUM_THREADS"), "process": os.getpid()}
        return Outcome({"value": float((x @ x).std())}, details)
"""
MODULES = {"fake": "fake_ray_experiment"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where the made-up experiment is, which the processes of Ray must find too."""
    directory = tmp_path_factory.mktemp("fake")
    (directory / "fake_ray_experiment.py").write_text(textwrap.dedent(FAKE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        patch.setenv("PYTHONPATH", f"{directory}:{SOURCE}")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield directory


@pytest.fixture(scope="module")
def cluster(directory):
    """Start one Ray for all tests of this file but the one that starts its own."""
    settings = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 10**8}
    ray.init(address="local", num_cpus=2, **settings)
    yield
    ray.shutdown()


@pytest.fixture
def grid(tmp_path, cluster):
    config = {"log": str(tmp_path / "log"), "killed": str(tmp_path / "killed")}

    def runs(*methods, splits=2):
        return [Run("fake", m, "none", i, 0, config) for m in methods for i in range(splits)]

    return runs


def reproduce(runs, out, engine=None):
    settings = {"modules": MODULES, "show": False, "download": False, "revision": "abc"}
    return harness.reproduce(runs, out, engine=engine, **settings)


def executed(tmp_path):
    return [line.split() for line in (tmp_path / "log").read_text().splitlines()]


def by_key(out):
    return {(r["method"], r["split"]): r for r in records.read(out / "fake.jsonl")}


def test_ray_writes_the_files_of_the_default_engine_and_goes_on_where_it_was(grid, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    reproduce(grid("draw", splits=3), here)
    engine = engines.Ray()
    assert reproduce(grid("draw", splits=2), there, engine).finished == 2
    again = reproduce(grid("draw", splits=3), there, engine)
    assert (again.finished, again.kept) == (1, 2)
    ours, theirs = by_key(here), by_key(there)
    assert ours.keys() == theirs.keys()
    for key, row in ours.items():
        assert theirs[key].keys() == row.keys()
        assert theirs[key]["config"] == row["config"]
        assert theirs[key]["metrics"] == pytest.approx(row["metrics"], rel=1e-6)


def test_a_run_on_ray_has_a_process_with_one_core_and_one_thread(grid, tmp_path):
    reproduce(grid("draw"), tmp_path, engines.Ray())
    for row in by_key(tmp_path).values():
        assert row["device"]["cores"] == 1 and row["details"]["threads"] == "1"
        assert row["details"]["process"] != os.getpid()


def test_the_run_of_a_killed_worker_is_made_again(grid, tmp_path):
    def kill():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if (tmp_path / "log").exists() and (lines := executed(tmp_path)):
                (tmp_path / "killed").touch()
                os.kill(int(lines[0][2]), signal.SIGKILL)
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    tally = reproduce(grid("fragile", splits=1), tmp_path, engines.Ray())
    killer.join()
    assert (tally.finished, tally.failed) == (1, 0)
    first, second = executed(tmp_path)
    assert first[:2] == second[:2] == ["fragile", "0"] and first[2] != second[2]
    assert len(records.read(tmp_path / "fake.jsonl")) == 1


def test_a_run_that_kills_every_worker_fails_and_the_others_go_on(grid, tmp_path):
    engine = engines.Ray(workers=2, retries=1)
    tally = reproduce(grid("deadly", "draw", splits=1), tmp_path, engine)
    assert (tally.finished, tally.failed) == (1, 1)
    assert [line[0] for line in executed(tmp_path)].count("deadly") == 2
    error = by_key(tmp_path)["deadly", 0]["error"]
    assert error["type"] == "ProcessDied" and "WorkerCrashedError" in error["message"]


def test_at_most_so_many_runs_are_under_way_as_there_are_workers(cluster):
    rest = importlib.import_module("fake_ray_experiment").rest
    answers = sorted(answer for _, answer in engines.Ray(workers=1)(rest, [0.2, 0.2, 0.2]))
    assert len(answers) == 3
    assert all(late[0] >= early[1] for early, late in itertools.pairwise(answers))


def test_what_could_not_even_begin_says_why(cluster):
    fail = importlib.import_module("fake_ray_experiment").fail
    ((index, answer),) = engines.Ray()(fail, ["task"])
    assert index == 0 and "which was not foreseen" in answer.reason


def test_without_an_address_a_ray_is_started_and_stopped(directory, tmp_path):
    script = f"""
        import sys
        from pathlib import Path
        import ray
        from s2vgd.experiments import engines, harness
        from s2vgd.experiments.records import Run
        runs = [Run("fake", "draw", "none", 0, 0, {{"log": {str(tmp_path / "log")!r}}})]
        engine = engines.Ray()
        out = Path({str(tmp_path)!r})
        tally = harness.reproduce(runs, out, modules={MODULES!r}, engine=engine, show=False)
        assert tally.finished == 1 and not ray.is_initialized()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    subprocess.run(command, check=True, timeout=120)
    assert len(records.read(tmp_path / "fake.jsonl")) == 1


def invoke(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def test_the_command_makes_a_grid_on_ray(cluster, tmp_path):
    asked = ["table1", "--methods", "gp", "--datasets", "yacht", "--splits", "1:2"]
    settings = 'settings={"gp": {"max_rows": 40}}'
    done = invoke(*asked, "--set", settings, "--out", tmp_path, "--engine", "ray")
    assert done.exit_code == 0, done.output
    assert "1 finished, 0 failed, 0 not run" in done.output
    (row,) = records.read(tmp_path / "table1.jsonl")
    assert row["command"].endswith("--engine ray") and row["device"]["cores"] == 1


def test_without_ray_the_command_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = invoke("table1", "--quick", "--out", tmp_path, "--engine", "ray")
    assert done.exit_code == 1
    assert "pip install 's2vgd[ray]'" in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--address=auto", "--gpus-per-run=1"])
def test_options_of_ray_are_refused_without_it(tmp_path, option):
    done = invoke("table1", "--quick", "--out", tmp_path, option)
    assert done.exit_code == 2
    assert "--engine ray" in " ".join(done.output.split())


@pytest.mark.parametrize("name", ["workers", "gpus", "retries"])
def test_a_bad_setting_of_the_engine_is_named(name):
    with pytest.raises(ValueError, match=name):
        engines.Ray(**{name: -1})


def test_workers_claim_different_cores_and_give_them_back_when_they_die(tmp_path):
    script = """
        import os, sys
        from s2vgd.experiments import engines
        claim = engines._claim_core()
        print(os.sched_getaffinity(0), flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(SOURCE)}

    def start():
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=environment, **pipes)
        return process, process.stdout.readline()

    started = [start() for _ in range(min(2, n_cores()))]
    try:
        cores = [core for _, core in started]
        assert len(set(cores)) == len(cores) and all(core.startswith("{") for core in cores)
        process, core = started.pop(0)
        process.kill()
        process.communicate()
        started.append(start())
        assert started[-1][1] == core
    finally:
        for process, _ in started:
            process.kill()
            process.communicate()
