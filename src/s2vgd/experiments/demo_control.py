"""Control in the demonstration: a few policies learn to balance a pole, and one of them is filmed.

A short version of the Cartpole panel of the paper's Figure 4; the long one is
:mod:`s2vgd.experiments.control`. Sentences are made from the numbers.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from s2vgd.control import SteinPolicyGradient
from s2vgd.experiments import control, figures, plots, report

NAME = "Cartpole"
ITERATIONS = 25
SETTINGS: dict[str, Any] = {
    name: value
    for name, value in control.settings()["s2vgd_a2c"].items()
    if name in ("particles", "environments", "hidden", "reflections", "scales", "estimator")
}
# A step gives at most 10, an episode has 500.
_MOST = 5000
_SOLVED = 0.95
_FILMED = 160


def learn(seed: int, iterations: int, progress: bool) -> tuple[dict[str, Any], bytes]:
    """Train a set of policies and film the best one.

    Parameters
    ----------
    seed : int
        Of everything random.
    iterations : int
        How many.
    progress : bool
        Show a progress bar.

    Returns
    -------
    found : dict
        What ``results.json`` holds of it.
    film : bytes
        A GIF.
    """
    start = time.perf_counter()
    agents = SteinPolicyGradient("cartpole", seed=seed, **SETTINGS)
    agents.train(iterations, progress=progress, chunk=5)
    seconds = time.perf_counter() - start
    history = agents.history
    found = {
        "about": f"a pole to be kept upright on a cart, {agents.particles} policies that learn "
        f"together by S²VGD with A2C gradients, {iterations} iterations of "
        f"{agents.steps_per_iteration:,} steps",
        "settings": dict(SETTINGS),
        "seconds": seconds,
        "environment_steps": iterations * agents.steps_per_iteration,
        "curve": {
            "iterations": history["iteration"].tolist(),
            "mean": history["return"].astype(float).tolist(),
            "best": history["best_return"].astype(float).tolist(),
            "steps_per_iteration": agents.steps_per_iteration,
        },
    }
    found["reading"] = read(found)
    with tempfile.TemporaryDirectory() as directory:
        path = agents.watch(Path(directory) / "film.gif", seed=seed, max_steps=_FILMED)
        return found, path.read_bytes()


def page(found: Mapping[str, Any], film: bytes) -> list[str]:
    """Return the part of the page, as pieces of HTML."""
    drawn = plots.learning({NAME: {"A2C": {"S²VGD": [found["curve"]]}}}, {})
    return [
        report.heading("Acting"),
        report.paragraph(f"Control: {found['about']}."),
        report.figure(
            figures.to_svg(drawn, "control", inline=True),
            "Return of an episode while training: a bold line for the mean over policies, a dashed "
            f"one for the best of them. The most that can be had is {_MOST:,}.",
        ),
        report.film(
            film,
            "A cart moves to and fro and a pole stands on it",
            "The best policy of the last iteration, in one episode with its likeliest actions: its "
            f"first {_FILMED} steps, or all of them if it fell before.",
        ),
        report.bullets(found["reading"]),
        report.facts(
            [(NAME, ", ".join(f"{name}={value!r}" for name, value in found["settings"].items()))]
        ),
    ]


def read(found: Mapping[str, Any]) -> list[str]:
    """Say how far the policies came, how soon, and how long it took."""
    mean, best = (np.asarray(found["curve"][name]) for name in ("mean", "best"))
    sentences = [
        f"In {NAME} the mean return over policies went from {mean[0]:,.0f} to {mean[-1]:,.0f}, "
        f"that of the best policy from {best[0]:,.0f} to {best[-1]:,.0f}, of {_MOST:,} at most."
    ]
    solved = np.flatnonzero(best >= _SOLVED * _MOST)
    if solved.size:
        iteration = found["curve"]["iterations"][solved[0]]
        sentences.append(
            f"The best policy had {100 * _SOLVED:.0f} % of it in iteration {iteration}."
        )
    else:
        sentences.append(f"No policy came to {100 * _SOLVED:.0f} % of it: this is not solved.")
    sentences.append(
        f"{found['environment_steps']:,} steps of the task took {found['seconds']:.1f} seconds, "
        "learning and compilation included."
    )
    return sentences
