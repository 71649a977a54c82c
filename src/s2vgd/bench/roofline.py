"""How near the main kernels come to what the machine can do: operations and bytes a second.

The roofs are measured in the same run: one large matrix product for operations, one large sum of
arrays for bytes. A kernel's share is that of the roof it is under: the larger of its two shares.
Counts are those of :mod:`s2vgd.bench.counts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from s2vgd.bench import counts, ours
from s2vgd.bench.peers.jax_loop import Loop
from s2vgd.bench.problems import Regression
from s2vgd.bench.records import Row
from s2vgd.bench.step import LARGE, SMALL, calibrated
from s2vgd.bench.timing import Spread, Timed, in_turns
from s2vgd.kernels import rbf, squared_distances

TITLE = "The share of the machine's rates"


@dataclass(frozen=True)
class Kernel:
    """A piece of the work, and what it costs at least.

    Parameters
    ----------
    work : callable
        ``work(argument, given) -> argument``, to be applied over and over.
    start, given : pytree
        The first argument, and what stays the same.
    operations, traffic : float
        Operations and bytes of one application.
    """

    work: Callable[[Any, Any], Any]
    start: Any
    given: Any
    operations: float = 0.0
    traffic: float = 0.0


def ask(quick: bool, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each kernel and size."""
    cases = ((SMALL, 20), (SMALL, 500), (LARGE, 20), (LARGE, 100))
    if quick:
        yield from answer(((SMALL, 20),), 512, 2**20, 3, extra)
    else:
        yield from answer(cases, 4096, 2**26, 15, extra)


def answer(
    cases: tuple[tuple[Regression, int], ...],
    side: int,
    length: int,
    rounds: int,
    extra: dict[str, Any],
) -> Iterator[Row]:
    """Yield the rows of these cases, with roofs from matrices and vectors of these sizes."""
    roofs = {"product": product(side), "stream": stream(length)}
    extra["roofs"] = {"side": side, "length": length}
    for problem, particles in cases:
        parts = kernels(problem, particles)
        timed = {name: looped(part) for name, part in parts.items()}
        taken = in_turns({**roofs, **timed}, rounds, budget=90)
        rates = 2.0 * side**3 / taken["product"], 12.0 * length / taken["stream"]
        extra["roofs"]["gflops"] = float(np.median(rates[0])) / 1e9
        extra["roofs"]["gbytes"] = float(np.median(rates[1])) / 1e9
        for name, part in parts.items():
            shares = (
                part.operations / taken[name] / rates[0],
                part.traffic / taken[name] / rates[1],
            )
            bound = int(np.median(shares[1]) > np.median(shares[0]))
            roof = "bytes" if bound else "operations"  # whichever it is nearer to
            yield Row(
                f"{problem.name}, M = {particles}, B = {problem.rows}: {name}",
                "the machine",
                Spread.of(shares[bound]),
                "higher",
                Spread.of((part.traffic if bound else part.operations) / taken[name] / 1e9),
                Spread.of(rates[bound] / 1e9),
                "GB/s" if bound else "Gflop/s",
                note=f"of {roof} a second; {part.operations:.2g} operations, "
                f"{part.traffic:.2g} bytes, {1e6 * float(np.median(taken[name])):.3g} µs",
            )


def kernels(problem: Regression, particles: int) -> dict[str, Kernel]:
    """Return the kernels of a step, each as a function from its argument to one like it."""
    bnn = ours.model(problem)
    batch = ours.batch(problem)
    flat = jnp.asarray(problem.start(particles))
    tree = ours.to_particles(problem, problem.start(particles))
    gradient = jax.vmap(
        jax.grad(lambda particle, batch: bnn.log_joint(particle, batch, float(problem.total))),
        in_axes=(0, None),
    )
    optimizer = ours.adam()
    m, size, weights = particles, problem.size, counts.weights_bytes(particles, problem.size)

    def products(rows: Any, matrix: Any) -> Any:
        # As in the kernel and in the step: one for the repulsion and one for the gradients.
        repulsion = jnp.matmul(0.5 * matrix, rows, precision="highest")
        return nudged(rows, repulsion + jnp.matmul(matrix, rows, precision="highest"))

    def nudged(tree: Any, other: Any) -> Any:
        # What is computed must be used, and the argument must stay what it was.
        return jax.tree.map(lambda a, b: a + 1e-30 * b, tree, other)

    def adam(carry: Any, _: Any) -> Any:
        moved, state = carry
        updates, state = optimizer.update(moved, state, moved)
        return moved + updates, state

    return {
        "gradients of the networks": Kernel(
            lambda particles, batch: nudged(particles, gradient(particles, batch)),
            tree,
            batch,
            counts.network_products(problem.widths, m, problem.rows),
            counts.network_bytes(problem.widths, m, problem.rows),
        ),
        "Gram matrix and distances": Kernel(
            lambda rows, _: rows.at[0, 0].add(1e-30 * jnp.sum(squared_distances(rows))),
            flat,
            (),
            2.0 * m**2 * size,
            weights + 4.0 * m**2,
        ),
        "kernel products": Kernel(
            products,
            flat,
            rbf(10.0)(flat, ()).matrix,
            4.0 * m**2 * size,
            2 * weights + 4.0 * m**2,
        ),
        "Adam": Kernel(adam, (flat, optimizer.init(flat)), (), 12.0 * m * size, 7 * weights),
    }


def looped(part: Kernel) -> Timed:
    """Return what times one application, of many in one program."""
    loop = Loop(part.work, part.start, part.given, lambda state: np.zeros((0, 0)))
    return calibrated(loop, 0.05)[0]


def product(side: int) -> Timed:
    """Return what times a product of two square matrices."""
    a = jnp.full((side, side), 1.0 / side, jnp.float32)
    return looped(Kernel(lambda b, a: jnp.matmul(a, b, precision="highest"), a, a))


def stream(length: int) -> Timed:
    """Return what times ``a + b`` of long vectors: two are read and one is written."""
    ones = jnp.ones(length, jnp.float32)
    return looped(Kernel(lambda a, b: a + b, ones, ones))
