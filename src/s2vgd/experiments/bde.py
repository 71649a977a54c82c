"""sklearn-contrib-bde as one more method: it pins other versions, so it has its own interpreter.

Make one with ``python3 -m venv .venv-bde && .venv-bde/bin/pip install sklearn-contrib-bde`` and
name it in ``S2VGD_BDE_PYTHON``. The other side is :mod:`s2vgd.experiments.bde_worker`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

import numpy as np

from s2vgd.experiments.harness import NotRun
from s2vgd.predictive import Predictive, from_components
from s2vgd.scaling import Scaler

VARIABLE = "S2VGD_BDE_PYTHON"
_MOST_NUMBERS = 2**23


class Bde:
    """Bayesian deep ensemble by microcanonical Langevin chains, with input-dependent noise.

    Parameters
    ----------
    hidden : sequence of int
        Widths of the hidden layers.
    members, warmup, draws : int
        Chains, their steps of tuning, and their steps after it, of which every other is kept.
    seed : int
        Decides everything random.

    Attributes
    ----------
    versions : dict of str to str
        Of the packages in that interpreter, after a prediction.
    seconds : float
        What learning took there, without the start of the interpreter.
    """

    def __init__(
        self,
        *,
        hidden: Any = (50,),
        members: int = 8,
        warmup: int = 5000,
        draws: int = 2000,
        seed: int = 0,
    ) -> None:
        self._python = os.environ.get(VARIABLE, "")
        if not self._python:
            raise NotRun(f"no interpreter with sklearn-contrib-bde: {VARIABLE} is not set")
        self._settings = {
            "hidden": list(hidden),
            "members": members,
            "warmup": warmup,
            "draws": draws,
            "seed": seed,
            "most": _MOST_NUMBERS,
        }
        self.versions: dict[str, str] = {}
        self.seconds = 0.0

    def fit(self, x: np.ndarray, y: np.ndarray) -> Self:
        """Remember the rows; the other interpreter learns when it is asked to predict."""
        self._x, self._y = np.asarray(x), np.asarray(y)
        self._x_scaler, self._y_scaler = Scaler.of(self._x, None), Scaler.of(self._y[:, None], None)
        return self

    def predict_dist(self, x: np.ndarray) -> Predictive:
        """Learn, and return what is predicted for rows (N, F)."""
        with tempfile.TemporaryDirectory() as folder:
            asked, answered = Path(folder) / "asked.npz", Path(folder) / "answered.npz"
            np.savez(
                asked,
                x=self._x_scaler(self._x),
                y=self._y_scaler(self._y[:, None])[:, 0],
                x_new=self._x_scaler(np.asarray(x)),
                about=json.dumps(self._settings),
            )
            worker = Path(__file__).with_name("bde_worker.py")
            # Isolated, or the files beside the worker would be imported in place of packages.
            command = [self._python, "-I", *map(os.fspath, (worker, asked, answered))]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
                raise RuntimeError(f"bde failed in its interpreter: {last[0]}")
            with np.load(answered) as file:
                self.versions = json.loads(str(file["versions"]))
                self.seconds = float(file["seconds"])
                components = {"loc": file["loc"], "scale": file["scale"]}
        shift, scale = self._y_scaler.shift, self._y_scaler.scale
        return from_components("normal", components, shift=shift, scale=scale)
