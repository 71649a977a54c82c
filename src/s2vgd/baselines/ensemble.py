"""Deep ensembles: networks trained alike from different starts, their predictions mixed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax

from s2vgd.baselines._base import Baseline, Problem
from s2vgd.baselines._descent import side_by_side, to_the_mode
from s2vgd.likelihoods import Categorical, HeteroscedasticGaussian
from s2vgd.posterior import Posterior
from s2vgd.priors import FixedPrior, check_count, check_positive
from s2vgd.training import cosine_adam, train


@dataclass(kw_only=True)
class DeepEnsemble(Baseline):
    """A deep ensemble (Lakshminarayanan et al., 2017), with noise of one size a member.

    The members differ by their first weights and by the order in which they see the rows, and are
    trained in one loop with Adam and cosine decay. The adversarial training of the original is left
    out, as it is by nearly everybody since.

    Parameters
    ----------
    members : int
        M, the number of networks.
    prior_variance : float
        Of the Gaussian prior on all weights and biases of a member: weight decay.
    """

    members: int = 5
    prior_variance: float = 1.0

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_count("members", self.members, 1)
        check_positive("prior_variance", self.prior_variance)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size, 1)

    def _learn(self, problem: Problem, key: jax.Array) -> Posterior:
        start_key, run_key = jax.random.split(key)
        n_rows = len(problem.data.x)
        bnn = problem.bnn(FixedPrior(self.prior_variance))
        one = to_the_mode(bnn, float(n_rows), cosine_adam(self.learning_rate, self.steps))
        algorithm = side_by_side(one, self.batch_size)
        result = train(
            algorithm,
            algorithm.init(bnn.init_particles(start_key, self.members), run_key, n_rows),
            problem.data,
            key=run_key,
            steps=self.steps,
            progress=self.progress,
        )
        return Posterior(bnn, result.state.particles, self.members)


@dataclass(kw_only=True)
class DeepEnsembleInput(DeepEnsemble):
    """A deep ensemble whose members also predict the size of the noise, as in the original.

    For numbers only: classes have no noise to predict.
    """

    def _learn(self, problem: Problem, key: jax.Array) -> Posterior:
        if isinstance(problem.likelihood, Categorical):
            raise ValueError("y must be real numbers for noise that depends on the input")
        likelihood = HeteroscedasticGaussian(gain=1.0)
        network = dataclasses.replace(problem.network, n_outputs=likelihood.n_outputs(1))
        return super()._learn(problem._replace(likelihood=likelihood, network=network), key)


METHODS = {"deep_ensemble": DeepEnsemble, "deep_ensemble_input": DeepEnsembleInput}
