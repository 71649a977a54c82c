"""The price of structure: an S²VGD step over an SVGD step with the same network, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from s2vgd.bench import ours
from s2vgd.bench.problems import Regression
from s2vgd.bench.records import Row
from s2vgd.bench.step import LARGE, SMALL, calibrated
from s2vgd.bench.timing import Spread, in_turns, ratio
from s2vgd.structure import Structure

TITLE = "An S²VGD step over an SVGD step"

TARGETS = {(SMALL.name, 1): 1.3, (LARGE.name, 1): 1.15, (LARGE.name, 10): 1.5}
PARTICLES = 20


def ask(quick: bool, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each network and number of reflections."""
    everything = {SMALL: (0, 1, 4, 10), LARGE: (0, 1, 4, 10)}
    few = {SMALL: (0, 1), LARGE: ()}
    particles = 2 if quick else PARTICLES
    cases: Mapping[Regression, tuple[int, ...]] = few if quick else everything
    for problem, reflections in cases.items():
        if reflections:
            yield from answer(problem, reflections, particles, 3 if quick else 41)


def answer(
    problem: Regression, reflections: tuple[int, ...], particles: int, rounds: int
) -> Iterator[Row]:
    """Yield the rows of one network."""
    seconds = 0.2 if rounds > 3 else 0.02
    contenders = {"SVGD": ours.svgd_loop(problem, particles)}
    for k in reflections:
        contenders[f"K = {k}"] = ours.s2vgd_loop(problem, particles, Structure(k))
    timed = {name: calibrated(loop, seconds)[0] for name, loop in contenders.items()}
    taken = in_turns(timed, rounds, budget=120)
    for k in reflections:
        name = f"K = {k}"
        yield Row(
            f"{problem.name}, M = {particles}, {name}",
            "SVGD",
            ratio(taken[name], taken["SVGD"]),
            "lower",
            Spread.of(1e6 * taken[name]),
            Spread.of(1e6 * taken["SVGD"]),
            "µs a step",
            TARGETS.get((problem.name, k)) if particles == PARTICLES else None,
            "K = 0 has the scales Λ1, Λ2 alone" if k == 0 else "",
        )
