"""``s2vgd report``: a page with every table and figure, from the result files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from s2vgd.cli.console import print_line
from s2vgd.errors import DataError


def report(
    results: Annotated[Path, typer.Argument(help="Directory written by 's2vgd reproduce'.")] = Path(
        "results"
    ),
    out: Annotated[Path, typer.Option(help="Directory for the page.")] = Path("report"),
) -> None:
    """Write a page with our figures beside the paper's, and say which of its claims hold up.

    Tables are written as Markdown too, figures as SVG and PNG. Nothing is computed anew.
    """
    from s2vgd.experiments import reproduction

    if not results.is_dir():
        raise DataError(f"{results} is not a directory")
    print_line(str(reproduction.write(results, out)))
