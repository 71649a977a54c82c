"""The command line from outside: what it writes, what it prints, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from s2vgd.cli import app
from s2vgd.cli.models import load_model
from s2vgd.cli.scores import split
from s2vgd.estimators import S2VGDClassifier, S2VGDRegressor
from s2vgd.tabular import TableCodec

TINY = {"hidden": (4,), "particles": 4, "steps": 30, "refine": None}
TINY_OPTIONS = ["--hidden", "4", "--particles", "4", "--steps", "30", "--refine", "none"]
# Nearly all fits here have these inputs, 60 rows and constant noise: one compilation serves them.
NUMBER_OPTIONS = [*TINY_OPTIONS, "--noise", "constant", "--drop", "kind"]


def run(*arguments: object, code: int = 0):
    """Run a command, insisting on its exit code and on the absence of a traceback."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    unexpected = result.exception if not isinstance(result.exception, SystemExit) else None
    assert (result.exit_code, unexpected) == (code, None), result.output
    return result


def houses(n: int = 60) -> pd.DataFrame:
    """Return a table with numbers, categories, gaps, two numeric targets and a class."""
    rng = np.random.default_rng(0)
    size = rng.uniform(20, 200, n)
    town = rng.choice(["york", "bath", "ely"], n)
    price = 3.0 * size + 100.0 * (town == "bath") + rng.normal(0, 20, n)
    frame = pd.DataFrame({"size": size, "rooms": np.arange(n) % 7, "town": town})
    frame["price"], frame["rent"] = price, price / 100 + 1
    frame["kind"] = np.where(size > 100, "large", "small")
    frame.loc[3, "size"] = np.nan
    return frame


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """Return a directory with a table and one model of each task, fitted by the command."""
    directory = tmp_path_factory.mktemp("cli")
    table = directory / "houses.csv"
    houses().to_csv(table, index=False)
    common = ["fit", table, "--quiet", "--holdout", "0", "--drop", "rent"]
    run(*common, *NUMBER_OPTIONS, "--target", "price", "--out", directory / "number")
    classes = ["--target", "kind", "--drop", "price"]
    run(*common, *TINY_OPTIONS, *classes, "--out", directory / "class")
    return directory


# fit


def test_fit_is_the_estimator_on_the_encoded_table(workspace):
    """Same rows, same seed: the saved model predicts what the Python estimator predicts."""
    frame = houses()
    codec = TableCodec.fit(frame, ["price"], drop=["rent", "kind"])
    x, y = codec.encode(frame), codec.encode_target(frame)[0]
    expected = S2VGDRegressor(**TINY, noise="constant", random_state=0).fit(x, y)
    stored_codec, stored = load_model(workspace / "number")
    assert stored_codec == codec
    np.testing.assert_allclose(stored.predict(x), expected.predict(x), rtol=1e-5)


def test_options_left_out_keep_the_defaults_of_the_estimator(workspace):
    _, estimator = load_model(workspace / "number")
    given = {**TINY, "noise": "constant", "random_state": 0, "verbose": False}
    assert estimator.get_params() == {**S2VGDRegressor().get_params(), **given}


def test_fit_reports_held_out_metrics_and_summary(workspace, tmp_path):
    frame = houses(62)
    frame.loc[[5, 6], "price"] = np.nan
    frame["blank"] = None
    table = tmp_path / "gaps.parquet"
    frame.to_parquet(table)
    options = ["--target", "price", "--drop", "rent", "--holdout", "0.2"]
    result = run("fit", table, *options, "--out", tmp_path / "model", *NUMBER_OPTIONS)
    assert "regression of price (inferred; --task overrides): 60 rows, 6 inputs" in result.stderr
    assert "left out 2 rows without a target" in result.stderr
    assert "ignored columns without any value: blank" in result.stderr
    assert "fitting 48 rows to score the 12 held out" in result.stderr
    for name in ("RMSE", "log-likelihood", "CRPS", "inside 90 % interval"):
        assert f"held out: {name}" in result.stdout
    assert sorted(tmp_path.iterdir()) == [table, tmp_path / "model"]


def test_quiet_prints_nothing(workspace, tmp_path):
    table = workspace / "houses.csv"
    options = ["--target", "price", "--drop", "rent", "--holdout", "0", "--quiet"]
    result = run("fit", table, *options, *NUMBER_OPTIONS, "--out", tmp_path / "model")
    assert (result.stdout, result.stderr) == ("", "")


def test_fit_replaces_a_model_and_leaves_other_files_alone(workspace, tmp_path):
    table, model = workspace / "houses.csv", tmp_path / "model"
    options = ["--holdout", "0", "--quiet", "--out", model, *NUMBER_OPTIONS]
    run("fit", table, "--target", "price", "--drop", "rent", *options)
    (model / "notes.txt").write_text("mine")
    run("fit", table, "--target", "rent", "--drop", "price", *options)
    assert load_model(model)[0].targets == ("rent",)
    assert (model / "notes.txt").read_text() == "mine"


def test_fit_refuses_a_directory_that_is_not_a_model_before_any_work(workspace, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    result = run("fit", workspace / "houses.csv", "--target", "price", "--out", tmp_path, code=2)
    assert "holds 'thesis.txt' and nothing saved by s2vgd" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_fit_does_not_replace_a_model_of_the_other_task(workspace):
    before = {path.name: path.read_bytes() for path in (workspace / "number").iterdir()}
    options = ["--target", "kind", "--out", workspace / "number"]
    result = run("fit", workspace / "houses.csv", *options, code=2)
    assert "it holds a 'regressor'" in result.stderr
    assert before == {path.name: path.read_bytes() for path in (workspace / "number").iterdir()}


def test_forced_task(workspace, tmp_path):
    frame = houses().drop(columns=["price", "rent"]).assign(stars=np.tile([1, 2], 30))
    table = tmp_path / "stars.csv"
    frame.to_csv(table, index=False)
    options = ["--target", "stars", "--holdout", "0", "--quiet"]
    run("fit", table, *options, *TINY_OPTIONS, "--drop", "kind", "--out", tmp_path / "auto")
    forced = ["--task", "regression", *NUMBER_OPTIONS]
    run("fit", table, *options, *forced, "--out", tmp_path / "forced")
    assert isinstance(load_model(tmp_path / "auto")[1], S2VGDClassifier)
    assert isinstance(load_model(tmp_path / "forced")[1], S2VGDRegressor)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "prise"], "no target column 'prise' (did you mean 'price'?)"),
        (["--target", "price", "--drop", "sise"], "did you mean 'size'?"),
        (["--target", "kind", "--task", "regression"], "is not a number"),
        (["--target", "kind", "--noise", "input"], "--noise is for regression"),
        (["--target", "price", "--noise", "loud"], "noise"),
        (["--target", "price", "--hidden", "fifty"], "positive whole numbers"),
        (["--target", "price", "--hidden", "0"], "positive whole numbers"),
        (["--target", "price", "--particles", "0"], "--particles"),
        (["--target", "price", "--steps", "0"], "--steps"),
        (["--target", "price", "--steps", "many"], "positive whole number or 'auto'"),
        (["--target", "price", "--task", "ranking"], "--task"),
        ([], "--target"),
    ],
)
def test_fit_refuses_bad_options(workspace, tmp_path, arguments, message):
    model = tmp_path / "model"
    result = run("fit", workspace / "houses.csv", *arguments, "--out", model, code=2)
    assert message in result.stderr
    assert not model.exists()


def test_errors_are_one_line(workspace, tmp_path):
    result = run("fit", tmp_path / "no.csv", "--target", "y", "--out", tmp_path / "m", code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: there is no file ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("stratify", [False, True])
def test_held_out_rows_are_a_reproducible_share(stratify):
    y = np.repeat([0, 1, 2], [50, 49, 1])
    train, test = split(y, 0.2, seed=1, stratify=stratify)
    again = split(y, 0.2, seed=1, stratify=stratify)
    np.testing.assert_array_equal(np.sort(np.r_[train, test]), np.arange(100))
    np.testing.assert_array_equal(test, again[1])
    assert len(test) == 20
    if stratify:
        np.testing.assert_array_equal(np.bincount(y[test], minlength=3), [10, 10, 0])


def test_too_few_rows_hold_out_none():
    for n in (1, 2, 4):
        train, test = split(np.zeros(n), 0.1, seed=0, stratify=False)
        assert (len(train), len(test)) == (n, 0)


# predict


def test_predictions_are_those_of_the_estimator(workspace, tmp_path):
    out = tmp_path / "out.csv"
    options = ["--level", "0.8", "--quantiles", "0.1,0.5", "--keep", "town"]
    result = run("predict", workspace / "number", workspace / "houses.csv", "--out", out, *options)
    codec, estimator = load_model(workspace / "number")
    predictive = estimator.predict_dist(codec.encode(houses()))
    frame = pd.read_csv(out)
    assert list(frame) == ["town", "mean", "std", "lower", "upper", "q0.1", "q0.5"]
    assert list(frame["town"]) == list(houses()["town"])
    np.testing.assert_allclose(frame["mean"], predictive.mean, rtol=1e-5)
    np.testing.assert_allclose(frame["std"], predictive.std, rtol=1e-5)
    np.testing.assert_allclose(frame["upper"], predictive.quantile(0.9), rtol=1e-5)
    np.testing.assert_allclose(frame["lower"], frame["q0.1"], rtol=1e-5)
    assert "ignored columns the model does not use: rent, kind" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_the_default_interval_is_ninety_percent(workspace, tmp_path):
    table, model = workspace / "houses.csv", workspace / "number"
    run("predict", model, table, "--out", tmp_path / "plain.csv")
    run("predict", model, table, "--out", tmp_path / "level.csv", "--level", "0.9")
    assert (tmp_path / "plain.csv").read_text() == (tmp_path / "level.csv").read_text()


def test_class_predictions(workspace, tmp_path):
    out = tmp_path / "out.parquet"
    run("predict", workspace / "class", workspace / "houses.csv", "--out", out)
    frame = pd.read_parquet(out)
    assert list(frame) == ["class", "p_large", "p_small", "entropy"]
    p = frame[["p_large", "p_small"]].to_numpy()
    np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(frame["class"], np.array(["large", "small"])[p.argmax(1)])
    np.testing.assert_allclose(frame["entropy"], -(p * np.log(p)).sum(1), atol=1e-4)


def test_several_targets(workspace, tmp_path):
    table, model, out = workspace / "houses.csv", tmp_path / "model", tmp_path / "out.csv"
    options = ["--target", "price", "--target", "rent", "--holdout", "0", *NUMBER_OPTIONS]
    run("fit", table, *options, "--out", model)
    run("predict", model, table, "--out", out, "--quantiles", "0.5")
    frame = pd.read_csv(out)
    parts = ["mean", "std", "lower", "upper", "q0.5"]
    assert list(frame) == [f"{name}_{part}" for name in ("price", "rent") for part in parts]
    assert frame["price_mean"].mean() > 10 * frame["rent_mean"].mean()
    assert "rent RMSE" in run("evaluate", model, table, "--out", tmp_path / "report").stdout
    scores = json.loads((tmp_path / "report" / "metrics.json").read_text())
    assert scores["targets"].keys() == {"price", "rent"}
    rmse = np.sqrt(np.mean((frame["rent_mean"] - houses()["rent"]) ** 2))
    np.testing.assert_allclose(scores["targets"]["rent"]["rmse"], rmse, rtol=1e-4)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_reading_in_pieces_changes_nothing(workspace, tmp_path, monkeypatch, suffix):
    table = tmp_path / f"table.{suffix}"
    frame = houses()
    frame.to_csv(table, index=False) if suffix == "csv" else frame.to_parquet(table)
    run("predict", workspace / "number", table, "--out", tmp_path / "whole.csv")
    monkeypatch.setattr("s2vgd.cli.predict.ROWS_AT_ONCE", 16)
    run("predict", workspace / "number", table, "--out", tmp_path / "pieces.csv")
    whole, pieces = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("whole", "pieces"))
    np.testing.assert_allclose(pieces, whole, rtol=1e-4)


def test_standard_output_holds_the_table_and_nothing_else(workspace):
    result = run("predict", workspace / "number", workspace / "houses.csv")
    lines = result.stdout.splitlines()
    assert lines[0] == "mean,std,lower,upper"
    assert len(lines) == 61


def test_predict_complaints_name_column_value_and_row_and_write_nothing(
    workspace, tmp_path, monkeypatch
):
    monkeypatch.setattr("s2vgd.cli.predict.ROWS_AT_ONCE", 16)
    table, out = tmp_path / "new.csv", tmp_path / "out.csv"
    out.write_text("older predictions")
    model = workspace / "number"
    for column, value, message in [
        ("town", "rome", "column 'town': 'rome' in row 51 was not seen in training"),
        ("size", "big", "column 'size': 'big' in row 51 is not a number"),
    ]:
        frame = houses().astype(object)
        frame.loc[50, column] = value
        frame.to_csv(table, index=False)
        assert message in run("predict", model, table, "--out", out, code=2).stderr
        assert run("predict", model, table, code=2).stdout == ""
    houses().rename(columns={"size": "Size"}).to_csv(table, index=False)
    result = run("predict", model, table, "--out", out, code=2)
    assert "no column 'size' (did you mean 'Size'?)" in result.stderr
    assert out.read_text() == "older predictions"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "out.csv"]


def test_unknown_categories_can_be_ignored(workspace, tmp_path):
    table = tmp_path / "new.csv"
    houses().head(3).assign(town="rome").to_csv(table, index=False)
    result = run("predict", workspace / "number", table, "--unknown", "ignore")
    assert len(result.stdout.splitlines()) == 4


def test_a_gap_where_training_had_none_is_a_warning(workspace, tmp_path):
    table = tmp_path / "gap.csv"
    houses().astype({"rooms": object}).replace({"rooms": {3: None}}).to_csv(table, index=False)
    result = run("predict", workspace / "number", table)
    assert "warning: column 'rooms' has missing values but had none in training" in result.stderr
    assert len(result.stdout.splitlines()) == 61


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("number", ["--level", "90"], "--level"),
        ("number", ["--quantiles", "0.5,2"], "--quantiles"),
        ("number", ["--quantiles", "half"], "--quantiles"),
        ("number", ["--keep", "nope"], "no column 'nope'"),
        ("number", ["--unknown", "guess"], "--unknown"),
        ("number", ["--out", "no/such/place.csv"], "no directory"),
        ("number", ["--out", "predictions.xlsx"], "neither CSV"),
        ("class", ["--level", "0.5"], "for regression"),
        ("class", ["--quantiles", "0.5"], "for regression"),
        ("nothing", [], "not a model"),
        ("houses.csv", [], "not a model"),
    ],
)
def test_predict_refuses_bad_options(workspace, model, arguments, message):
    result = run("predict", workspace / model, workspace / "houses.csv", *arguments, code=2)
    assert message in result.stderr


def test_predict_does_not_overwrite_its_input(workspace):
    table = workspace / "houses.csv"
    before = table.read_text()
    assert (
        "another file" in run("predict", workspace / "number", table, "--out", table, code=2).stderr
    )
    assert table.read_text() == before


@pytest.mark.parametrize("name", ["table.json", "manifest.json", "arrays-*.safetensors"])
@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_damaged_models_are_refused(workspace, tmp_path, name, damage):
    model = tmp_path / "model"
    model.mkdir()
    for path in (workspace / "number").iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    (victim,) = model.glob(name)
    if damage == "truncate":
        victim.write_bytes(victim.read_bytes()[:-20])
    else:
        victim.unlink()
    result = run("predict", model, workspace / "houses.csv", code=2)
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""


def test_a_model_with_another_models_table_is_refused(workspace, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for path in (workspace / "number").iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    TableCodec.fit(houses()[["size", "price"]], ["price"]).save(model)
    assert "inputs" in run("predict", model, workspace / "houses.csv", code=2).stderr


# evaluate


def test_regression_metrics_match_their_definitions(workspace, tmp_path):
    out = tmp_path / "report"
    result = run("evaluate", workspace / "number", workspace / "houses.csv", "--out", out)
    codec, estimator = load_model(workspace / "number")
    frame = houses()
    y = frame["price"].to_numpy()
    predictive = estimator.predict_dist(codec.encode(frame))
    scores = json.loads((out / "metrics.json").read_text())
    np.testing.assert_allclose(
        scores["rmse"], np.sqrt(np.mean((predictive.mean - y) ** 2)), rtol=1e-5
    )
    np.testing.assert_allclose(scores["log_likelihood"], predictive.log_prob(y).mean(), rtol=1e-5)
    np.testing.assert_allclose(scores["crps"], predictive.crps(y).mean(), rtol=1e-5)
    for level, share in scores["coverage"].items():
        lower, upper = predictive.interval(float(level))
        assert share == np.mean((lower <= y) & (y <= upper))
    assert list(scores["coverage"]) == ["0.5", "0.9", "0.95"]
    assert (out / "calibration.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in out.iterdir()) == ["calibration.png", "metrics.json"]
    for name in ("RMSE", "log-likelihood", "CRPS", "inside 95 % interval"):
        assert name in result.stdout


def test_classification_metrics_match_their_definitions(workspace, tmp_path):
    out = tmp_path / "report"
    run("evaluate", workspace / "class", workspace / "houses.csv", "--out", out)
    codec, estimator = load_model(workspace / "class")
    frame = houses()
    y = (frame["kind"] == "small").to_numpy(dtype=int)
    p = estimator.predict_proba(codec.encode(frame))
    scores = json.loads((out / "metrics.json").read_text())
    assert scores["accuracy"] == np.mean(p.argmax(1) == y)
    np.testing.assert_allclose(scores["log_likelihood"], np.log(p[range(60), y]).mean(), rtol=1e-4)
    np.testing.assert_allclose(
        scores["brier"], np.mean(((p - np.eye(2)[y]) ** 2).sum(1)), rtol=1e-4
    )
    bins = np.ceil(p.max(1) * 15)
    gaps = [
        np.mean(bins == b) * abs(p.max(1)[bins == b].mean() - (p.argmax(1) == y)[bins == b].mean())
        for b in np.unique(bins)
    ]
    np.testing.assert_allclose(scores["ece"], np.sum(gaps), atol=1e-4)
    assert (out / "calibration.png").read_bytes().startswith(b"\x89PNG")


def test_evaluating_in_pieces_and_with_gaps(workspace, tmp_path, monkeypatch):
    frame = houses()
    frame.loc[:19, "price"] = np.nan
    gaps, kept = tmp_path / "gaps.csv", tmp_path / "kept.csv"
    frame.to_csv(gaps, index=False)
    frame[20:].to_csv(kept, index=False)
    run("evaluate", workspace / "number", kept, "--out", tmp_path / "whole")
    monkeypatch.setattr("s2vgd.cli.evaluate.ROWS_AT_ONCE", 16)
    result = run("evaluate", workspace / "number", gaps, "--out", tmp_path / "pieces")
    assert "left out 20 rows without a target" in result.stderr
    whole, pieces = (
        json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("whole", "pieces")
    )
    assert pieces["coverage"] == whole["coverage"]
    np.testing.assert_allclose(pieces["rmse"], whole["rmse"], rtol=1e-4)


def test_evaluate_without_out_writes_nothing(workspace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "RMSE" in run("evaluate", workspace / "number", workspace / "houses.csv").stdout
    assert list(tmp_path.iterdir()) == []


def test_evaluate_needs_targets_it_knows(workspace, tmp_path):
    table = tmp_path / "new.csv"
    houses().drop(columns="price").to_csv(table, index=False)
    result = run("evaluate", workspace / "number", table, code=2)
    assert "no target column 'price'" in result.stderr
    houses().assign(price=None).to_csv(table, index=False)
    assert "no row with a target" in run("evaluate", workspace / "number", table, code=2).stderr
    houses().assign(kind="huge").to_csv(table, index=False)
    assert "class 'huge'" in run("evaluate", workspace / "class", table, code=2).stderr
    result = run("evaluate", workspace / "number", table, "--out", table, code=2)
    assert "not a directory" in result.stderr


# datasets, demo, and the program itself


def test_datasets_are_listed_with_place_and_licence():
    text = run("datasets").stdout
    for word in ("yacht", "mushroom", "covertype", "embedded", "CC BY 4.0"):
        assert word in text
    listed = json.loads(run("datasets", "--json").stdout)
    assert {"name", "task", "where", "licence", "paths"} <= listed[0].keys()


def test_one_dataset_is_described_and_fetched():
    assert "Ethics" in run("datasets", "boston").stdout
    described = json.loads(run("datasets", "yacht", "--fetch", "--json").stdout)
    assert (described["name"], described["n_rows"], described["where"]) == (
        "yacht",
        308,
        "embedded",
    )


@pytest.mark.parametrize(
    ("name", "target", "shape"), [("yacht", None, (308, 7)), ("mushroom", "class", (8124, 23))]
)
def test_exported_datasets_are_tables_for_fit(tmp_path, name, target, shape):
    path = tmp_path / "table.csv"
    run("datasets", name, "--export", path)
    frame = pd.read_csv(path, keep_default_na=False)
    assert frame.shape == shape
    codec = TableCodec.fit(frame, [target or frame.columns[-1]])
    assert codec.n_features == json.loads(run("datasets", name, "--json").stdout)["n_features"]


def test_datasets_complaints():
    assert "Did you mean 'yacht'" in run("datasets", "yatch", code=2).stderr
    assert "need the name" in run("datasets", "--fetch", code=2).stderr
    assert "need the name" in run("datasets", "--export", "x.csv", code=2).stderr


def test_demo_hands_over_its_options(monkeypatch, tmp_path):
    calls = []
    experiments, demo = types.ModuleType("s2vgd.experiments"), types.ModuleType("demo")
    experiments.demo, demo.run = demo, lambda *args, **kwargs: calls.append((args, kwargs))
    monkeypatch.setitem(sys.modules, "s2vgd.experiments", experiments)
    monkeypatch.setitem(sys.modules, "s2vgd.experiments.demo", demo)
    run("demo", "--out", tmp_path, "--seed", "3")
    assert calls == [((tmp_path, 3), {"progress": True})]


def test_failures_that_are_not_the_users_fault_end_with_one(workspace, monkeypatch):
    def full_disk(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("s2vgd.cli.tables.table_writer", full_disk)
    result = run("predict", workspace / "number", workspace / "houses.csv", code=1)
    assert "No space left on device" in result.stderr


def test_module_and_help_start_without_the_heavy_libraries():
    """``s2vgd --help`` must be quick: JAX, pandas and the like wait until a command needs them."""
    program = (
        "import runpy, sys\n"
        "sys.argv = ['s2vgd', '--version']\n"
        "try:\n    runpy.run_module('s2vgd', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "heavy = {'jax', 'pandas', 'matplotlib', 'sklearn', 'pyarrow'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("s2vgd ")


def test_help_lists_the_commands():
    text = run("--help").stdout
    for command in ("fit", "predict", "evaluate", "datasets", "demo"):
        assert command in text
