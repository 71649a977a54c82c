"""What a question of the benchmark answers: rows of ratios, in one JSON file a question.

A row says what was compared on which case, the ratio with its spread, both sides in their own unit,
and which way is better; a row that could not be measured says why in place of the ratio. A record
is the rows of a question with the machine, the versions, the revision and the load they were
measured under. How things are timed is in :mod:`s2vgd.bench.timing`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from s2vgd.bench.timing import Spread
from s2vgd.errors import DataError

Better = Literal["higher", "lower"]

PEERS = (
    *("torch", "numpyro", "blackjax", "ngboost", "vowpalwabbit", "gymnasium", "scikit-learn"),
    *("jax", "jaxlib", "optax", "numpy", "scipy"),
)


@dataclass(frozen=True)
class Row:
    """One comparison, or one number that has nothing to be compared with.

    Parameters
    ----------
    case : str
        What was done, such as ``"13-50-1, M = 20"``.
    against : str
        The peer, or what our own number is compared with; "" for a number by itself.
    ratio : Spread, optional
        Over the rounds. Which way round it is, is said by `better`.
    better : {"higher", "lower"}
        Whether a higher or a lower ratio (number) is good for us.
    ours, theirs : Spread, optional
        The two sides, in `unit`.
    unit : str
        Such as ``"µs a step"``.
    target : float, optional
        What the ratio, or without one our number, should reach.
    note : str
        What a reader must know; for a row without numbers, why it was not run.
    """

    case: str
    against: str = ""
    ratio: Spread | None = None
    better: Better = "higher"
    ours: Spread | None = None
    theirs: Spread | None = None
    unit: str = ""
    target: float | None = None
    note: str = ""

    @property
    def name(self) -> tuple[str, str]:
        """What the row is found by in another record of the same question."""
        return self.case, self.against

    @property
    def measured(self) -> Spread | None:
        """The ratio, or the number that stands by itself."""
        return self.ratio if self.ratio is not None else (self.ours if not self.against else None)

    @property
    def reaches_target(self) -> bool | None:
        """Whether the median is as good as the target; None without the one or the other."""
        if self.target is None or self.measured is None:
            return None
        if self.better == "higher":
            return self.measured.median >= self.target
        return self.measured.median <= self.target

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Row:
        """Return the row that `Record.write` wrote."""
        spreads = {name: Spread.read(found.get(name)) for name in ("ratio", "ours", "theirs")}
        return cls(**{**found, **spreads})


def not_run(case: str, against: str, reason: str) -> Row:
    """Return the row of what could not be measured."""
    return Row(case, against, note=f"not run: {reason}")


def missing(*packages: str) -> str | None:
    """Return why peers cannot run if one of these packages is not installed, else None."""
    absent = [name for name in packages if _version(name) is None]
    return f"package missing: {', '.join(absent)}" if absent else None


@dataclass
class Record:
    """The rows of one question and under which circumstances they were measured.

    Parameters
    ----------
    question : str
        Its name, and that of its file.
    quick : bool
        Whether it was run in small, in which case the figures mean little.
    rows : list of Row
        In the order in which they are shown.
    about : dict
        Machine, versions, revision, load.
    extra : dict
        Anything else that JSON holds: curves, settings.
    """

    question: str
    quick: bool
    rows: list[Row] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def write(self, directory: Path) -> Path:
        """Write ``<question>.json``, at once or not at all; the directory is made."""
        from s2vgd import files

        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.question}.json"
        text = json.dumps(_rounded(dataclasses.asdict(self)), indent=1, ensure_ascii=False)
        with files.replacing(path) as draft:
            draft.write_text(text + "\n", encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read what `write` wrote."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            rows = [Row.read(row) for row in found.pop("rows")]
            return cls(**found, rows=rows)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path} is not a file of 's2vgd bench': {error}") from None


def circumstances(revision: str | None = None) -> dict[str, Any]:
    """Describe the machine (without naming it), the versions, the revision and the load."""
    from s2vgd.experiments import measure

    found = {name: _version(name) for name in PEERS}
    return {
        "device": measure.device() | {"memory_gb": memory_bytes() / 1e9, "processor": _processor()},
        "versions": {"python": platform.python_version()}
        | {name: version for name, version in found.items() if version},
        "revision": revision or measure.revision(),
        "load_before": os.getloadavg()[0],
    }


def memory_bytes() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return platform.processor() or "unknown"


def _rounded(value: Any) -> Any:
    """Round floats to five digits, which is more than any timing has; infinities become texts."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
