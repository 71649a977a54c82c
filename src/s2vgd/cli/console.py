"""How the command line speaks: results on standard output, everything else on standard error."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from s2vgd.errors import DataError, ModelFileError, S2VGDError

BAD_INPUT, FAILURE = 2, 1


class FriendlyGroup(TyperGroup):
    """A command group whose expected errors and warnings are single lines, not tracebacks.

    Bad input (a table, an option, a model directory) ends with exit code 2; what went wrong in
    spite of good input (a full disk, a diverged fit) with 1. Anything else is a bug and keeps its
    traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except (DataError, ModelFileError) as error:
                _fail(error, BAD_INPUT)
            except BrokenPipeError:
                raise
            except (S2VGDError, OSError, MemoryError, ModuleNotFoundError) as error:
                _fail(error, FAILURE)


def say(message: str, style: str = "") -> None:
    """Print one line about what is going on to standard error."""
    Console(stderr=True).print(Text(message, style=style), soft_wrap=True)


def print_line(message: str) -> None:
    """Print one line of results to standard output."""
    typer.echo(message)


def print_table(title: str, rows: list[list[str]], header: list[str] | None = None) -> None:
    """Print a table of results to standard output; only its last column may wrap."""
    table = Table(title=title, title_justify="left", show_header=header is not None)
    width = len(rows[0])
    for i, name in enumerate(header or [""] * width):
        table.add_column(name, no_wrap=i < width - 1, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _fail(error: BaseException, code: int) -> NoReturn:
    text = " ".join(str(error).split()) or type(error).__name__
    say(f"error: {text}", style="bold red")
    raise typer.Exit(code)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"warning: {' '.join(str(message).split())}", style="yellow")
