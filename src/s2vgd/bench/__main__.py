"""``python -m s2vgd.bench NAME...``: ask questions in this very process, with plain lines.

It needs neither typer nor rich, hence runs on machines that have little more than JAX. ``s2vgd
bench`` starts this once a question.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from s2vgd import files
from s2vgd.bench import QUESTIONS, question
from s2vgd.bench.records import Record, circumstances
from s2vgd.bench.table import line


def main() -> None:
    """Read the command line and ask."""
    parser = argparse.ArgumentParser(prog="python -m s2vgd.bench")
    parser.add_argument("questions", nargs="+", choices=QUESTIONS)
    parser.add_argument("--quick", action="store_true", help="in small, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--revision", help="of the source, where it is a copy without git")
    args = parser.parse_args()
    for name in args.questions:
        ask(name, args.quick, args.out, args.revision)


def ask(name: str, quick: bool, out: Path, revision: str | None = None) -> Record:
    """Ask one question; what is known so far is written after every row."""
    asked = question(name)
    if hasattr(asked, "prepare"):
        asked.prepare()  # before JAX has run anything
    record = Record(name, quick, about=circumstances(revision))
    began = time.perf_counter()
    for row in asked.ask(quick, record.extra):
        record.rows.append(row)
        record.about["seconds"] = time.perf_counter() - began
        record.about["load_after"] = os.getloadavg()[0]
        record.write(out)
        print(line(row), flush=True)
    if hasattr(asked, "figure") and record.extra:
        with files.replacing(out / f"{name}.svg") as draft:
            draft.write_text(asked.figure(record), encoding="utf-8")
    return record


if __name__ == "__main__":
    main()
