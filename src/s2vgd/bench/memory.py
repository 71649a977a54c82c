"""Memory against particles, parameters and rows: of compiled steps as planned, of fits as measured.

What a compiled program needs (its arguments and its scratch space) is known before it runs, so this
part takes no more memory than there is. The peak of a fit is that of a process of its own, less
what the process had after its imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from s2vgd.bench import ours
from s2vgd.bench.counts import weights_bytes
from s2vgd.bench.problems import Regression, TooLarge
from s2vgd.bench.records import Row, not_run
from s2vgd.bench.step import LARGE, SMALL, Build, find_peers
from s2vgd.bench.timing import Spread
from s2vgd.structure import Structure

TITLE = "Memory"

FEATURES = 10


def ask(quick: bool, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield rows of single steps against the particles and against peers, and of fits."""
    if quick:
        yield from answer({SMALL: (20,)}, (100_000,), ("BlackJAX",), extra)
    else:
        cases = {SMALL: (20, 100, 500, 2000), LARGE: (1, 20, 100)}
        yield from answer(cases, (1000, 100_000, 1_000_000), ("BlackJAX", "NumPyro"), extra)


def answer(
    cases: dict[Regression, tuple[int, ...]],
    tables: tuple[int, ...],
    wanted: tuple[str, ...],
    extra: dict[str, Any],
) -> Iterator[Row]:
    """Yield the rows of these sizes."""
    peers, absent = find_peers(wanted)  # PyTorch plans nothing
    planned = extra["planned"] = []
    for problem, counts in cases.items():
        for m in counts:
            case, copy = f"a step, {problem.name}, M = {m}", weights_bytes(m, problem.size)
            mine = needs(ours.svgd_loop, problem, m)
            bent = needs(lambda problem, m: ours.s2vgd_loop(problem, m, Structure(1)), problem, m)
            sizes = {"network": problem.name, "m": m, "d": problem.size}
            planned.append({**sizes, "svgd_bytes": mine, "s2vgd_bytes": bent})
            for name, found in (("SVGD", mine), ("S²VGD K = 1", bent)):
                yield _row(f"{case}, {name}", "a copy of the particles", found / copy, found, copy)
            for name, build in peers.items():
                try:
                    theirs = needs(build, problem, m)
                except Exception as error:
                    yield not_run(f"{case}, SVGD", name, f"it fails with {type(error).__name__}")
                    continue
                yield _row(f"{case}, SVGD", name, theirs / mine, mine, theirs, "higher")
            yield from (not_run(f"{case}, SVGD", name, why) for name, why in absent.items())
    for rows in tables:
        base, peak = fit_peak(rows)
        table = 8.0 * rows * (FEATURES + 1)
        extra.setdefault("fits", []).append({"rows": rows, "imports": base, "peak": peak})
        yield _row(
            f"a fit without refinement, {rows:,} rows of {FEATURES} features",
            "the table",
            (peak - base) / table,
            peak - base,
            table,
        )


def needs(build: Build, problem: Regression, particles: int) -> float:
    """Return the bytes that a compiled step needs, whether or not there are as many."""
    try:
        return float(build(problem, particles).needs)
    except TooLarge as error:
        return error.needed


def fit_peak(rows: int) -> tuple[float, float]:
    """Return the bytes of a process after its imports, and at the peak of a fit."""
    command = [sys.executable, "-W", "ignore", "-m", "s2vgd.bench.memory", str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    base, peak = json.loads(done.stdout.strip().splitlines()[-1])
    return base, peak


def _row(
    case: str, against: str, ratio: float, mine: float, theirs: float, better: Any = "lower"
) -> Row:
    return Row(
        case,
        against,
        Spread.of([ratio]),
        better,
        Spread.of([mine / 1e6]),
        Spread.of([theirs / 1e6]),
        "MB",
    )


def main() -> None:
    """Fit a table of so many rows and print the bytes of this process before and at the peak."""
    import numpy as np

    from s2vgd import S2VGDRegressor
    from s2vgd.experiments.measure import measured

    rows = int(sys.argv[1])
    rng = np.random.default_rng(0)
    model = S2VGDRegressor(refine=None, steps=50, random_state=0)
    small = rng.normal(size=(50, FEATURES))
    model.fit(small, small[:, 0])  # everything is imported, and the compiler has run
    with measured() as before:
        pass
    with measured() as cost:
        x = rng.normal(size=(rows, FEATURES))
        model.fit(x, x[:, 0] + rng.normal(size=rows))
    print(json.dumps([2**20 * before.peak_memory_mb, 2**20 * cost.peak_memory_mb]))


if __name__ == "__main__":
    main()
