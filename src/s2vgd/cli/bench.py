"""``s2vgd bench``: speed and quality against peers, as ratios measured in one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from s2vgd.cli.console import FAILURE, print_line, say

if TYPE_CHECKING:
    from s2vgd.bench.records import Record


def bench(
    questions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUESTION]...",
            help="step, structure, quality, cold, predict, bandit, control, memory, growth, "
            "roofline, gpu; all by default.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="In small, within minutes; the figures mean little.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Directory of the results.")] = Path("results/bench"),
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Results of an earlier run: exit with 1 if a ratio fell by more than 30 %.",
        ),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Of this source, where it is a copy without git.")
    ] = None,
) -> None:
    r"""Measure against peers on the same work in the same run, and make a table of the ratios.

    Peers come with 'pip install s2vgd\[bench]'; one that is not installed is left out and named.
    Let nothing else run meanwhile: ratios bear with a busy machine, but their spread shows it.
    """
    from s2vgd.bench import guard, running
    from s2vgd.progress import progress_bar

    names = running.check_names(questions or [])
    if check is not None and check.resolve() == out.resolve():
        raise typer.BadParameter("--check must name another directory than --out")
    failed = []
    with progress_bar(True, len(names), description="questions") as show:
        for done, name in enumerate(names):
            show(done, name)
            try:
                record = running.run(
                    name,
                    out,
                    quick=quick,
                    revision=revision,
                    heard=lambda line, name=name, done=done: show(done, f"{name}: {line[:60]}"),  # type: ignore[misc]
                )
            except running.QuestionError as error:
                failed.append(str(error))
                continue
            _print_answer(record)
        show(len(names), "")
    print_line(str(running.write_table(out)))
    for message in failed:
        say(f"error: {message}", style="bold red")
    falls = guard.check(check, out, names) if check is not None else []
    for fall in falls:
        say(f"fallen: {fall}", style="bold red")
    if failed or falls:
        raise typer.Exit(FAILURE)


def _print_answer(record: Record) -> None:
    from s2vgd.bench import question
    from s2vgd.bench.table import cells

    title = f"{record.question}: {question(record.question).TITLE}"
    table = Table(title=title, title_justify="left")
    for name in ("case", "against", "ratio", ""):
        table.add_column(name, no_wrap=name == "ratio", overflow="fold")
    for row in record.rows:
        case, against, ratio, _, target, ours, theirs, unit, note = cells(row)
        sides = f"{ours} against {theirs} {unit}" if theirs else f"{ours} {unit}" if ours else ""
        rest = "; ".join(filter(None, (target and f"target {target}", sides, note)))
        table.add_row(*map(Text, (case, against, ratio, rest)))
    Console().print(table)
