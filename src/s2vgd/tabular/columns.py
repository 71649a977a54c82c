"""One input column of a table and what a model remembers about it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd

from s2vgd.errors import DataError
from s2vgd.tabular.cells import (
    Kind,
    check_level_count,
    infer_kind,
    level_positions,
    level_text,
    parse,
    quoted,
    rows_text,
    sorted_levels,
    tidy,
)

Unknown = Literal["error", "ignore"]


@dataclass(frozen=True)
class Column:
    """How one column of the table becomes numbers.

    Parameters
    ----------
    name : str
        Its name in the table.
    kind : {"number", "boolean", "date", "category", "empty"}
        Numbers pass through, booleans become 0 and 1, dates become days since 1970-01-01,
        categories become one column of 0 and 1 per level; a column that was empty in training
        contributes nothing.
    had_missing : bool
        Whether training cells were missing: adds an indicator column, or a level of its own.
    fill : float
        The training median, which replaces missing numbers, booleans and dates.
    levels : tuple of str
        The categories seen in training.
    """

    name: str
    kind: Kind
    had_missing: bool = False
    fill: float = 0.0
    levels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse descriptions that no training table can have given."""
        if not isinstance(self.name, str) or self.kind not in get_args(Kind):
            raise ValueError(f"column {self.name!r} has the unknown kind {self.kind!r}")
        if not isinstance(self.had_missing, bool) or not np.isfinite(self.fill):
            raise ValueError(f"column {self.name!r} has an unusable treatment of missing values")
        if (self.kind == "category") != bool(self.levels) or not all(
            isinstance(level, str) for level in self.levels
        ):
            raise ValueError(f"column {self.name!r} has unusable levels")

    @classmethod
    def fit(cls, column: pd.Series, *, categorical: bool = False) -> Column:
        """Learn the treatment of one training column; `categorical` overrides the inference."""
        name, cells = str(column.name), tidy(column)
        had_missing = bool(cells.isna().any())
        declared = categorical or isinstance(column.dtype, pd.CategoricalDtype)
        kind = "category" if declared and cells.notna().any() else infer_kind(cells)
        if kind == "empty":
            return cls(name, kind)
        if kind == "category":
            levels = sorted_levels(cells)
            if not categorical:
                advice = f"use --drop {name!r}, or --categorical {name!r} for one input per value"
                check_level_count(cells, len(levels), advice)
            return cls(name, kind, had_missing, levels=levels)
        return cls(name, kind, had_missing, fill=float(np.nanmedian(parse(kind, cells))))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the matrix columns this table column becomes."""
        if self.kind == "empty":
            return ()
        missing = (f"{self.name}=<missing>",) if self.had_missing else ()
        if self.kind == "category":
            return tuple(f"{self.name}={level}" for level in self.levels) + missing
        return (self.name, *missing)

    def encode(self, column: pd.Series, unknown: Unknown = "error") -> np.ndarray:
        """Return the ``(N, len(feature_names))`` block of numbers for one column of a table."""
        cells = tidy(column)
        missing = cells.isna().to_numpy()
        block = np.zeros((len(cells), len(self.feature_names)))
        if self.kind == "empty":
            return block
        if self.kind == "category":
            position = self._positions(cells, unknown)
            rows = np.flatnonzero(position >= 0)
            block[rows, position[rows]] = 1.0
        else:
            block[:, 0] = np.where(missing, self.fill, parse(self.kind, cells))
            if missing.any() and not self.had_missing:
                warnings.warn(
                    f"column {self.name!r} has missing values but had none in training: "
                    "the training median is used for them",
                    stacklevel=2,
                )
        if self.had_missing:
            block[missing, -1] = 1.0
        return block

    def _positions(self, cells: pd.Series, unknown: Unknown) -> np.ndarray:
        """Return each row's level number, -1 where missing or (if ignored) unknown."""
        position = level_positions(cells, self.levels)
        stray = position < 0
        if self.had_missing:
            stray &= cells.notna().to_numpy()
        if unknown == "error" and stray.any():
            strange = ["(missing)" if pd.isna(cell) else level_text(cell) for cell in cells[stray]]
            raise DataError(
                f"column {self.name!r}: {quoted(dict.fromkeys(strange), 5)} in "
                f"{rows_text(cells.index[stray])} was not seen in training (known: "
                f"{quoted(self.levels)}); --unknown ignore treats it as none of these"
            )
        return position
