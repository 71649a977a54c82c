"""Point estimates: the most probable network, found by SGD or RMSprop.

They predict with one network and its noise, so all that they are unsure of is the noise. The
descent itself is in `_descent`; RMSspectral, whose update takes more saying, is in `spectral`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import optax

from s2vgd.baselines._base import Baseline, Problem
from s2vgd.baselines._descent import Algorithm, to_the_mode
from s2vgd.bnn import BNN
from s2vgd.posterior import Posterior
from s2vgd.priors import FixedPrior, check_count, check_positive
from s2vgd.training import train


@dataclass(kw_only=True)
class PointEstimate(Baseline):
    """The network of the highest log joint density that descent finds; subclasses say how.

    Parameters
    ----------
    prior_variance : float
        Of the Gaussian prior on all weights and biases: weight decay of 1 / variance on the sum of
        the rows' negative log-likelihoods.
    """

    prior_variance: float = 1.0

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_positive("prior_variance", self.prior_variance)
        check_positive("learning_rate", self.learning_rate)
        check_count("steps", self.steps, 1)

    def _learn(self, problem: Problem, key: jax.Array) -> Posterior:
        bnn = problem.bnn(FixedPrior(self.prior_variance))
        return Posterior(bnn, self._mode(bnn, problem, key), 1)

    def _mode(self, bnn: BNN, problem: Problem, key: jax.Array) -> Any:
        """Return the network that descent ends at, with a leading axis of length 1."""
        start_key, run_key, order_key = jax.random.split(key, 3)
        algorithm = self._algorithm(bnn, float(len(problem.data.x)))
        start = jax.tree.map(lambda leaf: leaf[0], bnn.init_particles(start_key, 1))
        result = train(
            algorithm,
            algorithm.init(start, run_key),
            problem.data,
            key=order_key,
            steps=self.steps,
            batch_size=self.batch_size,
            progress=self.progress,
        )
        return jax.tree.map(lambda leaf: leaf[None], result.state.particles)

    def _algorithm(self, bnn: BNN, n_total: float) -> Algorithm:
        return to_the_mode(bnn, n_total, self._optimizer())

    def _optimizer(self) -> optax.GradientTransformation:
        """Return the optimiser, the same object for the same settings."""
        raise NotImplementedError


@dataclass(kw_only=True)
class SGD(PointEstimate):
    """Stochastic gradient descent with momentum, its learning rate falling along a cosine.

    The gradient is clipped to norm 1: noise that is learned along with the network makes the
    log-likelihood the steeper the better the network fits, and a first bad batch could throw it.

    Parameters
    ----------
    momentum : float
        At least 0 (none) and below 1.
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_fraction("momentum", self.momentum)

    def _optimizer(self) -> optax.GradientTransformation:
        return cosine_sgd(self.learning_rate, self.steps, self.momentum)


@dataclass(kw_only=True)
class RMSprop(PointEstimate):
    """RMSprop (Hinton et al., 2012), its learning rate falling along a cosine.

    Parameters
    ----------
    decay : float
        How much of the mean square of past gradients is kept at a step; 0.99 as in the paper's
        Table "Hyper-parameter settings for MNIST".
    """

    decay: float = 0.99

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_fraction("decay", self.decay)

    def _optimizer(self) -> optax.GradientTransformation:
        return _cosine_rmsprop(self.learning_rate, self.steps, self.decay)


def check_fraction(name: str, value: float) -> None:
    """Raise unless 0 <= value < 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value!r}")


@functools.lru_cache(maxsize=64)
def cosine_sgd(learning_rate: float, steps: int, momentum: float) -> optax.GradientTransformation:
    """Return SGD with clipped gradients, momentum and cosine decay; see :class:`SGD`."""
    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(schedule, momentum or None))


@functools.lru_cache(maxsize=64)
def _cosine_rmsprop(learning_rate: float, steps: int, decay: float) -> optax.GradientTransformation:
    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    # Without the correction the first steps would be 1 / sqrt(1 - decay) times as long.
    return optax.rmsprop(schedule, decay, bias_correction=True)


METHODS: dict[str, type[Baseline]] = {"sgd": SGD, "rmsprop": RMSprop}
