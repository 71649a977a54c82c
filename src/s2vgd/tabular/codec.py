"""The whole table: which columns are inputs, which are targets, and the file that says so."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from s2vgd.errors import DataError, ModelFileError
from s2vgd.tabular.cells import (
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
from s2vgd.tabular.columns import Column, Unknown

Task = Literal["regression", "classification"]

MAX_CLASS_INTEGERS = 10
"""A target of whole numbers with more distinct values than this is a regression target."""

FILE_NAME = "table.json"
FILE_VERSION = 1


def infer_task(target: pd.Series) -> Task:
    """Say whether a target column asks for regression or classification.

    Text, booleans and categories are classes. So are whole numbers with at most 10 distinct
    values (``MAX_CLASS_INTEGERS``) and at least five rows for each of them on average.
    Everything else is regression.
    """
    cells = tidy(target)
    if isinstance(target.dtype, pd.CategoricalDtype):
        return "classification"
    if infer_kind(cells) != "number":
        return "classification"
    values = parse("number", cells.dropna())
    n_values = len(np.unique(values))
    few = n_values <= MAX_CLASS_INTEGERS and 5 * n_values <= len(values)
    return "classification" if few and np.all(values == np.round(values)) else "regression"


@dataclass(frozen=True)
class TableCodec:
    """Everything needed to turn a table into the arrays the estimators take.

    Make one with :meth:`fit`.

    Parameters
    ----------
    columns : tuple of Column
        The input columns, in the order of the training table.
    targets : tuple of str
        Names of the target columns; more than one only for regression.
    task : {"regression", "classification"}
        What the model predicts.
    classes : tuple of str
        Class labels, in the order of the integer codes that :meth:`encode_target` returns.

    Examples
    --------
    >>> frame = pd.DataFrame({"colour": ["red", "blue", None], "price": [1.5, 2.0, 2.5]})
    >>> codec = TableCodec.fit(frame, ["price"])
    >>> codec.feature_names
    ('colour=blue', 'colour=red', 'colour=<missing>')
    """

    columns: tuple[Column, ...]
    targets: tuple[str, ...]
    task: Task
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        if not self.targets or not all(isinstance(name, str) for name in self.targets):
            raise ValueError(f"targets must be column names, got {self.targets!r}")
        if self.task not in get_args(Task) or len(self.classes) == 1:
            raise ValueError(f"unusable task {self.task!r} with classes {self.classes!r}")
        if (self.task == "classification") != bool(self.classes) or not all(
            isinstance(label, str) for label in self.classes
        ):
            raise ValueError(f"task {self.task!r} does not fit the classes {self.classes!r}")

    @classmethod
    def fit(
        cls,
        frame: pd.DataFrame,
        targets: Sequence[str],
        *,
        task: Literal["auto", "regression", "classification"] = "auto",
        drop: Sequence[str] = (),
        categorical: Sequence[str] = (),
    ) -> TableCodec:
        """Learn the treatment of every column from a training table.

        Parameters
        ----------
        frame : DataFrame
            The training table; rows whose target is missing are left out of everything.
        targets : sequence of str
            The column (for regression: or columns) to predict.
        task : {"auto", "regression", "classification"}
            ``"auto"`` applies :func:`infer_task`; several targets mean regression.
        drop, categorical : sequence of str
            Columns to leave out, and columns to treat as categories whatever they hold.
        """
        if task not in ("auto", *get_args(Task)):
            raise ValueError(f"task must be 'auto', 'regression' or 'classification', got {task!r}")
        frame = _checked(frame, first_row=1)
        _require_columns(frame, targets, "target column")
        _require_columns(frame, drop, "column to drop called")
        _require_columns(frame, categorical, "categorical column")
        if not targets or len(set(targets)) < len(targets):
            raise DataError("name at least one target column, and each only once")
        if clash := set(targets) & {*drop, *categorical}:
            raise DataError(f"{quoted(clash)} is the target: it cannot be dropped or categorical")
        if task == "auto":
            task = infer_task(frame[targets[0]]) if len(targets) == 1 else "regression"
        if task == "classification" and len(targets) > 1:
            raise DataError("classification takes one target column; several are regression only")

        target_cells = [tidy(frame[name]) for name in targets]
        kept = _all_present(target_cells)
        if not kept.any():
            raise DataError(f"every row has a missing target ({quoted(targets)})")
        classes: tuple[str, ...] = ()
        if task == "classification":
            classes = _classes(target_cells[0][kept])
        else:
            for cells in target_cells:
                _target_numbers(cells[kept])
        columns = tuple(
            Column.fit(frame.loc[kept, name], categorical=name in categorical)
            for name in frame.columns
            if name not in {*targets, *drop}
        )
        codec = cls(columns, tuple(targets), task, classes)
        if codec.n_features == 0:
            raise DataError("no input column is left besides the target")
        return codec

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the matrix columns, e.g. ``"age"``, ``"age=<missing>"``, ``"colour=red"``."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def n_features(self) -> int:
        """Width of the matrix."""
        return len(self.feature_names)

    def extra_columns(self, frame: pd.DataFrame) -> tuple[str, ...]:
        """Columns of a table that neither :meth:`encode` nor :meth:`encode_target` looks at."""
        used = {column.name for column in self.columns} | set(self.targets)
        return tuple(str(name) for name in frame.columns if str(name) not in used)

    def encode(
        self, frame: pd.DataFrame, *, unknown: Unknown = "error", first_row: int = 1
    ) -> np.ndarray:
        """Return the inputs as a float64 matrix of shape ``(N, n_features)``.

        Parameters
        ----------
        frame : DataFrame
            A table with at least the training columns; others are ignored.
        unknown : {"error", "ignore"}
            What to do with a category that training did not have; ``"ignore"`` encodes it as
            zeros, which is to say none of the known levels.
        first_row : int
            Number of the first row in error messages, for tables that are read in pieces.
        """
        if unknown not in get_args(Unknown):
            raise ValueError(f"unknown must be 'error' or 'ignore', got {unknown!r}")
        frame = _checked(frame, first_row)
        _require_columns(frame, [column.name for column in self.columns], "column")
        return np.hstack([column.encode(frame[column.name], unknown) for column in self.columns])

    def encode_target(
        self, frame: pd.DataFrame, *, first_row: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the targets of the rows that have them, and which rows those are.

        Returns
        -------
        y : array
            For regression float64 ``(n,)``, or ``(n, T)`` with several targets; for
            classification the integer code ``(n,)`` of each row's label in ``classes``.
        kept : array of bool, shape (N,)
            False where a target is missing.
        """
        frame = _checked(frame, first_row)
        _require_columns(frame, self.targets, "target column")
        columns = [tidy(frame[name]) for name in self.targets]
        kept = _all_present(columns)
        if self.task == "regression":
            y = np.stack([_target_numbers(cells[kept]) for cells in columns], axis=1)
            return (y[:, 0] if len(self.targets) == 1 else y), kept
        labels = columns[0][kept]
        codes = level_positions(labels, self.classes)
        if (codes < 0).any():
            strange = labels[codes < 0]
            raise DataError(
                f"target {self.targets[0]!r}: class {level_text(strange.iloc[0])!r} in "
                f"{rows_text(strange.index)} was not seen in training (known: "
                f"{quoted(self.classes)})"
            )
        return codes, kept

    def to_dict(self) -> dict[str, Any]:
        """Return the codec as plain data that ``json`` can write."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TableCodec:
        """Rebuild a codec from :meth:`to_dict`; anything unexpected is a ModelFileError."""
        try:
            columns = [Column(**{**c, "levels": tuple(c["levels"])}) for c in data["columns"]]
            tuples = {name: tuple(data[name]) for name in ("targets", "classes")}
            return cls(**{**data, **tuples, "columns": tuple(columns)})
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"the description of the table is damaged: {error}") from error

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write ``table.json`` into an existing model directory, atomically."""
        body = self.to_dict()
        document = {"version": FILE_VERSION, "sha256": _digest(body), "table": body}
        handle, temporary = tempfile.mkstemp(dir=directory, prefix=f".{FILE_NAME}.")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1, ensure_ascii=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, Path(directory) / FILE_NAME)
        except BaseException:
            os.unlink(temporary)
            raise

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> TableCodec:
        """Read ``table.json`` from a model directory; ModelFileError if absent or damaged."""
        path = Path(directory) / FILE_NAME
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            version, body = document["version"], document["table"]
            intact = document["sha256"] == _digest(body)
        except (FileNotFoundError, NotADirectoryError):
            raise ModelFileError(
                f"{directory} is not a model made by 's2vgd fit' (it has no {FILE_NAME})"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelFileError(f"{path} is damaged: {error!r}") from error
        if version != FILE_VERSION:
            raise ModelFileError(f"{path} has version {version}; this library reads {FILE_VERSION}")
        if not intact:
            raise ModelFileError(f"{path} was changed after it was written (checksum differs)")
        return cls.from_dict(body)


def _classes(cells: pd.Series) -> tuple[str, ...]:
    classes = sorted_levels(cells)
    if len(classes) == 1:
        raise DataError(f"target {cells.name!r} has a single class, {classes[0]!r}")
    check_level_count(cells, len(classes), "that is too many classes to predict")
    return classes


def _target_numbers(cells: pd.Series) -> np.ndarray:
    return parse("boolean" if infer_kind(cells) == "boolean" else "number", cells)


def _all_present(columns: Sequence[pd.Series]) -> np.ndarray:
    return np.all([cells.notna().to_numpy() for cells in columns], axis=0)


def _require_columns(frame: pd.DataFrame, names: Iterable[str], role: str) -> None:
    known = {name.casefold(): name for name in frame.columns}
    complaints = []
    for name in names:
        if name not in frame.columns:
            near = difflib.get_close_matches(name.casefold(), known, n=3)
            hint = f" (did you mean {quoted(known[key] for key in near)}?)" if near else ""
            complaints.append(repr(name) + hint)
    if complaints:
        raise DataError(f"the table has no {role} {', '.join(complaints)}")


def _checked(frame: pd.DataFrame, first_row: int) -> pd.DataFrame:
    """Return the frame with text column names and an index of row numbers."""
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"frame must be a pandas DataFrame, got {type(frame).__name__}")
    names = [str(name) for name in frame.columns]
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"the table has more than one column named {quoted(repeated)}")
    if len(frame) == 0:
        raise DataError("the table has no rows")
    return frame.set_axis(names, axis=1).set_axis(range(first_row, first_row + len(frame)), axis=0)


def _digest(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()
