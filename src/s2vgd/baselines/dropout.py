"""Networks trained with dropout, predicting with all their units or with random ones.

A dropped unit sends nothing on, which is the same as a zero row in the next layer's kernel. Masks
when predicting are therefore draws of weights, and Monte Carlo dropout (Gal and Ghahramani, 2016)
is a posterior like any other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from s2vgd.baselines import _descent
from s2vgd.baselines._base import Problem
from s2vgd.baselines.point import PointEstimate, check_fraction, cosine_sgd
from s2vgd.bnn import BNN, Batch
from s2vgd.networks import ACTIVATIONS, MLP
from s2vgd.posterior import Posterior
from s2vgd.priors import FixedPrior, check_count
from s2vgd.training import cosine_adam


class Rates(NamedTuple):
    """Probabilities that an input, and that a hidden unit, is dropped."""

    inputs: float
    hidden: float


def draw_masks(key: Array, network: MLP, rates: Rates, n: int) -> list[Array]:
    """Draw which units are kept.

    Parameters
    ----------
    key : Array
        Decides which.
    network : MLP
        For the widths of its layers.
    rates : Rates
        How many are dropped.
    n : int
        Number of masks.

    Returns
    -------
    list of Array
        For the inputs of each layer (n, width): 0, or 1 / (1 - rate), so that the mean is 1 and
        nothing has to be rescaled where nothing is dropped.
    """
    widths = (network.n_inputs, *network.hidden)
    keep = np.repeat([1 - rates.inputs] + [1 - rates.hidden] * len(network.hidden), widths)
    # One draw for all layers: each use of the generator is compiled anew, and slowly.
    kept = jax.random.bernoulli(key, keep.astype(np.float32), (n, len(keep)))
    scaled = kept / keep.astype(np.float32)
    return jnp.split(scaled, np.cumsum(widths)[:-1], axis=1)


def masked_outputs(network: MLP, weights: Any, x: Array, masks: Sequence[Array]) -> Array:
    """Return the outputs (B, O) for rows x (B, F) with masks (B, width), or (1, width) for all."""
    activate = ACTIVATIONS[network.activation]
    *hidden, last = zip(weights, masks, strict=True)
    for layer, mask in hidden:
        x = activate((x * mask) @ layer["kernel"] + layer["bias"])
    layer, mask = last
    return (x * mask) @ layer["kernel"] + layer["bias"]


def masked_weights(weights: Any, masks: Sequence[Array]) -> Any:
    """Return the weights as the masks leave them.

    Parameters
    ----------
    weights : tuple of dict
        Of one network, as :class:`~s2vgd.networks.MLP` has them.
    masks : sequence of Array
        For the inputs of each layer, (T, width).

    Returns
    -------
    tuple of dict
        Leaves with a leading axis T: row i of a kernel is multiplied by entry i of the mask.
    """
    return tuple(
        {
            "kernel": mask[:, :, None] * layer["kernel"],
            "bias": jnp.broadcast_to(layer["bias"], (len(mask), *layer["bias"].shape)),
        }
        for layer, mask in zip(weights, masks, strict=True)
    )


@dataclass(kw_only=True)
class Dropout(PointEstimate):
    """Dropout while training, all units when predicting (Srivastava et al., 2014).

    Every row of every batch has a mask of its own. The scale that makes up for the units that are
    missing is applied while training, so that the weights can be used as they are afterwards.

    Parameters
    ----------
    rate : float
        Probability that a hidden unit is dropped.
    input_rate : float
        Probability that an input is dropped.
    optimizer : {"adam", "sgd"}
        Either with cosine decay; "sgd" with momentum 0.9, the row "SGD, dropout" of the paper's
        Table "Classification error of FNN on MNIST".
    """

    rate: float = 0.05
    input_rate: float = 0.0
    optimizer: Literal["adam", "sgd"] = "adam"

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_fraction("rate", self.rate)
        check_fraction("input_rate", self.input_rate)
        if self.optimizer not in ("adam", "sgd"):
            raise ValueError(f"optimizer must be 'adam' or 'sgd', got {self.optimizer!r}")

    @property
    def _rates(self) -> Rates:
        return Rates(self.input_rate, self.rate)

    def _optimizer(self) -> optax.GradientTransformation:
        if self.optimizer == "sgd":
            return cosine_sgd(self.learning_rate, self.steps, momentum=0.9)
        return cosine_adam(self.learning_rate, self.steps)

    def _algorithm(self, bnn: BNN, n_total: float) -> _descent.Algorithm:
        return _with_dropout(bnn, n_total, self._rates, self._optimizer())


@dataclass(kw_only=True)
class MCDropout(Dropout):
    """Dropout while training and when predicting: masks as draws from a posterior.

    Gal and Ghahramani (2016). Each draw is one mask for all rows that are predicted, hence one
    network. They choose the noise by a search on held-out rows; here it is learned along with the
    weights.

    Parameters
    ----------
    draws : int
        T, the number of masks. T networks are held in memory.
    """

    draws: int = 50

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_count("draws", self.draws, 1)

    def _learn(self, problem: Problem, key: Array) -> Posterior:
        train_key, mask_key = jax.random.split(key)
        bnn = problem.bnn(FixedPrior(self.prior_variance))
        mode = jax.tree.map(lambda leaf: leaf[0], self._mode(bnn, problem, train_key))
        masks = draw_masks(mask_key, problem.network, self._rates, self.draws)
        noise = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (self.draws, *leaf.shape)), mode["likelihood"]
        )
        return problem.posterior(masked_weights(mode["weights"], masks), noise)


class _Thinned(NamedTuple):
    """A network that drops units, for each row anew."""

    network: MLP
    rates: Rates
    key: Array

    def init(self, key: Array) -> Any:
        return self.network.init(key)

    def apply(self, weights: Any, x: Array) -> Array:
        masks = draw_masks(self.key, self.network, self.rates, len(x))
        return masked_outputs(self.network, weights, x, masks)


@functools.lru_cache(maxsize=64)
def _with_dropout(
    bnn: BNN, n_total: float, rates: Rates, optimizer: optax.GradientTransformation
) -> _descent.Algorithm:
    network = bnn.network
    assert isinstance(network, MLP), "rivals have no other networks"

    def objective(particle: Any, batch: Batch, key: Array) -> Array:
        thinned = dataclasses.replace(bnn, network=_Thinned(network, rates, key))
        return thinned.log_joint(particle, batch, n_total) / n_total

    return _descent.build(objective, optimizer)


METHODS = {"dropout": Dropout, "mc_dropout": MCDropout}
