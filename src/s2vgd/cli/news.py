"""``s2vgd news``: logs of the Yahoo! Today module, converted to Parquet or simulated."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from s2vgd.cli.console import FriendlyGroup, print_line, print_table, say

if TYPE_CHECKING:
    from s2vgd.bandits.news.parquet import Summary

app = typer.Typer(
    name="news",
    cls=FriendlyGroup,
    no_args_is_help=True,
    help="Click logs of the Yahoo! Today module (R6A): convert them, or simulate some.",
)

QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress, print no summary.")]


@app.command()
def convert(
    files: Annotated[
        list[Path], typer.Argument(help="Files of the log, plain or gzipped, in order of time.")
    ],
    out: Annotated[Path, typer.Option(help="Parquet file to write; it appears when complete.")],
    quiet: QuietOption = False,
) -> None:
    """Convert text files of the log to one Parquet file, and say what they hold.

    Malformed lines are skipped and counted by reason. Memory does not grow with the files.
    """
    from s2vgd.bandits.news import parquet

    summary = parquet.convert(files, out, progress=not quiet)
    if not quiet:
        _print_summary(out, summary)


@app.command()
def simulate(
    out: Annotated[Path, typer.Option(help="Directory for the files, new or empty.")],
    events: Annotated[int, typer.Option(min=1, help="Number of visits.")] = 1_000_000,
    days: Annotated[int, typer.Option(min=1, help="Days they are spread over.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all randomness.")] = 0,
    plain: Annotated[bool, typer.Option("--plain", help="Write plain text, not gzip.")] = False,
    truth: Annotated[
        bool,
        typer.Option("--truth", help="Write truth.parquet too: the true click probabilities."),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Write a simulated log in the format of the real one, a file a day.

    Results computed from it are results on simulated data and should be labelled so.
    """
    from s2vgd.bandits.news import simulated

    files = simulated.simulate(
        out, events, days, seed, compress=not plain, truth=truth, progress=not quiet
    )
    if not quiet:
        for file in files:
            print_line(str(file))


def _print_summary(out: Path, summary: Summary) -> None:
    first, last = (datetime.fromtimestamp(t, UTC) for t in (summary.first, summary.last))
    reduced = summary.reduced > 0
    rows = [
        ["events", f"{summary.events:,}"],
        *(["skipped", f"{count:,}: {reason}"] for reason, count in summary.skipped.items()),
        *([["pool reduced", f"{summary.reduced:,}: an article lacks its six features"]] * reduced),
        ["articles", f"{summary.articles:,} ({summary.versions:,} with changes of features)"],
        ["days", f"{summary.days:.1f} ({first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC)"],
        ["click-through rate", f"{100 * summary.ctr:.3f} %"],
    ]
    print_table(f"{out.name}{' (simulated)' if summary.is_simulated else ''}", rows)
    for quote in summary.quotes:
        say(quote, style="yellow")
