"""The documentation cannot rot: its code runs, its links lead somewhere, its reference is complete.

Every ``python`` block of the README and the documentation is run, page by page, and every ``s2vgd``
command of the quick start and the command-line page; fits are shortened by changing the estimators'
defaults, so the code is exactly what a reader copies.
"""

import importlib.util
import json
import pkgutil
import re
import shlex
import threading
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import s2vgd
from s2vgd import S2VGDClassifier, S2VGDRegressor
from s2vgd.cli import app
from s2vgd.control import SteinPolicyGradient

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHORT = {"steps": 2, "particles": 3, "hidden": (4,), "refine": None, "noise": "constant"}


def name(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    """Return the fenced blocks of a language, and the line on which each begins."""
    text = page.read_text(encoding="utf-8")
    return [
        (text[: found.start(1)].count("\n"), found[1])
        for found in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


def run_page(page):
    """Run the Python blocks of a page, one after the other, as one module."""
    names = {"__name__": "a_page_of_the_documentation"}
    for line, code in blocks(page, "python"):
        # Blank lines in front make the numbers in a traceback those of the page.
        exec(compile("\n" * line + code, str(page), "exec"), names)
    return names


@pytest.fixture
def short_fits(monkeypatch, tmp_path):
    """Make fits short and files go to a directory of their own."""
    for estimator in (S2VGDRegressor, S2VGDClassifier):
        defaults = estimator.__init__.__kwdefaults__
        for parameter in SHORT.keys() & defaults.keys():
            monkeypatch.setitem(defaults, parameter, SHORT[parameter])
        monkeypatch.setattr(estimator.__init__, "__defaults__", (SHORT["hidden"],))
    train = SteinPolicyGradient.train
    monkeypatch.setattr(
        SteinPolicyGradient,
        "train",
        lambda self, iterations, **settings: train(self, min(iterations, 2), **settings),
    )
    monkeypatch.chdir(tmp_path)


WITH_CODE = [page for page in PAGES if blocks(page, "python")]
LONG = {"docs/choosing.md", "docs/control.md", "docs/extending/network.md"}  # much to compile
EXACT = {"docs/bandits.md", "docs/news.md"}  # linear agents, see tests/test_bandits_linear.py


def as_parameter(page):
    marks = [pytest.mark.slow] * (name(page) in LONG)
    marks += [pytest.mark.optimised] * (name(page) in EXACT)
    return pytest.param(page, id=name(page), marks=marks)


def test_the_pages_that_must_have_code_have_it():
    have = {name(page) for page in WITH_CODE}
    assert {"README.md", "docs/quickstart.md", "docs/uncertainty.md", "docs/saving.md"} <= have
    assert {
        f"docs/extending/{x}.md" for x in ("likelihood", "kernel", "network", "algorithm")
    } <= have


@pytest.mark.parametrize("page", [as_parameter(page) for page in WITH_CODE])
def test_code_of_a_page_runs(page, short_fits, capsys):
    run_page(page)


def test_readme_and_quick_start_show_the_same_five_lines():
    first = [blocks(ROOT / page, "python")[0][1] for page in ("README.md", "docs/quickstart.md")]
    assert first[0] == first[1]
    assert len([line for line in first[0].splitlines() if line]) == 5


@pytest.mark.parametrize("page", ["docs/quickstart.md", "docs/cli.md"])
def test_commands_of_a_page_succeed(page, short_fits):
    runner = CliRunner()
    lines = [line for _, block in blocks(ROOT / page, "sh") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("s2vgd ")]
    assert {shlex.split(line)[1] for line in commands} >= {"datasets", "fit", "predict", "evaluate"}
    for line in commands:
        result = runner.invoke(app, shlex.split(line)[1:], catch_exceptions=False)
        assert result.exit_code == 0, f"{line}\n{result.output}"


def test_the_server_of_the_saving_page_answers_and_refuses(short_fits):
    names = run_page(ROOT / "docs" / "saving.md")

    class Quiet(names["Handler"]):
        def log_message(self, *_):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def post(content):
        address = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(address, json.dumps(content).encode(), timeout=60) as reply:
            return json.load(reply)

    try:
        rows = names["data"].x[:3]
        reply = post({"rows": rows.tolist()})
        np.testing.assert_allclose(reply["mean"], names["served"].predict(rows), rtol=1e-6)
        assert np.all(np.array(reply["lower"]) < np.array(reply["upper"]))
        for wrong in ({"rows": [[1.0]]}, {"rows": [["a"] * 6]}, {}, [1], {"rows": [[1e999] * 6]}):
            with pytest.raises(urllib.error.HTTPError) as refused:
                post(wrong)
            assert refused.value.code == 400
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# -- what pages refer to -----------------------------------------------------------------------


def anchors(page):
    """Return the anchors of a page's headings, as Python-Markdown makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", t).strip().lower()) for t in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_figures_of_a_page_exist(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.is_file(), f"{name(page)} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{name(page)} links to {target}"


def test_every_figure_is_small_used_and_drawn_by_the_script():
    script = (ROOT / "docs" / "make_figures.py").read_text(encoding="utf-8")
    texts = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    figures = sorted((ROOT / "docs" / "figures").iterdir())
    assert figures
    for figure in figures:
        assert 1_000 < figure.stat().st_size < 150_000
        copied = ROOT / "results" / "bench" / figure.name.removeprefix("bench_")
        assert f'"{figure.stem}":' in script or copied.read_bytes() == figure.read_bytes()
        assert f"figures/{figure.name}" in texts


def test_navigation_lists_every_page_of_the_documentation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert f" {page.relative_to(ROOT / 'docs').as_posix()}\n" in navigation


def test_reference_has_every_public_module():
    reference = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs/api").iterdir())
    listed = {found.split(".")[1] for found in re.findall(r"^::: (s2vgd\.\S+)", reference, re.M)}
    modules = {module.name for module in pkgutil.iter_modules(s2vgd.__path__)}
    public = {module for module in modules if not module.startswith("_")} - {"cli"}
    assert listed == public


def test_reference_has_no_module_that_is_not_there():
    pages = (ROOT / "docs" / "api").glob("*.md")
    named = {found for page in pages for found in re.findall(r"^::: (\S+)", page.read_text(), re.M)}
    missing = [one for one in sorted(named) if not _is_there(one)]
    assert len(named) > 50 and not missing


def _is_there(dotted):
    package, _, last = dotted.rpartition(".")
    if package and not hasattr(importlib.import_module(package), last):
        return importlib.util.find_spec(dotted) is not None
    return True


def test_table_of_embedded_data_agrees_with_the_catalogue():
    from s2vgd import datasets

    text = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d,]+) \|", text, re.MULTILINE)
    documented = {name: int(count.replace(",", "")) for name, count in rows}
    assert documented == {each: datasets.info(each).n_rows for each in datasets.names()}


def test_readme_keeps_the_place_of_the_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.index("<!-- results:begin -->") < text.index("<!-- results:end -->")
