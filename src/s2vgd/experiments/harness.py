"""A grid of independent runs: what is done is kept, what fails is told, and the rest goes on.

An experiment is a module with a :class:`Grid` of its own as ``CONFIG`` and ``QUICK``, and three
functions: ``grid(config) -> list of Run``, ``needs(run) -> names of data sets`` and
``execute(run) -> Outcome``. Runs that differ in split and seed alone can be made side by side in
one program: by ``execute_together(runs) -> list of Outcome``, if there is one, or by merging what
the methods named in ``SIDE_BY_SIDE`` train, see :mod:`s2vgd.together`. What they compute is their
affair; files are in :mod:`~s2vgd.experiments.records`, and where the runs are made is in
:mod:`~s2vgd.experiments.engines`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from s2vgd import datasets
from s2vgd.errors import DataError
from s2vgd.experiments import measure, records
from s2vgd.experiments.display import Display
from s2vgd.experiments.engines import Engine, Lost, engine_of
from s2vgd.experiments.records import Row, Run
from s2vgd.together import side_by_side

EXPERIMENTS = {
    "table1": "s2vgd.experiments.table1",
    "table2": "s2vgd.experiments.table2",
    "hyper": "s2vgd.experiments.hyper",
    "toy-classification": "s2vgd.experiments.toy_classification",
    "toy-regression": "s2vgd.experiments.toy_regression",
    "mushroom": "s2vgd.experiments.mushroom",
    "news": "s2vgd.experiments.news",
    "particles": "s2vgd.experiments.particles",
    "worlds": "s2vgd.experiments.worlds",
    "control": "s2vgd.experiments.control",
}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What every experiment's configuration has.

    Parameters
    ----------
    methods, datasets : tuple of str
        Whom to compare on what.
    splits : tuple of int or None
        First split and the one after the last; None for all that are published.
    seeds : int
        Repetitions on each split.
    quick : bool
        Whether this is a trial whose figures mean nothing yet.
    """

    methods: tuple[str, ...]
    datasets: tuple[str, ...]
    splits: tuple[int, int] | None = None
    seeds: int = 1
    quick: bool = False

    def split_numbers(self, published: int) -> range:
        """Return the numbers of the splits to run, of so many published."""
        first, last = self.splits or (0, published)
        return range(first, min(last, published))


@dataclass(frozen=True)
class Outcome:
    """What a run found.

    Parameters
    ----------
    metrics : dict of str to float
        Scores.
    details : dict
        Anything else that the report draws, as JSON has it.
    versions : dict of str to str
        Of software besides what :func:`s2vgd.experiments.measure.versions` lists.
    """

    metrics: dict[str, float]
    details: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


class NotRun(Exception):
    """A run that cannot be made here, for want of a file or a package; the message says which."""


class Experiment(Protocol):
    """The module of an experiment."""

    CONFIG: Grid
    QUICK: Grid

    def grid(self, config: Any) -> list[Run]:
        """Return the runs of a configuration."""

    def needs(self, run: Run) -> Sequence[str]:
        """Return the names of the data sets that a run reads."""

    def execute(self, run: Run) -> Outcome:
        """Learn, predict and score."""


class Tally(NamedTuple):
    """How many runs were made, failed, could not be made, and had been there before."""

    finished: int = 0
    failed: int = 0
    not_run: int = 0
    kept: int = 0


def experiment(name: str, modules: Mapping[str, str] = EXPERIMENTS) -> Experiment:
    """Return the module of an experiment."""
    if name not in modules:
        raise DataError(f"unknown experiment {name!r}. Known: {', '.join(modules)}")
    return cast(Experiment, importlib.import_module(modules[name]))


def changed(config: Any, changes: Mapping[str, Any]) -> Any:
    """Return a configuration with other values in some of its fields.

    Raises
    ------
    DataError
        If there is no such field.
    """
    known = [item.name for item in dataclasses.fields(config)]
    for name in changes:
        if name not in known:
            raise DataError(f"there is no setting {name!r}. Known: {', '.join(known)}")
    return dataclasses.replace(config, **changes)


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they will be read back from a file: tuples become lists."""
    return json.loads(json.dumps(settings))


@lru_cache(maxsize=4)
def load(name: str) -> datasets.Dataset:
    """Read a data set that is on this machine; a missing one makes the run "not run".

    Downloading is for :func:`reproduce`, once and not in every process.
    """
    if datasets.info(name).where == "not present":
        raise NotRun(f"file missing: {name} is not on this machine")
    return datasets.load(name, download=False)


def reproduce(
    runs: Sequence[Run],
    out: Path,
    *,
    workers: int = 1,
    engine: Engine | None = None,
    together: int = 1,
    retry: bool = False,
    download: bool = True,
    command: str = "",
    revision: str | None = None,
    modules: Mapping[str, str] = EXPERIMENTS,
    show: bool = True,
) -> Tally:
    """Make the runs that are not in the files yet, and write each down when it is finished.

    Parameters
    ----------
    runs : sequence of Run
        The grid.
    out : Path
        Directory of the files, ``<experiment>.jsonl``.
    workers : int
        Processes, of one core each; with 1 the runs are made in this process on all its cores.
    engine : Engine, optional
        Where else to make the runs, in place of `workers`: see :mod:`s2vgd.experiments.engines`.
    together : int
        Of runs that differ in split and seed alone, make so many side by side in one program, where
        the experiment can.
    retry : bool
        Make runs again that failed before.
    download : bool
        Whether data sets that are not on this machine may be downloaded.
    command, revision : str
        How this was called and of which source, for the record; the revision is found if need be.
    modules : mapping of str to str
        Name of each experiment's module.
    show : bool
        Show progress on standard error.
    """
    found = {r: _latest(out / f"{r}.jsonl") for r in {run.experiment for run in runs}}
    todo = [run for run in runs if _is_open(found[run.experiment].get(run.key), retry)]
    if download:
        _fetch(todo, modules)
    made_by = {"command": command, "revision": revision or measure.revision()}
    tally = Tally(kept=len(runs) - len(todo))
    with Display(len(todo), show) as display:
        tasks = _tasks(todo, modules, together)
        for run, part in _perform_all(tasks, engine or engine_of(workers)):
            row = {**vars(run), **part, **made_by}
            row["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
            kind = "failed" if "error" in row else "not_run" if "not_run" in row else "finished"
            tally = tally._replace(**{kind: getattr(tally, kind) + 1})
            display.advance(run, row)
            before = found[run.experiment].get(run.key, {})
            if kind == "not_run" and before.get("not_run") == row["not_run"]:
                continue  # it has been said
            records.append(out / f"{run.experiment}.jsonl", row)
    return tally


def _latest(path: Path) -> dict[str, Row]:
    return {records.key_of(row): row for row in records.read(path)}


def _is_open(row: Row | None, retry: bool) -> bool:
    return row is None or "not_run" in row or (retry and "error" in row)


def _fetch(runs: Iterable[Run], modules: Mapping[str, str]) -> None:
    needed = {name for run in runs for name in experiment(run.experiment, modules).needs(run)}
    for name in sorted(needed):
        if datasets.info(name).where == "not present":
            try:
                datasets.fetch(name)
            except DataError:
                continue  # its runs will say that it is missing


Task = tuple[str, list[Run]]
"""The module of an experiment, and runs to be made together."""


def _tasks(runs: Iterable[Run], modules: Mapping[str, str], together: int) -> list[Task]:
    """Return the runs in groups of at most so many, in the order of the first of each."""
    found: list[Task] = []
    open_groups: dict[str, list[Run]] = {}
    for run in runs:
        module = modules[run.experiment]
        shape = dataclasses.replace(run, split=0, seed=0).key
        group = open_groups.get(shape)
        if group is not None and len(group) < together and _can_together(module, run.method):
            group.append(run)
            continue
        open_groups[shape] = [run]
        found.append((module, open_groups[shape]))
    return found


def _can_together(module: str, method: str) -> bool:
    found = importlib.import_module(module)
    return hasattr(found, "execute_together") or method in getattr(found, "SIDE_BY_SIDE", ())


def _outcomes(module: str, runs: list[Run]) -> list[Outcome]:
    found = importlib.import_module(module)
    if len(runs) == 1:
        return [found.execute(runs[0])]
    if hasattr(found, "execute_together"):
        return found.execute_together(runs)
    return side_by_side([partial(found.execute, run) for run in runs])


def _perform_all(tasks: Sequence[Task], engine: Engine) -> Iterator[tuple[Run, Row]]:
    for index, answer in engine(perform, tasks):
        _, runs = tasks[index]
        if isinstance(answer, Lost):
            answer = [{"error": {"type": "ProcessDied", "message": answer.reason}} for _ in runs]
        yield from zip(runs, answer, strict=True)


def perform(task: Task) -> list[Row]:
    """Make the runs of a task, and return what is to be written down about each.

    Where one of several fails, all of them are made again one by one, and say so.
    """
    module, runs = task
    rows = _perform(module, runs)
    if len(runs) > 1 and (failed := next((row for row in rows if "error" in row), None)):
        why = "made alone: together with others it ended in {type}: {message}"
        note = why.format_map(failed["error"])[:300]
        alone = [row for run in runs for row in _perform(module, [run])]
        return [row | {"warnings": [*row.get("warnings", []), note]} for row in alone]
    return rows


def _perform(module: str, runs: list[Run]) -> list[Row]:
    rows: list[Row] = []
    with warnings.catch_warnings(record=True) as caught, measure.measured() as cost:
        try:
            rows = [_written(outcome) for outcome in _outcomes(module, runs)]
        except NotRun as reason:
            return [{"not_run": str(reason)} for _ in runs]
        except Exception as error:  # of whatever kind: the others must go on
            if package := _missing_package(error):
                missing = f"package missing: {package} is not installed"
                return [{"not_run": missing} for _ in runs]
            problem = {"type": type(error).__name__, "message": str(error)}
            rows = [{"error": problem, "versions": measure.versions()} for _ in runs]
    shared: Row = {}
    if caught:  # such as chains that complain: it belongs to the result, not on the screen
        said = {" ".join(str(warning.message).split())[:300] for warning in caught}
        shared["warnings"] = sorted(said)
    shared |= {
        "seconds": round(cost.seconds / len(runs), 3),
        "compile_seconds": round(cost.compile_seconds / len(runs), 3),
        "peak_memory_mb": round(cost.peak_memory_mb, 1),
        "device": measure.device(),
    }
    shared |= {"together": len(runs)} if len(runs) > 1 else {}
    return [row | shared for row in rows]


def _written(outcome: Outcome) -> Row:
    """Return what a run found as it will stand in the file, or say why it cannot."""
    bad = [name for name, value in outcome.metrics.items() if not math.isfinite(value)]
    if bad:
        raise FloatingPointError(f"not finite: {', '.join(bad)}")
    row: Row = {"metrics": outcome.metrics}
    row |= {"details": outcome.details} if outcome.details else {}
    row["versions"] = measure.versions() | outcome.versions
    json.dumps(row, allow_nan=False)  # must not fail later, where it would stop the grid
    return row


def _missing_package(error: BaseException) -> str | None:
    """Return the package of somebody else's that could not be imported, if that is the error."""
    cause = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    name = (cause.name or "") if isinstance(cause, ModuleNotFoundError) else ""
    return name if name.partition(".")[0] != "s2vgd" else None
