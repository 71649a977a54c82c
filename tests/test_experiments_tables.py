"""The experiments: the paper's numbers, the grids, the scores, and what peeking must improve."""

import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import wasserstein_distance
from sklearn.metrics import roc_auc_score

from s2vgd import datasets
from s2vgd.errors import DivergedError
from s2vgd.experiments import (
    bandit_agents,
    bde,
    contenders,
    control,
    harness,
    hyper,
    news,
    scores,
    table1,
    table2,
    toy_classification,
    toy_regression,
)
from s2vgd.experiments.records import Run
from s2vgd.predictive import CategoricalPredictive, from_components

PLANNED = {
    *("svgd", "s2vgd", "sgd", "rmsprop", "rmsspectral", "dropout", "mc_dropout", "sgld", "psgld"),
    *("deep_ensemble", "hmc", "nuts", "gp", "ngboost", "bbb_gaussian", "bbb_scale_mixture"),
    *("vmg", "vmg_dropout", "pbp_mv", "bde", "s2vgd_refined", "s2vgd_refined_constant"),
}


# The paper's numbers


def test_the_paper_claims_the_best_log_likelihood_on_all_ten_sets():
    assert set(table1.PAPER) == set(table1.CONFIG.datasets) and len(table1.PAPER) == 10
    for cells in table1.PAPER.values():
        assert set(cells) == {"vmg_dropout", "pbp_mv", "svgd", "s2vgd"}
        assert max(cells.values(), key=lambda cell: cell.log_likelihood) in (
            cells["s2vgd"],
            cells["vmg_dropout"],  # protein is a draw
        )


def test_single_cells_of_the_papers_tables():
    assert table1.PAPER["boston"]["s2vgd"] == (2.56, 0.33, -2.43, 0.10)
    assert table1.PAPER["energy"]["pbp_mv"] == (0.48, 0.04, -2.37, 0.03)
    assert table1.PAPER["protein"]["vmg_dropout"] == (4.13, 0.02, -2.84, 0.00)
    assert table1.PAPER["year"]["svgd"].rmse == 8.68
    assert all(math.isnan(cell.rmse_error) for cell in table1.PAPER["year"].values())
    assert table2.PAPER["s2vgd_k10"] == {(400, 400): 1.36, (800, 800): 1.30}
    assert table2.PAPER["svgd"][table2.CONTROL] == 1.49
    assert table2.PAPER["vmg_dropout"] == {(400, 400): 1.15}


# The grids


def test_table1_runs_every_method_on_the_published_splits():
    runs = table1.grid(table1.CONFIG)
    counts = {name: {r.split for r in runs if r.dataset == name} for name in table1.PAPER}
    assert {name: len(splits) for name, splits in counts.items()} == table1.SPLITS
    for name in ("boston", "protein"):
        assert table1.SPLITS[name] == len(datasets.load(name).splits)
    assert {r.method for r in runs} == set(table1.CONFIG.methods)
    assert len({r.key for r in runs}) == len(runs)
    widths = {(r.dataset, r.config["hidden"][0], r.config.get("batch_size")) for r in runs}
    assert {("protein", 100, 1000), ("boston", 50, 100)} < widths


@pytest.mark.parametrize(
    ("noise", "chosen"),
    [
        ({1000: 3.0, 4000: 1.0, 16_000: 2.0}, 4000),
        ({1000: 1.0, 4000: 2.0, 16_000: 0.5}, 1000),  # the search ends with the first that is worse
        ({1000: 3.0, 4000: 2.0, 16_000: 1.0}, 16_000),
        ({1000: 3.0, 4000: 2.0, 16_000: None}, 4000),  # diverges
    ],
)
def test_a_rival_learns_as_long_as_held_out_training_rows_gain(noise, chosen):
    """Outcomes are standard normal, and so the rival whose noise is nearest to one is the best."""
    seen = []

    class Rival:
        def __init__(self, steps):
            self.steps = steps

        def fit(self, x, y):
            if noise[self.steps] is None:
                raise DivergedError("diverged", step=1, quantity="particles")
            seen.append((self.steps, len(x)))
            return self

        def predict_dist(self, x):
            parts = {"loc": np.zeros((1, len(x))), "scale": np.full((1, len(x)), noise[self.steps])}
            return from_components("normal", parts)

    y = np.random.default_rng(0).normal(size=600)
    model = contenders.Tuned(Rival).fit(y[:, None], y)
    assert model.n_iter_ == chosen
    assert seen[-1] == (chosen, 600) and all(n == 500 for _, n in seen[:-1])


def test_table2_can_choose_settings_without_the_test_images(monkeypatch):
    """The last training images are scored, and neither they nor test images are learned from."""
    seen = {}

    class Spy:
        def __init__(self, **settings):
            pass

        def fit(self, x, y):
            seen["learned"] = x[:, 0]

        def predict_dist(self, x):
            seen.setdefault("scored", x[:, 0])
            return CategoricalPredictive(np.zeros((1, len(x), 2)))

    pixels = np.arange(10, dtype=np.float32)[:, None]
    digits = SimpleNamespace(x=pixels, y=np.arange(10) % 2, splits=[(np.arange(8), [8, 9])])
    monkeypatch.setattr(table2, "load", lambda name: digits)
    monkeypatch.setattr(table2, "OTHERS", {})
    monkeypatch.setattr(table2.baselines, "methods", lambda: {"svgd": Spy})
    config = harness.changed(
        table2.CONFIG, {"methods": ("svgd",), "validation_rows": 3, "batch_size": 1}
    )
    table2.execute(table2.grid(config)[0])
    assert (126 * seen["learned"]).round().tolist() == [0, 1, 2, 3, 4]
    assert (126 * seen["scored"]).round().tolist() == [5, 6, 7]


def test_table2_has_the_papers_rows_two_networks_and_the_control():
    runs = table2.grid(table2.CONFIG)
    cells = {(r.method, tuple(r.config["hidden"])) for r in runs}
    assert {(m, w) for m, cells in table2.PAPER.items() for w in cells} <= cells
    assert [m for m, widths in cells if widths == table2.CONTROL] == ["svgd"]
    assert {r.seed for r in runs} == {0, 1, 2}


def test_hyper_crosses_k_and_m_and_calls_k_zero_svgd():
    runs = hyper.grid(hyper.CONFIG)
    cells = {(r.config["reflections"], r.config["particles"], r.split) for r in runs}
    assert len(runs) == len(cells) == 5 * 6 * 5
    assert {r.method for r in runs if r.config["reflections"] == 0} == {"svgd"}
    assert {r.method for r in runs if r.config["reflections"]} == {"s2vgd"}


@pytest.mark.parametrize("name", harness.EXPERIMENTS)
def test_a_quick_grid_is_small_marked_and_apart_from_the_full_one(name):
    module = harness.experiment(name)
    quick, full = module.grid(module.QUICK), module.grid(module.CONFIG)
    assert 0 < len(quick) <= 25 and len(quick) < len(full)
    assert all(run.config["quick"] for run in quick)
    assert not any("quick" in run.config for run in full)
    assert not {run.key for run in quick} & {run.key for run in full}
    for run in (*quick, *full):
        assert run.experiment == name and json.loads(json.dumps(run.config)) == run.config


def test_every_method_of_every_grid_has_a_name_that_is_known_or_planned():
    known = {*contenders.names(), *PLANNED, table1.PEEKED, *table2.VARIANTS}
    known |= {*bandit_agents.BUILDERS, *control.METHODS, *news.settings()}
    for name in harness.EXPERIMENTS:
        assert set(harness.experiment(name).CONFIG.methods) <= known


def test_a_method_that_is_in_no_table_can_be_added_by_its_name():
    config = harness.changed(table1.CONFIG, {"methods": ("mine",), "datasets": ("yacht",)})
    runs = table1.grid(config)
    assert len(runs) == 20 and runs[0].config == {"hidden": [50], "batch_size": 100}
    with pytest.raises(harness.NotRun, match="method missing"):
        table1.execute(runs[0])


# Scores


@pytest.fixture
def logits():
    rng = np.random.default_rng(3)
    return 2 * rng.normal(size=(4, 200, 3)), rng.integers(0, 3, 200)


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    rng = np.random.default_rng(0)
    inside, outside = rng.integers(0, 9, 70), rng.integers(3, 12, 50)  # with many ties
    pairs = np.sign(outside[:, None] - inside[None, :])
    naive = np.mean(0.5 * (pairs + 1))
    assert scores.auroc(inside, outside) == pytest.approx(naive, abs=1e-12)
    truth = np.r_[np.zeros(70), np.ones(50)]
    assert naive == pytest.approx(roc_auc_score(truth, np.r_[inside, outside]))


def test_classification_scores_against_naive_formulas(logits):
    draws, y = logits
    found = scores.classification(from_components("categorical", {"logits": draws}), y)
    p = np.exp(draws) / np.exp(draws).sum(-1, keepdims=True)
    p = p.mean(0)
    confidence, right = p.max(1), p.argmax(1) == y
    gap = 0.0
    for i in range(15):
        inside = (confidence > i / 15) & (confidence <= (i + 1) / 15)
        if inside.any():
            gap += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert found["error"] == pytest.approx(100 * np.mean(~right))
    assert found["log_likelihood"] == pytest.approx(np.log(p[np.arange(200), y]).mean(), rel=1e-5)
    assert found["ece"] == pytest.approx(gap, rel=1e-5)


def test_a_single_network_has_no_score_from_mutual_information(logits):
    draws, _ = logits
    for n, expected in ((4, 2), (1, 1)):
        a = from_components("categorical", {"logits": draws[:n]})
        found = scores.out_of_distribution(a, a[:50], "other")
        assert len(found) == expected and "auroc_other_entropy" in found


def test_regression_scores_are_those_of_one_normal_distribution():
    y = np.array([0.0, 1.0, 3.0, -1.7])
    normal = from_components("normal", {"loc": np.zeros((1, 4)), "scale": np.ones((1, 4))})
    found = scores.regression(normal, y)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(y**2)), rel=1e-6)
    exact = np.mean(-0.5 * y**2 - 0.5 * np.log(2 * np.pi))
    assert found["log_likelihood"] == pytest.approx(exact, rel=1e-5)
    assert [found[f"coverage_{k}"] for k in (50, 90, 95)] == [0.25, 0.5, 0.75]


def test_wasserstein_distance_against_scipy():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=4000), 0.3 + 2 * rng.normal(size=4000)
    levels = scores.midpoints(400)
    ours = scores.wasserstein(np.quantile(a, levels)[:, None], np.quantile(b, levels)[:, None])
    assert ours == pytest.approx(wasserstein_distance(a, b), rel=0.01)


def test_wasserstein_distance_of_a_shift_is_the_shift():
    q = np.random.default_rng(2).normal(size=(40, 7))
    assert scores.wasserstein(q, q + 0.7) == pytest.approx(0.7)
    assert scores.wasserstein(q, q) == 0


def test_total_variation_of_certain_and_even_odds():
    p = np.array([[1.0, 0.0], [0.5, 0.5]])
    q = np.array([[0.0, 1.0], [0.5, 0.5]])
    assert scores.total_variation(p, q) == pytest.approx(0.5)


# Runs


def test_peeking_never_reports_a_larger_rmse_than_the_last_iterate_has():
    data = datasets.load("yacht")
    train, test = data.splits[0]
    found = table1.peek(
        *(data.x[train], data.y[train], data.x[test], data.y[test]),
        hidden=[5],
        particles=2,
        steps=60,
        batch_size=50,
        learning_rate=0.1,
        seed=0,
        every=10,
    )
    assert found["rmse"] <= found["last_rmse"]
    assert found["step"] in range(10, 61, 10)
    assert np.isfinite(list(found.values())).all()


def test_toy_runs_write_down_what_the_report_draws():
    for module, method in ((toy_regression, "gp"), (toy_classification, "sgd")):
        config = harness.changed(
            module.CONFIG, {"methods": (method,), "settings": {method: {"steps": 20}}, "seeds": 1}
        )
        (run,) = module.grid(config)
        outcome = module.execute(run)
        assert all(
            np.isfinite(np.concatenate([np.ravel(v)])).all() for v in outcome.details.values()
        )
        assert {"log_likelihood"} < set(outcome.metrics)
        if module is toy_regression:
            assert np.shape(outcome.details["quantiles"]) == (config.levels, config.grid_points)
            assert np.all(np.diff(outcome.details["quantiles"], axis=0) >= 0)
        else:
            assert len(outcome.details["probability"]) == config.points**2


def test_bde_without_an_interpreter_is_not_run(monkeypatch):
    monkeypatch.delenv(bde.VARIABLE, raising=False)
    run = Run("table1", "bde", "yacht", 0, 0, {"hidden": [50]})
    with pytest.raises(harness.NotRun, match=bde.VARIABLE):
        table1.execute(run)


def test_an_interpreter_without_bde_fails_with_its_last_words(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: no bde' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv(bde.VARIABLE, str(python))
    run = Run("table1", "bde", "yacht", 0, 0, {"hidden": [50]})
    with pytest.raises(RuntimeError, match="ModuleNotFoundError: no bde"):
        table1.execute(run)


ANSWER = """
import json, sys
import numpy as np
asked = np.load(sys.argv[3])
assert abs(asked["y"].mean()) < 1e-6 and json.loads(str(asked["about"]))["seed"] == 4
shape = 2, len(asked["x_new"])
answer = {"loc": np.zeros(shape), "scale": np.ones(shape), "seconds": 2.5}
np.savez(sys.argv[4], **answer, versions=json.dumps({"b": "1"}))
"""


def test_what_bde_answers_is_put_into_the_units_of_the_target(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n" + ANSWER)
    python.chmod(0o755)
    monkeypatch.setenv(bde.VARIABLE, str(python))
    x, y = np.arange(12.0).reshape(6, 2), np.array([3.0, 5.0, 9.0, 1.0, 2.0, 4.0])
    model = contenders.build("bde", "regression", {"hidden": [5]}, 4).fit(x, y)
    predictive = model.predict_dist(x[:3])
    np.testing.assert_allclose(predictive.mean, y.mean(), rtol=1e-6)
    np.testing.assert_allclose(predictive.std, y.std(), rtol=1e-6)
    assert model.versions == {"b": "1"} and model.seconds == 2.5


@pytest.fixture
def small_files(monkeypatch):
    """Stand-ins for MNIST and Covertype with the right columns, and rows that can be learned."""
    rng = np.random.default_rng(0)

    def fake(name, n, features, n_classes, n_train=None):
        y = rng.integers(0, n_classes, n)
        x = 0.3 * rng.normal(size=(n, features)) + 3 * np.eye(features)[y]
        return datasets.Dataset(
            name, 40 * x, y, ("",) * features, "y", "classification", "", "", n_train=n_train
        )

    made = {
        "mnist": fake("mnist", 400, 784, 10, n_train=300),
        "fashion-mnist": fake("fashion-mnist", 60, 784, 10),
        "covertype": fake("covertype", 500, 54, 7),
    }
    for module in (table2, hyper):
        monkeypatch.setattr(module, "load", made.__getitem__)
    place = {name: "embedded" for name in made}
    info = type("Info", (), {})

    def where(name):
        found = info()
        found.where = place.get(name, "not present")
        return found

    monkeypatch.setattr(table2.datasets, "info", where)


def test_a_table2_run_scores_digits_and_the_other_images_that_are_there(small_files):
    config = harness.changed(
        table2.QUICK,
        {
            "methods": ("svgd",),
            "networks": ((16, 16),),
            "epochs": 30,
            "settings": {"svgd": {"particles": 2, "learning_rate": 0.02}},
        },
    )
    (run,) = table2.grid(config)
    found = table2.execute(run).metrics
    assert found["error"] < 30  # of ten classes
    assert {k for k in found if k.startswith("auroc")} == {
        "auroc_fashion_entropy",
        "auroc_fashion_information",
    }


def test_a_hyper_run_learns_class_two_against_the_rest(small_files):
    config = harness.changed(hyper.QUICK, {"reflections": (0,), "particles": (2,), "epochs": 30})
    (run,) = hyper.grid(config)
    found = hyper.execute(run).metrics
    assert run.method == "svgd" and found["accuracy"] > 0.9
