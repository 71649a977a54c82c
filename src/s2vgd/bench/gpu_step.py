"""One SVGD step on a GPU: ours, BlackJAX's, NumPyro's, and PyTorch's, in turns.

As :mod:`s2vgd.bench.step`, with the network that needs a GPU. All make products of float32 matrices
as JAX does on the device unless told otherwise, in TF32.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from s2vgd.bench import step
from s2vgd.bench.problems import on_gpu
from s2vgd.bench.records import Row, not_run

TITLE = "One SVGD step on a GPU"

FULL = step.Sizes({step.LARGE: (1, 20, 100, 500)}, rounds=11, seconds=0.1, slowest=5.0, budget=20.0)
QUICK = step.Sizes({step.LARGE: (20,)}, rounds=3, seconds=0.05, slowest=1.0, budget=5.0)


def prepare() -> None:
    """Leave PyTorch a share of the device's memory, all of which JAX would take."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.6")


def ask(quick: bool, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each number of particles and peer, or one that says that there is no GPU."""
    if not on_gpu():
        yield not_run(step.LARGE.name, "", "no GPU")
        return
    yield from step.answer(QUICK if quick else FULL, extra)
