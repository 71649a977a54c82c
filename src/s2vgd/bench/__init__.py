"""Speed and quality against peers, as ratios measured in one run: ``s2vgd bench``.

One file a question, each with a `TITLE` and ``ask(quick, extra)``, a generator of rows that may put
curves and settings into `extra`; if it has a ``prepare()``, that is called before JAX has run
anything. A question runs in a process of its own
(``python -m s2vgd.bench NAME``), so that nobody's threads or memory are in the way of the next;
:mod:`~s2vgd.bench.running` starts them and makes a table of what they found, and
:mod:`~s2vgd.bench.guard` compares that with an earlier run. The peers' side of the work is in
:mod:`~s2vgd.bench.peers`. Nothing else in the library imports this package.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

from s2vgd.bench.records import Row

QUESTIONS = (
    *("step", "structure", "quality", "cold", "predict", "bandit", "control"),
    *("memory", "growth", "roofline", "gpu", "gpu_step"),
)
"""Names of the questions, in the order in which they are asked."""


class Question(Protocol):
    """A module of this package that asks one question."""

    TITLE: str
    ask: Callable[[bool, dict[str, Any]], Iterator[Row]]


def question(name: str) -> Question:
    """Return the module of one of `QUESTIONS`."""
    return cast(Question, importlib.import_module(f"s2vgd.bench.{name}"))
