"""One data set's splits through sklearn-contrib-bde; run by uci.py in an interpreter that has it.

Settings are those of its README, with one hidden layer of 50 units. Inputs and targets are
standardised as our estimators do inside. Its predictive is the mixture over members and draws,
scored with the same formulas as ours.
"""

from __future__ import annotations

import json
import lzma
import sys
import time
from importlib.metadata import version
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from bde import BdeRegressor
from bde.loss import GaussianNLL
from scipy.special import logsumexp, ndtr

PACKAGES = ("sklearn-contrib-bde", "jax", "jaxlib", "numpy", "optax", "blackjax")
EMBEDDED = Path(__file__).parents[1] / "src/s2vgd/datasets/embedded"


def main() -> None:
    name, splits = sys.argv[1], list(map(int, sys.argv[2:]))
    manifest = json.loads((EMBEDDED / "manifest.json").read_text())
    about = manifest["datasets"][name]
    with lzma.open(EMBEDDED / f"{name}.txt.xz", "rt") as file:
        table = np.loadtxt(file)
    x = table[:, about["features"]]
    y = table[:, about["target"]]
    generator = np.random.RandomState(1)  # the standard splits are defined by this generator
    orders = [generator.choice(len(x), len(x), replace=False) for _ in range(max(splits) + 1)]
    for i in splits:
        train, test = np.split(orders[i], [round(0.9 * len(x))])
        x_shift, x_scale = x[train].mean(0), x[train].std(0)
        x_scale = np.where(x_scale == 0, 1, x_scale)
        y_shift, y_scale = y[train].mean(), y[train].std()
        scaled = jnp.asarray((x - x_shift) / x_scale, jnp.float32)
        model = BdeRegressor(
            hidden_layers=[50],
            n_members=8,
            seed=i,
            loss=GaussianNLL(),
            epochs=200,
            validation_split=0.15,
            lr=1e-3,
            weight_decay=1e-4,
            warmup_steps=5000,
            n_samples=2000,
            n_thinning=2,
            patience=10,
        )
        began = time.perf_counter()
        model.fit(x=scaled[train], y=jnp.asarray((y[train] - y_shift) / y_scale, jnp.float32))
        seconds = time.perf_counter() - began
        raw = np.asarray(model.predict(scaled[test], raw=True), np.float64)
        raw = raw.reshape(-1, *raw.shape[-2:])
        loc = raw[..., 0] * y_scale + y_shift
        scale = (np.logaddexp(0, raw[..., 1]) + 1e-6) * y_scale
        row = {"split": i, "seed": i, "seconds": seconds, "metrics": score(loc, scale, y[test])}
        row["versions"] = {p: version(p) for p in PACKAGES}
        print(json.dumps(row), flush=True)


def score(loc: np.ndarray, scale: np.ndarray, y: np.ndarray) -> dict[str, float]:
    z = (y - loc) / scale
    log_density = logsumexp(-0.5 * z**2 - np.log(scale) - 0.5 * np.log(2 * np.pi), axis=0)
    level = ndtr(z).mean(axis=0)  # the predictive distribution function at the target
    metrics = {
        "rmse": float(np.sqrt(np.mean((loc.mean(axis=0) - y) ** 2))),
        "log_likelihood": float(np.mean(log_density - np.log(len(loc)))),
    }
    for percent in (50, 90, 95):
        tail = (1 - percent / 100) / 2
        metrics[f"coverage_{percent}"] = float(np.mean((level >= tail) & (level <= 1 - tail)))
    return metrics


if __name__ == "__main__":
    main()
