"""Quality on the UCI regression sets: SVGD, S2VGD, refined S2VGD, and bde beside them.

One JSON line is appended for each finished (set, method, split), so a killed run goes on where it
was. The standard splits are used, every choice is made inside the training part, and the test part
is looked at once, to score. ``--summary`` prints the table of what has been run.

    python benchmarks/uci.py --sets yacht boston --methods s2vgd refined --splits 0:20
    python benchmarks/uci.py --methods bde --bde-python .venv-bde/bin/python
    python benchmarks/uci.py --summary

`sklearn-contrib-bde` pins another version of BlackJAX than ours, so it runs in an interpreter of
its own: ``python3 -m venv .venv-bde && .venv-bde/bin/pip install sklearn-contrib-bde``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

SMALL = ["yacht", "boston", "energy", "concrete", "wine"]
ALL = [*SMALL, "kin8nm", "power", "naval", "protein"]

PLAIN = {"reflections": 0, "scales": None}
METHODS = {
    "svgd": {**PLAIN, "noise": "constant", "refine": None, "steps": "auto"},
    "s2vgd": {"noise": "constant", "refine": None, "steps": "auto"},
    "refined_constant": {"noise": "constant"},
    "refined_input": {"noise": "input"},
    "refined_auto": {"noise": "auto"},
    "bde": None,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", nargs="+", default=SMALL, choices=ALL)
    parser.add_argument("--methods", nargs="+", default=["s2vgd", "refined_input"], choices=METHODS)
    parser.add_argument("--splits", default="0:3", help="first:last of the standard splits")
    parser.add_argument("--full", action="store_true", help="all sets, our methods, all splits")
    parser.add_argument("--out", type=Path, default=Path("results/uci.jsonl"))
    parser.add_argument("--override", default="{}", help="estimator parameters, as JSON")
    parser.add_argument("--tag", default="", help="added to the method's name")
    parser.add_argument("--bde-python", default=".venv-bde/bin/python")
    parser.add_argument("--revision", help="of this tree, where it is a copy without git")
    parser.add_argument(
        "--summary", action="store_true", help="print the table and do nothing else"
    )
    args = parser.parse_args()
    if args.summary:
        print_summary(args.out)
        return
    if args.full:
        args.sets, args.splits = ALL, "0:20"
        args.methods = [name for name in METHODS if name != "bde"]
    first, last = map(int, args.splits.split(":"))
    done = {(r["dataset"], r["method"], r["split"]) for r in read(args.out)}
    from s2vgd import datasets

    for name in args.sets:
        n_splits = len(datasets.load(name).splits)
        for method in args.methods:
            label = method + args.tag
            wanted = range(first, min(last, n_splits))
            todo = [i for i in wanted if (name, label, i) not in done]
            if not todo:
                continue
            rows = (
                run_bde(args.bde_python, name, todo)
                if method == "bde"
                else run_ours(name, method, todo, json.loads(args.override))
            )
            for row in rows:
                about = {"experiment": "uci", "dataset": name, "method": label}
                about |= provenance(args.revision)
                row = about | row  # bde tells its own versions
                append(args.out, row)
                m = row["metrics"]
                print(
                    f"{name:9s} {label:20s} split {row['split']:2d}  rmse {m['rmse']:8.4f}  "
                    f"ll {m['log_likelihood']:+7.3f}  cover90 {m['coverage_90']:.2f}  "
                    f"{row['seconds']:6.1f} s",
                    flush=True,
                )
    print_summary(args.out)


def run_ours(name: str, method: str, splits: list[int], override: dict):
    from s2vgd import S2VGDRegressor, datasets

    data = datasets.load(name)
    if "hidden" in override:
        override["hidden"] = tuple(override["hidden"])
    for i in splits:
        train, test = data.splits[i]
        parameters = {"hidden": (data.hidden_units,), **METHODS[method], **override}
        model = S2VGDRegressor(random_state=i, **parameters)
        began = time.perf_counter()
        model.fit(data.x[train], data.y[train])
        seconds = time.perf_counter() - began
        predictive = model.predict_dist(data.x[test])
        y = data.y[test]
        metrics = {
            "rmse": float(np.sqrt(np.mean((predictive.mean - y) ** 2))),
            "log_likelihood": float(np.mean(predictive.log_prob(y))),
            "crps": float(np.mean(predictive.crps(y))),
        }
        for level in (50, 90, 95):
            lower, upper = predictive.interval(level / 100)
            metrics[f"coverage_{level}"] = float(np.mean((lower <= y) & (y <= upper)))
        row = {"split": i, "seed": i, "metrics": metrics, "seconds": seconds}
        row["config"] = {k: v for k, v in model.get_params().items() if k != "random_state"}
        row["chosen"] = {"constant_share": model.constant_share_, "steps": model.n_iter_}
        if model.diagnostics_ is not None:
            row["r_hat"] = float(np.median(model.diagnostics_.r_hat))
            row["effective_draws"] = float(np.median(model.diagnostics_.effective_draws))
        yield row


def run_bde(python: str, name: str, splits: list[int]):
    """Run bde with its README's settings and one hidden layer of 50, in its own interpreter."""
    worker = Path(__file__).with_name("bde_worker.py")
    command = [python, str(worker), name, *map(str, splits)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        raise SystemExit(f"bde failed with exit code {process.returncode}: {' '.join(command)}")


def provenance(revision: str | None) -> dict:
    import jax

    if revision is None:
        command = ["git", "rev-parse", "--short", "HEAD"]
        revision = subprocess.run(
            command, capture_output=True, text=True, check=False
        ).stdout.strip()
    return {
        "command": command_line(),
        "versions": {
            name: importlib.import_module(name).__version__
            for name in ("jax", "jaxlib", "numpy", "optax", "blackjax")
        },
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg()[0],
            "device": jax.devices()[0].device_kind,
            "matmul_precision": jax.config.jax_default_matmul_precision,
            "python": platform.python_version(),
        },
        "revision": revision,
    }


def command_line() -> str:
    """Return how this was called, without the place of the results."""
    return re.sub(r" --out \S+", "", " ".join(["python", *sys.argv]))


def append(path: Path, row: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as file:  # one write, so a line is whole or absent
        file.write((json.dumps(row) + "\n").encode())
        os.fsync(file.fileno())


def read(path: Path) -> list[dict]:
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # the line that a killed run did not finish
    return rows


def print_summary(path: Path) -> None:
    """Print mean ± standard error over splits, and the same means as a Markdown table."""
    groups: dict = {}
    for row in read(path):
        groups.setdefault((row["dataset"], row["method"]), []).append(row)
    print(
        f"\n{'set':9s} {'method':20s} splits  RMSE               log-likelihood     90 %  seconds"
    )
    for (name, method), rows in sorted(groups.items(), key=lambda g: (ALL.index(g[0][0]), g[0][1])):
        rmse, likelihood = (f"{m:8.4f} ± {e:.4f}" for m, e in map(partial(mean, rows), SCORES))
        coverage = np.mean([row["metrics"]["coverage_90"] for row in rows])
        seconds = np.median([row["seconds"] for row in rows])
        print(
            f"{name:9s} {method:20s} {len(rows):4d}   {rmse:18s} {likelihood:18s} "
            f"{coverage:.3f} {seconds:7.1f}"
        )
    methods = sorted({method for _, method in groups})
    print("\n| set |", " | ".join(methods), "|\n| --- |", " | ".join("---" for _ in methods), "|")
    for name in ALL:
        cells = [cell(groups.get((name, method), [])) for method in methods]
        print(f"| {name} |", " | ".join(cells), "|")


SCORES = ("rmse", "log_likelihood")


def mean(rows: list[dict], score: str) -> tuple[float, float]:
    values = np.array([row["metrics"][score] for row in rows])
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return float(values.mean()), float(error)


def cell(rows: list[dict]) -> str:
    if not rows:
        return "not run"
    (rmse, _), (likelihood, _) = (mean(rows, score) for score in SCORES)
    return f"{rmse:.4f} / {likelihood:+.3f} ({len(rows)})"


if __name__ == "__main__":
    main()
