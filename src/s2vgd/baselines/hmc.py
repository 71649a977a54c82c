"""Hamiltonian Monte Carlo from random starts, on all rows: slow, and as exact as it gets.

The samplers and their tuning are those of :mod:`s2vgd.refine`; what is different is that nothing
has searched for good places to start from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import jax

from s2vgd.baselines._base import Baseline, Problem
from s2vgd.baselines._density import check_prior, followed, log_joint, prior_of
from s2vgd.posterior import Posterior
from s2vgd.priors import check_count
from s2vgd.refine import Diagnostics, refine


@dataclass(kw_only=True)
class HMC(Baseline):
    """Hamiltonian Monte Carlo with 60 leapfrogs a step, as Neal (1996) did it for networks.

    Every gradient sees all rows; the settings `steps`, `batch_size` and `learning_rate` play no
    part.

    Parameters
    ----------
    prior : float or {"auto", "hierarchical"}
        Variance of all weights, or one a layer that is sampled as well, eq. (fullmode); "auto"
        is hierarchical for numbers and variance 1 for classes.
    chains : int
        Each from a start of its own: kernels from N(0, 1 / fan-in), biases zero.
    warmup : int
        Steps in which step size and metric are adapted; no draw is kept of them.
    draws : int
        Draws kept of each chain.
    thin : int
        Steps from one draw to the next.

    Attributes
    ----------
    diagnostics : Diagnostics or None
        After `fit`: how the chains did.
    """

    method: ClassVar[str] = "hmc"

    prior: float | str = 1.0
    chains: int = 4
    warmup: int = 500
    draws: int = 100
    thin: int = 5

    diagnostics: Diagnostics | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_prior(self.prior)
        for name in ("chains", "warmup", "draws", "thin"):
            check_count(name, getattr(self, name), 1)

    def _learn(self, problem: Problem, key: jax.Array) -> Posterior:
        start_key, chains_key = jax.random.split(key)
        bnn = problem.bnn(prior_of(self.prior, problem))
        refined = refine(
            log_joint(bnn, float(len(problem.data.x))),
            bnn.init_particles(start_key, self.chains),
            problem.data,
            key=chains_key,
            method=self.method,
            warmup=self.warmup,
            draws=self.draws,
            thin=self.thin,
            predict=followed(bnn),
            progress=self.progress,
            description=self.method,
        )
        self.diagnostics = refined.diagnostics
        return Posterior.from_chains(bnn, refined.draws)


@dataclass(kw_only=True)
class NUTS(HMC):
    """The no-U-turn sampler (Hoffman and Gelman, 2014); parameters are those of :class:`HMC`."""

    method: ClassVar[str] = "nuts"

    thin: int = 2


METHODS = {"hmc": HMC, "nuts": NUTS}
