"""How the cost of a step grows with particles, parameters, rows, reflections and devices.

One size is varied at a time. Exponents are slopes on log axes between the two largest sizes: 1 is
proportional, 2 is quadratic. Devices are virtual ones on the same cores (labelled so): they show
what dividing the work costs and not what more hardware would gain.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from s2vgd.bench import ours
from s2vgd.bench.problems import Regression
from s2vgd.bench.records import Record, Row, not_run
from s2vgd.bench.step import calibrated
from s2vgd.bench.timing import Spread, in_turns
from s2vgd.structure import Structure

TITLE = "How the cost of a step grows"

AXES = {
    "M": "particles M (13-50-1, 100 rows)",
    "D": "parameters D (13-H-1, 20 particles, 100 rows)",
    "N": "rows a step N (13-50-1, 20 particles)",
    "K": "reflections K (13-50-1, S²VGD, 20 particles, 100 rows)",
    "devices": "virtual devices on the same cores (13-50-1, 512 particles)",
}
FULL: dict[str, tuple[int, ...]] = {
    "M": (1, 5, 20, 50, 100, 200, 500, 1000, 2000),
    "D": (5, 20, 50, 200, 1000, 5000, 20_000),
    "N": (10, 100, 1000, 10_000),
    "K": (1, 2, 4, 8, 12),
    "devices": (1, 2, 4, 8),
}
QUICK: dict[str, tuple[int, ...]] = {
    "M": (5, 20),
    "D": (5, 50),
    "N": (10, 100),
    "K": (1, 4),
    "devices": (1, 2),
}
# Most that the cost may grow by at the upper end, by how the work is counted.
EXPONENTS = {"M": 2.0, "D": 1.0, "N": 1.0, "K": 1.0}


def ask(quick: bool, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield the exponent of each axis; the curves go into `extra`."""
    yield from answer(QUICK if quick else FULL, 3 if quick else 9, extra)


def answer(sizes: dict[str, tuple[int, ...]], rounds: int, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of these sizes."""
    curves = extra["curves"] = {}
    for axis, values in sizes.items():
        if axis == "devices":
            found = [device_seconds(n, rounds) for n in values]
            if any(isinstance(item, str) for item in found):
                yield not_run(AXES[axis], "", next(i for i in found if isinstance(i, str)))
                continue
            taken = {n: np.asarray(item) for n, item in zip(values, found, strict=True)}
            places: Sequence[float] = values
        else:
            loops = {str(value): contender(axis, value) for value in values}
            timed = {name: calibrated(loop, 0.02)[0] for name, loop in loops.items()}
            by_name = in_turns(timed, rounds, budget=60)
            taken = {value: by_name[str(value)] for value in values}
            places = [problem("D", h).size for h in values] if axis == "D" else values
        curves[axis] = {
            "sizes": list(places),
            "seconds": [float(np.median(taken[value])) for value in values],
        }
        last, before = taken[values[-1]], taken[values[-2]]
        slopes = np.log(last / before) / np.log(places[-1] / places[-2])
        yield Row(
            f"exponent in {AXES[axis]}, from {places[-2]:,} to {places[-1]:,}",
            better="lower",
            ours=Spread.of(slopes),
            unit="",
            target=EXPONENTS.get(axis) if values == FULL[axis] else None,
            note=f"{1e6 * np.median(taken[values[0]]):.3g} µs at {places[0]:,}, "
            f"{1e6 * np.median(last):.3g} µs at {places[-1]:,}",
        )


def problem(axis: str, value: int) -> Regression:
    """Return the network and batch for a place on an axis."""
    if axis == "D":
        return Regression((13, value, 1))
    return Regression((13, 50, 1), rows=value if axis == "N" else 100)


def contender(axis: str, value: int) -> Any:
    """Return a step to be timed, for a place on an axis."""
    particles = value if axis == "M" else 20
    if axis == "K":
        return ours.s2vgd_loop(problem(axis, value), particles, Structure(value))
    return ours.svgd_loop(problem(axis, value), particles)


def device_seconds(devices: int, rounds: int) -> list[float] | str:
    """Return the seconds of a step on so many virtual devices, or why there are none."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "s2vgd.bench.growth", str(devices), str(rounds)],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed"])[-1]
    return [float(word) for word in done.stdout.split()]


def figure(record: Record) -> str:
    """Draw the curves, as SVG."""
    from s2vgd.experiments.figures import COLOURS, panels, style, to_svg

    curves = record.extra["curves"]
    with style():
        drawn, axes = panels(len(curves), height=2.9, width=2.9 * len(curves))
        for axis, (name, curve) in zip(axes, curves.items(), strict=True):
            seconds = 1e6 * np.asarray(curve["seconds"])
            axis.loglog(curve["sizes"], seconds, "o-", color=COLOURS[1], markersize=3)
            label, _, rest = AXES[name].partition(" (")
            axis.set(xlabel=f"{label}\n({rest}" if rest else label, ylabel="µs a step")
            if name in ("K", "devices"):
                axis.set_xticks(curve["sizes"], list(map(str, curve["sizes"])), minor=False)
                axis.set_xticks([], minor=True)
        return to_svg(drawn, "growth")


def main() -> None:
    """Time steps on all the devices of this process and print the seconds of each round."""
    import jax

    from s2vgd import parallel, svgd
    from s2vgd.bench.peers.jax_loop import Loop
    from s2vgd.bnn import Batch

    devices, rounds = map(int, sys.argv[1:3])
    assert jax.device_count() == devices
    work, particles = problem("M", 0), 512
    bnn = ours.model(work)

    def log_density(particle: Any, batch: Batch) -> jax.Array:
        return bnn.log_joint(particle, batch, float(work.total))

    start = ours.to_particles(work, work.start(particles))
    batch = ours.batch(work)
    algorithm: Any
    if devices == 1:
        algorithm = svgd.build(log_density, ours.adam())
        state = algorithm.init(start)
    else:
        mesh = parallel.mesh(particles=devices)
        algorithm = parallel.build(log_density, ours.adam(), mesh=mesh)
        state = algorithm.init(parallel.shard_particles(start, mesh))
        batch = parallel.shard_rows(batch, mesh)
    loop = Loop(
        lambda state, batch: algorithm.step(state, batch)[0],
        state,
        batch,
        lambda state: np.zeros((0, 0)),
    )
    timed, _ = calibrated(loop, 0.05)
    print(*(timed() for _ in range(rounds)))


if __name__ == "__main__":
    main()
