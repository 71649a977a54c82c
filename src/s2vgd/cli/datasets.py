"""``s2vgd datasets``: what data there are, where each is, under which licence; fetch and export."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from s2vgd.cli.console import print_line, print_table, say

if TYPE_CHECKING:
    import pandas as pd

    from s2vgd.datasets import Dataset


def datasets(
    name: Annotated[
        str | None, typer.Argument(help="One data set; all are listed without.")
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Download it (verified by checksum) if it is not here.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write it as a CSV or Parquet table, target last.")
    ] = None,
) -> None:
    """List the data sets, or describe, fetch or export one."""
    from s2vgd import datasets as library
    from s2vgd.errors import DataError

    if name is None:
        if fetch or export is not None:
            raise DataError("--fetch and --export need the name of a data set")
        _list([library.info(each) for each in library.names()], as_json)
        return
    library.info(name)
    if fetch:
        library.fetch(name, progress=not as_json)
    if export is not None:
        from s2vgd.cli.tables import table_writer

        with table_writer(export) as write:
            frame = as_frame(library.load(name))
            write(frame)
        say(f"wrote {len(frame)} rows and {frame.shape[1]} columns to {export}")
        return
    _describe(library.info(name), as_json)


def as_frame(dataset: Dataset) -> pd.DataFrame:
    """Return a data set as a table, target last; attributes are as published, not one-hot."""
    import pandas as pd

    if dataset.raw is not None:
        frame = pd.DataFrame(dataset.raw, columns=list(dataset.raw_names))
    else:
        frame = pd.DataFrame(dataset.x, columns=list(dataset.feature_names))
    labels = [dataset.classes[code] for code in dataset.y] if dataset.classes else dataset.y
    return frame.assign(**{dataset.target_name: labels})


def _plain(info: Any) -> dict[str, Any]:
    return {**dataclasses.asdict(info), "paths": [str(path) for path in info.paths]}


def _list(infos: list[Any], as_json: bool) -> None:
    if as_json:
        print_line(json.dumps([_plain(info) for info in infos], indent=2))
        return
    rows = [
        [i.name, i.task, f"{i.n_rows:,}", f"{i.n_features:,}", i.where, i.licence] for i in infos
    ]
    header = ["name", "task", "rows", "inputs", "where", "licence"]
    print_table("data sets", rows, header)


def _describe(info: Any, as_json: bool) -> None:
    if as_json:
        print_line(json.dumps(_plain(info), indent=2))
        return
    rows = [
        ["task", info.task],
        ["rows", f"{info.n_rows:,}"],
        ["inputs", f"{info.n_features:,}"],
        ["licence", info.licence],
        ["source", info.source],
        ["where", info.where],
        *(["file", str(path)] for path in info.paths),
        *([["note", info.note]] if info.note else []),
    ]
    print_table(info.name, rows)
