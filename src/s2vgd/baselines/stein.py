"""SVGD and S²VGD on minibatches, without refinement: the paper's own method among its rivals.

Made for the large experiments, MNIST and Covertype; tables of data are better served by the
estimators, which choose more by themselves and refine what SVGD found.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import optax

from s2vgd import svgd
from s2vgd.baselines._base import PLAIN, Baseline, Problem
from s2vgd.baselines._density import check_prior, log_joint, prior_of
from s2vgd.bnn import BNN
from s2vgd.posterior import Posterior
from s2vgd.priors import check_count
from s2vgd.structure import Scales, Structure
from s2vgd.training import cosine_adam, train


@dataclass(kw_only=True)
class SVGD(Baseline):
    """Stein variational gradient descent on plain weights (Liu and Wang, 2016), with Adam.

    Parameters
    ----------
    particles : int
        M, the number of networks.
    prior : float or {"auto", "hierarchical"}
        Variance of all weights, or one a layer that is learned as well, eq. (fullmode); "auto"
        is hierarchical for numbers and variance 1 for classes.
    """

    particles: int = 20
    prior: float | str = "auto"

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_count("particles", self.particles, 1)
        check_prior(self.prior)

    def _learn(self, problem: Problem, key: jax.Array) -> Posterior:
        start_key, order_key = jax.random.split(key)
        bnn = problem.bnn(prior_of(self.prior, problem), self._structure())
        optimizer = cosine_adam(self.learning_rate, self.steps)
        algorithm = _algorithm(bnn, float(len(problem.data.x)), optimizer)
        result = train(
            algorithm,
            algorithm.init(bnn.init_particles(start_key, self.particles)),
            problem.data,
            key=order_key,
            steps=self.steps,
            batch_size=self.batch_size,
            progress=self.progress,
        )
        return Posterior(bnn, result.state.particles, self.particles)

    def _structure(self) -> Structure:
        return PLAIN


@dataclass(kw_only=True)
class S2VGD(SVGD):
    """Structured SVGD: every kernel is W = P Λ1 C Λ2 Qᵀ (proposition "reparameterization").

    Parameters
    ----------
    reflections : int
        K, the number of Householder reflections on each side.
    scales : {"lognormal", "gaussian"} or None
        How Λ1 and Λ2 are parameterised; None leaves them out.
    """

    reflections: int = 1
    scales: Scales | None = "lognormal"

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        self._structure()

    def _structure(self) -> Structure:
        return Structure(self.reflections, self.scales)


@functools.lru_cache(maxsize=64)
def _algorithm(bnn: BNN, n_total: float, optimizer: optax.GradientTransformation) -> svgd.Algorithm:
    return svgd.build(log_joint(bnn, n_total), optimizer)


METHODS = {"svgd": SVGD, "s2vgd": S2VGD}
