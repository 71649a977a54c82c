"""What a loaded data set is: arrays, names, provenance and the published splits.

Nothing here knows where the numbers came from; finding files is :mod:`s2vgd.datasets.storage`,
reading them :mod:`s2vgd.datasets.formats`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Task = Literal["regression", "classification"]
Split = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table with a target, as published: nothing is scaled, shuffled or dropped.

    Attributes
    ----------
    name : str
        The name it is loaded by.
    x : ndarray of shape (N, F)
        Features, float64; float32 for images, whose pixels are 0-255. Categorical columns are
        one-hot encoded in place, a missing value ``?`` being a level of its own.
    y : ndarray of shape (N,)
        The target, float64, or for classification the index (int64) into ``classes``.
    feature_names : tuple of str
        One for each column of `x`; ``"odor=n"`` is the indicator of level ``n`` of ``odor``.
    target_name : str
        What `y` is.
    task : {"regression", "classification"}
        What kind of target it is.
    licence, source, note : str
        Terms of use, where the data come from, and what a user should know before using them.
    classes : tuple of str
        Names of the classes; empty for regression.
    raw : ndarray of shape (N, A) of str, optional
        The attributes before one-hot encoding, for data with categorical columns.
    raw_names : tuple of str
        The names of the columns of `raw`.
    n_splits : int
        How many random 90/10 splits the published benchmark has; 0 if it has none.
    n_train : int, optional
        For data with a fixed split: the first `n_train` rows train, the others test.
    hidden_units : int
        The width the published benchmark uses for a network with one hidden layer.
    """

    name: str
    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    feature_names: tuple[str, ...] = field(repr=False)
    target_name: str
    task: Task
    licence: str
    source: str
    note: str = ""
    classes: tuple[str, ...] = field(default=(), repr=False)
    raw: np.ndarray | None = field(default=None, repr=False)
    raw_names: tuple[str, ...] = field(default=(), repr=False)
    n_splits: int = 0
    n_train: int | None = None
    hidden_units: int = 50

    @property
    def splits(self) -> list[Split]:
        """The published (train, test) row indices; empty where none were published."""
        n_rows = len(self.y)
        if self.n_train is not None:
            return [(np.arange(self.n_train), np.arange(self.n_train, n_rows))]
        return standard_splits(n_rows, self.n_splits)


def standard_splits(n_rows: int, n_splits: int) -> list[Split]:
    """Return the 90/10 splits of the UCI regression benchmark (Hernandez-Lobato & Adams, 2015).

    The published index files are reproduced exactly, order included, because the stream of
    NumPy's legacy generator is frozen.
    """
    rng = np.random.RandomState(1)
    n_train = round(0.9 * n_rows)
    permutations = [rng.choice(n_rows, n_rows, replace=False) for _ in range(n_splits)]
    return [(rows[:n_train], rows[n_train:]) for rows in permutations]
