"""Bayes by Backprop: an independent Gaussian for each weight (Blundell et al., 2015).

The posterior q has a mean and a standard deviation ``softplus(rho)`` for each weight and bias. With
a Gaussian prior its divergence has a closed form, and outputs of layers are drawn row by row in
place of weights (the local reparameterisation of Kingma et al., 2015), which makes gradients
quieter; with the prior that mixes a wide and a narrow Gaussian, weights are drawn once a batch and
the divergence is estimated from them, as in the paper. The bound and its ascent are in
``_variational``. Two things differ from the paper: each batch has the same share of the divergence,
and the noise of real targets is learned, as a point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from s2vgd._random import normals
from s2vgd.baselines._variational import Family, Variational
from s2vgd.networks import ACTIVATIONS, MLP
from s2vgd.priors import LOG_2PI, check_positive


@dataclass(frozen=True)
class FactorisedGaussian:
    """Independent Gaussians, as far as they do not depend on the prior.

    Their parameters are ``{"mean", "rho"}``, two trees of the shape of the network's weights.

    Parameters
    ----------
    network : MLP
        The network.
    initial_std : float
        Standard deviation of every weight at the start. The means start as the network does.
    """

    network: MLP
    initial_std: float

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Return the parameters to start from."""
        mean = self.network.init(key)
        rho = math.log(math.expm1(self.initial_std))
        return {"mean": mean, "rho": jax.tree.map(lambda leaf: jnp.full_like(leaf, rho), mean)}

    def draw(self, params: dict[str, Any], key: jax.Array) -> Any:
        """Draw weights."""
        leaves, treedef = jax.tree.flatten(params["mean"])
        noise = jax.tree.unflatten(treedef, normals(key, [leaf.shape for leaf in leaves]))
        std = jax.tree.map(jax.nn.softplus, params["rho"])
        return jax.tree.map(lambda m, s, e: m + s * e, params["mean"], std, noise)


@dataclass(frozen=True)
class WithGaussianPrior(FactorisedGaussian):
    """The family under the prior N(0, prior_std^2) of every weight.

    Parameters
    ----------
    prior_std : float
        Standard deviation of the prior.
    """

    prior_std: float

    def forward(
        self, params: dict[str, Any], x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return outputs by local reparameterisation, and the divergence."""
        layers = list(zip(params["mean"], params["rho"], strict=True))
        noise = normals(key, [(len(x), *mean["bias"].shape) for mean, _ in layers])
        activate = ACTIVATIONS[self.network.activation]
        hidden, cost = x, jnp.zeros(())
        for i, (mean, rho) in enumerate(layers):
            std = jax.tree.map(jax.nn.softplus, rho)
            loc, variance = layer_moments(mean, std, activate(hidden) if i else hidden)
            hidden = loc + jnp.sqrt(variance) * noise[i]
            cost += sum(gaussian_kl(mean[name], std[name], self.prior_std) for name in mean)
        return hidden, cost


@dataclass(frozen=True)
class WithScaleMixture(FactorisedGaussian):
    """The family under the prior w N(0, wide^2) + (1 - w) N(0, narrow^2) of every weight.

    Parameters
    ----------
    wide_share : float
        w.
    wide_std, narrow_std : float
        Standard deviations of the two parts.
    """

    wide_share: float
    wide_std: float
    narrow_std: float

    def forward(
        self, params: dict[str, Any], x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return outputs of one network for all rows, and log q - log p of its weights."""
        weights = self.draw(params, key)
        log_q = jax.tree.map(
            lambda w, m, rho: jnp.sum(_normal_log_prob(w, m, jax.nn.softplus(rho))),
            *(weights, params["mean"], params["rho"]),
        )
        log_p = jax.tree.map(lambda w: jnp.sum(self.log_prior(w)), weights)
        cost = sum(jax.tree.leaves(log_q)) - sum(jax.tree.leaves(log_p))
        return self.network.apply(weights, x), jnp.asarray(cost)

    def log_prior(self, w: jax.Array) -> jax.Array:
        """Return the log density of the prior at each weight."""
        return jnp.logaddexp(
            math.log(self.wide_share) + _normal_log_prob(w, 0.0, self.wide_std),
            math.log1p(-self.wide_share) + _normal_log_prob(w, 0.0, self.narrow_std),
        )


def gaussian_kl(mean: jax.Array, std: jax.Array, prior_std: float) -> jax.Array:
    """Return KL(N(mean, std^2), N(0, prior_std^2)), summed over all entries."""
    ratio = jnp.square(std / prior_std)
    return 0.5 * jnp.sum(ratio + jnp.square(mean / prior_std) - 1.0 - jnp.log(ratio))


def layer_moments(
    mean: dict[str, jax.Array], std: dict[str, jax.Array], x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return mean and variance, (B, out) each, of what a layer of independent weights puts out.

    Parameters
    ----------
    mean, std : dict
        Of ``"kernel"`` (in, out) and ``"bias"`` (out,).
    x : jax.Array, shape (B, in)
        Inputs of the layer.
    """
    variance = {name: jnp.square(value) for name, value in std.items()}
    return (
        x @ mean["kernel"] + mean["bias"],
        jnp.square(x) @ variance["kernel"] + variance["bias"],
    )


def _normal_log_prob(w: jax.Array, mean: Any, std: Any) -> jax.Array:
    return -0.5 * (jnp.square((w - mean) / std) + LOG_2PI) - jnp.log(std)


@dataclass(kw_only=True)
class BayesByBackprop(Variational):
    """Settings of Bayes by Backprop, whatever the prior.

    Parameters
    ----------
    initial_std : float
        Standard deviation of every weight at the start.
    """

    initial_std: float = 0.02

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_positive("initial_std", self.initial_std)


@dataclass(kw_only=True)
class BBBGaussian(BayesByBackprop):
    """Bayes by Backprop with a Gaussian prior.

    Parameters
    ----------
    prior_std : float
        Standard deviation of every weight in the prior.
    """

    prior_std: float = 1.0

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_positive("prior_std", self.prior_std)

    def _family(self, network: MLP) -> Family:
        return WithGaussianPrior(network, self.initial_std, self.prior_std)


@dataclass(kw_only=True)
class BBBScaleMixture(BayesByBackprop):
    """Bayes by Backprop with the scale-mixture prior of Blundell et al. (2015).

    Parameters
    ----------
    wide_share : float
        Prior probability, in (0, 1), that a weight is of the wide part; the paper's pi.
    wide_std, narrow_std : float
        Standard deviations of the two parts; the paper's sigma_1 and sigma_2.
    """

    wide_share: float = 0.5
    wide_std: float = 1.0
    narrow_std: float = math.exp(-6.0)

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_positive("wide_std", self.wide_std)
        check_positive("narrow_std", self.narrow_std)
        if not 0 < self.wide_share < 1:
            raise ValueError(f"wide_share must be between 0 and 1, got {self.wide_share!r}")
        if self.narrow_std > self.wide_std:
            raise ValueError(
                f"narrow_std={self.narrow_std!r} must not exceed wide_std={self.wide_std!r}"
            )

    def _family(self, network: MLP) -> Family:
        return WithScaleMixture(
            *(network, self.initial_std),
            *(self.wide_share, self.wide_std, self.narrow_std),
        )


METHODS = {"bbb_gaussian": BBBGaussian, "bbb_scale_mixture": BBBScaleMixture}
