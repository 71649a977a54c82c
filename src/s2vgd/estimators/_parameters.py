"""Parameters of the estimators: what they may be, and how they are written to a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np

from s2vgd.networks import ACTIVATIONS

PRODUCTS = {"float32": "highest", "tf32": "default", "bfloat16": "BF16_BF16_F32"}
"""How JAX calls the ways in which a GPU may round the factors of products."""
REFINEMENTS = ("auto", "mclmc", "hmc", "nuts", "sghmc", None)


def check_parameters(estimator: Any) -> None:
    """Raise ValueError, naming the parameter, unless all of an estimator's can be used."""
    check_integer("particles", estimator.particles, 1)
    check_integer("reflections", estimator.reflections, 0)
    if isinstance(estimator.hidden, str) or not isinstance(estimator.hidden, Iterable):
        raise ValueError(f"hidden must be a sequence of layer widths, got {estimator.hidden!r}")
    for i, width in enumerate(estimator.hidden):
        check_integer(f"hidden[{i}]", width, 1)
    for name in ("chains", "warmup", "draws", "thin"):
        if getattr(estimator, name) is not None:
            check_integer(name, getattr(estimator, name), 1)
    if estimator.steps is not None and estimator.steps != "auto":
        check_integer("steps", estimator.steps, 1)
    if estimator.batch_size is not None and estimator.batch_size != "auto":
        check_integer("batch_size", estimator.batch_size, 1)
    rate = estimator.learning_rate
    if not isinstance(rate, Real) or not 0 < float(rate) < np.inf:
        raise ValueError(f"learning_rate must be a positive number, got {rate!r}")
    if estimator.refine not in REFINEMENTS:
        raise ValueError(f"refine must be one of {REFINEMENTS}, got {estimator.refine!r}")
    if estimator.activation not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {list(ACTIVATIONS)}, got {estimator.activation!r}"
        )
    if estimator.dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be 'float32' or 'float64', got {estimator.dtype!r}")
    if estimator.products not in PRODUCTS:
        raise ValueError(f"products must be one of {list(PRODUCTS)}, got {estimator.products!r}")
    if estimator.products != "float32" and estimator.dtype != "float32":
        raise ValueError(f"products={estimator.products!r} needs dtype='float32'")
    prior = estimator.prior
    if prior not in ("auto", "hierarchical") and not (isinstance(prior, Real) and float(prior) > 0):
        raise ValueError(
            f"prior must be 'auto', 'hierarchical' or a positive variance, got {prior!r}"
        )


def check_integer(name: str, value: Any, least: int) -> None:
    """Raise ValueError unless a value is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def jsonable(parameters: dict[str, Any]) -> dict[str, Any]:
    """Write parameters as JSON; a generator is not a parameter of the fitted model any more."""
    out = {}
    for name, value in parameters.items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, tuple | list):
            value = [item.item() if isinstance(item, np.generic) else item for item in value]
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, np.random.RandomState):
            warnings.warn("random_state is saved as None: generators are not saved", stacklevel=3)
            value = None
        out[name] = value
    return out
