"""The demonstration, on tiny fits: the page it writes, the numbers beside it, and its sentences."""

import base64
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from s2vgd.experiments import demo, demo_bandit, demo_control, figures, reading, report
from s2vgd.predictive import from_components
from s2vgd.refine import Diagnostics

# With the same noise everywhere S²VGD and S²VGD refined are one model, compiled once.
TINY = {"steps": 3, "particles": 3, "hidden": (5,), "refine": None, "noise": "constant"}
DECISIONS = 40
ITERATIONS = 2
SHORT = {"settings": TINY, "decisions": DECISIONS, "iterations": ITERATIONS}
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collects what the tests ask about, and insists that every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.ids, self.tags = [], [], [], []
        self.rows, self.styles = [], []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        if self.open and self.open[-1] == "style":
            self.styles.append(data)


@pytest.fixture(scope="module", autouse=True)
def small_policies():
    """Compiling takes longer than learning, and small networks compile sooner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(demo_control.SETTINGS, "hidden", [5])
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    directory = tmp_path_factory.mktemp("demo") / "new" / "report"
    summary = demo.run(directory, seed=1, progress=False, **SHORT)
    return directory, summary, (directory / "index.html").read_text(encoding="utf-8")


def test_results_file_holds_what_run_returns(ran):
    directory, summary, _ = ran
    assert json.loads((directory / "results.json").read_text(encoding="utf-8")) == summary
    assert sorted(path.name for path in directory.iterdir()) == ["index.html", "results.json"]


def test_every_method_has_its_row_with_the_numbers_of_the_results_file(ran):
    _, summary, text = ran
    header, *rows = Page(text).rows[: 1 + 2 * len(demo.METHODS)]
    assert header == demo.HEADER
    by_name = {(row[0], row[1]): row[2:] for row in rows}
    for problem, found in summary["problems"].items():
        for method, scores in found["methods"].items():
            rmse, log_likelihood, coverage, seconds = by_name[problem, method]
            assert float(rmse) == pytest.approx(scores["rmse"], abs=5e-4)
            assert float(log_likelihood) == pytest.approx(scores["log_likelihood"], abs=5e-4)
            assert float(coverage.rstrip(" %")) == pytest.approx(100 * scores["coverage"], abs=0.05)
            assert float(seconds) == pytest.approx(scores["seconds"], abs=0.05)


def test_every_agent_has_its_row_with_the_regret_of_every_seed(ran):
    _, summary, text = ran
    header, *rows = Page(text).rows[1 + 2 * len(demo.METHODS) :]
    assert header == demo_bandit.HEADER and len(rows) == len(demo_bandit.AGENTS)
    for row, (name, agent) in zip(rows, summary["bandit"]["agents"].items(), strict=True):
        assert row[:2] == [name, ", ".join(f"{value:,.0f}" for value in agent["regret"])]
        assert [curve["regret"][-1] for curve in agent["curves"]] == agent["regret"]
        assert agent["curves"][0]["steps"][-1] == DECISIONS
    for sentence in summary["bandit"]["reading"]:
        assert sentence in text


def test_the_policies_have_their_curve_their_sentences_and_a_film_that_moves(ran):
    _, summary, text = ran
    found = summary["control"]
    assert found["curve"]["iterations"] == list(range(1, ITERATIONS + 1))
    assert found["environment_steps"] == ITERATIONS * 16 * 10 * 500
    for sentence in found["reading"]:
        assert sentence in text
    (source,) = [
        value for tag, name, value in Page(text).attributes if (tag, name) == ("img", "src")
    ]
    with Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as film:
        assert film.format == "GIF" and film.n_frames > 1


def test_the_same_rows_are_judged_by_the_definition_of_each_score(ran):
    """RMSE and coverage again, from predictions made by a model fitted a second time."""
    _, summary, _ = ran
    problem = demo.yacht_problem()
    result = demo.fit(problem, "SVGD", seed=1, settings=TINY)
    lower, upper = result.model.predict_interval(problem.x_test, level=0.9)
    is_inside = (lower <= problem.y_test) & (problem.y_test <= upper)
    error = result.model.predict(problem.x_test) - problem.y_test
    scores = summary["problems"]["yacht"]["methods"]["SVGD"]
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-5)
    assert scores["coverage"] == pytest.approx(is_inside.mean())


def test_page_is_well_formed_and_its_figures_are_inside_it(ran):
    _, _, text = ran
    page = Page(text)
    assert page.tags.count("svg") == 5 and page.tags.count("img") == 1
    assert page.tags.count("figure") == 6
    assert len(page.ids) == len(set(page.ids)), "an id occurs twice"
    used = re.findall(r'xlink:href="#([^"]+)"|url\(#([^)]+)\)', text)
    assert {one or other for one, other in used} <= set(page.ids)


def test_page_asks_nothing_of_the_network(ran):
    _, _, text = ran
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "embed"} & set(page.tags)
    for tag, name, value in page.attributes:
        if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
            inside = "data:image/gif;base64," if tag == "img" else "#"
            assert value.startswith(inside), f"<{tag} {name}={value[:80]!r}>"
    styles = " ".join(page.styles) + " ".join(v for _, n, v in page.attributes if n == "style")
    assert "@import" not in styles
    assert not re.search(r"url\((?!#)", styles)


def test_page_follows_the_readers_colours_and_says_what_was_run(ran):
    _, summary, text = ran
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text and figures.INK not in text.split("</style>")[1]
    for shown in (summary["command"], summary["versions"]["jax"], summary["machine"]["system"]):
        assert shown in text
    assert "--seed 1" in summary["command"]
    for found in summary["problems"].values():
        for sentence in found["reading"]:
            assert sentence in text


def test_run_replaces_an_old_report_and_prints_the_table(ran, capsys, tmp_path):
    """Fits are the same as in the fixture, hence compiled already."""
    (tmp_path / "index.html").write_text("old")
    demo.run(tmp_path, seed=1, progress=True, **SHORT)
    assert (tmp_path / "index.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    printed = capsys.readouterr()
    assert all(method in printed.out for method in demo.METHODS)
    assert all(agent in printed.out for agent in ("LinUCB", "uniform"))
    assert "[6/11] toy: S²VGD refined" in printed.err
    assert "[10/11] mushroom bandit: uniform" in printed.err
    assert "[11/11] control: Cartpole" in printed.err
    assert " left" in printed.err


@pytest.mark.slow
def test_the_refined_fits_report_on_their_chains(tmp_path):
    settings = {**TINY, "noise": "input", "refine": "hmc", "warmup": 5, "draws": 5, "thin": 1}
    with pytest.warns(UserWarning):
        summary = demo.run(tmp_path, progress=False, **{**SHORT, "settings": settings})
    for found in summary["problems"].values():
        assert found["reading"][-1].startswith("The chains of S²VGD refined complain: ")


# -- sentences ---------------------------------------------------------------------------------


def test_binomial_range_leaves_at_most_its_chance_outside_and_is_tight():
    from scipy.stats import binom

    for n, p in [(31, 0.9), (500, 0.9), (500, 0.5), (7, 0.5), (3, 0.9)]:
        least, most = reading.binomial_range(n, p)
        assert binom.cdf(least - 1, n, p) <= 0.025 < binom.cdf(least, n, p)
        assert binom.sf(most, n, p) <= 0.025 < binom.sf(most - 1, n, p)


def test_coverage_sentence_judges_against_chance():
    text = reading.coverage({"a": 400, "b": 450, "c": 500}, 500)
    assert "should hold about 450 of the 500" in text
    assert "a 400 (too sure), b 450 (in order), c 500 (too cautious)" in text
    assert "too cautious" not in reading.coverage({"a": 31}, 31)  # 31 of 31 happens by chance


def test_lead_sentence_names_the_best_and_doubts_what_could_be_chance():
    base = np.linspace(-2, 2, 200)
    wave = np.tile([1.0, -1.0], 100)
    text = reading.lead({"low": base - 1.0, "best": base, "near": base - 0.05 + wave})
    assert text.startswith("best has the highest log-likelihood")
    assert "0.05 ± 0.07 over near (which could be chance), 1.00 ± 0.00 over low." in text


def test_spread_sentence_claims_collapse_only_where_it_is():
    assert "understate the doubt" in reading.spread({"pure": 0.1, "refined": 0.5})
    assert "understate" not in reading.spread({"pure": 0.5, "refined": 0.1})


def test_cost_and_gap_sentences_carry_their_ratios():
    assert reading.cost({"quick": 2.0, "slow": 9.0}).startswith(
        "slow took 4.5 times as long as quick"
    )
    assert reading.gap({"a": 1.04, "b": 3.0}).endswith("a 1.0, b 3.0.")


def test_chains_sentence_repeats_complaints_or_says_there_are_none():
    good = Diagnostics(
        method="hmc",
        acceptance=np.array([0.8]),
        divergences=np.array([0]),
        divergence_rate=0.0,
        r_hat=np.array([1.02]),
        effective_draws=np.array([300.0]),
        log_density=np.zeros((1, 1)),
        step_size=np.array([0.1]),
    )
    assert "is 1.02, and the draws are worth 300" in reading.chains("x", good)
    bad = good._replace(divergence_rate=0.5)
    assert bad.problems()[0] in reading.chains("x", bad)


# -- figures and page --------------------------------------------------------------------------


def test_svg_is_reproducible_and_inline_figures_do_not_share_names():
    def drawn():
        prediction = from_components("normal", {"loc": np.zeros((2, 9)), "scale": np.ones((2, 9))})
        grid = np.linspace(0, 1, 9)
        return figures.curves(grid, grid, grid, grid, {"a": prediction})

    assert figures.to_svg(drawn(), "one") == figures.to_svg(drawn(), "one")
    assert figures.to_svg(drawn(), "one").startswith("<?xml")
    names = [
        set(re.findall(r'id="([^"]+)"', figures.to_svg(drawn(), name, inline=True)))
        for name in ("one", "two")
    ]
    assert names[0] and not names[0] & names[1]


def test_drawing_leaves_matplotlib_as_it_was():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure, _ = figures.panels(2, height=1.0)
    assert isinstance(figure, Figure)
    assert dict(matplotlib.rcParams) == before


def test_plain_text_is_escaped_everywhere():
    odd = "<b>&\"'"
    pieces = [
        report.heading(odd),
        report.subheading(odd),
        report.paragraph(odd),
        report.bullets([odd]),
        report.facts([(odd, odd)]),
        report.table(odd, [odd], [[odd]]),
        report.figure("<svg ></svg>", odd),
        report.film(b"GIF89a", odd, odd),
    ]
    text = report.page(odd, pieces)
    assert "<b>" not in text
    Page(text)


def test_write_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    target = tmp_path / "page.html"
    report.write(target, "old")

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(report.os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        report.write(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
