"""``s2vgd fit``: from a table to a model directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from s2vgd.cli.console import print_table, say

if TYPE_CHECKING:
    import numpy as np

    from s2vgd.tabular import TableCodec


def fit(
    data: Annotated[Path, typer.Argument(help="Training table, CSV or Parquet.")],
    target: Annotated[
        list[str], typer.Option(help="Column to predict; repeat it for several (regression).")
    ],
    out: Annotated[Path, typer.Option(help="Directory for the model.")],
    task: Annotated[
        Literal["auto", "regression", "classification"],
        typer.Option(
            help="'auto' takes text, booleans, and whole numbers with at most 10 distinct values "
            "(and 5 rows for each) for classes, everything else for regression."
        ),
    ] = "auto",
    hidden: Annotated[
        str | None, typer.Option(help="Hidden units, e.g. 50, or 100,50 for two layers.")
    ] = None,
    particles: Annotated[int | None, typer.Option(min=1, help="Number of particles.")] = None,
    reflections: Annotated[
        int | None, typer.Option(min=0, help="Householder reflections a side of each weight.")
    ] = None,
    noise: Annotated[
        Literal["constant", "input", "auto", "student_t", "laplace"] | None,
        typer.Option(help="Noise of a regression; 'input' depends on the inputs, 'auto' chooses."),
    ] = None,
    refine: Annotated[
        Literal["none", "auto", "mclmc", "hmc", "nuts", "sghmc"] | None,
        typer.Option(help="Sampler that refines the particles."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(help="SVGD steps, or 'auto' (with --refine none) to find out how many."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all randomness.")] = 0,
    drop: Annotated[list[str] | None, typer.Option(help="Column to leave out; repeatable.")] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(help="Column to treat as categories; repeatable.")
    ] = None,
    holdout: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=0.9,
            help="Share of the rows kept back from a first fit, to report how good predictions "
            "are. The model that is saved is then fitted to all rows. 0: no first fit.",
        ),
    ] = 0.1,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors and warnings only.")] = False,
) -> None:
    """Fit a model to a table and save it.

    Numbers pass through; missing ones become the median, with an extra input that says so.
    Text becomes one input per value, booleans 0 or 1, dates (YYYY-MM-DD) days since 1970.
    Options that are not given keep the defaults of the Python estimators.
    """
    from s2vgd.cli.models import check_destination, estimator_class, save_model
    from s2vgd.cli.tables import read_table
    from s2vgd.errors import DataError
    from s2vgd.tabular import TableCodec

    settings: dict[str, Any] = {
        "hidden": _layers(hidden),
        "particles": particles,
        "reflections": reflections,
        "noise": noise,
        "refine": refine,
        "steps": _count_or_auto(steps),
    }
    frame = read_table(data)
    codec = TableCodec.fit(frame, target, task=task, drop=drop or (), categorical=categorical or ())
    check_destination(out, codec.task)
    if noise is not None and codec.task == "classification":
        raise DataError("--noise is for regression, and this is a classification task")
    y, kept = codec.encode_target(frame)
    x = codec.encode(frame.loc[kept])
    if not quiet:
        _announce(codec, task, y, n_dropped=int((~kept).sum()))

    given = {name: value for name, value in settings.items() if value is not None}
    if refine == "none":
        given["refine"] = None
    start = time.perf_counter()
    try:
        estimator = estimator_class(codec.task)(**given, random_state=seed, verbose=not quiet)
        metrics = _held_out_metrics(codec, estimator, x, y, holdout, seed, quiet)
        if not quiet:
            say(f"fitting all {len(y)} rows")
        estimator.fit(x, y)
    except ValueError as error:
        raise DataError(str(error)) from error
    save_model(out, codec, estimator)
    if not quiet:
        _summarise(out, codec, len(y), metrics, time.perf_counter() - start)


def _layers(hidden: str | None) -> tuple[int, ...] | None:
    if hidden is None:
        return None
    try:
        layers = tuple(int(size) for size in hidden.split(","))
    except ValueError:
        layers = ()
    if not layers or min(layers) < 1:
        raise typer.BadParameter(
            f"expected positive whole numbers such as 50 or 100,50, got {hidden!r}",
            param_hint="--hidden",
        )
    return layers


def _count_or_auto(steps: str | None) -> int | str | None:
    if steps is None or steps == "auto":
        return steps
    if not steps.isdecimal() or int(steps) < 1:
        raise typer.BadParameter(
            f"expected a positive whole number or 'auto', got {steps!r}", param_hint="--steps"
        )
    return int(steps)


def _announce(codec: TableCodec, task: str, y: np.ndarray, n_dropped: int) -> None:
    names = ", ".join(codec.targets)
    classes = f" with {len(codec.classes)} classes" if codec.classes else ""
    inferred = " (inferred; --task overrides)" if task == "auto" else ""
    say(f"{codec.task} of {names}{classes}{inferred}: {len(y)} rows, {codec.n_features} inputs")
    if n_dropped:
        say(f"left out {n_dropped} rows without a target", style="yellow")
    empty = [column.name for column in codec.columns if column.kind == "empty"]
    if empty:
        say(f"ignored columns without any value: {', '.join(empty)}", style="yellow")


def _held_out_metrics(
    codec: TableCodec,
    estimator: Any,
    x: np.ndarray,
    y: np.ndarray,
    holdout: float,
    seed: int,
    quiet: bool,
) -> dict[str, Any] | None:
    """Fit a copy without the held-out rows and score it on them; None where there are none."""
    from sklearn.base import clone

    from s2vgd.cli.scores import score_arrays, split

    train, test = split(y, holdout, seed, stratify=bool(codec.classes))
    if len(test) == 0:
        return None
    if not quiet:
        say(f"fitting {len(train)} rows to score the {len(test)} held out")
    trial = clone(estimator).fit(x[train], y[train])
    return score_arrays(codec, trial, x[test], y[test])


def _summarise(
    out: Path, codec: TableCodec, n_rows: int, metrics: dict[str, Any] | None, seconds: float
) -> None:
    from s2vgd.cli.scores import metric_rows

    rows = [
        ["task", codec.task],
        ["target", ", ".join(codec.targets)],
        ["rows", str(n_rows)],
        ["inputs", f"{codec.n_features} from {len(codec.columns)} columns"],
        ["time", f"{seconds:.1f} s"],
        ["model", str(out)],
    ]
    if metrics is not None:
        rows += [[f"held out: {name}", value] for name, value in metric_rows(metrics)]
    print_table("fitted", rows)
