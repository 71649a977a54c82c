"""The figures on the page "How fast, and why", put there from the result files and by nothing else.

``python -m s2vgd.bench.page docs/speed.md results/bench`` replaces what stands between
``<!-- bench:NAME:begin -->`` and ``<!-- bench:NAME:end -->`` by the table of question NAME.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from s2vgd import files
from s2vgd.bench.records import Record
from s2vgd.bench.table import about, markdown_table

_BLOCK = re.compile(r"(<!-- bench:(\w+):begin -->\n).*?(<!-- bench:\2:end -->)", re.DOTALL)
_FIGURES = "figures"


def filled(text: str, results: Path) -> str:
    """Return the text with every block as the results have it."""
    return _BLOCK.sub(lambda found: found[1] + _content(found[2], results) + found[3], text)


def fill(page: Path, results: Path) -> None:
    """Rewrite a page, and copy the figures of the results beside it."""
    text = filled(page.read_text(encoding="utf-8"), results)
    for drawn in results.glob("*.svg"):
        if f"{_FIGURES}/bench_{drawn.name}" in text:
            target = page.parent / _FIGURES / f"bench_{drawn.name}"
            target.parent.mkdir(exist_ok=True)
            with files.replacing(target) as draft:
                draft.write_bytes(drawn.read_bytes())
    with files.replacing(page) as draft:
        draft.write_text(text, encoding="utf-8")


def _content(name: str, results: Path) -> str:
    path = results / f"{name}.json"
    if not path.exists():
        return f"Not run yet: `s2vgd bench {name}` measures it.\n"
    record = Record.read(path)
    parts = [about(record), "", markdown_table(record), ""]
    if (results / f"{name}.svg").exists():
        parts = [f"![Curves of {name}]({_FIGURES}/bench_{name}.svg)", "", *parts]
    return "\n".join(parts)


if __name__ == "__main__":
    fill(Path(sys.argv[1]), Path(sys.argv[2]))
