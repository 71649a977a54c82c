"""The methods that S²VGD is compared with: one file each, found by its table ``METHODS``.

Every method is a callable that takes the settings of :class:`~s2vgd.baselines._base.Baseline` and
its own, and returns an object with ``fit(x, y)`` and ``predict_dist(x) -> Predictive``. To add one,
add a file here with ``METHODS = {"name": TheClass}``; every experiment then offers it by that name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

__all__ = ["methods"]


def methods() -> dict[str, Callable[..., Any]]:
    """Return every method of every file here, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_"):
            continue
        for name, method in importlib.import_module(f"{__name__}.{module.name}").METHODS.items():
            if name in found:
                raise ValueError(f"two files of {__name__} have a method named {name!r}")
            found[name] = method
    return found
