"""The report on the reproduction: one page from the result files, and its parts as files.

``index.html`` asks nothing of the network; ``tables/*.md`` and ``figures/*.svg``, ``*.png`` are the
same tables and figures. What each section says is in :mod:`s2vgd.experiments.sections`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from s2vgd.experiments import figures, plots, records, report
from s2vgd.experiments.display import describe, duration
from s2vgd.experiments.records import Row
from s2vgd.experiments.sections import (
    Section,
    Table,
    control,
    hyper,
    label,
    mushroom,
    news,
    particles,
    table1,
    table2,
    toys,
    worlds,
)

SECTIONS: dict[str, Callable[[list[Row]], Section]] = {
    "table1": table1.section,
    "table2": table2.section,
    "hyper": hyper.section,
    "toy-classification": toys.classification,
    "toy-regression": toys.regression,
    "mushroom": mushroom.section,
    "news": news.section,
    "particles": particles.section,
    "worlds": worlds.section,
    "control": control.section,
}
_TITLE = "S²VGD: the paper's results, run again"


def write(results: Path, out: Path) -> Path:
    """Write the report.

    Parameters
    ----------
    results : Path
        Directory with ``<experiment>.jsonl``; experiments without a file are shown as not run.
    out : Path
        Directory to write to; files of the same names are replaced.

    Returns
    -------
    Path
        The page.
    """
    rows = {name: records.read(results / f"{name}.jsonl") for name in SECTIONS}
    sections = {name: build(rows[name]) for name, build in SECTIONS.items()}
    every = records.latest([row for found in rows.values() for row in found])
    runs, failures, missing = _runs(every), _failures(every), _missing(every)
    for table in (*(t for s in sections.values() for t in s.tables), runs):
        report.write(out / "tables" / f"{table.name}.md", table.markdown())
    for drawing in (d for s in sections.values() for d in s.drawings):
        (out / "figures").mkdir(parents=True, exist_ok=True)
        svg = figures.to_svg(drawing.figure, drawing.name)
        report.write(out / "figures" / f"{drawing.name}.svg", svg)
        (out / "figures" / f"{drawing.name}.png").write_bytes(plots.to_png(drawing.figure))
    page = report.page(
        _TITLE,
        [
            report.paragraph(
                "Results of Structured Stein Variational Gradient Descent, with the methods it was "
                "compared with and some it was not. Test data are used once, to "
                "score. All sentences and figures here are made from the result files."
            ),
            report.heading("In short"),
            *_in_short(sections),
            *(part for section in sections.values() for part in _part(section)),
            report.heading("What was run where"),
            runs.html() if runs.rows else report.paragraph("Nothing has been run."),
            report.heading("Not run"),
            report.bullets(missing) if missing else report.paragraph("Nothing that was asked for."),
            report.heading("Failed"),
            report.bullets(failures) if failures else report.paragraph("No run has failed."),
        ],
    )
    report.write(out / "index.html", page)
    return out / "index.html"


def _in_short(sections: Mapping[str, Section]) -> list[str]:
    return [
        report.subheading(section.title) + report.bullets(section.claims)
        for section in sections.values()
    ]


def _part(section: Section) -> list[str]:
    return [
        report.heading(section.title),
        report.paragraph(section.about),
        *(
            report.figure(figures.to_svg(d.figure, d.name, inline=True), d.caption)
            for d in section.drawings
        ),
        *(table.html() for table in section.tables),
    ]


def _runs(rows: list[Row]) -> Table:
    """Gather the finished runs by command, source, machine and versions."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if "metrics" in row:
            device = row["device"]
            machine = f"{device['kind']}, {device['system']}, {device['cores']} cores"
            versions = ", ".join(f"{k} {v}" for k, v in row["versions"].items())
            key = (row["experiment"], row["command"], row["revision"], machine, versions)
            found.setdefault(key, []).append(row)
    return Table(
        "runs",
        "Runs",
        "Finished runs by how, from which source (+: with changes not committed) and where they "
        "were made. Times are UTC.",
        [
            "experiment",
            "command",
            "revision",
            "machine",
            "versions",
            "first",
            "last",
            "runs",
            "time",
        ],
        [
            [
                *key,
                *_first_and_last(made),
                str(len(made)),
                duration(sum(row["seconds"] for row in made)),
            ]
            for key, made in found.items()
        ],
        texts=7,
    )


def _first_and_last(rows: list[Row]) -> tuple[str, str]:
    times = sorted(row["finished"][:16] for row in rows if "finished" in row)
    return (times[0], times[-1]) if times else ("not recorded", "not recorded")


def _failures(rows: list[Row]) -> list[str]:
    return [
        f"{row['experiment']}, {row['dataset']}, {label(row['method'])}, split {row['split']}, "
        f"seed {row['seed']}: {describe(row)}"
        for row in rows
        if "error" in row
    ]


def _missing(rows: list[Row]) -> list[str]:
    found: dict[tuple[str, str, str], int] = {}
    for row in rows:
        if "not_run" in row:
            key = (row["experiment"], label(row["method"]), row["not_run"])
            found[key] = found.get(key, 0) + 1
    return [f"{e}, {method}, {n} runs: {reason}" for (e, method, reason), n in found.items()]
