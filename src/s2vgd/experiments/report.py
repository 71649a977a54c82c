"""A report as one HTML file: text, tables and inline figures, and no request to anywhere.

Pages are readable without scripts, in light and dark, on paper and on a telephone. What they say is
the experiments' affair.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

_CSS = """
:root { color-scheme: light dark; --ink: #24292f; --soft: #57606a; --line: #d0d7de;
        --ground: #ffffff; --raised: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --ground: #0d1117; --raised: #161b22; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; color: var(--ink);
       background: var(--ground); font: 1rem/1.6 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 0.5rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 0.5rem; padding-top: 0.75rem;
     border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.25rem 0 0; }
p, li { max-width: 46rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
caption { text-align: left; color: var(--soft); padding-bottom: 0.5rem; }
th, td { padding: 0.35rem 1.1rem 0.35rem 0; text-align: left; border-bottom: 1px solid var(--line);
         white-space: nowrap; }
td.number, th.number { text-align: right; }
figure { margin: 1rem 0; }
figure svg { display: block; width: 100%; height: auto; min-width: 34rem; }
figure img { display: block; max-width: 100%; height: auto; }
figcaption { color: var(--soft); max-width: 46rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.15rem 1.25rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
code { background: var(--raised); padding: 0.1rem 0.3rem; border-radius: 0.25rem; }
"""


def page(title: str, body: Iterable[str]) -> str:
    """Return a whole page from pieces of HTML."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{_CSS}</style></head>",
            f"<body><h1>{escape(title)}</h1>",
            *body,
            "</body></html>",
            "",
        ]
    )


def heading(text: str) -> str:
    """Return the heading of a section."""
    return f"<h2>{escape(text)}</h2>"


def subheading(text: str) -> str:
    """Return the heading of a part of a section."""
    return f"<h3>{escape(text)}</h3>"


def paragraph(text: str) -> str:
    """Return a paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def bullets(items: Iterable[str]) -> str:
    """Return a list of plain texts."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names and values, as what was run on what."""
    rows = (f"<dt>{escape(k)}</dt><dd><code>{escape(v)}</code></dd>" for k, v in pairs)
    return "<dl>" + "".join(rows) + "</dl>"


def table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1
) -> str:
    """Return a table whose first `texts` columns are words and the others numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = ["" if i < texts else ' class="number"' for i in range(len(cells))]
        inner = (f"<{tag}{kind}>{escape(c)}</{tag}>" for kind, c in zip(kinds, cells, strict=True))
        return "<tr>" + "".join(inner) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>'
        f"<thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table></div>"
    )


def figure(svg: str, caption: str) -> str:
    """Return an inline SVG figure (trusted markup) with its caption (plain text)."""
    drawn = svg.replace("<svg ", '<svg role="img" ', 1)
    words = f"<figcaption>{escape(caption)}</figcaption>"
    return f'<figure><div class="scroll">{drawn}</div>{words}</figure>'


def film(gif: bytes, text: str, caption: str) -> str:
    """Return a GIF as part of the page itself, with words for those who do not see it."""
    source = f"data:image/gif;base64,{base64.b64encode(gif).decode('ascii')}"
    words = f"<figcaption>{escape(caption)}</figcaption>"
    return f'<figure><img src="{source}" alt="{escape(text)}">{words}</figure>'


def write(path: Path, text: str) -> None:
    """Write a text file in one instant: a reader finds the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".s2vgd-{secrets.token_hex(8)}.tmp"
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
