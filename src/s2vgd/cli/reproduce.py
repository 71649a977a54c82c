"""``s2vgd reproduce``: the paper's experiments, a grid of runs that may be stopped at any time."""

from __future__ import annotations

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from s2vgd.cli.console import print_line, say
from s2vgd.errors import DataError


class EngineName(StrEnum):
    """Who makes the runs."""

    process = "process"
    ray = "ray"


# Where a program waits for launches, so many seeds take little longer than one.
_SIDE_BY_SIDE = 10


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="table1, table2, hyper, toy-classification, toy-regression, mushroom, news, "
            "particles, worlds, control, or all.",
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="A small grid, to see that everything works.")
    ] = False,
    methods: Annotated[
        list[str] | None, typer.Option(help="Only these methods, by name, with commas.")
    ] = None,
    datasets: Annotated[
        list[str] | None, typer.Option(help="Only these data sets, by name, with commas.")
    ] = None,
    splits: Annotated[
        str | None, typer.Option(help="Only these splits: first:last, the last not included.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions on each split.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value of a setting, as epochs=30. May be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory of the result files.")] = Path("results"),
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes, of one core each: 1, on a cluster all it has."),
    ] = None,
    engine: Annotated[
        EngineName, typer.Option(help="Where to make the runs: on this machine or a Ray cluster.")
    ] = EngineName.process,
    address: Annotated[
        str | None,
        typer.Option(
            help="Of the Ray cluster, such as auto or ray://host:10001; else a local one."
        ),
    ] = None,
    gpus_per_run: Annotated[
        float, typer.Option(min=0.0, help="GPUs that a run asks Ray for; 0.5 shares one.")
    ] = 0.0,
    together: Annotated[
        int | None,
        typer.Option(
            min=1, help="Seeds or splits in one program, where that can be: 1, on a GPU 10."
        ),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run again what failed.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="Of this source, where it is a copy without git.")
    ] = None,
) -> None:
    """Run experiments of the paper and write one line for each finished run.

    What is in the files already is not run again, so a grid that was stopped goes on where it was.
    Make a page of the results with 's2vgd report'.
    """
    from s2vgd.experiments import contenders, engines, harness

    if engine is EngineName.ray:
        where: engines.Engine = engines.Ray(address, workers, gpus_per_run)
    elif address is not None or gpus_per_run:
        raise DataError("--address and --gpus-per-run are for --engine ray")
    else:
        where = engines.engine_of(workers or 1)
    if together is None:
        together = _SIDE_BY_SIDE if where is engines.in_this_process and _on_accelerator() else 1
    chosen = list(harness.EXPERIMENTS) if names == ["all"] else names
    changes: dict[str, Any] = dict(map(_assignment, setting or []))
    changes |= {"seeds": seeds} if seeds is not None else {}
    changes |= {"splits": _range(splits)} if splits is not None else {}
    wanted = {"methods": _listed(methods), "datasets": _listed(datasets)}
    runs = []
    for name in chosen:
        module = harness.experiment(name)
        config = module.QUICK if quick else module.CONFIG
        config = harness.changed(config, changes)
        for what, known in (
            ("methods", [*module.CONFIG.methods, *contenders.names()]),
            ("datasets", module.CONFIG.datasets),
        ):
            given = wanted[what]
            if given and len(chosen) > 1:
                given = tuple(item for item in given if item in known)
                config = harness.changed(config, {what: given})
            elif given:
                _check(what, given, known)
                config = harness.changed(config, {what: given})
        runs += module.grid(config)
    tally = harness.reproduce(
        runs,
        out,
        engine=where,
        together=together,
        retry=retry,
        download=not quick,
        command=_command(
            chosen, quick, changes, wanted, _placement(engine, workers, gpus_per_run, together)
        ),
        revision=revision,
    )
    print_line(
        f"{tally.finished} finished, {tally.failed} failed, {tally.not_run} not run, "
        f"{tally.kept} were there before"
    )
    if tally.failed:
        say("runs that failed are tried again with --retry", style="yellow")


def _listed(values: list[str] | None) -> tuple[str, ...]:
    return tuple(item.strip() for value in values or [] for item in value.split(",") if item)


def _check(what: str, given: tuple[str, ...], known: Any) -> None:
    for item in given:
        if item not in known:
            raise DataError(f"--{what}: unknown {item!r}. Known: {', '.join(dict.fromkeys(known))}")


def _range(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise DataError(f"--splits must be first:last, such as 0:5, got {text!r}")
    return int(first), int(last)


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise DataError(f"--set must be name=value, such as epochs=30, got {text!r}")
    try:
        found = json.loads(value)
    except ValueError:
        found = value
    return name.strip(), tuple(found) if isinstance(found, list) else found


def _command(
    names: list[str],
    quick: bool,
    changes: dict[str, Any],
    wanted: dict[str, tuple[str, ...]],
    placement: list[str],
) -> str:
    """Return how to do the same elsewhere; where the files went does not matter there."""
    words = ["s2vgd", "reproduce", *names, *(["--quick"] if quick else [])]
    for what, given in wanted.items():
        words += [f"--{what}", ",".join(given)] if given else []
    for name, value in changes.items():
        if name == "splits":
            words += ["--splits", f"{value[0]}:{value[1]}"]
        elif name == "seeds":
            words += ["--seeds", str(value)]
        else:
            words += ["--set", f"{name}={json.dumps(value)}"]
    return shlex.join([*words, *placement])


def _on_accelerator() -> bool:
    import jax

    return jax.default_backend() != "cpu"


def _placement(
    engine: EngineName, workers: int | None, gpus_per_run: float, together: int
) -> list[str]:
    words = ["--workers", str(workers)] if (workers or 1) > 1 else []
    words += ["--together", str(together)] if together > 1 else []
    if engine is EngineName.ray:
        words += ["--engine", "ray"]
    return words + (["--gpus-per-run", f"{gpus_per_run:g}"] if gpus_per_run else [])
