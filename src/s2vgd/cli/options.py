"""Command-line arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

ModelArgument = Annotated[Path, typer.Argument(help="Directory written by 's2vgd fit'.")]

UnknownOption = Annotated[
    Literal["error", "ignore"],
    typer.Option(help="A category that training did not have: stop, or treat as none of them."),
]

# Rows predicted at once: large enough to be quick, small enough for any number of draws.
ROWS_AT_ONCE = 2048
