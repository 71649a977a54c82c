"""The cost of structure: an S2VGD step over an SVGD step, interleaved in one run.

The network is 13-50-1 with batches of 100 rows and 20 particles, K reflections a side. Both steps
are compiled, then timed in turn many times, so that whatever else the machine does falls on both.

    python benchmarks/step.py
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import jax
import numpy as np

from s2vgd import BNN, MLP, Batch, Structure, svgd, training
from s2vgd.likelihoods import Gaussian


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reflections", type=int, nargs="+", default=[0, 1, 4, 10])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--steps", type=int, default=50, help="steps in one timing")
    parser.add_argument("--out", type=Path, default=Path("results/step.json"))
    args = parser.parse_args()
    plain = prepare(Structure(0, None), args.steps)
    rows = []
    for k in args.reflections:
        structured = prepare(Structure(k), args.steps)
        pairs = np.array([(structured(), plain()) for _ in range(args.repeats)])
        ratios = pairs[:, 0] / pairs[:, 1]
        row = {
            "reflections": k,
            "ratio_median": float(np.median(ratios)),
            "ratio_quartiles": np.quantile(ratios, [0.25, 0.75]).tolist(),
            "ratio_of_fastest": float(pairs[:, 0].min() / pairs[:, 1].min()),
            "svgd_step_us": float(1e6 * pairs[:, 1].min() / args.steps),
        }
        rows.append(row)
        low, high = row["ratio_quartiles"]
        print(
            f"K={k:2d}  S2VGD/SVGD {row['ratio_median']:.2f} (quartiles {low:.2f}-{high:.2f}, "
            f"fastest {row['ratio_of_fastest']:.2f}); SVGD step {row['svgd_step_us']:.0f} us"
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
    args.out.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")


def prepare(structure: Structure, steps: int):
    """Return a function that runs some steps and returns their seconds."""
    rng = np.random.default_rng(0)
    batch = Batch(*(jax.numpy.asarray(rng.normal(size=(100, n)), "float32") for n in (13, 1)))
    bnn = BNN(MLP(13, (50,), 1), Gaussian(), structure)
    algorithm = svgd.build(
        lambda particle, batch: bnn.log_joint(particle, batch, 455.0), training.cosine_adam()
    )
    loop = jax.jit(
        lambda state, batch: jax.lax.fori_loop(
            0, steps, lambda _, state: algorithm.step(state, batch)[0], state
        )
    )
    start = algorithm.init(bnn.init_particles(jax.random.key(0), 20))
    jax.block_until_ready(loop(start, batch))

    def timed() -> float:
        began = time.perf_counter()
        jax.block_until_ready(loop(start, batch))
        return time.perf_counter() - began

    return timed


if __name__ == "__main__":
    main()
