"""A thousand steps by the loop that a library itself has, not for the first time in a process.

:mod:`s2vgd.bench.step` compiles everybody's step into one loop of ours. Whoever calls a library as
its guide says waits for what is measured here: its tracing, compiling and collecting as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from s2vgd import svgd, training
from s2vgd.bench import ours
from s2vgd.bench.problems import Regression
from s2vgd.bench.records import Row, missing, not_run
from s2vgd.bench.timing import Spread, in_turns, ratio, repeated

STEPS = 1000


def rows(problem: Regression, particles: int, rounds: int) -> Iterator[Row]:
    """Yield one row: NumPyro is the peer that has a loop of its own for SVGD."""
    case = f"{problem.name}, M = {particles}, {STEPS:,} steps by the library's own loop"
    if reason := missing("numpyro"):
        yield not_run(case, "NumPyro", reason)
        return
    from s2vgd.bench.peers import numpyro_svgd

    runs = {"ours": own(problem, particles), "NumPyro": numpyro_svgd.own_run(problem, particles)}
    for run in runs.values():
        run(STEPS)
    timed = {name: repeated(functools.partial(run, STEPS)) for name, run in runs.items()}
    taken = in_turns(timed, rounds)
    yield Row(
        case,
        "NumPyro",
        ratio(taken["NumPyro"], taken["ours"]),
        "higher",
        Spread.of(taken["ours"]),
        Spread.of(taken["NumPyro"]),
        "s",
        note="NumPyro's run compiles its loop anew in every call",
    )


def own(problem: Regression, particles: int) -> Callable[[int], Any]:
    """Return what makes so many steps by :func:`s2vgd.training.train`."""
    start = ours.to_particles(problem, problem.start(particles))
    algorithm = svgd.build(ours.log_density(problem, particles), ours.adam())
    state, batch = algorithm.init(start), ours.batch(problem)

    def run(steps: int) -> None:
        result = training.train(algorithm, state, batch, key=jax.random.key(0), steps=steps)
        jax.block_until_ready(result.state.particles)

    return run
