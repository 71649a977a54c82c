"""Checkpoints of the training loop: all that a run needs to go on, and proof that it is that run.

A checkpoint is a directory of :mod:`s2vgd.files`. Beside the state it holds the identity of the run
(its data, key, first state and settings), so that no run goes on from the checkpoint of another.
When to write one is decided in :mod:`s2vgd.training`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from s2vgd import files
from s2vgd.errors import ModelFileError

KIND = "checkpoint"
VERSION = 1

_METADATA = {"step", "history_stride", "best_score", "failures", "identity"}
_HISTORY_LIMIT = 1024
_BLOCK = 2**20


@dataclasses.dataclass
class History:
    """Values of the steps of a run, thinned so that any number of steps takes bounded memory.

    The steps kept are 1, 1 + stride, 1 + 2 stride, ...; the stride doubles when there are too many,
    so what is kept depends on the steps done and not on how they were cut into chunks.
    """

    columns: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    stride: int = 1

    def record(self, steps: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """Add the values, each of shape (n, ...), of n steps, numbered from 1."""
        new = {"step": steps} | {name: value for name, value in values.items() if name != "step"}
        self._select(new)
        if self.columns:
            new = {name: np.concatenate([self.columns[name], new[name]]) for name in new}
        self.columns = new
        while len(self.columns["step"]) > _HISTORY_LIMIT:
            self.stride *= 2
            self._select(self.columns)

    def _select(self, columns: dict[str, np.ndarray]) -> None:
        kept = (columns["step"] - 1) % self.stride == 0
        for name, column in columns.items():
            columns[name] = column[kept]


@dataclasses.dataclass
class EarlyStopping:
    """The best state so far by a validation score, and how long it has been the best."""

    best_state: Any = None
    best_score: float | None = None
    failures: int = 0
    steps: list[int] = dataclasses.field(default_factory=list)
    scores: list[float] = dataclasses.field(default_factory=list)

    def record(self, step: int, score: float, state: Any) -> None:
        """Take note of the score of a state; higher is better, and the first of equals is kept."""
        self.steps.append(step)
        self.scores.append(score)
        if self.best_score is None or score > self.best_score:
            self.best_state, self.best_score, self.failures = state, score, 0
        else:
            self.failures += 1


@dataclasses.dataclass
class Run:
    """A run that can be interrupted after any step."""

    state: Any
    step: int = 0
    history: History = dataclasses.field(default_factory=History)
    stopping: EarlyStopping = dataclasses.field(default_factory=EarlyStopping)


class Store:
    """The place of the checkpoints of one run.

    Parameters
    ----------
    path : Path
        A directory, which holds the latest checkpoint or nothing yet.
    identity : mapping
        Of the run, from :func:`identify`.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        files.check_target(path, kind=KIND)
        self._path = path
        self._identity = identity
        self.last_good: Path | None = None

    def save(self, run: Run) -> None:
        """Write a checkpoint, replacing the previous one atomically."""
        stopping = run.stopping
        arrays = files.tree_to_arrays(run.state, "state")
        arrays |= files.tree_to_arrays(run.history.columns, "history")
        arrays["validation/step"] = np.asarray(stopping.steps, np.int64)
        arrays["validation/score"] = np.asarray(stopping.scores, np.float64)
        if stopping.best_score is not None:
            arrays |= files.tree_to_arrays(stopping.best_state, "best")
        metadata = {
            "step": run.step,
            "history_stride": run.history.stride,
            "best_score": stopping.best_score,
            "failures": stopping.failures,
            "identity": self._identity,
        }
        files.save_directory(self._path, arrays, metadata, kind=KIND, version=VERSION)
        self.last_good = self._path

    def resume(self, start: Run) -> Run:
        """Return the run as it was when it was last saved, or ``start`` if it never was.

        Raises
        ------
        ModelFileError
            If the checkpoint is damaged, or belongs to another run.
        """
        if not files.is_saved(self._path):
            return start
        arrays, metadata, _ = files.load_directory(self._path, kind=KIND, max_version=VERSION)
        if metadata.keys() != _METADATA:
            raise ModelFileError(f"{self._path} is not a checkpoint of the training loop.")
        if differing := differences(metadata["identity"], self._identity):
            raise ModelFileError(
                f"the checkpoint in {self._path} belongs to another run, with other values of "
                f"{', '.join(differing[:5])}. Use another checkpoint_dir, or resume=False to start "
                "again and replace it."
            )
        stopping = EarlyStopping(
            best_score=metadata["best_score"],
            failures=metadata["failures"],
            steps=arrays["validation/step"].tolist(),
            scores=arrays["validation/score"].tolist(),
        )
        if stopping.best_score is not None:
            stopping.best_state = files.arrays_to_tree(arrays, start.state, "best")
        columns = {
            name.removeprefix("history/"): array
            for name, array in arrays.items()
            if name.startswith("history/")
        }
        self.last_good = self._path
        return Run(
            state=files.arrays_to_tree(arrays, start.state, "state"),
            step=metadata["step"],
            history=History(columns, metadata["history_stride"]),
            stopping=stopping,
        )


def identify(settings: Mapping[str, Any], **trees: Any) -> dict[str, Any]:
    """Describe a run by its settings (JSON) and fingerprints of trees of arrays."""
    return {
        "settings": json.loads(json.dumps(dict(settings))),
        "arrays": {
            name: _fingerprint(array)
            for prefix, tree in trees.items()
            for name, array in files.tree_to_arrays(tree, prefix).items()
        },
    }


def _fingerprint(array: np.ndarray) -> dict[str, Any]:
    """Describe an array: integers exactly, floats by three sums that rounding hardly changes.

    The floats of a run that is restarted on another machine may differ in their last bits.
    """
    shape_and_dtype: dict[str, Any] = {"shape": list(array.shape), "dtype": array.dtype.name}
    if array.size and jnp.issubdtype(array.dtype, jnp.floating):
        flat, sums = array.reshape(-1), np.zeros(3)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK].astype(np.float64)
            # The waves make the last sum depend on the order of the elements.
            waves = np.cos(np.arange(start, start + block.size))
            sums += [block.sum(), block @ block, block @ waves]
        if np.isfinite(sums).all():
            return shape_and_dtype | {"sums": sums.tolist()}
    return shape_and_dtype | {
        "sha256": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    }


def _same_fingerprint(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if "sums" not in one or "sums" not in other:
        return one == other
    if (one["shape"], one["dtype"]) != (other["shape"], other["dtype"]):
        return False
    size = float(np.prod(one["shape"]))
    total, squares, wave = np.subtract(one["sums"], other["sums"])
    largest = max(one["sums"][1], other["sums"][1])
    # Rounding changes each element by a tiny part of itself: compare with the root of the squares.
    tolerance = 1e-5 * np.sqrt(largest)
    return bool(
        abs(squares) <= 1e-5 * largest
        and abs(wave) <= tolerance
        and abs(total) <= tolerance * np.sqrt(size)
    )


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the names of what two identities, as :func:`identify` gives them, disagree about."""
    differing = []
    for part, same in (("settings", operator.eq), ("arrays", _same_fingerprint)):
        one, other = stored[part], wanted[part]
        differing += [
            name
            for name in sorted(one.keys() | other.keys())
            if not same(one.get(name, {}), other.get(name, {}))
        ]
    return differing
