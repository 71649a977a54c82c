"""Noise of two kinds in one model: free to depend on the input, or tied to one size for all rows.

Both are networks with two outputs a target, the second of which moves the noise off its level. In
a particle whose noise is tied that output is taken to be zero; :func:`frozen` makes it zero by the
weights, and from then on the two kinds are alike. How many particles are to be tied is decided in
:mod:`s2vgd.estimators._trials`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from s2vgd.bnn import BNN, Batch
from s2vgd.networks import Network
from s2vgd.structure import StructuredWeight, materialise, unstructured


class Rows(NamedTuple):
    """What a particle is scored on.

    Parameters
    ----------
    batch : Batch
        The rows.
    tied : array of bool, shape (B,), optional
        Whether the noise is tied. It is said row by row, as data, so that tied and free particles
        run the same compiled program. Absent where the question does not arise.
    """

    batch: Batch
    tied: np.ndarray | None = None

    @classmethod
    def of(cls, batch: Batch, tied: bool | None) -> Rows:
        """Say the same of all rows."""
        return cls(batch, None if tied is None else np.full(len(batch.x), tied))

    def model(self, bnn: BNN) -> BNN:
        """Return the model that scores these rows."""
        if self.tied is None:
            return bnn
        return dataclasses.replace(bnn, network=_TiedNoise(bnn.network, self))


class _TiedNoise(NamedTuple):
    """A network whose outputs for the noise are zero for tied rows."""

    network: Network
    rows: Rows

    def init(self, key: jax.Array) -> Any:
        return self.network.init(key)

    def apply(self, weights: Any, x: jax.Array) -> jax.Array:
        loc, moved = jnp.split(self.network.apply(weights, x), 2, axis=-1)
        tied = jnp.asarray(self.rows.tied)[:, None]
        return jnp.concatenate([loc, jnp.where(tied, 0.0, moved)], axis=-1)


@jax.jit
def frozen(particles: Any) -> Any:
    """Return particles, leaves (S, ...), whose noise no longer depends on the input."""

    def one(particle: Any) -> Any:
        *hidden, last = particle["weights"]
        plain = materialise(last)
        n_targets = len(plain["bias"]) // 2
        kernel = plain["kernel"].at[:, n_targets:].set(0.0)
        bias = plain["bias"].at[n_targets:].set(0.0)
        if isinstance(last["kernel"], StructuredWeight):
            kernel = unstructured(kernel, last["kernel"])
        return {**particle, "weights": (*hidden, {"kernel": kernel, "bias": bias})}

    return jax.vmap(one)(particles)
