"""How well rewards seen so far cover what is asked: the width of a linear confidence bound.

A network that has hardly seen an action in some context may still be sure of it. A regression that
is linear in the features knows exactly how much its rows say about a context, whatever their
rewards were: that is LinUCB's width, here without LinUCB's opinion of the mean. The arithmetic is
in :mod:`s2vgd.bandits.regression`, and what is done with the width in :mod:`s2vgd.bandits.stein`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from s2vgd.bandits import regression
from s2vgd.bandits.contexts import Context
from s2vgd.bandits.heads import Head, Row
from s2vgd.bandits.regression import Ridge

RIDGE = 1.0
"""What counts as one row of each feature, seen before the first."""


def empty(head: Head) -> Ridge:
    """Return what is covered before anything was seen.

    There is a regression for each action where actions are outputs of the network, and one for all
    of them where they are inputs.
    """
    return regression.empty(_regressions(head), head.network.n_inputs + 1, RIDGE)


def add(covered: Ridge, head: Head, row: Row) -> Ridge:
    """Return what is covered once a row was seen."""
    which = row.action if _regressions(head) > 1 else jnp.zeros_like(row.action)
    return regression.add(covered, which, _with_one(row.features[None])[0], row.reward)


def width(covered: Ridge, head: Head, context: Context) -> Array:
    """Return ``sqrt(xᵀ A⁻¹ x)`` for each action, (A,).

    Here x is [1, features] and A the identity and the sum of ``x xᵀ`` over the rows that were seen.
    """
    rows = _with_one(head.candidates(context).features)
    asked = jnp.broadcast_to(rows, (head.n_actions, rows.shape[1]))
    return jnp.sqrt(regression.estimate(covered, asked).leverage)


def _regressions(head: Head) -> int:
    return head.n_actions if head.view == "outputs" else 1


def _with_one(rows: Array) -> Array:
    return jnp.concatenate([jnp.ones((len(rows), 1), rows.dtype), rows], axis=1)
