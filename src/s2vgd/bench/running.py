"""Ask many questions, each in a process of its own, and make one table of the answers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from s2vgd import files
from s2vgd.bench import QUESTIONS, question
from s2vgd.bench.records import Record
from s2vgd.bench.table import markdown
from s2vgd.errors import DataError, S2VGDError

TABLE = "table.md"


class QuestionError(S2VGDError):
    """A question of the benchmark ended with an error."""


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the questions, all of them for none; or say which of them there is not."""
    chosen = tuple(dict.fromkeys(names)) or QUESTIONS
    for name in chosen:
        if name not in QUESTIONS:
            raise DataError(f"unknown question {name!r}. Known: {', '.join(QUESTIONS)}")
    return chosen


def run(
    name: str,
    out: Path,
    *,
    quick: bool = False,
    revision: str | None = None,
    heard: Callable[[str], None] = lambda line: None,
) -> Record:
    """Ask one question in a fresh process.

    Parameters
    ----------
    name : str
        One of `QUESTIONS`.
    out : Path
        Directory for its file.
    quick : bool
        In small.
    revision : str, optional
        Of the source, where it is a copy without git.
    heard : callable
        Is given every line that it prints, one a row.

    Raises
    ------
    QuestionError
        If it fails. The rows that it had by then are in its file.
    """
    command = [sys.executable, "-W", "ignore", "-m", "s2vgd.bench", name, "--out", str(out)]
    command += ["--quick"] if quick else []
    command += ["--revision", revision] if revision else []
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as complaints,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=complaints, text=True, encoding="utf-8"
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                heard(line.rstrip())
        except BaseException:
            process.kill()
            raise
        process.wait()
        complaints.seek(0)
        said = complaints.read().strip().splitlines()
    if process.returncode:
        last = said[-1] if said else "without a message"
        raise QuestionError(f"the question {name} failed: {last}")
    return Record.read(out / f"{name}.json")


def write_table(out: Path) -> Path:
    """Write ``table.md`` from all the answers in a directory; return its path."""
    path = out / TABLE
    found = [
        (question(name).TITLE, Record.read(out / f"{name}.json"))
        for name in QUESTIONS
        if (out / f"{name}.json").exists()
    ]
    with files.replacing(path) as draft:
        draft.write_text(markdown(found), encoding="utf-8")
    return path
