"""Whom the experiments compare: our estimators and every rival, built by name.

A contender has ``fit(x, y)`` and ``predict_dist(x)``. Those that :func:`s2vgd.baselines.methods`
finds need no mention here; ours do, because their settings have other names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import numpy as np

from s2vgd import baselines
from s2vgd.errors import DivergedError
from s2vgd.estimators import S2VGDClassifier, S2VGDRegressor
from s2vgd.estimators._trials import STEPS_TO_CHOOSE_FROM, held_out_rows
from s2vgd.experiments.bde import Bde
from s2vgd.experiments.harness import NotRun
from s2vgd.predictive import Predictive

Task = Literal["regression", "classification"]

# The particles as Stein variational gradient descent leaves them.
_PURE: dict[str, Any] = {"refine": None}
OURS: dict[str, dict[str, Any]] = {
    "svgd": {**_PURE, "noise": "constant", "reflections": 0, "scales": None},
    "s2vgd": {**_PURE, "noise": "constant"},
    "s2vgd_refined_constant": {"noise": "constant"},
    "s2vgd_refined_input": {"noise": "input"},
    "s2vgd_refined": {"noise": "auto"},
}


def names() -> list[str]:
    """Return every name that :func:`build` knows."""
    return list(dict.fromkeys([*OURS, "bde", *baselines.methods()]))


def build(method: str, task: Task, settings: Mapping[str, Any], seed: int) -> Any:
    """Return an untrained contender.

    Parameters
    ----------
    method : str
        One of :func:`names`. Ours are the estimators, without refinement unless they say so.
    task : {"regression", "classification"}
        What is to be learned.
    settings : mapping
        Its settings, as JSON has them.
    seed : int
        Decides everything random.

    Raises
    ------
    NotRun
        If nothing here has that name, or what it needs is not installed.
    """
    chosen: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()
    }
    if method in OURS:
        ours = OURS[method]
        if task == "classification":
            ours = {name: value for name, value in ours.items() if name != "noise"}
            return S2VGDClassifier(**(ours | chosen), random_state=seed)
        return S2VGDRegressor(**(ours | chosen), random_state=seed)
    if method == "bde":
        return Bde(**chosen, seed=seed)
    rivals = baselines.methods()
    if method not in rivals:
        raise NotRun(f"method missing: nothing in s2vgd.baselines is named {method}")
    if chosen.get("steps") == "auto":
        return Tuned(lambda steps: rivals[method](**chosen | {"steps": steps}, seed=seed))
    return rivals[method](**chosen, seed=seed)


class Tuned:
    """A rival that chooses its number of updates as ours do, with ``steps="auto"``.

    It tries more and more of them for as long as that predicts a held-out sixth of the training
    rows better, and learns from all rows with the best number.

    Parameters
    ----------
    make : callable
        From a number of updates to an untrained rival.

    Attributes
    ----------
    n_iter_ : int
        The number chosen.
    """

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make

    def fit(self, x: np.ndarray, y: np.ndarray) -> Self:
        """Choose, then learn from rows (N, F) and targets (N,)."""
        held_out = held_out_rows(len(x))
        rest = np.setdiff1d(np.arange(len(x)), held_out)
        best = -np.inf
        for steps in STEPS_TO_CHOOSE_FROM:
            try:
                tried = self._make(steps).fit(x[rest], y[rest]).predict_dist(x[held_out])
            except DivergedError:
                if best == -np.inf:
                    raise
                break  # fewer updates went well
            score = float(np.mean(tried.log_prob(y[held_out])))
            if score <= best:
                break
            best, self.n_iter_ = score, steps
        self._model = self._make(self.n_iter_).fit(x, y)
        return self

    def predict_dist(self, x: np.ndarray) -> Predictive:
        """Return what the rival says about rows (N, F)."""
        return self._model.predict_dist(x)
