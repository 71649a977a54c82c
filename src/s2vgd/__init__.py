"""Structured Stein variational gradient descent: networks that know what they do not know.

The names below are loaded when they are first used, so that ``import s2vgd`` and the command line
are quick; the modules of the method (`structure`, `svgd`, `bnn`, ...) are imported by their names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from s2vgd.bnn import BNN, Batch
    from s2vgd.estimators import S2VGDClassifier, S2VGDRegressor
    from s2vgd.networks import MLP
    from s2vgd.posterior import Posterior
    from s2vgd.predictive import Predictive
    from s2vgd.structure import Structure

_HOMES = {
    "BNN": "bnn",
    "Batch": "bnn",
    "MLP": "networks",
    "Posterior": "posterior",
    "Predictive": "predictive",
    "S2VGDClassifier": "estimators",
    "S2VGDRegressor": "estimators",
    "Structure": "structure",
}

__all__ = [
    "BNN",
    "MLP",
    "Batch",
    "Posterior",
    "Predictive",
    "S2VGDClassifier",
    "S2VGDRegressor",
    "Structure",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 's2vgd' has no attribute {name!r}")
    return getattr(importlib.import_module(f"s2vgd.{_HOMES[name]}"), name)
