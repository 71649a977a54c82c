"""Rows of the benchmark as text: a line each for a terminal, a table in Markdown for a page."""

from __future__ import annotations

from collections.abc import Iterable

from s2vgd.bench.records import Record, Row
from s2vgd.bench.timing import Spread

HEADER = ("case", "against", "ratio", "better", "target", "ours", "theirs", "unit", "note")


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row, in the order of `HEADER`."""
    met = {True: " (met)", False: " (missed)", None: ""}[row.reaches_target]
    sign = {"higher": "≥", "lower": "≤"}[row.better]
    return (
        row.case,
        row.against,
        _ratio(row.ratio),
        row.better if row.measured else "",
        "" if row.target is None else f"{sign} {number(row.target)}{met}",
        "" if row.ours is None else number(row.ours.median),
        "" if row.theirs is None else number(row.theirs.median),
        row.unit,
        row.note,
    )


def line(row: Row) -> str:
    """Return a row as one line of text."""
    case, against, ratio, _, target, ours, theirs, unit, note = cells(row)
    parts = [case]
    parts += [f"against {against}"] if against else []
    parts += [f"ratio {ratio}"] if ratio else []
    parts += [f"ours {ours} {unit}"] if ours else []
    parts += [f"theirs {theirs}"] if theirs else []
    parts += [f"target {target}"] if target else []
    parts += [note] if note else []
    return "   ".join(parts)


def markdown(records: Iterable[tuple[str, Record]]) -> str:
    """Return titles and tables of records, each with its circumstances.

    Parameters
    ----------
    records : iterable of (title, Record)
        In the order of the page.
    """
    parts = [
        "\n".join([f"### {title}", "", about(record), "", markdown_table(record)])
        for title, record in records
    ]
    return "\n\n".join(parts) + "\n"


def markdown_table(record: Record) -> str:
    """Return the rows of a record as a table, without the columns that are empty throughout."""
    rows = [cells(row) for row in record.rows]
    kept = [i for i, name in enumerate(HEADER) if i == 0 or any(row[i] for row in rows)]
    table = [HEADER, ("---",) * len(HEADER), *rows]
    return "\n".join("| " + " | ".join(_escaped(row[i]) for i in kept) + " |" for row in table)


def about(record: Record) -> str:
    """Say where, when and on how busy a machine a question was asked."""
    found = record.about
    device = found.get("device", {})
    load = [f"{found[name]:.1f}" for name in ("load_before", "load_after") if name in found]
    parts = [
        "In small (`--quick`): the figures mean little." if record.quick else "",
        f"`s2vgd bench {record.question}`, revision {found.get('revision', 'unknown')}, "
        f"{device.get('kind', 'unknown device')} ({device.get('cores', '?')} cores, "
        f"{device.get('processor', 'unknown')}), load {' to '.join(load) or 'unknown'}.",
    ]
    return " ".join(filter(None, parts))


def number(value: float) -> str:
    """Write a number with three digits, and large ones without an exponent."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.1e}"


def _ratio(spread: Spread | None) -> str:
    if spread is None:
        return ""
    return f"{number(spread.median)} ({number(spread.low)}–{number(spread.high)})"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
