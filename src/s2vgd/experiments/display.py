"""What a grid of runs shows while it goes on: each finished run, how many are left, until when.

On a terminal a bar stays below the lines; elsewhere there are only the lines. All of it is on
standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from s2vgd.experiments.records import Run

_SHOWN = 3


class Display:
    """Progress of a number of runs, for a ``with`` block.

    Parameters
    ----------
    total : int
        How many there are.
    show : bool
        Whether to show anything.
    """

    def __init__(self, total: int, show: bool) -> None:
        self._total, self._show = total, show
        self._done, self._began = 0, time.monotonic()
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        if show and total and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("runs"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=self._console,
                # Runs take minutes: the usual half a minute would forget all of them.
                speed_estimate_period=3600.0,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, run: Run, row: Mapping[str, Any]) -> None:
        """Show a run that has ended."""
        self._done += 1
        if not self._show:
            return
        line = f"[{self._done}/{self._total}] {run}: {describe(row)}"
        if self._bar is not None:
            self._bar.console.print(Text(line), soft_wrap=True)
            self._bar.update(self._task, completed=self._done)
            return
        left = (time.monotonic() - self._began) * (self._total - self._done) / self._done
        print(f"{line}, {duration(left)} left", file=sys.stderr, flush=True)


def describe(row: Mapping[str, Any]) -> str:
    """Say in a few words how a run ended."""
    if "not_run" in row:
        return f"not run, {row['not_run']}"
    if "error" in row:
        return f"failed, {row['error']['type']}: {' '.join(row['error']['message'].split())[:200]}"
    scores = [f"{name} {value:.4g}" for name, value in list(row["metrics"].items())[:_SHOWN]]
    return ", ".join([*scores, duration(row["seconds"])])


def duration(seconds: float) -> str:
    """Write a duration as people say it."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
