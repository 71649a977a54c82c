"""From lines of result files to means, standard errors and paired differences.

Lines of one run made with different settings are never mixed: of each cell of a table one set of
settings is chosen, by a rule that does not look at the scores.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from s2vgd.experiments.records import Row, latest


class Group(NamedTuple):
    """The runs behind one cell of a table.

    Parameters
    ----------
    finished, failed : list of Row
        Lines with scores, and with errors, of the chosen settings.
    not_run : list of Row
        Lines that say why nothing was run, if there are no others.
    left_out : int
        Finished runs with other settings.
    """

    finished: list[Row]
    failed: list[Row]
    not_run: list[Row]
    left_out: int

    @property
    def quick(self) -> bool:
        """Whether the scores are those of a trial."""
        return any(row["config"].get("quick") for row in self.finished)


class Estimate(NamedTuple):
    """A mean, its standard error (NaN for a single value) and how many values it is of."""

    mean: float
    error: float
    n: int


Groups = Mapping[Any, Group]


def grouped(rows: Iterable[Row], cell: Callable[[Row], Hashable]) -> dict[Any, Group]:
    """Sort lines into cells.

    Where a cell has runs with several settings, trials give way to the others, then fewer runs to
    more, then earlier ones to later.

    Parameters
    ----------
    rows : iterable of Row
        Lines of a file. Of a run that was made again, the last counts.
    cell : callable
        The cell that a line belongs to.
    """
    cells: dict[Any, dict[str, list[Row]]] = {}
    for row in latest(list(rows)):
        settings = json.dumps(row["config"], sort_keys=True)
        cells.setdefault(cell(row), {}).setdefault(settings, []).append(row)
    return {name: _chosen(list(found.values())) for name, found in cells.items()}


def _chosen(candidates: list[list[Row]]) -> Group:
    def rank(rows: list[Row]) -> tuple[bool, bool, int, str]:
        finished = [row for row in rows if "metrics" in row]
        is_trial = any(row["config"].get("quick") for row in rows)
        last = max(row.get("finished", "") for row in rows)
        return bool(finished), not is_trial, len(finished), last

    best = max(candidates, key=rank)
    finished = [row for row in best if "metrics" in row]
    everything = sum("metrics" in row for rows in candidates for row in rows)
    return Group(
        finished,
        [row for row in best if "error" in row],
        [row for row in best if "not_run" in row] if not finished else [],
        everything - len(finished),
    )


def estimate(group: Group | None, metric: str) -> Estimate | None:
    """Return the mean of a score over splits (over seeds, if there is one split only)."""
    values = list(_replicates(group, metric).values())
    return None if not values else _estimate(values)


def paired(first: Group | None, second: Group | None, metric: str) -> Estimate | None:
    """Return the mean of first minus second over the splits, or seeds, that both have."""
    a, b = _replicates(first, metric), _replicates(second, metric)
    shared = [key for key in a if key in b]
    return _estimate([a[key] - b[key] for key in shared]) if shared else None


def _replicates(group: Group | None, metric: str) -> dict[Any, float]:
    """Return a value for each split, averaged over seeds; or for each seed of the only split."""
    rows = [row for row in group.finished if metric in row["metrics"]] if group else []
    splits = {row["split"] for row in rows}
    found: dict[Any, list[float]] = {}
    for row in rows:
        key = (row["split"],) if len(splits) > 1 else (row["split"], row["seed"])
        found.setdefault(key, []).append(row["metrics"][metric])
    return {key: float(np.mean(values)) for key, values in sorted(found.items())}


def _estimate(values: list[float]) -> Estimate:
    n = len(values)
    error = float(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return Estimate(float(np.mean(values)), error, n)


def text(group: Group | None, metric: str, digits: int = 3, scale: float = 1.0) -> str:
    """Write a cell: mean ± standard error (number of values), or why there is none."""
    found = estimate(group, metric)
    if found is None:
        return "failed" if group and group.failed else "not run"
    return written(Estimate(scale * found.mean, scale * found.error, found.n), digits)


def written(found: Estimate, digits: int = 3) -> str:
    """Write an estimate, small means with two significant digits at least."""
    if found.mean:
        digits = max(digits, 1 - math.floor(math.log10(abs(found.mean))))
    error = "" if math.isnan(found.error) else f" ± {found.error:.{digits}f}"
    return f"{found.mean:.{digits}f}{error} ({found.n})"
