"""The progress bar: seen where someone looks, silent where nobody does."""

from __future__ import annotations

import io
import sys

import pytest

from s2vgd.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def show(progress, stream, monkeypatch, total=200, done=0):
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(progress, total, description="fitting", done=done) as update:
        for step in range(done + 1, total + 1):
            update(step, -12.345 if step > 1 else None)
    return stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_false_shows_nothing(stream, monkeypatch):
    assert show(False, stream(), monkeypatch) == ""


def test_none_shows_nothing_without_a_terminal(monkeypatch):
    assert show(None, io.StringIO(), monkeypatch) == ""


@pytest.mark.parametrize("progress", [True, None])
def test_a_terminal_gets_a_bar_with_density_and_time_left(progress, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    text = show(progress, Terminal(), monkeypatch)
    assert "fitting" in text
    assert "200/200" in text
    assert "log density -12.35" in text or "log density -12.34" in text
    assert "left" in text


def test_true_without_a_terminal_prints_a_few_lines(monkeypatch):
    lines = show(True, io.StringIO(), monkeypatch).splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("fitting 20/200  log density -12.3")
    assert lines[-1].endswith("  0 s left")


def test_a_resumed_run_prints_only_what_is_new(monkeypatch):
    lines = show(True, io.StringIO(), monkeypatch, done=100).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("fitting 120/200")


def test_without_rich_a_terminal_gets_lines(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert len(show(True, Terminal(), monkeypatch).splitlines()) == 10


def test_an_error_passes_through_the_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(ZeroDivisionError), progress_bar(True, 10) as update:
        update(1, None)
        raise ZeroDivisionError
