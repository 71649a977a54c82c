"""The time of a decision: Stein Thompson sampling behind an application, warm, one call at a time.

20 particles, 50 hidden units, 20 arms and 10 features. The agent alone is the compiled choice; the
others are `SteinThompson.decide` with its log in memory, in a file, in a file that is synced to the
disk at each decision, and in a file while another thread learns without a pause. They take turns in
blocks, so that whatever else the machine does falls on all of them.

    python benchmarks/decide.py
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import jax
import numpy as np

from s2vgd.bandits.live import SteinThompson

SETTINGS = "particles", "hidden", "arms", "features", "inline"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--particles", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=50)
    parser.add_argument("--arms", type=int, default=20)
    parser.add_argument("--features", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=10, help="blocks of each kind")
    parser.add_argument("--decisions", type=int, default=200, help="decisions in a block")
    parser.add_argument(
        "--inline", action="store_true", help="run programs in the thread that calls them"
    )
    parser.add_argument("--out", type=Path, default=Path("results/decide.json"))
    args = parser.parse_args()
    if args.inline:
        jax.config.update("jax_cpu_enable_async_dispatch", False)

    contexts = np.random.default_rng(0).normal(size=(args.decisions, args.features))
    contexts = contexts.astype(np.float32)
    # In the working directory: the usual place of temporary files may be no disk.
    with tempfile.TemporaryDirectory(dir=".") as directory:
        kinds = prepare(args, Path(directory), contexts)
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(args.repeats):
            for kind, timed in kinds.items():
                seconds[kind] += timed()
    rows = []
    for kind, times in seconds.items():
        median, tail = np.quantile(times, [0.5, 0.99]) * 1e6
        row = {"kind": kind, "decisions": len(times), "median_us": median, "p99_us": tail}
        rows.append(row)
        print(
            f"{kind:28s} median {median:7.0f} us   99 % {tail:7.0f} us   ({len(times)} decisions)"
        )
    about = {
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
    settings = {name: getattr(args, name) for name in SETTINGS}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": about, "settings": settings, "rows": rows}, indent=1)
    args.out.write_text(text + "\n")


def prepare(args: argparse.Namespace, directory: Path, contexts: np.ndarray):
    """Return, by name, functions that time a block of decisions, in seconds each."""

    def make(name: str | None, durable: bool = False) -> SteinThompson:
        return SteinThompson(
            n_actions=args.arms,
            context_dim=args.features,
            hidden=(args.hidden,),
            particles=args.particles,
            log=name and directory / name,
            durable=durable,
        ).compile()

    def times(decide) -> list[float]:
        taken = []
        for context in contexts:
            began = time.perf_counter()
            decide(context)
            taken.append(time.perf_counter() - began)
        return taken

    memory, file, synced, learning = (
        make(None),
        make("usual.db"),
        make("durable.db", durable=True),
        make("learning.db"),
    )
    others = np.zeros((args.arms, 0), np.float32), np.ones(args.arms, bool)

    def alone(context: np.ndarray) -> None:
        memory._learner.choose(memory._pupil.held, 0, (context, *others))

    def while_learning() -> list[float]:
        done = threading.Event()
        waiting = [learning.decide(context).id for context in contexts]

        def learn() -> None:
            for decision_id in waiting:
                if not done.is_set():
                    learning.reward(decision_id, 1.0)
                    learning.update()

        thread = threading.Thread(target=learn)
        thread.start()
        try:
            return times(learning.decide)
        finally:
            done.set()
            thread.join()

    return {
        "the agent alone": lambda: times(alone),
        "log in memory": lambda: times(memory.decide),
        "log": lambda: times(file.decide),
        "durable log": lambda: times(synced.decide),
        "log, while it learns": while_learning,
    }


if __name__ == "__main__":
    main()
