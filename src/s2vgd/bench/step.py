"""One SVGD step: ours, BlackJAX's, NumPyro's, and one written in PyTorch, in turns.

All four are given the same log joint, the same start and Adam, and find a new bandwidth at every
step. That they do the same work is checked before anything is timed: with descent in place of Adam,
and our bandwidth set to the peer's, the particles after a step agree.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import numpy as np

from s2vgd._threads import n_cores
from s2vgd.bench import ours, own_loops
from s2vgd.bench.counts import weights_bytes
from s2vgd.bench.problems import Contender, Regression, TooLarge, check_memory, on_gpu
from s2vgd.bench.records import Row, missing, not_run
from s2vgd.bench.timing import Spread, Timed, in_turns, ratio

TITLE = "One SVGD step"

SMALL, LARGE = Regression((13, 50, 1)), Regression((784, 400, 400, 10), total=60_000)
TARGETS = {
    (SMALL.name, 20, "BlackJAX"): 1.5,
    (SMALL.name, 500, "BlackJAX"): 10.0,
    (SMALL.name, 20, "NumPyro"): 50.0,
    (SMALL.name, 20, "PyTorch"): 5.0,
}
TOLERANCE = 1e-4
"""Largest difference of two updates, as a share of the largest entry of them."""

LEAST_COPIES = 8
"""Of the particles: themselves, gradients, direction, updates, two moments, and scratch space."""

Build = Callable[[Regression, int], Contender]


@dataclass(frozen=True)
class Sizes:
    """Which sizes, and how long each may take.

    Parameters
    ----------
    cases : mapping of Regression to tuple of int
        Numbers of particles for each network, in rising order.
    rounds : int
        Repeats.
    seconds : float
        About how long one timing takes.
    slowest : float
        A peer whose step would take longer is not run.
    budget : float
        Seconds after which no further round of one comparison begins.
    own_loops : int
        Repeats of many steps by the libraries' own loops.
    """

    cases: Mapping[Regression, tuple[int, ...]]
    rounds: int
    seconds: float
    slowest: float
    budget: float
    own_loops: int = 0


FULL = Sizes(
    {SMALL: (1, 20, 100, 500, 2000), LARGE: (1, 20, 100, 500, 2000)},
    rounds=31,
    seconds=0.1,
    slowest=60.0,
    budget=60.0,
    own_loops=5,
)
QUICK = Sizes({SMALL: (20,)}, rounds=3, seconds=0.02, slowest=1.0, budget=2.0)


def ask(quick: bool, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each network, number of particles and peer."""
    yield from answer(QUICK if quick else FULL, extra)


def answer(sizes: Sizes, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of these sizes."""
    peers, absent = find_peers()
    with jax.default_matmul_precision("float32"):
        extra["largest_difference"] = {name: difference(name, SMALL, 20) for name in peers}
    for name, found in extra["largest_difference"].items():
        if not found < TOLERANCE:
            raise RuntimeError(f"{name} does other work than ours: updates differ by {found:.1e}")
    for problem, counts in sizes.cases.items():
        before: dict[str, tuple[int, float]] = {}
        for m in counts:
            case = f"{problem.name}, M = {m}"
            yield from compare(case, problem, m, peers, sizes, before)
            yield from (not_run(case, name, reason) for name, reason in absent.items())
    if sizes.own_loops:
        yield from own_loops.rows(SMALL, 20, sizes.own_loops)


def compare(
    case: str,
    problem: Regression,
    particles: int,
    peers: Mapping[str, Build],
    sizes: Sizes,
    before: dict[str, tuple[int, float]],
) -> Iterator[Row]:
    """Yield the rows of one network and number of particles.

    ``before`` holds the particles and seconds of a step at the last size, by which the slow ones
    are left out; it is brought up to date.
    """
    timed: dict[str, Timed] = {}
    reasons: dict[str, str] = {}
    alone: dict[str, Build] = {}

    def begin(name: str, build: Build) -> None:
        check_memory(LEAST_COPIES * weights_bytes(particles, problem.size))
        timed[name], seconds = calibrated(build(problem, particles), sizes.seconds)
        before[name] = particles, seconds

    for name, build in {"ours": ours.svgd_loop, **peers}.items():
        expected = _expected(before.get(name), particles)
        if expected > sizes.slowest:
            reasons[name] = f"a step would take about {expected:.0f} s"
            continue
        try:
            begin(name, build)
        except TooLarge as error:
            reasons[name] = str(error)
            if "ours" in timed:
                alone[name] = build
        except Exception as error:
            if name == "ours":
                raise
            reasons[name] = f"it fails with {type(error).__name__}"
    taken = in_turns(timed, sizes.rounds, budget=sizes.budget) if timed else {}
    notes = {}
    for name, build in alone.items():  # there may be room for it once the others are gone
        timed.clear()
        gc.collect()
        try:
            begin(name, build)
        except TooLarge as error:
            reasons[name] = str(error)
            continue
        taken |= in_turns(timed, len(taken["ours"]), budget=sizes.budget)
        del reasons[name]
        notes[name] = "after ours and not in turns: there is no room for both"
    unit = "µs a step"
    for name in peers:
        if name in reasons or "ours" in reasons:
            yield not_run(case, name, reasons.get(name, f"ours: {reasons.get('ours')}"))
            continue
        both = min(len(taken[name]), len(taken["ours"]))
        yield Row(
            case,
            name,
            ratio(taken[name][:both], taken["ours"][:both]),
            "higher",
            Spread.of(1e6 * taken["ours"]),
            Spread.of(1e6 * taken[name]),
            unit,
            TARGETS.get((problem.name, particles, name)),
            notes.get(name, ""),
        )
    if "ours" in taken and len(taken) == 1:
        yield Row(case, ours=Spread.of(1e6 * taken["ours"]), better="lower", unit=unit)


def calibrated(contender: Contender, seconds: float) -> tuple[Timed, float]:
    """Return what times about so many seconds of steps, and the seconds of a single step."""
    contender.steps(1)
    once = _seconds(contender, 1)
    if once < seconds:
        once = _seconds(contender, max(1, round(0.2 * seconds / once))) or once
    n = max(1, round(seconds / once))
    return lambda: _seconds(contender, n), once


def _seconds(contender: Contender, n: int) -> float:
    # Threads of the last contender's runtime wait a while for work before they sleep.
    time.sleep(0.003)
    began = time.perf_counter()
    contender.steps(n)
    return (time.perf_counter() - began) / n


def _expected(before: tuple[int, float] | None, particles: int) -> float:
    """Return the seconds of a step, if they grow as the square of the number of particles."""
    return before[1] * (particles / before[0]) ** 2 if before else 0.0


PACKAGES = {"BlackJAX": "blackjax", "NumPyro": "numpyro", "PyTorch": "torch"}


def find_peers(
    wanted: Iterable[str] = tuple(PACKAGES),
) -> tuple[dict[str, Build], dict[str, str]]:
    """Return those of the wanted peers that are installed, and why the others cannot run."""
    reasons = {name: missing(PACKAGES[name]) for name in wanted}
    absent = {name: reason for name, reason in reasons.items() if reason}
    return {name: BUILDERS[name] for name in reasons if name not in absent}, absent


def _blackjax(problem: Regression, particles: int) -> Contender:
    from s2vgd.bench.peers import blackjax_svgd

    return blackjax_svgd.loop(problem, particles)


def _numpyro(problem: Regression, particles: int) -> Contender:
    from s2vgd.bench.peers import numpyro_svgd

    return numpyro_svgd.loop(problem, particles)


def _torch(problem: Regression, particles: int) -> Contender:
    """Return the fastest of two ways of writing it, on one thread or all."""
    from s2vgd.bench.peers.torch_svgd import TorchSVGD

    def seconds(way: tuple[bool, int]) -> float:
        mapped, threads = way
        made = TorchSVGD(problem, particles, mapped=mapped, threads=threads)
        made.steps(1)
        n = max(1, round(0.02 / _seconds(made, 1)))
        return min(_seconds(made, n) for _ in range(3))

    # Made again at the end: there may be room for one at a time.
    mapped, threads = min(product((False, True), {1, 1 if on_gpu() else n_cores()}), key=seconds)
    return TorchSVGD(problem, particles, mapped=mapped, threads=threads)


BUILDERS: dict[str, Build] = {"BlackJAX": _blackjax, "NumPyro": _numpyro, "PyTorch": _torch}


def difference(name: str, problem: Regression, particles: int) -> float:
    """Return how far a peer's update is from ours, where both have the same bandwidth.

    NumPyro's driving term is M times that of eq. (svgd_update); so is ours here.
    """
    start = problem.start(particles)
    theirs: Contender
    if name == "BlackJAX":
        from s2vgd.bench.peers import blackjax_svgd

        h = blackjax_svgd.bandwidth_of(start)
        theirs = blackjax_svgd.loop(problem, particles, "sgd", h)
    elif name == "NumPyro":
        from s2vgd.bench.peers import numpyro_svgd

        h = numpyro_svgd.bandwidth_of(start)
        theirs = numpyro_svgd.loop(problem, particles, "sgd")
    else:
        from s2vgd.bench.peers.torch_svgd import TorchSVGD

        h = 10.0
        theirs = TorchSVGD(problem, particles, "sgd", h)
    mine = ours.svgd_loop(problem, particles, "sgd", h, particles if name == "NumPyro" else 1.0)
    updates = []
    for contender in (mine, theirs):
        contender.steps(1)
        updates.append(contender.particles() - start)
    return float(np.max(np.abs(updates[0] - updates[1])) / np.max(np.abs(updates[0])))
