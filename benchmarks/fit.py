"""Seconds of a fit with the defaults, beside bde with the settings of its README.

Both learn the same rows, turn by turn, on the cores that this process has. A fit of ours is made in
a fresh process, compilation included, and then again with another seed; bde is timed in an
interpreter of its own (``S2VGD_BDE_PYTHON``), without the start of it.

    S2VGD_BDE_PYTHON=.venv-bde/bin/python python benchmarks/fit.py --sets yacht boston --repeats 3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from s2vgd import datasets
from s2vgd.experiments import measure
from s2vgd.experiments.bde import Bde
from s2vgd.experiments.harness import NotRun

OURS = """
import sys, time
from s2vgd import S2VGDRegressor, datasets
data = datasets.load(sys.argv[1])
train, _ = data.splits[int(sys.argv[2])]
for seed in (0, 1):
    began = time.perf_counter()
    S2VGDRegressor(random_state=seed, noise=sys.argv[3]).fit(data.x[train], data.y[train])
    print(time.perf_counter() - began)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", nargs="+", default=["yacht"])
    parser.add_argument("--repeats", type=int, default=3, help="fits, of the first splits")
    parser.add_argument("--out", type=Path, default=Path("results/fit.json"))
    args = parser.parse_args()
    seconds: dict = {name: {} for name in args.sets}
    for split in range(args.repeats):
        for name, found in seconds.items():
            for noise in ("input", "auto"):
                first, second = ours(name, split, noise)
                found.setdefault(f"{noise}, first", []).append(first)
                found.setdefault(f"{noise}, again", []).append(second)
            try:
                found.setdefault("bde", []).append(bde(name, split))
            except NotRun as reason:
                found["bde"] = str(reason)
            print(name, split, {k: v[-1] for k, v in found.items()}, flush=True)
    medians = {
        name: {k: float(np.median(v)) for k, v in found.items() if isinstance(v, list)}
        for name, found in seconds.items()
    }
    about = {
        "command": " ".join(["python", *sys.argv]),
        "versions": measure.versions(),
        "device": measure.device(),
        "load": os.getloadavg(),
        "revision": measure.revision(),
    }
    text = json.dumps(about | {"median_seconds": medians, "seconds": seconds}, indent=2)
    args.out.write_text(text + "\n")
    print(json.dumps(medians, indent=2))


def ours(name: str, split: int, noise: str) -> list[float]:
    """Return the seconds of a first and of a second fit in a fresh process."""
    command = [sys.executable, "-W", "ignore", "-c", OURS, name, str(split), noise]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(map(float, done.stdout.split()))


def bde(name: str, split: int) -> float:
    """Return the seconds of a fit of bde."""
    data = datasets.load(name)
    train, test = data.splits[split]
    model = Bde(seed=split).fit(data.x[train], data.y[train])
    model.predict_dist(data.x[test[:2]])
    return model.seconds


if __name__ == "__main__":
    main()
