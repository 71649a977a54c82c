"""Whom the experiments compare: our estimators and every rival, built by name.

A contender has ``fit(x, y)`` and ``predict_dist(x)``. Those that :func:`s2vgd.baselines.methods`
finds need no mention here; ours do, because their settings have other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from s2vgd import baselines
from s2vgd.estimators import S2VGDClassifier, S2VGDRegressor
from s2vgd.experiments.bde import Bde
from s2vgd.experiments.harness import NotRun

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
    return rivals[method](**chosen, seed=seed)
