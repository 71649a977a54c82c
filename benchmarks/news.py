"""Events a second of ``s2vgd news convert``, on simulated files in the format of Yahoo! Today.

The files are simulated first, and not timed. Each way of storing them is converted several times;
the median is what counts. "shuffled" has the articles of every line in another order, so that no
line ends as the one before it: the worst case, which the real log is not.

    python benchmarks/news.py
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow

from s2vgd.bandits.news.parquet import convert
from s2vgd.bandits.news.simulated import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/news.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        files = {
            "gzip": simulate(work / "gzip", args.events, 2, 0),
            "plain": simulate(work / "plain", args.events, 2, 0, compress=False),
        }
        files["shuffled"] = shuffled(files["plain"], work / "shuffled")
        files["shuffled gzip"] = shuffled(files["plain"], work / "shuffled gzip", compress=True)
        rows = [measure(name, paths, work, args.repeats) for name, paths in files.items()]
    about = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": pyarrow.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
    text = json.dumps({"machine": about, "simulated": True, "rows": rows}, indent=1)
    print(text)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text + "\n")


def measure(name: str, paths: list[Path], work: Path, repeats: int) -> dict[str, object]:
    """Convert the files several times."""
    seconds, processor_seconds = [], []
    for _ in range(repeats):
        began = time.perf_counter(), time.process_time()
        summary = convert(paths, work / "news.parquet")
        seconds.append(time.perf_counter() - began[0])
        processor_seconds.append(time.process_time() - began[1])
    return {
        "files": name,
        "events": summary.events,
        "megabytes": sum(path.stat().st_size for path in paths) / 1e6,
        "events_per_second": summary.events / float(np.median(seconds)),
        "fastest": summary.events / min(seconds),
        "events_per_processor_second": summary.events / float(np.median(processor_seconds)),
    }


def shuffled(paths: list[Path], directory: Path, *, compress: bool = False) -> list[Path]:
    """Write the files again with the articles of each line in a random order."""
    rng = np.random.default_rng(0)
    directory.mkdir()
    for path in paths:
        to = directory / path.name
        # The level of the simulated files.
        with open(path) as lines, gzip.open(to, "wt", 3) if compress else open(to, "w") as out:
            for line in lines:
                head, user, *articles = line.rstrip("\n").split("|")
                rng.shuffle(articles)
                pool = " |".join(article.strip() for article in articles)
                out.write(f"{head}|{user}|{pool}\n")
    return sorted(directory.iterdir())


if __name__ == "__main__":
    main()
