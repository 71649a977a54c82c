"""Prior densities of the network's weights, eq. (fullmode).

A prior scores a tree of weights (`StructuredWeight` nodes and plain arrays) layer by layer, and
owns the parameters it needs for that: the precisions of the layers, or none. The prior on the
observation noise belongs to `likelihoods`, which borrows `gamma_log_prob` from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from s2vgd.structure import StructuredWeight

Weights: TypeAlias = Any
Hyper: TypeAlias = dict[str, dict[str, jax.Array]]

LOG_2PI = math.log(2.0 * math.pi)


class Prior(Protocol):
    """What a `BNN` asks of a prior. Implementations are hashable (frozen dataclasses)."""

    def init(self, key: jax.Array, weights: Weights) -> Hyper:
        """Return starting values of the prior's own parameters, ``{}`` if it has none."""
        ...

    def log_prob(self, weights: Weights, hyper: Hyper) -> jax.Array:
        """Return the normalised log density of weights and hyper parameters together."""
        ...


@dataclass(frozen=True)
class HierarchicalPrior:
    """Gaussian weights whose variances are learned, layer by layer; eq. (fullmode).

    In a layer, the entries of ``C`` and of plain leaves such as biases are N(0, lambda), those of
    the Householder vectors N(0, phi) and the scale parameters N(0, psi), with
    lambda, phi, psi ~ Inv-Gamma(a, b). The inverse of such a variance is a precision ~
    Gamma(a, rate b). Its logarithm is what a particle holds, since that may take any value; see
    `gamma_log_prob` for its density.

    Parameters
    ----------
    a, b : float
        Shape and rate of the Gamma prior on every precision.

    Notes
    -----
    A layer is the set of leaves that share a parent path, as the kernel and the bias of one module
    do. ``phi`` exists only in layers that have reflections, ``psi`` only in those with scales.
    """

    a: float = 1.0
    b: float = 0.1

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_positive("a", self.a)
        check_positive("b", self.b)

    def init(self, key: jax.Array, weights: Weights) -> Hyper:
        """Return log precisions of zero: every variance starts at one.

        The joint density has a mode of its own where all weights are zero and all precisions
        large. A wide start keeps away from it. Starting at the most probable precisions given
        the first weights, a network of 30 rows without structure fell into it.

        Parameters
        ----------
        key : jax.Array
            Not used: particles differ by their weights, which soon pull the precisions apart.
        weights : pytree
            The weights that the particle starts from, for their layers and dtypes.

        Returns
        -------
        dict
            ``{layer: {"lambda": (), "phi": (), "psi": ()}}``.
        """
        hyper: Hyper = {}
        for layer, kind, arrays in _groups(weights):
            hyper.setdefault(layer, {})[kind] = jnp.zeros((), jnp.result_type(*arrays))
        return hyper

    def log_prob(self, weights: Weights, hyper: Hyper) -> jax.Array:
        """Return log p(weights | precisions) + log p(log precisions), a scalar."""
        terms = [
            _normal_log_prob(arrays, hyper[layer][kind])
            + gamma_log_prob(hyper[layer][kind], self.a, self.b)
            for layer, kind, arrays in _groups(weights)
        ]
        return jnp.asarray(sum(terms))


@dataclass(frozen=True)
class FixedPrior:
    """Gaussian weights of given variances, the "variance in prior" of the paper's Tables 4-6.

    Parameters
    ----------
    variance : float
        Of the entries of ``C`` and of plain leaves such as biases.
    reflection_variance : float
        Of the entries of the Householder vectors. Only their directions act on the weights, so this
        sets no more than the length at which the vectors live.
    scale_variance : float
        Of the scale parameters. These are log scales by default, so 0.01 means scales that differ
        from one by some 10 %. With ``Structure(scales="gaussian")`` they are the scales
        themselves, and a variance of about 1 is sensible.
    """

    variance: float = 1.0
    reflection_variance: float = 1.0
    scale_variance: float = 0.01

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_positive("variance", self.variance)
        check_positive("reflection_variance", self.reflection_variance)
        check_positive("scale_variance", self.scale_variance)

    def init(self, key: jax.Array, weights: Weights) -> Hyper:
        """Return ``{}``: nothing is learned."""
        return {}

    def log_prob(self, weights: Weights, hyper: Hyper) -> jax.Array:
        """Return log p(weights), a scalar; `hyper` is not looked at."""
        log_precision = {
            "lambda": -math.log(self.variance),
            "phi": -math.log(self.reflection_variance),
            "psi": -math.log(self.scale_variance),
        }
        terms = [
            _normal_log_prob(arrays, log_precision[kind]) for _, kind, arrays in _groups(weights)
        ]
        return jnp.asarray(sum(terms))


def gamma_log_prob(log_precision: jax.Array, a: float, b: float) -> jax.Array:
    """Return the log density of eta = log(precision), precision ~ Gamma(a, rate b), elementwise.

    It is a log(b) - log Gamma(a) + a eta - b exp(eta): the Jacobian of the change of variable is in
    it, so this is equally the density of eta = -log(variance) where variance ~ Inv-Gamma(a, b).
    """
    constant = a * math.log(b) - math.lgamma(a)
    return constant + a * log_precision - b * jnp.exp(log_precision)


def check_positive(name: str, value: object) -> None:
    """Raise unless `value` is a plain number (hence hashable), finite and above zero."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a positive number, got {value!r}")
    if not 0.0 < float(value) < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")


def check_count(name: str, value: object, least: int) -> None:
    """Raise unless `value` is an integer of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")


def _groups(weights: Weights) -> Iterator[tuple[str, str, list[jax.Array]]]:
    """Yield (layer, kind, arrays) for every set of entries that shares one variance."""
    layers: dict[str, dict[str, list[jax.Array]]] = {}
    leaves = jax.tree_util.tree_leaves_with_path(
        weights, is_leaf=lambda node: isinstance(node, StructuredWeight)
    )
    for path, leaf in leaves:
        layer = jax.tree_util.keystr(path[:-1], simple=True, separator="/") or "root"
        kinds = layers.setdefault(layer, {"lambda": [], "phi": [], "psi": []})
        if isinstance(leaf, StructuredWeight):
            kinds["lambda"].append(leaf.c)
            kinds["phi"] += [leaf.v_left, leaf.v_right]
            kinds["psi"] += [leaf.s_left, leaf.s_right]
        elif jnp.issubdtype(
            jnp.result_type(leaf), jnp.floating
        ):  # counters and such have no density
            kinds["lambda"].append(jnp.asarray(leaf))
    for layer, kinds in layers.items():
        for kind, arrays in kinds.items():
            present = [array for array in arrays if array.size]
            if present:
                yield layer, kind, present


def _normal_log_prob(arrays: list[jax.Array], log_precision: jax.Array | float) -> jax.Array:
    size = sum(array.size for array in arrays)
    squares = sum(jnp.sum(jnp.square(array)) for array in arrays)
    return 0.5 * (size * (log_precision - LOG_2PI) - jnp.exp(log_precision) * squares)
