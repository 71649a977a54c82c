"""``s2vgd evaluate``: how good and how honest predictions are, on a table with outcomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from s2vgd.cli.console import print_table, say
from s2vgd.cli.options import ROWS_AT_ONCE, ModelArgument, UnknownOption


def evaluate(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="Table with inputs and the true target.")],
    out: Annotated[
        Path | None, typer.Option(help="Directory for metrics.json and calibration.png.")
    ] = None,
    unknown: UnknownOption = "error",
) -> None:
    """Score a model on a table that has the true target.

    Regression: RMSE, log-likelihood, CRPS, and how many outcomes fall inside the 50, 90 and 95 %
    intervals. Classification: accuracy, log-likelihood, Brier score, expected calibration error.
    With --out also metrics.json and a calibration plot.
    """
    from s2vgd.cli.models import load_model
    from s2vgd.cli.plots import plot_calibration
    from s2vgd.cli.scores import join, metric_rows, score_rows, summarise
    from s2vgd.cli.tables import iter_table
    from s2vgd.errors import DataError
    from s2vgd.files import replacing

    if out is not None and out.exists() and not out.is_dir():
        raise DataError(f"--out {out} exists and is not a directory")
    codec, estimator = load_model(model)
    scored, n_read = [], 0
    for piece in iter_table(data, ROWS_AT_ONCE):
        x = codec.encode(piece, unknown=unknown, first_row=n_read + 1)
        y, kept = codec.encode_target(piece, first_row=n_read + 1)
        if len(y):
            scored.append(score_rows(codec, estimator.predict_dist(x[kept]), y))
        n_read += len(piece)
    if not scored:
        raise DataError(f"{data} has no row with a target")
    rows = join(scored)
    scores = summarise(codec, rows)
    if n_missing := n_read - scores["rows"]:
        say(f"left out {n_missing} rows without a target", style="yellow")
    print_table(f"{model} on {data.name}", metric_rows(scores))
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / "metrics.json") as temporary:
        temporary.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    with replacing(out / "calibration.png") as temporary:
        plot_calibration(codec, rows, temporary)
    say(f"wrote metrics.json and calibration.png to {out}")
