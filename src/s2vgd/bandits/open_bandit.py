"""The Open Bandit sample: real decisions, propensities and clicks, as `LoggedData`.

A fashion shop recommended items in three positions by two policies, uniformly at random and by
Bernoulli Thompson sampling ("bts"), in three campaigns (Saito et al., 2020); the sample has 10,000
rows of each, with some forty clicks: enough to try code on, too few to rank methods. This module
finds and reads the files; what can be estimated from them is in `evaluation`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from s2vgd.bandits.evaluation.data import Floats, LoggedData
from s2vgd.datasets import formats, storage
from s2vgd.datasets.open_bandit import open_bandit_files
from s2vgd.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

LoggingPolicy = Literal["random", "bts"]
Campaign = Literal["all", "men", "women"]
Levels = tuple[tuple[str, ...], ...]
CsvFile = str | Path | IO[bytes]

_USER_COLUMNS = tuple(f"user_feature_{i}" for i in range(4))
_ITEM_COLUMNS = tuple(f"item_feature_{i}" for i in range(4))
_LOG_COLUMNS = ("timestamp", "item_id", "position", "click", "propensity_score", *_USER_COLUMNS)
_AFFINITY = "user-item_affinity_"


@dataclass(frozen=True, eq=False)
class OpenBanditLog:
    """A log of the Open Bandit Dataset.

    Attributes
    ----------
    data : LoggedData
        Items as actions, clicks as rewards, positions 1 to 3; contexts are indicators of the
        levels of the four user features.
    timestamps : ndarray of shape (N,) of datetime64[us]
        When, in UTC; the rows are in this order.
    affinities : ndarray of shape (N, A)
        How often the user had clicked on each item before.
    item_features : ndarray of shape (A, D)
        Of the items: a number, and indicators of the levels of three features.
    context_names, item_feature_names : tuple of str
        ``feature=level`` for an indicator. The levels are hashes.
    levels : tuple of four tuples of str
        The levels of the user features; with them, another log is read into the same columns.
    """

    data: LoggedData
    timestamps: NDArray[np.datetime64]
    affinities: Floats
    item_features: Floats
    context_names: tuple[str, ...]
    item_feature_names: tuple[str, ...]
    levels: Levels


def load_open_bandit(
    policy: LoggingPolicy = "random",
    campaign: Campaign = "all",
    *,
    levels: Levels | None = None,
    download: bool = True,
) -> OpenBanditLog:
    """Read a log of the sample.

    Like the data sets, it is looked for in the directory named by ``S2VGD_DATA``, then in the
    cache, and else downloaded; its checksum is verified wherever it was.

    Parameters
    ----------
    policy : {"random", "bts"}
        Who decided.
    campaign : {"all", "men", "women"}
        With 80, 34 and 46 items.
    levels : tuple of four tuples of str, optional
        As in `read_open_bandit`.
    download : bool
        Whether files that are not on this machine may be downloaded.

    Raises
    ------
    DataError
        If a name is unknown, or a file is damaged or missing.
    """
    for argument, value, known in (
        ("policy", policy, get_args(LoggingPolicy)),
        ("campaign", campaign, get_args(Campaign)),
    ):
        if value not in known:
            raise DataError(f"{argument} must be one of {', '.join(known)}, got {value!r}")
    files = open_bandit_files(policy, campaign)
    located = storage.obtain(files, download=download, progress=False)
    with ExitStack() as stack:
        log, items = (stack.enter_context(file.open()) for file in located)
        return read_open_bandit(log, items, levels=levels)


def read_open_bandit(
    log: CsvFile, items: CsvFile, *, levels: Levels | None = None
) -> OpenBanditLog:
    """Read a log in the format of the Open Bandit Dataset, of any size that fits into memory.

    Parameters
    ----------
    log : path or binary stream
        The decisions: timestamp, item_id, position, click, propensity_score, user_feature_0 to
        3, and user-item_affinity_0 to A - 1.
    items : path or binary stream
        The items: item_id and item_feature_0 to 3, the first of which is a number.
    levels : tuple of four tuples of str, optional
        The levels of the user features that get a column; those in the log by default. A user with
        another level has zeros in the columns of that feature.

    Raises
    ------
    DataError
        If a column is missing or holds something else; the message names it.
    """
    decisions = _table(log, "log", _LOG_COLUMNS).sort_values("timestamp", kind="stable")
    item_table = _table(items, "items", ("item_id", *_ITEM_COLUMNS)).sort_values("item_id")
    n_actions = len(item_table)
    if item_table["item_id"].tolist() != list(range(n_actions)):
        raise DataError("items: item_id must be 0, 1, 2, ... without gaps")
    affinity_columns = [f"{_AFFINITY}{i}" for i in range(n_actions)]
    _require(decisions, "log", affinity_columns)

    users = decisions[list(_USER_COLUMNS)].to_numpy(str)
    levels = levels or tuple(tuple(np.unique(column).tolist()) for column in users.T)
    if len(levels) != len(_USER_COLUMNS):
        raise DataError(f"levels must be given for {len(_USER_COLUMNS)} features: {len(levels)}")
    blocks = [
        column[:, None] == np.array(known) for column, known in zip(users.T, levels, strict=True)
    ]
    names = [
        f"{name}={level}"
        for name, known in zip(_USER_COLUMNS, levels, strict=True)
        for level in known
    ]
    item_features, item_names = formats.encode(
        item_table[list(_ITEM_COLUMNS)].to_numpy(str), _ITEM_COLUMNS, numeric=_ITEM_COLUMNS[:1]
    )
    return OpenBanditLog(
        data=LoggedData(
            actions=decisions["item_id"].to_numpy(),
            rewards=decisions["click"].to_numpy(),
            propensities=decisions["propensity_score"].to_numpy(),
            n_actions=n_actions,
            contexts=np.hstack(blocks).astype(np.float64),
            positions=decisions["position"].to_numpy(),
        ),
        timestamps=decisions["timestamp"].dt.tz_localize(None).to_numpy("datetime64[us]"),
        affinities=decisions[affinity_columns].to_numpy(np.float64),
        item_features=item_features,
        context_names=tuple(names),
        item_feature_names=item_names,
        levels=levels,
    )


def logged_shares(log: LoggedData, positions: ArrayLike) -> Floats:
    """Return how often a log has each action in each position, as a policy for other rows.

    For a policy that does not look at the context, such as both of the Open Bandit Dataset, this
    estimates its distribution, averaged over time where it learned; so that it can be
    evaluated on the log of the other.

    Parameters
    ----------
    log : LoggedData
        With positions.
    positions : array of shape (N,)
        The positions of the rows for which the distribution is wanted.

    Returns
    -------
    ndarray of shape (N, A)
    """
    if log.positions is None:
        raise DataError("log has no positions")
    known, code = np.unique(log.positions, return_inverse=True)
    counts = np.zeros((known.size, log.n_actions))
    np.add.at(counts, (code, log.actions), 1.0)
    wanted = np.asarray(positions)
    unknown = ~np.isin(wanted, known)
    if unknown.any():
        raise DataError(f"positions has {wanted[unknown][0]}, which the log does not have")
    shares = counts / counts.sum(axis=1, keepdims=True)
    return shares[np.searchsorted(known, wanted)]


def _table(source: CsvFile, argument: str, columns: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd

    hashed: dict[Any, Any] = dict.fromkeys((*_USER_COLUMNS, *_ITEM_COLUMNS), str)
    try:
        table = pd.read_csv(source, dtype=hashed)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise DataError(f"{argument} is not a CSV file: {error}") from error
    _require(table, argument, columns)
    if "timestamp" in columns:
        try:
            # The fraction is left out where it is zero, so that the format differs between rows.
            table["timestamp"] = pd.to_datetime(table["timestamp"], utc=True, format="ISO8601")
        except ValueError as error:
            raise DataError(f"{argument}: timestamp cannot be read: {error}") from error
    return table


def _require(table: pd.DataFrame, argument: str, columns: tuple[str, ...] | list[str]) -> None:
    missing = [name for name in columns if name not in table.columns]
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise DataError(f"{argument} has no column {missing[0]}{more}")
    gaps = table[list(columns)].isna().any()
    if gaps.any():
        raise DataError(f"{argument}: {gaps.idxmax()} has gaps")
