"""The regression guard: ratios of two runs of the benchmark, row by row.

Times of different days or machines do not compare; ratios against peers that ran beside us do. A
ratio counts as fallen when it is worse for us than before by more than `TOLERATED`, whichever way
is better in that row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from s2vgd.bench.records import Record, Row
from s2vgd.errors import DataError

TOLERATED = 0.30
"""Share of a ratio that may be lost from one run to the next."""


@dataclass(frozen=True)
class Fall:
    """A ratio that fell.

    Attributes
    ----------
    question, case, against : str
        Which one.
    before, now : float
        The medians.
    lost : float
        Share of the ratio that was lost, turned so that more is better.
    """

    question: str
    case: str
    against: str
    before: float
    now: float
    lost: float

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"{self.question}: {self.case}, against {self.against}: {self.before:.3g} before, "
            f"{self.now:.3g} now ({100 * self.lost:.0f} % worse)"
        )


def fallen(before: Record, now: Record, tolerated: float = TOLERATED) -> list[Fall]:
    """Compare two records of one question.

    Parameters
    ----------
    before, now : Record
        Rows that only one of them has, or that were not measured in both, are left out.
    tolerated : float
        Share that may be lost.

    Raises
    ------
    DataError
        If one of them was run in small and the other was not: the same words then stand for
        other work.
    """
    if before.quick != now.quick:
        raise DataError(f"{now.question}: a run with --quick compares only with another such run")
    old = {row.name: row for row in before.rows}
    falls = []
    for row in now.rows:
        earlier = old.get(row.name)
        if earlier is None or earlier.ratio is None or row.ratio is None:
            continue
        lost = 1 - score(row) / score(earlier)
        if lost > tolerated:
            falls.append(
                Fall(now.question, *row.name, earlier.ratio.median, row.ratio.median, lost)
            )
    return falls


def score(row: Row) -> float:
    """Return the median of the ratio, turned so that more is better for us."""
    assert row.ratio is not None
    least = 1e-12  # a ratio of nothing at all, such as of no memory, must not divide by zero
    median = max(row.ratio.median, least)
    return median if row.better == "higher" else 1 / median


def check(baseline: Path, directory: Path, questions: Iterable[str]) -> list[Fall]:
    """Compare the files of two directories, for the questions that both have.

    Raises
    ------
    DataError
        If they have no question in common, or a file cannot be read.
    """
    if not baseline.is_dir():
        raise DataError(f"there is no directory {baseline} to compare with")
    names = [
        name
        for name in questions
        if (baseline / f"{name}.json").exists() and (directory / f"{name}.json").exists()
    ]
    if not names:
        raise DataError(f"{baseline} has none of the questions that were asked")
    return [
        fall
        for name in names
        for fall in fallen(
            Record.read(baseline / f"{name}.json"), Record.read(directory / f"{name}.json")
        )
    ]
