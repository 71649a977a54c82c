"""Environments by name, with their settings checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from s2vgd.control.environments import cart, classic, double_pendulum, mechanics
from s2vgd.control.environments.base import Environment
from s2vgd.priors import check_count, check_positive

_BUILDERS: dict[str, Callable[..., Environment]] = {
    "cartpole": cart.cartpole,
    "swing-up": cart.swing_up,
    "double-pendulum": double_pendulum.double_pendulum,
    "cartpole-v1": classic.cartpole_v1,
    "pendulum": classic.pendulum,
    "acrobot": classic.acrobot,
    "mountain-car": classic.mountain_car,
}
_CHOICES = {"integrator": mechanics.INTEGRATORS, "tip": double_pendulum.TIPS}


def names() -> tuple[str, ...]:
    """Return the names that `make` knows: the three tasks of the paper, then four classics."""
    return tuple(_BUILDERS)


def make(name: str, **settings: Any) -> Environment:
    """Return an environment by its name.

    Parameters
    ----------
    name : str
        One of `names`.
    **settings
        Constants that shall differ from the defaults, by the names of the fields of the
        environment's parameters: ``max_steps`` of all; ``integrator``, ``substeps``, masses and
        so on of the first three; ``tip`` of the double pendulum.

    Returns
    -------
    environment : Environment
        Equal to any other with the same name and settings, so that nothing compiles twice.

    Raises
    ------
    ValueError
        If there is no such environment or setting, or the value cannot be.
    """
    if name not in _BUILDERS:
        raise ValueError(f"name must be one of {', '.join(names())}, got {name!r}")
    defaults = _BUILDERS[name]().params
    known = {field.name: getattr(defaults, field.name) for field in dataclasses.fields(defaults)}
    for setting, value in settings.items():
        if setting not in known:
            raise ValueError(f"{name} has no setting {setting!r}; it has {', '.join(known)}")
        _check(setting, value, known[setting])
    return _BUILDERS[name](**settings)


def _check(setting: str, value: object, default: object) -> None:
    """Raise unless a setting can be what its default is: a choice, a count, or a constant."""
    if setting in _CHOICES:
        if value not in _CHOICES[setting]:
            raise ValueError(f"{setting} must be one of {_CHOICES[setting]}, got {value!r}")
    elif isinstance(default, int):
        check_count(setting, value, 1)
    elif isinstance(default, float) and default > 0:
        check_positive(setting, value)
    elif not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{setting} must be a finite number, got {value!r}")
