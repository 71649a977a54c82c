"""One fit of a method on a data set, in a process of its own: what it took and how well it does.

``python -m s2vgd.bench.fits METHOD DATASET SEED BUDGET`` prints one line of JSON. The first
standard split is used; `BUDGET` is JSON of the settings that decide how long the method works, all
others are fixed here and were not tuned on the test rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PACKAGES = {
    "S2VGDRegressor": (),
    "PyTorch deep ensemble": ("torch",),
    "NGBoost": ("ngboost",),
    "scikit-learn GP": ("scikit-learn",),
    "NumPyro NUTS": ("numpyro",),
}
"""Which packages each method needs besides ours."""

WIDTHS = {"protein": 100}

UNCOMPILED = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
"""Environment of a process in which everything is compiled."""


def compiled_in(directory: str) -> dict[str, str]:
    """Return the environment of one that finds there what was compiled, and keeps what was not."""
    return {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": directory,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


@dataclass(frozen=True)
class Fit:
    """What one fit gave.

    Attributes
    ----------
    fit_seconds, predict_seconds : float
        Compilation included, imports not.
    process_seconds : float
        From the start of the process to its end.
    log_likelihood, rmse : float
        Of the test rows, in the units of the targets.
    again_seconds : float or None
        Of a second fit in the same process, with another seed.
    """

    fit_seconds: float
    predict_seconds: float
    process_seconds: float
    log_likelihood: float
    rmse: float
    again_seconds: float | None = None


class OverTime(Exception):
    """A fit took longer than it may."""


def run(
    method: str,
    dataset: str,
    seed: int,
    budget: Mapping[str, Any],
    *,
    again: bool = False,
    held_out: bool = False,
    environment: Mapping[str, str] | None = None,
    limit: float = 600.0,
) -> Fit:
    """Fit in a fresh process.

    Parameters
    ----------
    again : bool
        Fit a second time in that process.
    held_out : bool
        Leave the test rows alone: fit nine tenths of the training rows, and score on the others.
        The seed decides which.
    environment : mapping, optional
        Variables for the process.
    limit : float
        Seconds after which it is ended.

    Raises
    ------
    OverTime
        If it took longer.
    """
    command = [sys.executable, "-W", "ignore", "-m", "s2vgd.bench.fits", method, dataset]
    command += [str(seed), json.dumps(dict(budget))]
    command += [word for word, is_said in (("again", again), ("held_out", held_out)) if is_said]
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        raise OverTime(f"took more than {limit:.0f} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"{method} on {dataset} failed: {last[0]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Fit(process_seconds=time.perf_counter() - began, **found)


def build(method: str, dataset: str, seed: int, budget: Mapping[str, Any]) -> Any:
    """Return a method with ``fit(x, y)`` and ``predict_dist(x)``."""
    hidden = WIDTHS.get(dataset, 50)
    if method == "S2VGDRegressor":
        from s2vgd import S2VGDRegressor

        return S2VGDRegressor((hidden,), random_state=seed, **budget)
    if method == "PyTorch deep ensemble":
        from s2vgd.bench.peers.torch_ensemble import TorchEnsemble

        return _WithMoments(TorchEnsemble(hidden=hidden, seed=seed, **budget))
    if method == "NGBoost":
        from s2vgd.baselines.outside import NGBoost

        return NGBoost(seed=seed, **budget)
    if method == "scikit-learn GP":
        from s2vgd.baselines.outside import GaussianProcess

        return GaussianProcess(seed=seed, **budget)
    if method == "NumPyro NUTS":
        from s2vgd.bench.peers.numpyro_nuts import Nuts

        return Nuts(hidden=hidden, seed=seed, **budget)
    raise ValueError(f"method must be one of {', '.join(PACKAGES)}, got {method!r}")


class _WithMoments:
    """A model of means and deviations (M, N) as one that predicts a mixture of normals."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def fit(self, x: Any, y: Any) -> Any:
        self._model.fit(x, y)
        return self

    def predict_dist(self, x: Any) -> Any:
        from s2vgd.predictive import from_components

        mean, deviation = self._model.predict(x)
        return from_components("normal", {"loc": mean, "scale": deviation})


def main() -> None:
    """Fit as the command line says."""
    method, dataset, seed, budget = sys.argv[1:5]
    import numpy as np

    from s2vgd import datasets

    data = datasets.load(dataset)
    train, test = data.splits[0]
    if "held_out" in sys.argv[5:]:
        rows = np.random.default_rng(int(seed)).permutation(train)
        test, train = np.split(rows, [len(rows) // 10])
    x, y = data.x[train], data.y[train]

    def fitted(number: int) -> tuple[Any, float]:
        model = build(method, dataset, number, json.loads(budget))
        began = time.perf_counter()
        return model.fit(x, y), time.perf_counter() - began

    model, fit_seconds = fitted(int(seed))
    began = time.perf_counter()
    predictive = model.predict_dist(data.x[test])
    log_likelihood = float(np.mean(predictive.log_prob(data.y[test])))
    rmse = float(np.sqrt(np.mean((np.ravel(predictive.mean) - data.y[test]) ** 2)))
    predict_seconds = time.perf_counter() - began
    again = fitted(int(seed) + 1)[1] if "again" in sys.argv[5:] else None
    found = {
        "fit_seconds": fit_seconds,
        "predict_seconds": predict_seconds,
        "log_likelihood": log_likelihood,
        "rmse": rmse,
        "again_seconds": again,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
