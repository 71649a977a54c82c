"""``s2vgd predict``: from a model directory and a table to a table of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from s2vgd.cli.console import say
from s2vgd.cli.options import ROWS_AT_ONCE, ModelArgument, UnknownOption

if TYPE_CHECKING:
    import pandas as pd

    from s2vgd.tabular import TableCodec

DEFAULT_LEVEL = 0.9


def predict(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="Table with the columns of the training table.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file to write; standard output if absent.")
    ] = None,
    level: Annotated[
        float | None,
        typer.Option(help="Probability that 'lower' to 'upper' should hold (regression); 0.9."),
    ] = None,
    quantiles: Annotated[
        str | None, typer.Option(help="Further quantiles, e.g. 0.1,0.5,0.9 (regression).")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Column of the input to copy to the output, such as an identifier."),
    ] = None,
    unknown: UnknownOption = "error",
) -> None:
    """Predict the rows of a table.

    Regression gives mean, std, lower and upper (with the name of the target in front when there
    are several); classification gives the most probable class, the probability p_CLASS of each,
    and the entropy in nats. Rows keep their order. Nothing is written unless all rows succeed.
    """
    from s2vgd.cli.models import load_model
    from s2vgd.cli.tables import iter_table, table_writer
    from s2vgd.errors import DataError

    probabilities = _probabilities(quantiles)
    if level is not None and not 0 < level < 1:
        raise typer.BadParameter("expected a number between 0 and 1", param_hint="--level")
    if out is not None and out.exists() and data.exists() and out.samefile(data):
        raise DataError("--out is the input table: name another file")
    codec, estimator = load_model(model)
    if codec.task == "classification" and (level is not None or probabilities):
        raise DataError("--level and --quantiles are for regression, and this is a classifier")
    first_row = 1
    with table_writer(out) as write:
        for piece in iter_table(data, ROWS_AT_ONCE):
            x = codec.encode(piece, unknown=unknown, first_row=first_row)
            predictive = estimator.predict_dist(x)
            answer = (
                _class_columns(codec, predictive)
                if codec.classes
                else _number_columns(codec, predictive, level or DEFAULT_LEVEL, probabilities)
            )
            write(_with_kept(piece, keep or [], answer))
            if first_row == 1 and (extra := codec.extra_columns(piece)):
                say(f"ignored columns the model does not use: {', '.join(extra)}", style="yellow")
            first_row += len(piece)
    if out is not None:
        say(f"wrote {first_row - 1} predictions to {out}")


def _probabilities(quantiles: str | None) -> list[float]:
    try:
        values = [float(q) for q in quantiles.split(",")] if quantiles else []
    except ValueError:
        values = [0.0]
    if not all(0 < q < 1 for q in values):
        raise typer.BadParameter(
            f"expected numbers between 0 and 1 such as 0.1,0.5,0.9, got {quantiles!r}",
            param_hint="--quantiles",
        )
    return values


def _number_columns(
    codec: TableCodec, predictive: Any, level: float, probabilities: list[float]
) -> dict[str, Any]:
    lower, upper = predictive.interval(level)
    columns = {"mean": predictive.mean, "std": predictive.std, "lower": lower, "upper": upper}
    columns |= {f"q{q:g}": predictive.quantile(q) for q in probabilities}
    if len(codec.targets) == 1:
        return columns
    return {
        f"{target}_{name}": values[:, i]
        for i, target in enumerate(codec.targets)
        for name, values in columns.items()
    }


def _class_columns(codec: TableCodec, predictive: Any) -> dict[str, Any]:
    probabilities = predictive.proba
    best = [codec.classes[i] for i in probabilities.argmax(axis=1)]
    each = {f"p_{label}": probabilities[:, i] for i, label in enumerate(codec.classes)}
    return {"class": best, **each, "entropy": predictive.entropy}


def _with_kept(piece: pd.DataFrame, keep: list[str], answer: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    from s2vgd.errors import DataError

    for name in keep:
        if name not in piece.columns:
            raise DataError(f"--keep: the table has no column {name!r}")
        if name in answer:
            raise DataError(f"--keep {name}: the predictions have a column of that name")
    return pd.DataFrame({**{name: piece[name].to_numpy() for name in keep}, **answer})
