"""The command line ``s2vgd``: models of table files, data sets, the demo and the experiments.

Everything heavy (JAX, pandas, matplotlib) is imported inside the commands, so that ``--help`` is
quick.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Annotated

import typer

from s2vgd.cli import bench, datasets, evaluate, fit, news, predict, report, reproduce
from s2vgd.cli.console import FriendlyGroup, print_line

__all__ = ["app"]

app = typer.Typer(
    name="s2vgd",
    cls=FriendlyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            version = importlib.metadata.version("s2vgd")
        except importlib.metadata.PackageNotFoundError:
            version = "(not installed)"
        print_line(f"s2vgd {version}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version."),
    ] = False,
) -> None:
    """Predictions with honest error bars, by structured Stein variational gradient descent."""


for command in (
    fit.fit,
    predict.predict,
    evaluate.evaluate,
    datasets.datasets,
    reproduce.reproduce,
    report.report,
    bench.bench,
):
    app.command()(command)
app.add_typer(news.app)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the report.")] = Path("report"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of all randomness.")] = 0,
) -> None:
    """Fit the yacht data and a toy problem, print a table, and write a report with figures."""
    from s2vgd.experiments import demo as experiment

    experiment.run(out, seed, progress=True)
