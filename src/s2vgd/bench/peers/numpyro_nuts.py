"""NUTS of NumPyro on the log joint of our own network, without structure."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS

from s2vgd.bnn import BNN, Batch
from s2vgd.likelihoods import HeteroscedasticGaussian
from s2vgd.networks import MLP
from s2vgd.posterior import Posterior
from s2vgd.predictive import Predictive
from s2vgd.priors import FixedPrior
from s2vgd.scaling import Scaler
from s2vgd.structure import Structure


class Nuts:
    """A regressor: one chain on one hidden layer, noise that depends on the input."""

    def __init__(self, warmup: int, draws: int, hidden: int = 50, seed: int = 0) -> None:
        self.warmup, self.draws, self.hidden, self.seed = warmup, draws, hidden, seed

    def fit(self, x: np.ndarray, y: np.ndarray) -> Nuts:
        """Learn from rows (N, F) and their targets (N,)."""
        self._x, self._y = Scaler.of(x, None), Scaler.of(y[:, None], None)
        data = Batch(
            jnp.asarray(self._x(x), jnp.float32), jnp.asarray(self._y(y[:, None]), jnp.float32)
        )
        likelihood = HeteroscedasticGaussian()
        network = MLP(x.shape[1], (self.hidden,), likelihood.n_outputs(1))
        bnn = BNN(network, likelihood, Structure(0, None), FixedPrior())
        start_key, run_key = jax.random.split(jax.random.key(self.seed))
        sampler = MCMC(
            NUTS(potential_fn=lambda particle: -bnn.log_joint(particle, data)),
            num_warmup=self.warmup,
            num_samples=self.draws,
            progress_bar=False,
        )
        sampler.run(run_key, init_params=bnn.init(start_key))
        draws: Any = sampler.get_samples()
        self._posterior = Posterior(bnn, draws, 1)
        return self

    def predict_dist(self, x: np.ndarray) -> Predictive:
        """Return what the draws say about rows (N, F)."""
        inputs = np.asarray(self._x(x), np.float32)
        return self._posterior.predict(inputs, shift=self._y.shift, scale=self._y.scale)
