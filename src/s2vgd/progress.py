"""A progress bar for long loops: live on a terminal, a line now and then anywhere else.

Loops call the function that :func:`progress_bar` yields; they know nothing of terminals. rich is
imported here, when a bar is wanted, and nowhere else; without it the lines are printed instead.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

Update = Callable[[int, float | str | None], None]
"""``update(done, log_density)``: how much is done of the total, and the latest mean log density.

A text is shown as it is, for loops that have something better to tell.
"""

_LINES = 10


@contextlib.contextmanager
def progress_bar(
    show: bool | None, total: int, *, description: str = "training", done: int = 0
) -> Iterator[Update]:
    """Show how far a loop is, its mean log density, and the time that is left.

    Parameters
    ----------
    show : bool or None
        None shows the bar only if standard error is a terminal. True shows it there too, and prints
        about ten plain lines to standard error where there is no terminal.
    total : int
        Number of steps.
    description : str
        What is being done.
    done : int
        Steps that were done before, when a run is resumed.

    Yields
    ------
    update : callable
        ``update(done, log_density)``; log_density may be None, or a text to show in its place.
    """
    interactive = sys.stderr.isatty()
    if show is False or (show is None and not interactive):
        yield lambda done, log_density: None
    elif not interactive or not _has_rich():
        yield _line_printer(total, description, done)
    else:
        with _rich_bar(total, description, done) as update:
            yield update


def _has_rich() -> bool:
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return False
    return True


@contextlib.contextmanager
def _rich_bar(total: int, description: str, done: int) -> Iterator[Update]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[log_density]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total, completed=done, log_density="compiling")

        def update(done: int, log_density: float | str | None) -> None:
            bar.update(task, completed=done, log_density=_text(log_density))

        yield update


def _line_printer(total: int, description: str, done: int) -> Update:
    start, first = time.monotonic(), done
    printed = done * _LINES // total

    def update(done: int, log_density: float | str | None) -> None:
        nonlocal printed
        if done * _LINES // total == printed:
            return
        printed = done * _LINES // total
        left = (time.monotonic() - start) * (total - done) / max(done - first, 1)
        parts = [f"{description} {done}/{total}", _text(log_density), f"{left:.0f} s left"]
        print("  ".join(filter(None, parts)), file=sys.stderr, flush=True)

    return update


def _text(log_density: float | str | None) -> str:
    if isinstance(log_density, str):
        return log_density
    return "" if log_density is None else f"log density {log_density:.4g}"
