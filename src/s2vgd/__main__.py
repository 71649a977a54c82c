"""``python -m s2vgd`` is the command ``s2vgd``."""

from __future__ import annotations

from s2vgd.cli import app

if __name__ == "__main__":
    app(prog_name="s2vgd")
