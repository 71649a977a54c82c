"""Observation models: how the targets scatter about the network's outputs.

Each likelihood says how many outputs it needs, owns its noise parameters and their prior, scores
targets row by row, and names the distribution that its outputs stand for (`family` and
`components`), which is all `predictive` needs to know. Nothing here knows of networks or particles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from s2vgd.priors import LOG_2PI, check_count, check_positive, gamma_log_prob

Params: TypeAlias = dict[str, jax.Array]
Components: TypeAlias = dict[str, jax.Array]


class Likelihood(Protocol):
    """What a `BNN` asks of an observation model. Implementations are hashable (frozen dataclasses).

    B rows, T targets, O outputs. ``y`` is (B, T) for regression and (B,) for classes.
    """

    family: ClassVar[str]

    def n_outputs(self, n_targets: int) -> int:
        """Return O, the number of outputs the network must have."""
        ...

    def init(self, key: jax.Array, n_targets: int) -> Params:
        """Return starting values of the noise parameters, ``{}`` if there are none."""
        ...

    def log_prior(self, params: Params) -> jax.Array:
        """Return the normalised log density of the noise parameters, a scalar."""
        ...

    def log_prob(self, params: Params, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log density of each row, summed over its targets, (B,)."""
        ...

    def components(self, params: Params, outputs: jax.Array) -> Components:
        """Return the parameters of the predictive `family`, each with leading axis B."""
        ...


@dataclass(frozen=True, kw_only=True)
class _ConstantNoise:
    """One noise precision a target, ~ Gamma(a, rate b) as in eq. (regression); its log is kept."""

    a: float = 1.0
    b: float = 0.1

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_positive("a", self.a)
        check_positive("b", self.b)

    def n_outputs(self, n_targets: int) -> int:
        """Return T: one location a target."""
        return n_targets

    def init(self, key: jax.Array, n_targets: int) -> Params:
        """Return every log precision at log(a / b), the logarithm of its prior mean.

        With the defaults that is a noise of 0.32 on standardised targets: small enough for the data
        to pull on the network from the first step, large enough not to throw it.
        """
        return {"log_precision": jnp.full((n_targets,), math.log(self.a / self.b))}

    def log_prior(self, params: Params) -> jax.Array:
        """Return the log density of the log precisions, Jacobian included."""
        return jnp.sum(gamma_log_prob(params["log_precision"], self.a, self.b))

    def components(self, params: Params, outputs: jax.Array) -> Components:
        """Return ``loc`` and ``scale``, each (B, T)."""
        return {"loc": outputs, "scale": jnp.broadcast_to(self._scale(params), outputs.shape)}

    def _scale(self, params: Params) -> jax.Array:
        return jnp.exp(-0.5 * params["log_precision"])


@dataclass(frozen=True)
class Gaussian(_ConstantNoise):
    """Normal noise of one size everywhere, learned for each target; eq. (regression).

    Parameters
    ----------
    a, b : float
        Shape and rate of the Gamma prior on each target's noise precision (keywords only).
    fixed_std : float, optional
        The standard deviation of the noise where it is known; nothing is learned then.
    """

    family: ClassVar[str] = "normal"
    fixed_std: float | None = None

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        if self.fixed_std is not None:
            check_positive("fixed_std", self.fixed_std)

    def init(self, key: jax.Array, n_targets: int) -> Params:
        """Return the log precisions, or ``{}`` when the noise is known."""
        return {} if self.fixed_std is not None else super().init(key, n_targets)

    def log_prior(self, params: Params) -> jax.Array:
        """Return the log density of the log precisions, or 0 when the noise is known."""
        return jnp.asarray(0.0) if self.fixed_std is not None else super().log_prior(params)

    def log_prob(self, params: Params, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return log N(y; outputs, scale^2), summed over targets, (B,)."""
        _check_targets(y, outputs.shape)
        return jnp.sum(_normal_log_prob(y, outputs, self._scale(params)), axis=-1)

    def _scale(self, params: Params) -> jax.Array:
        if self.fixed_std is not None:
            return jnp.asarray(float(self.fixed_std))
        return super()._scale(params)


@dataclass(frozen=True)
class StudentT(_ConstantNoise):
    """Student-t noise: a few targets may lie far out without dragging the fit along.

    Parameters
    ----------
    df : float
        Degrees of freedom, above 1 so that predictions have a mean; the smaller, the heavier the
        tails.
    a, b : float
        Shape and rate of the Gamma prior on scale^-2 (keywords only).
    """

    family: ClassVar[str] = "student_t"
    df: float = 4.0

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_positive("df", self.df)
        if self.df <= 1:
            raise ValueError(f"df must be above 1, or predictions have no mean; got {self.df!r}")

    def log_prob(self, params: Params, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log density of t_df(y; outputs, scale), summed over targets, (B,)."""
        _check_targets(y, outputs.shape)
        half = 0.5 * (self.df + 1.0)
        constant = (
            math.lgamma(half) - math.lgamma(0.5 * self.df) - 0.5 * math.log(math.pi * self.df)
        )
        scale = self._scale(params)
        z = (y - outputs) / scale
        return jnp.sum(constant - jnp.log(scale) - half * jnp.log1p(z * z / self.df), axis=-1)

    def components(self, params: Params, outputs: jax.Array) -> Components:
        """Return ``loc``, ``scale`` and ``df``, each (B, T)."""
        return {**super().components(params, outputs), "df": jnp.full_like(outputs, self.df)}


@dataclass(frozen=True)
class Laplace(_ConstantNoise):
    """Double-exponential noise: the absolute error in place of the squared one.

    Parameters
    ----------
    a, b : float
        Shape and rate of the Gamma prior on scale^-2 (keywords only).
    """

    family: ClassVar[str] = "laplace"

    def log_prob(self, params: Params, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log density of Laplace(y; outputs, scale), summed over targets, (B,)."""
        _check_targets(y, outputs.shape)
        scale = self._scale(params)
        return jnp.sum(-jnp.abs(y - outputs) / scale - jnp.log(2.0 * scale), axis=-1)


class _NoNoiseParameters:
    """For likelihoods whose outputs say everything: nothing to start and nothing to score."""

    def init(self, key: jax.Array, n_targets: int) -> Params:
        """Return ``{}``."""
        return {}

    def log_prior(self, params: Params) -> jax.Array:
        """Return 0."""
        return jnp.asarray(0.0)


@dataclass(frozen=True)
class HeteroscedasticGaussian:
    """Normal noise whose size depends on the input, through a second set of outputs.

    The first T outputs are the means; the last T, r, give the standard deviations
    ``softplus(level + gain * r) + floor`` about a level that is learned for each target.

    Parameters
    ----------
    floor : float
        The smallest standard deviation, in the units of ``y``. It keeps the density bounded where
        the network could reproduce a target exactly.
    gain : float
        How readily the noise departs from its level. The outputs of a wide network have a wide
        prior; passed on as they are, the noise follows single rows, and where it does so the mean
        is not fitted.
    """

    family: ClassVar[str] = "normal"
    floor: float = 1e-3
    gain: float = 0.2
    level_variance: ClassVar[float] = 9.0  # on standardised targets, from 1e-4 to beyond 1

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_positive("floor", self.floor)
        check_positive("gain", self.gain)

    def n_outputs(self, n_targets: int) -> int:
        """Return 2 T: means, then what moves the scales."""
        return 2 * n_targets

    def init(self, key: jax.Array, n_targets: int) -> Params:
        """Return every level at -1, a noise of 0.31 as in :class:`Gaussian`."""
        return {"level": jnp.full((n_targets,), -1.0)}

    def log_prior(self, params: Params) -> jax.Array:
        """Return the log density of the levels, N(0, level_variance)."""
        return jnp.sum(_normal_log_prob(params["level"], 0.0, self.level_variance**0.5))

    def log_prob(self, params: Params, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return log N(y; loc, scale^2), summed over targets, (B,)."""
        parts = self.components(params, outputs)
        _check_targets(y, parts["loc"].shape)
        return jnp.sum(_normal_log_prob(y, parts["loc"], parts["scale"]), axis=-1)

    def components(self, params: Params, outputs: jax.Array) -> Components:
        """Return ``loc`` and ``scale``, each (B, T)."""
        loc, moved = jnp.split(outputs, 2, axis=-1)
        scale = jax.nn.softplus(params["level"] + self.gain * moved) + self.floor
        return {"loc": loc, "scale": scale}


@dataclass(frozen=True)
class Categorical(_NoNoiseParameters):
    """One of `n_classes` labels 0, 1, ..., through the softmax of as many outputs.

    Labels are not known while tracing, hence not checked here: one that is too large scores NaN.
    """

    family: ClassVar[str] = "categorical"
    n_classes: int

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_count("n_classes", self.n_classes, 2)

    def n_outputs(self, n_targets: int) -> int:
        """Return the number of classes; there can be one target only."""
        _check_one_target(self, n_targets)
        return self.n_classes

    def log_prob(self, params: Params, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log probability of label ``y``, (B,)."""
        _check_targets(y, outputs.shape[:-1])
        log_probs = jax.nn.log_softmax(outputs, axis=-1)
        return jnp.take_along_axis(log_probs, y[..., None], axis=-1)[..., 0]

    def components(self, params: Params, outputs: jax.Array) -> Components:
        """Return ``logits``, (B, n_classes)."""
        return {"logits": outputs}


@dataclass(frozen=True)
class Bernoulli(_NoNoiseParameters):
    """A label 0 or 1 whose log odds are the one output."""

    family: ClassVar[str] = "bernoulli"

    def n_outputs(self, n_targets: int) -> int:
        """Return 1; there can be one target only."""
        _check_one_target(self, n_targets)
        return 1

    def log_prob(self, params: Params, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the log probability of label ``y``, (B,)."""
        _check_targets(y, outputs.shape[:-1])
        sign = 1.0 - 2.0 * jnp.asarray(y, outputs.dtype)  # unsigned labels would wrap around
        return -jax.nn.softplus(sign * outputs[..., 0])

    def components(self, params: Params, outputs: jax.Array) -> Components:
        """Return ``logits``, (B, 1)."""
        return {"logits": outputs}


def _normal_log_prob(y: jax.Array, loc: jax.Array | float, scale: jax.Array | float) -> jax.Array:
    z = (y - loc) / scale
    return -0.5 * (z * z + LOG_2PI) - jnp.log(scale)


def _check_targets(y: jax.Array, shape: tuple[int, ...]) -> None:
    """Refuse a shape that would broadcast: (B,) against (B, 1) is (B, B) and trains on nonsense."""
    if jnp.shape(y) != shape:
        raise ValueError(f"y must have shape {shape} to match the outputs, got {jnp.shape(y)}")


def _check_one_target(likelihood: object, n_targets: int) -> None:
    if n_targets != 1:
        raise ValueError(f"{type(likelihood).__name__} takes n_targets=1, got {n_targets}")
