"""What the rivals share: their settings, the scaling of rows, and the network they all train.

A rival is a dataclass with `fit(x, y)` and `predict_dist(x)`, as the estimators have, so that an
experiment does not know whom it measures. Nearly all of them end in draws of a network's weights,
hence in a :class:`~s2vgd.posterior.Posterior`; they write `_learn` and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from s2vgd.bnn import BNN, Batch
from s2vgd.likelihoods import Categorical, Gaussian, Likelihood
from s2vgd.networks import MLP
from s2vgd.posterior import Posterior
from s2vgd.predictive import Predictive
from s2vgd.priors import FixedPrior, Prior
from s2vgd.scaling import Scaler
from s2vgd.structure import Structure

PLAIN = Structure(reflections=0, scales=None)


class Problem(NamedTuple):
    """What there is to learn, as networks want it.

    Parameters
    ----------
    data : Batch
        All rows: standardised inputs (N, F), and standardised targets (N, 1) or class numbers (N,).
    likelihood : Likelihood
        Gaussian noise of a size to be learned, or classes.
    network : MLP
        The network; its outputs are what the likelihood wants.
    """

    data: Batch
    likelihood: Likelihood
    network: MLP

    def bnn(self, prior: Prior, structure: Structure = PLAIN) -> BNN:
        """Return the Bayesian model with this prior."""
        return BNN(self.network, self.likelihood, structure, prior)

    def posterior(self, draws: Any, noise: Any = None, n_chains: int | None = None) -> Posterior:
        """Return plain weights, leaves (S, ...), as a posterior.

        Parameters
        ----------
        draws : pytree
            Weights as :attr:`network` has them, with a leading axis S.
        noise : pytree, optional
            Parameters of the likelihood with the same leading axis; none for classes.
        n_chains : int, optional
            How many chains they came from; by default each draw is its own.
        """
        particles = {"weights": draws, "prior": {}, "likelihood": noise or {}}
        n_draws = len(jax.tree.leaves(draws)[0])
        return Posterior(self.bnn(FixedPrior()), particles, n_chains or n_draws)


@dataclass(kw_only=True)
class Baseline:
    """A rival method.

    Parameters
    ----------
    hidden : tuple of int
        Widths of the hidden layers.
    activation : {"relu", "tanh", "gelu", "silu"}
        Of the hidden units.
    steps : int
        Updates to make.
    batch_size : int or None
        Rows an update; None for all.
    learning_rate : float
        At the start of the schedule.
    standardise : bool
        Bring the columns of `x` to mean zero and standard deviation one. Images have better scales
        of their own. Real targets are always standardised.
    seed : int
        Decides everything random.
    progress : bool or None
        Show a progress bar; None shows it only on a terminal.
    """

    hidden: tuple[int, ...] = (50,)
    activation: str = "relu"
    steps: int = 4000
    batch_size: int | None = 100
    learning_rate: float = 1e-2
    standardise: bool = True
    seed: int = 0
    progress: bool | None = False

    _posterior: Posterior = field(init=False, repr=False)
    _x_scaler: Scaler | None = field(init=False, repr=False, default=None)
    _presentation: dict[str, Any] = field(init=False, repr=False)

    def fit(self, x: np.ndarray, y: np.ndarray) -> Self:
        """Learn from rows (N, F) and their targets (N,): numbers, or integers for classes."""
        x, y = np.asarray(x), np.asarray(y)
        if x.ndim != 2 or y.shape != x.shape[:1] or len(x) < 2:
            raise ValueError(f"x must be (N, F) and y (N,) with N > 1, got {x.shape} and {y.shape}")
        if not np.isfinite(x).all() or not np.isfinite(y).all():
            raise ValueError("x and y must be finite")
        self._x_scaler = Scaler.of(x, None) if self.standardise else None
        problem = self._problem(x, y)
        self._posterior = self._learn(problem, jax.random.key(self.seed))
        return self

    def predict_dist(self, x: np.ndarray) -> Predictive:
        """Return what the method says about rows (N, F), in the units or labels of `y`."""
        return self._posterior.predict(self._inputs(x), **self._presentation)

    def _learn(self, problem: Problem, key: jax.Array) -> Posterior:
        """Learn from the problem; all that a rival has to write."""
        raise NotImplementedError

    def _problem(self, x: np.ndarray, y: np.ndarray) -> Problem:
        targets: jax.Array
        likelihood: Likelihood
        if np.issubdtype(y.dtype, np.integer):
            classes, numbers = np.unique(y, return_inverse=True)
            if len(classes) < 2:
                raise ValueError(f"y must have two classes or more, got {classes.tolist()}")
            likelihood, targets = Categorical(len(classes)), jnp.asarray(numbers)
            self._presentation = {"classes": classes}
        else:
            scaler = Scaler.of(y[:, None], None)
            likelihood, targets = Gaussian(), jnp.asarray(scaler(y[:, None]), jnp.float32)
            self._presentation = {"shift": scaler.shift, "scale": scaler.scale}
        network = MLP(x.shape[1], tuple(self.hidden), likelihood.n_outputs(1), self.activation)
        return Problem(Batch(jnp.asarray(self._inputs(x)), targets), likelihood, network)

    def _inputs(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        return (x if self._x_scaler is None else self._x_scaler(x)).astype(np.float32)
