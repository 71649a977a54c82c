"""What an agent is shown before it decides, and how large that is.

A context has features that all actions share (a user), features of each action (articles), or both,
and says which actions may be taken now. The number of actions is fixed, as compiled programs need
it to be; arms that come and go are slots that are available or not. How an agent turns a context
into rows for its model is in :mod:`s2vgd.bandits.heads` and :mod:`s2vgd.bandits.linear`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd.errors import DataError
from s2vgd.priors import check_count


class ContextShape(NamedTuple):
    """The sizes of a context; hashable, so that what is built for one is found again.

    Parameters
    ----------
    actions : int
        A, the number of actions, or of slots for them.
    shared : int
        F, the number of features that all actions share; 0 for none.
    per_action : int
        G, the number of features of each action; 0 for none.
    """

    actions: int
    shared: int = 0
    per_action: int = 0

    def check(self) -> ContextShape:
        """Return the shape, or say what is impossible about it."""
        for name, least in (("actions", 1), ("shared", 0), ("per_action", 0)):
            check_count(name, getattr(self, name), least)
        return self


class Context(NamedTuple):
    """What is known when an action is to be chosen; use :func:`make_context` to build one.

    Attributes
    ----------
    shared : Array, shape (F,)
        Features that all actions share; F may be 0.
    actions : Array, shape (A, G)
        Features of each action; G may be 0. Rows of actions that are not available are never
        learned from, and may hold anything finite.
    available : Array of bool, shape (A,)
        Which actions may be taken; at least one.
    """

    shared: Array
    actions: Array
    available: Array


def make_context(
    shape: ContextShape,
    shared: Any = None,
    actions: Any = None,
    available: Sequence[bool] | Any = None,
) -> Context:
    """Build a context from whatever NumPy can read, and check it.

    Parameters
    ----------
    shape : ContextShape
        The sizes that the agent was built for.
    shared : array-like, shape (F,)
        May be left out where F is 0.
    actions : array-like, shape (A, G)
        May be left out where G is 0.
    available : array-like of bool, shape (A,)
        All actions by default.

    Raises
    ------
    DataError
        If a part has another shape, is not finite, or no action is available.
    """
    return Context(*map(jnp.asarray, checked_parts(shape, shared, actions, available)))


def checked_parts(
    shape: ContextShape, shared: Any, actions: Any, available: Any, name: str = "shared"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the parts of a context as NumPy has them, which no device has to be waited for.

    Parameters are those of :func:`make_context`; `name` is what its caller calls `shared`.
    """
    features = _floats(name, shared, (shape.shared,))
    own = _floats("actions", actions, (shape.actions, shape.per_action))
    mask = np.ones(shape.actions, bool) if available is None else np.asarray(available)
    if mask.shape != (shape.actions,) or mask.dtype != bool:
        raise DataError(
            f"available must be {shape.actions} booleans, got {mask.dtype} of shape {mask.shape}"
        )
    if not mask.any():
        raise DataError("available must allow at least one action, got none")
    return features, own, mask


def always(shape: ContextShape, shared: Array) -> Context:
    """Return the context of shared features (F,) alone, with every action available."""
    return Context(
        shared, jnp.zeros((shape.actions, 0), shared.dtype), jnp.ones(shape.actions, bool)
    )


def joint_features(context: Context) -> Array:
    """Return [shared, action features] of every action, (A, F + G)."""
    n_actions = len(context.available)
    shared = jnp.broadcast_to(context.shared, (n_actions, len(context.shared)))
    return jnp.concatenate([shared, context.actions], axis=1)


def _floats(name: str, given: Any, shape: tuple[int, ...]) -> np.ndarray:
    if given is None and 0 in shape:
        return np.zeros(shape, np.float32)
    try:
        with np.errstate(over="ignore"):  # infinite, and refused as such below
            values = np.asarray(given, np.float32)
    except (TypeError, ValueError):
        raise DataError(f"{name} must be numbers, got {given!r}") from None
    if given is None or values.shape != shape:
        got = "nothing" if given is None else f"shape {values.shape}"
        raise DataError(f"{name} must have shape {shape}, got {got}")
    finite = np.isfinite(values)
    if not finite.all():
        raise DataError(f"{name} must be finite in single precision, got {values[~finite][0]}")
    return values
