"""Markov chains on a log density, many at a time: MCLMC, HMC, NUTS and SGHMC.

One file a sampler. In each, one chain a particle, all in one compiled program, each chain tuned by
itself, the density's data passed in as arguments so that nothing is compiled twice. Integrators and
transition kernels are BlackJAX's where it has them. Where the chains start and what is made of
their draws is the business of :mod:`s2vgd.refine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from s2vgd.samplers._chains import Chains
from s2vgd.samplers._mclmc import mclmc
from s2vgd.samplers._sghmc import sghmc

if TYPE_CHECKING:
    from s2vgd.samplers._adjusted import hmc, nuts

__all__ = ["Chains", "hmc", "mclmc", "nuts", "sghmc"]


def __getattr__(name: str) -> Any:
    # Loaded when they are wanted: BlackJAX takes a while, and only these two need it.
    if name not in ("hmc", "nuts"):
        raise AttributeError(f"module 's2vgd.samplers' has no attribute {name!r}")
    from s2vgd.samplers import _adjusted

    return getattr(_adjusted, name)
