"""Rows predicted in a second: means and deviations of a mixture of networks, for a table of rows.

Ours are 20 particles of the estimator; PyTorch's an ensemble of as many networks of the same width
(13 inputs, 50 hidden units, mean and noise), in batched products on all rows or in blocks, on one
thread or all, whichever is fastest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from s2vgd import S2VGDRegressor
from s2vgd._threads import n_cores
from s2vgd.bench.records import Row, missing, not_run
from s2vgd.bench.timing import Spread, Timed, in_turns, lasting, ratio

TITLE = "Rows predicted in a second"

NETWORKS, HIDDEN, FEATURES = 20, 50, 13
PEER = "PyTorch ensemble"


def ask(quick: bool, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each number of rows."""
    yield from answer((1000,) if quick else (1, 1000, 100_000), 3 if quick else 21)


def answer(counts: tuple[int, ...], rounds: int) -> Iterator[Row]:
    """Yield the rows of these numbers of rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, FEATURES))
    y = x[:, 0] + 0.1 * rng.normal(size=200)
    ours = S2VGDRegressor((HIDDEN,), particles=NETWORKS, refine=None, steps=20, random_state=0).fit(
        x, y
    )
    reason = missing("torch")
    for n in counts:
        table = rng.normal(size=(n, FEATURES))
        timed: dict[str, Timed] = {
            "ours": lasting(functools.partial(ours.predict, table, return_std=True), 0.1)
        }
        if not reason:
            timed[PEER] = _torch(x, y, table)
        taken = in_turns(timed, rounds, budget=60)
        rates = {name: n / seconds for name, seconds in taken.items()}
        case, unit = f"{n:,} rows, {NETWORKS} networks", "rows a second"
        if reason:
            yield Row(case, ours=Spread.of(rates["ours"]), unit=unit)
            yield not_run(case, PEER, reason)
            continue
        yield Row(
            case,
            PEER,
            ratio(rates["ours"], rates[PEER]),
            "higher",
            Spread.of(rates["ours"]),
            Spread.of(rates[PEER]),
            unit,
        )


def _torch(x: np.ndarray, y: np.ndarray, table: np.ndarray) -> Timed:
    from s2vgd.bench.peers.torch_ensemble import TorchEnsemble

    model = TorchEnsemble(epochs=2, hidden=HIDDEN, members=NETWORKS).fit(x, y)

    def predict(block: int, threads: int) -> None:
        for first in range(0, len(table), block):
            mean, deviation = model.predict(table[first : first + block], threads)
            spread = np.sqrt(np.mean(deviation**2, axis=0) + np.var(mean, axis=0))
            assert len(spread) == len(np.mean(mean, axis=0))

    blocks = {len(table), min(len(table), 2048)}
    ways = [
        lasting(functools.partial(predict, block, threads), 0.1)
        for block in sorted(blocks)
        for threads in sorted({1, n_cores()})
    ]
    return min(ways, key=lambda way: min(way() for _ in range(3)))
