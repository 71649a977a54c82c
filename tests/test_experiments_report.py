"""The report, from result lines made up here: cells, sentences, files, and what is not there."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

from s2vgd.cli import app
from s2vgd.experiments import records, reproduction, summary, table1
from s2vgd.experiments.sections import hyper, table2, toys
from s2vgd.experiments.sections import table1 as section1

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collects headings, tables and texts, and insists that every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.headings, self.items, self.attributes = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag in ("h1", "h2", "h3"):
            self.headings.append("")
        if tag == "li":
            self.items.append("")

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data
        elif self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings[-1] += data
        elif "li" in self.open:
            self.items[-1] += data


def line(experiment="table1", method="s2vgd", dataset="yacht", split=0, seed=0, **more):
    row = {
        "experiment": experiment,
        "method": method,
        "dataset": dataset,
        "split": split,
        "seed": seed,
        "config": {"hidden": [50]},
        "seconds": 2.0,
        "compile_seconds": 1.0,
        "peak_memory_mb": 100.0,
        "versions": {"s2vgd": "0.1.0", "jax": "0.10.2"},
        "device": {"kind": "cpu", "system": "Linux x86_64", "cores": 2},
        "revision": "abc1234",
        "command": "s2vgd reproduce table1",
        "finished": f"2026-11-15T10:{split:02d}:00+00:00",
    }
    return row | more


def scored(rmse, log_likelihood, coverage=0.9, **more):
    return {
        "rmse": rmse,
        "log_likelihood": log_likelihood,
        "crps": 0.2,
        "coverage_90": coverage,
    } | more


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Write lines of all experiments, with a failed run and one that was not run."""
    directory, rows = tmp_path_factory.mktemp("results"), []
    for split, (rmse, likelihood) in enumerate([(0.4, -0.5), (0.5, -0.7), (0.6, -0.6)]):
        rows.append(line(split=split, metrics=scored(rmse, likelihood)))
        rows.append(line(method="svgd", split=split, metrics=scored(0.7, likelihood - 0.2)))
        peeked = scored(0.9 * rmse, likelihood, last_rmse=rmse, last_log_likelihood=likelihood)
        rows.append(line(method=table1.PEEKED, split=split, metrics=peeked))
    rows.append(line(method="mine", metrics=scored(0.3, 0.1)))
    rows.append(line(method="hmc", error={"type": "Boom", "message": "<script>x</script>\nend"}))
    rows.append(line(method="bde", not_run="no interpreter"))
    rows += toy_rows("toy-regression") + toy_rows("toy-classification")
    for k, m, accuracy in ((0, 1, 0.7), (1, 1, 0.75), (0, 20, 0.8), (1, 20, 0.81)):
        config = {"reflections": k, "particles": m}
        name = "s2vgd" if k else "svgd"
        rows.append(line("hyper", name, "covertype", config=config, metrics={"accuracy": accuracy}))
    for method, error in (("s2vgd_k10", 1.2), ("svgd", 1.4)):
        for seed in range(3):
            metrics = {"error": error + 0.01 * seed, "log_likelihood": -0.05, "ece": 0.01}
            config = {"hidden": [400, 400]}
            rows.append(line("table2", method, "mnist", seed=seed, config=config, metrics=metrics))
    for row in rows:
        records.append(directory / f"{row['experiment']}.jsonl", row)
    return directory


def toy_rows(name):
    x = np.linspace(0, 1, 5)
    shift = {"svgd": 0.3, "s2vgd": 0.1, "hmc": 0.0}
    rows = []
    for method, by in shift.items():
        if name == "toy-regression":
            details = {k: (x + by).tolist() for k in ("mean", "std", "truth")}
            details |= {"x": x.tolist(), "data_x": [0.5], "data_y": [1.0]}
            details["quantiles"] = (np.arange(4)[:, None] + x + by).tolist()
            config = {"grid": [0, 1, 5, 4]}
        else:
            details = {"line": [-1, 1], "probability": [0.2 + by] * 4}
            details |= {"data_x": [[-1, -1], [1, 1]], "data_y": [0, 1]}
            config = {"plane": [1, 2]}
        metrics = {"log_likelihood": -1.0, "rmse": 0.3, "confidence": 0.8}
        rows.append(line(name, method, "toy", config=config, metrics=metrics, details=details))
    return rows


@pytest.fixture(scope="module")
def made(results, tmp_path_factory):
    path = reproduction.write(results, tmp_path_factory.mktemp("report"))
    return path.parent, Page(path.read_text(encoding="utf-8"))


def cells(page, caption_column):
    """Return the first table that has this column, as {row name: {column: cell}}."""
    for header, *rows in page.tables:
        if caption_column in header:
            return {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    raise AssertionError(f"no table has a column {caption_column!r}")


# The page


def test_the_page_has_our_figures_beside_the_papers(made):
    _, page = made
    table = cells(page, "yacht")
    assert table["S²VGD"]["yacht"] == "0.500 ± 0.058 (3)"
    assert table["S²VGD, paper"]["yacht"] == "0.47 ± 0.11"
    assert table["VMG, variational dropout, paper"]["year"] == "8.78"
    assert table["mine"]["yacht"] == "0.300 (1)"


def test_what_was_not_run_and_what_failed_is_said_in_the_cell_and_in_a_list(made):
    _, page = made
    table = cells(page, "yacht")
    assert table["bde"]["yacht"] == table["S²VGD"]["boston"] == table["GP"]["yacht"] == "not run"
    assert table["HMC"]["yacht"] == "failed"
    assert "table1, bde, 1 runs: no interpreter" in page.items
    failed = "table1, yacht, HMC, split 0, seed 0: failed, Boom: <script>x</script> end"
    assert failed in page.items


def test_the_page_needs_no_network_and_suits_phones_light_and_dark(made):
    directory, page = made
    text = (directory / "index.html").read_text()
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href"):
            assert value.startswith(("data:", "#"))
    assert "@import" not in text and "<script" not in text
    assert "width=device-width" in text and "prefers-color-scheme: dark" in text
    assert text.count("<svg ") == 5


def test_what_was_run_where_and_how_is_on_the_page(made):
    _, page = made
    rows = [row for table in page.tables if "command" in table[0] for row in table[1:]]
    first = next(row for row in rows if row[0] == "table1")
    assert first[1:4] == ["s2vgd reproduce table1", "abc1234", "cpu, Linux x86_64, 2 cores"]
    assert first[-2] == "10"


def test_tables_are_written_as_markdown_with_the_same_cells(made):
    directory, page = made
    for path in (directory / "tables").glob("*.md"):
        rows = [r for r in path.read_text().splitlines() if r.startswith("|")]
        table = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
        del table[1]
        assert table in page.tables, path.name
    assert {p.stem for p in (directory / "tables").glob("*.md")} >= {
        *("table1_rmse", "table1_log_likelihood", "table1_crps", "table1_coverage_90"),
        *("table1_peeking", "table2_error", "hyper_accuracy", "toy_regression", "runs"),
    }


def test_figures_are_written_as_svg_and_png(made):
    directory, _ = made
    names = {"table1_log_likelihood", "table1_coverage", "hyper", "toy_regression"}
    assert {p.stem for p in (directory / "figures").glob("*.svg")} == {*names, "toy_classification"}
    for path in (directory / "figures").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_page_from_nothing_says_not_run_everywhere(tmp_path):
    (tmp_path / "results").mkdir()
    path = reproduction.write(tmp_path / "results", tmp_path / "report")
    page = Page(path.read_text())
    table = cells(page, "yacht")
    assert {v for k, row in table.items() if "paper" not in k for v in list(row.values())[1:]} == {
        "not run"
    }
    assert page.items.count(
        "Nothing of it has been run in full settings, so no claim can be judged."
    ) == len(reproduction.SECTIONS)


def test_the_command_writes_the_same_page_and_refuses_a_missing_directory(results, made, tmp_path):
    done = CliRunner().invoke(app, ["report", str(results), "--out", str(tmp_path / "page")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page" / "index.html").read_text()
    assert page == (made[0] / "index.html").read_text()
    refused = CliRunner().invoke(app, ["report", str(tmp_path / "nowhere")])
    assert refused.exit_code == 2 and "not a directory" in " ".join(refused.output.split())


# Summaries


def group(rows):
    (found,) = summary.grouped(rows, lambda row: 0).values()
    return found


def test_the_mean_over_splits_averages_seeds_within_a_split_first():
    values = {(0, 0): 1.0, (0, 1): 3.0, (1, 0): 5.0}
    rows = [line(split=i, seed=j, metrics={"rmse": v}) for (i, j), v in values.items()]
    found = summary.estimate(group(rows), "rmse")
    assert found == (3.5, pytest.approx(1.5), 2)


def test_with_one_split_the_error_is_over_seeds_and_one_value_has_none():
    rows = [line(seed=j, metrics={"rmse": v}) for j, v in enumerate([1.0, 2.0, 3.0])]
    assert summary.estimate(group(rows), "rmse") == (2.0, pytest.approx(1 / 3**0.5), 3)
    assert summary.text(group(rows[:1]), "rmse") == "1.000 (1)"


def test_a_paired_difference_uses_the_splits_that_both_have():
    a = group([line(split=i, metrics={"rmse": v}) for i, v in enumerate([1.0, 2.0, 4.0])])
    b = group([line(split=i, metrics={"rmse": v}) for i, v in ((1, 1.0), (2, 2.0), (3, 9.0))])
    assert summary.paired(a, b, "rmse") == (1.5, pytest.approx(0.5), 2)


def test_settings_are_not_mixed_and_trials_give_way():
    trial = [line(split=i, config={"quick": True}, metrics={"rmse": 0.1}) for i in range(9)]
    few = [line(config={"steps": 1}, metrics={"rmse": 0.2})]
    many = [line(split=i, config={"steps": 2}, metrics={"rmse": 0.3}) for i in range(2)]
    found = group([*many, *few, *trial])
    assert summary.estimate(found, "rmse") == (pytest.approx(0.3), pytest.approx(0.0), 2)
    assert found.left_out == 10 and not found.quick
    assert group(trial).quick


def test_a_run_that_was_made_again_counts_once_and_with_its_last_line():
    failed = line(error={"type": "E", "message": ""})
    found = group([failed, line(metrics={"rmse": 1.0}), line(metrics={"rmse": 2.0})])
    assert summary.text(found, "rmse") == "2.000 (1)" and not found.failed


@pytest.mark.parametrize(
    ("mean", "written"), [(12.3456, "12.346 (1)"), (0.000213, "0.00021 (1)"), (-0.05, "-0.050 (1)")]
)
def test_small_means_keep_two_digits(mean, written):
    assert summary.written(summary.Estimate(mean, float("nan"), 1)) == written


# Sentences


def said(section, start):
    found = [claim for claim in section.claims if claim.startswith(start)]
    assert len(found) == 1, section.claims
    return found[0]


def table1_rows(gain, n_sets=4, rmse=0.1, coverage=0.9):
    rows = []
    for name in list(table1.PAPER)[:n_sets]:
        for split in range(3):
            likelihood = table1.PAPER[name]["s2vgd"].log_likelihood + 0.01 * split
            ours = scored(rmse, likelihood, coverage)
            rows.append(line(dataset=name, split=split, metrics=ours))
            theirs = scored(rmse, likelihood - gain + 1e-4 * split, coverage)
            rows.append(line(method="svgd", dataset=name, split=split, metrics=theirs))
    return rows


def test_the_claim_that_structure_helps_is_judged_by_the_numbers():
    holds = said(section1.section(table1_rows(0.1)), "Claim: structure")
    assert "It holds up" in holds and "higher on 4 of 4 sets, by more than two" in holds
    fails = said(section1.section(table1_rows(-0.1)), "Claim: structure")
    assert "It does not hold up" in fails and "on 0 of 4 sets (not on boston, concrete" in fails


def test_reaching_the_paper_is_counted_for_both_scores():
    reached = said(section1.section(table1_rows(0.1, rmse=0.0)), "The paper's figures")
    assert "are reached by S²VGD" in reached and "both at once on 4 of 4" in reached
    missed = said(section1.section(table1_rows(0.1, rmse=3.0)), "The paper's figures")
    assert (
        "RMSE at or below the paper's on 1 of 4 sets (not on boston, energy and kin8nm)" in missed
    )
    assert "both at once on 1 of 4" in missed


def test_coverage_out_of_bounds_is_named():
    text = said(section1.section(table1_rows(0.1, coverage=0.7)), "Error bars")
    assert "on 0 of 4 sets (elsewhere: boston 70.0 %" in text


def test_peeking_is_said_in_per_cent(made):
    _, page = made
    (text,) = [item for item in page.items if item.startswith("What peeking buys")]
    assert "by 10.0 % on average over 1 sets" in text


def test_trials_are_shown_but_nothing_is_concluded_from_them():
    rows = [{**row, "config": {"quick": True}} for row in table1_rows(0.1)]
    section = section1.section(rows)
    assert section.claims[0].startswith("8 of 8 cells are trials")
    assert section.claims[1:] == [
        "Nothing of it has been run in full settings, so no claim can be judged."
    ]
    shown = {row[0]: row for row in section.tables[0].rows}
    assert "0.100 ± 0.000 (3)" in shown["SVGD"]


def test_mnist_sentences_follow_the_errors():
    def rows(ours, theirs):
        return [
            line("table2", m, "mnist", seed=s, config={"hidden": [400, 400]}, metrics={"error": e})
            for m, errors in (("s2vgd_k10", ours), ("svgd", theirs))
            for s, e in enumerate(errors)
        ]

    good = table2.section(rows([1.20, 1.22, 1.24], [1.40, 1.42, 1.44]))
    assert "at or under the paper's 1.36" in said(good, "MNIST 400-400")
    assert "It holds up: S²VGD (K=10) 1.22 %" in said(good, "Claim, MNIST 400-400: S²VGD improves")
    bad = table2.section(rows([1.40, 1.50, 1.60], [1.40, 1.42, 1.44]))
    assert "over the paper's 1.36" in said(bad, "MNIST 400-400")
    assert "It does not hold up" in said(bad, "Claim, MNIST 400-400: S²VGD improves")
    one = table2.section(rows([1.2], [1.4]))
    assert "single seed" in said(one, "Claim, MNIST 400-400: S²VGD improves")


def test_one_seed_of_the_control_decides_nothing_and_held_out_images_are_no_test():
    def row(method, widths, seed, error, **more):
        config = {"hidden": list(widths), **more}
        return line("table2", method, "mnist", seed=seed, config=config, metrics={"error": error})

    ours = [row("s2vgd_k10", (400, 400), seed, 1.2 + 0.01 * seed) for seed in range(3)]
    held_out = [row("s2vgd_k10", (400, 400), seed, 0.1, validation_rows=10) for seed in range(9)]
    one = table2.section([*ours, *held_out, row("svgd", (415, 415), 0, 1.5)])
    control = said(one, "Claim: it is the structure")
    assert "cannot be judged from a single seed: S²VGD (K=10) at 400-400 has 1.21 %" in control


def test_the_best_is_sought_among_methods_that_have_run_on_all_splits():
    lucky = line(method="gp", dataset="boston", metrics=scored(0.1, 99.0))
    section = section1.section([*table1_rows(gain=0.5), lucky])
    assert "on all splits: S²VGD on boston" in said(section, "Claim: state-of-the-art")


def test_covertype_sentences_follow_the_accuracies():
    def rows(values):
        return [
            line(
                "hyper", "s2vgd", config={"reflections": k, "particles": m}, metrics={"accuracy": a}
            )
            for (k, m), a in values.items()
        ]

    good = hyper.section(rows({(0, 1): 0.7, (1, 1): 0.75, (0, 20): 0.8, (1, 20): 0.81}))
    assert "It holds up: accuracy rises in 2 of 2 steps" in said(good, "Claim: more particles")
    assert "+5.00 points over K = 0 at M = 1 and +1.00 at M = 20" in said(
        good, "Claim: reflections"
    )
    bad = hyper.section(rows({(0, 1): 0.7, (1, 1): 0.7, (0, 20): 0.6, (1, 20): 0.65}))
    assert "It does not hold up" in said(bad, "Claim: more particles")
    assert "It does not hold up" in said(bad, "Claim: reflections")


def test_toy_distances_are_those_of_the_numbers_written_down():
    regression = toys.regression(toy_rows("toy-regression"))
    rows = {row[0]: row for row in regression.tables[0].rows}
    assert rows["SVGD"][1] == "0.300 (1)" and rows["S²VGD"][1] == "0.100 (1)"
    assert rows["HMC"][1] == "reference" and rows["PBP_MV"][1] == "not run"
    assert "it holds up: S²VGD is nearer than SVGD." in said(regression, "Claim: S²VGD is closest")
    classification = toys.classification(toy_rows("toy-classification"))
    rows = {row[0]: row for row in classification.tables[0].rows}
    assert rows["SVGD"][1] == "0.300 (1)" and rows["S²VGD"][1] == "0.100 (1)"


def test_toy_predictions_on_another_grid_are_not_compared():
    rows = toy_rows("toy-regression")
    rows[0]["config"] = {"grid": [0, 2, 5, 4]}
    section = toys.regression(rows)
    assert {row[0]: row[1] for row in section.tables[0].rows}["SVGD"] == "not run"


def test_no_sentence_holds_a_nan(made):
    _, page = made
    for item in page.items:
        assert not re.search(r"\bnan\b", item)
