"""Cells of one column: what counts as missing, a number, a boolean, a date or a category.

Functions here take *tidy* columns (see :func:`tidy`), whose index holds the row numbers that
messages quote. What a model remembers about a column is in ``columns``.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from s2vgd.errors import DataError

Kind = Literal["number", "boolean", "date", "category", "empty"]

MISSING_TEXT = frozenset(
    {"", "?", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "NULL", "null", "None"}
)
"""Spellings of a missing value, in any column of text."""

MAX_LEVELS = 100
"""Text with more different values than this is taken for identifiers or prose."""

_BOOLEANS = {"False": 0.0, "True": 1.0, "0": 0.0, "1": 1.0}
_ISO_DATE = r"\d{4}-\d{2}-\d{2}(?:[T ].*)?"
_WANTED = {"number": "a number", "boolean": "true or false", "date": "a date such as 2024-01-31"}


def tidy(column: pd.Series) -> pd.Series:
    """Return the column with its text stripped and every spelling of missing made NaN."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    if pd.api.types.is_object_dtype(column):
        stripped = column.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
        return stripped.mask(stripped.map(lambda c: isinstance(c, str) and c in MISSING_TEXT))
    if pd.api.types.is_string_dtype(column):
        stripped = column.str.strip()
        return stripped.mask(stripped.isin(MISSING_TEXT))
    return column


def infer_kind(cells: pd.Series) -> Kind:
    """Say what a training column holds, by its type or, for text, by what all of it can be."""
    present = cells.dropna()
    dtype = present.dtype
    if present.empty:
        return "empty"
    if pd.api.types.is_bool_dtype(dtype):
        return "boolean"
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return "date"
    if pd.api.types.is_any_real_numeric_dtype(dtype):
        return "number"
    if not (pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype)):
        raise DataError(f"column {cells.name!r} has the unsupported type {dtype}")
    if _all_truth_words(present.iloc[:100]) and _all_truth_words(present):
        return "boolean"
    if not np.isnan(_numbers(present)).any():
        return "number"
    return "category" if np.isnan(_dates(present)).any() else "date"


def _all_truth_words(present: pd.Series) -> bool:
    return set(level_codes(present)[1]) <= {"True", "False"}


def parse(kind: Kind, cells: pd.Series) -> np.ndarray:
    """Return the column as float64, NaN where missing.

    Booleans become 0 and 1, dates days since 1970-01-01 (UTC). A cell that is present but is
    not of this kind is a DataError that names the column, the value and the rows.
    """
    values = _PARSERS[kind](cells)
    wrong = cells.notna().to_numpy() & ~np.isfinite(values)
    if wrong.any():
        wanted = "a finite number" if np.isinf(values).any() else _WANTED[kind]
        raise DataError(
            f"column {cells.name!r}: {str(cells[wrong].iloc[0])!r} in "
            f"{rows_text(cells.index[wrong])} is not {wanted}"
        )
    return values


def _numbers(cells: pd.Series) -> np.ndarray:
    if pd.api.types.is_datetime64_any_dtype(cells):
        return np.full(len(cells), np.nan)
    return pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _booleans(cells: pd.Series) -> np.ndarray:
    codes, levels = level_codes(cells)
    return np.array([*(_BOOLEANS.get(level, np.nan) for level in levels), np.nan])[codes]


def _dates(cells: pd.Series) -> np.ndarray:
    if not pd.api.types.is_datetime64_any_dtype(cells):
        is_date = cells.map(lambda cell: isinstance(cell, datetime.date)).to_numpy(dtype=bool)
        is_iso = cells.astype(str).str.fullmatch(_ISO_DATE).to_numpy(dtype=bool)
        cells = cells.astype(object).where(is_date | is_iso).map(str, na_action="ignore")
        cells = pd.to_datetime(cells, format="ISO8601", utc=True, errors="coerce")
    elif cells.dt.tz is None:
        cells = cells.dt.tz_localize("UTC")
    days = (cells - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    return days.to_numpy(dtype=np.float64, na_value=np.nan)


_PARSERS: dict[str, Any] = {"number": _numbers, "boolean": _booleans, "date": _dates}


def level_text(cell: Any) -> str:
    """Return one spelling for a category, whichever file format it came from."""
    if str(cell).lower() in ("true", "false"):
        return str(cell).capitalize()
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell)


def level_codes(cells: pd.Series) -> tuple[np.ndarray, list[str]]:
    """Return each row's code, -1 where missing, and the level texts the codes stand for."""
    try:
        codes, uniques = pd.factorize(cells)
    except TypeError:
        raise DataError(f"column {cells.name!r} holds lists or other nested values") from None
    return codes, [level_text(cell) for cell in uniques]


def level_positions(cells: pd.Series, levels: Sequence[str]) -> np.ndarray:
    """Return each row's position in `levels`, -1 if it has none.

    The numbers 1 and 1.0 and the texts "1.0" and "1" are one level: a column of whole numbers
    is written as 1.0 by many tools as soon as one cell is missing.
    """
    by_text = {level: i for i, level in enumerate(levels)}
    by_number = {_as_float(level): i for level, i in by_text.items()}
    by_number.pop(None, None)
    codes, texts = level_codes(cells)
    found = [by_text.get(text, by_number.get(_as_float(text), -1)) for text in texts]
    return np.array([*found, -1], dtype=np.int64)[codes]


def sorted_levels(cells: pd.Series) -> tuple[str, ...]:
    """Return the distinct levels of a column, by value if all are numbers, else by text."""
    levels = sorted(set(level_codes(cells)[1]))
    numeric = all(_as_float(level) is not None for level in levels)
    return tuple(sorted(levels, key=float) if numeric else levels)


def _as_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def check_level_count(cells: pd.Series, n_levels: int, advice: str) -> None:
    """Refuse identifiers, prose, and numbers spoilt by a stray word."""
    present = cells.dropna()
    nearly_unique = n_levels > 10 and n_levels > 0.9 * len(present)
    if n_levels <= MAX_LEVELS and not nearly_unique:
        return
    not_number = np.isnan(_numbers(present))
    if 0 < not_number.mean() < 0.5:
        why = (
            f"mostly numbers, but {str(present[not_number].iloc[0])!r} in "
            f"{rows_text(present.index[not_number])} is not one"
        )
    else:
        why = f"such as {str(present.iloc[0])!r}"
    raise DataError(
        f"column {cells.name!r} has {n_levels} different values in {len(present)} rows "
        f"({why}): {advice}"
    )


def quoted(names: Iterable[str], limit: int = 12) -> str:
    """Return a few names in quotes, and how many were left out."""
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + more


def rows_text(index: pd.Index, limit: int = 5) -> str:
    """Return "row 3" or "rows 3, 7, 8 and 20 more"."""
    more = f" and {len(index) - limit} more" if len(index) > limit else ""
    return ("row " if len(index) == 1 else "rows ") + ", ".join(map(str, index[:limit])) + more
