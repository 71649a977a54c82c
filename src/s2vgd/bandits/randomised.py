"""Randomised prior functions (Osband et al., 2018) for the particles of a Bayesian network.

Each particle's network is added to a random network of its own that never learns. Where there are
no data nothing pulls the sums together, so particles disagree about what they have not seen however
alike the learned parts become.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.bnn import BNN, Particle
from s2vgd.kernels import Block, Kernel, KernelResult

ANCHOR = "anchor"


@dataclass(frozen=True)
class RandomisedBNN(BNN):
    """A BNN whose particles carry a fixed network, ``outputs = network + scale * fixed network``.

    A particle has the additional part ``"anchor"``, the plain weights of the fixed network. It has
    no density, and whoever moves particles must leave it where it is (:func:`hold`).

    Parameters
    ----------
    anchor_scale : float
        Weight of the fixed network.
    """

    anchor_scale: float = 1.0

    def init(self, key: Array) -> Particle:
        """Draw one particle to start from, and its fixed network."""
        own, anchor = jax.random.split(key)
        return {**super().init(own), ANCHOR: self.network.init(anchor)}

    def outputs(self, particle: Particle, x: Any) -> Array:
        """Return the sum of the two networks, (B, O)."""
        fixed = self.network.apply(jax.lax.stop_gradient(particle[ANCHOR]), x)
        return super().outputs(particle, x) + self.anchor_scale * fixed


@dataclass(frozen=True)
class IgnoringAnchors:
    """A kernel that compares only what particles have learned.

    Parameters
    ----------
    kernel : Kernel
        Sees the columns of everything but the fixed networks.
    """

    kernel: Kernel

    def __call__(self, particles: Array, blocks: tuple[Block, ...], /) -> KernelResult:
        """Evaluate the kernel; fixed networks are not repelled."""
        # Leaves are in the order of their names, in which "anchor" is the first part.
        learned = [block for block in blocks if block.path.split("/")[0] != ANCHOR]
        start = learned[0].start
        local = tuple(Block(b.path, b.start - start, b.stop - start) for b in learned)
        at = self.kernel(particles[:, start:], local)
        still = jnp.zeros((len(particles), start), particles.dtype)
        return at._replace(repulsion=jnp.concatenate([still, at.repulsion], axis=1))


def hold(moved: Particle, before: Particle) -> Particle:
    """Return moved particles with their fixed networks as they were."""
    return {**moved, ANCHOR: before[ANCHOR]} if ANCHOR in before else moved
