"""Tasks as pure functions: the three of the paper and four that everybody knows."""

from s2vgd.control.environments.base import (
    Box,
    Discrete,
    Environment,
    Params,
    Step,
    auto_reset,
    restart,
)
from s2vgd.control.environments.catalogue import make, names

__all__ = [
    "Box",
    "Discrete",
    "Environment",
    "Params",
    "Step",
    "auto_reset",
    "make",
    "names",
    "restart",
]
