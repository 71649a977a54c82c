"""Weak and strong scaling of a step of SVGD over virtual devices: time, bytes sent, memory held.

The devices are threads of this machine's cores that JAX takes for devices, so the times show what
dividing the work costs and never what more hardware would gain: more devices than cores cannot be
faster. Bytes and memory are those that real devices would have, the bytes on paper
(`parallel.step_cost`) and the memory as the compiler reports it for one device.

    python benchmarks/scaling.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

DEVICES = (1, 2, 4, 8)
FEATURES, HIDDEN, ROWS = 64, 100, 128
STRONG, WEAK = 256, 32  # particles in all, particles a device
EXCHANGES = ("gather", "ring")
PLAIN = "none"  # the algorithm for one device, for comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15, help="timed steps")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="a directory")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measured(args.repeats)))
        return
    rows = [row for n in DEVICES for row in on_devices(n, args.repeats)]
    about = {
        "label": f"virtual devices on {len(os.sched_getaffinity(0))} cores",
        "load": os.getloadavg()[0],
        "network": f"{FEATURES}-{HIDDEN}-1, {ROWS} rows a step",
    }
    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": about, "rows": rows}, indent=1)
    (args.out / "scaling.json").write_text(text + "\n")
    draw(about["label"], rows, args.out / "scaling.svg")


def on_devices(n: int, repeats: int) -> list[dict]:
    """Measure in a process of its own: the number of devices is fixed when JAX starts."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={n}"
    command = [sys.executable, __file__, "--measure", "--repeats", str(repeats)]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout)
    for row in rows:
        print(
            f"{row['devices']} devices, {row['scaling']:6s} {row['exchange']:6s} "
            f"M = {row['particles']:4d}: {row['median_ms']:7.1f} ms a step, "
            f"{row['received_mb']:6.2f} MB received, {row['held_mb']:6.2f} MB held a device"
        )
    return rows


def measured(repeats: int) -> list[dict]:
    import jax
    import numpy as np
    import optax

    from s2vgd import BNN, MLP, Batch, parallel, svgd
    from s2vgd.likelihoods import Gaussian
    from s2vgd.structure import n_parameters

    n = jax.device_count()
    mesh = parallel.mesh(particles=n)
    bnn = BNN(MLP(FEATURES, (HIDDEN,), 1), Gaussian())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    batch = parallel.shard_rows(Batch(x, x[:, :1]), mesh)
    rows = []
    optimizer = optax.adam(1e-3)
    for scaling, m in (("strong", STRONG), ("weak", WEAK * n)):
        for exchange in (*EXCHANGES, PLAIN) if n == 1 else EXCHANGES:
            if exchange == PLAIN:
                algorithm = svgd.build(bnn.log_joint, optimizer)
            else:
                settings = {"mesh": mesh, "exchange": exchange}
                algorithm = parallel.build(bnn.log_joint, optimizer, **settings)
            particles = parallel.init_particles(bnn.init, jax.random.key(0), m, mesh)
            d = n_parameters(particles) // m
            state = algorithm.init(particles)
            step = jax.jit(algorithm.step, donate_argnums=0).lower(state, batch).compile()
            memory = step.memory_analysis()
            held = memory.argument_size_in_bytes + memory.temp_size_in_bytes
            times = []
            for _ in range(repeats + 1):
                began = time.perf_counter()
                state, info = step(state, batch)
                jax.block_until_ready((state, info))
                times.append(1e3 * (time.perf_counter() - began))
            quarter, median, three = np.quantile(times[1:], [0.25, 0.5, 0.75])
            rows.append(
                {
                    "scaling": scaling,
                    "exchange": exchange,
                    "devices": n,
                    "particles": m,
                    "parameters": d,
                    "median_ms": median,
                    "quartiles_ms": [quarter, three],
                    "received_mb": parallel.step_cost(m, d, mesh, exchange).received / 1e6,
                    "held_mb": held / 1e6,
                }
            )
    return rows


def draw(label: str, rows: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {
        "median_ms": "ms a step",
        "received_mb": "MB received, a device",
        "held_mb": "MB held, a device",
    }
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axis, (name, title) in zip(axes, panels.items(), strict=True):
        for scaling, line in (("strong", "-"), ("weak", "--")):
            for exchange, colour in zip(EXCHANGES, ("C0", "C1"), strict=True):
                chosen = [
                    row
                    for row in rows
                    if (row["scaling"], row["exchange"]) == (scaling, exchange) and row[name] > 0
                ]
                axis.plot(
                    [row["devices"] for row in chosen],
                    [row[name] for row in chosen],
                    f"{colour}o{line}",
                    label=f"{scaling}, {exchange}",
                )
        axis.set(xscale="log", yscale="log", xlabel="virtual devices", title=title)
        axis.set_xticks(DEVICES, [str(n) for n in DEVICES])
        axis.xaxis.minorticks_off()
    axes[0].legend(fontsize=8)
    figure.suptitle(f"{label}: {STRONG} particles in all (strong), {WEAK} a device (weak)")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
