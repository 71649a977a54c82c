"""Probabilistic back-propagation, plain and with structured weights.

``pbp`` is the method of Hernández-Lobato and Adams (2015): an independent Gaussian for each weight,
updated row by row by assumed density filtering, from the gradient of the log evidence log Z of the
row; Gamma posteriors of the precisions of noise and prior; and after each pass over the rows one
sweep of expectation propagation over the factors of the prior. The forward pass of moments is in
``_moments``, the updates are in ``_filtering``. ``pbp_mv`` (Sun, Chen and Carin, 2017) gives each
kernel the form ``P C Qᵀ``: the entries of C are independent Gaussians, learned as above, and the
orthogonal P and Q, products of Householder reflections, are points that ascend log Z, by Adam.
The diagonals of the matrix normal are part of the variances of C, which are free. Biases are not
rotated, and covariances between units are dropped after each layer.

Rows are scaled as for the other rivals, and predictions are analytic: N(m, v + noise) for real
targets, and Phi(m / sqrt(1 + v)) for the second of two classes, which is also their evidence. More
than two classes are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import log_ndtr
from jax.scipy.stats import norm

from s2vgd import training
from s2vgd._random import normals
from s2vgd.baselines import _moments
from s2vgd.baselines._base import Baseline, Problem
from s2vgd.baselines._descent import Algorithm, Info
from s2vgd.baselines._filtering import Gamma, Sites, filter_gamma, filter_gaussian, refine_prior
from s2vgd.baselines._moments import Moments, Rotation
from s2vgd.bnn import Batch
from s2vgd.layout import Layout
from s2vgd.networks import MLP
from s2vgd.posterior import Posterior
from s2vgd.predictive import Predictive, from_components
from s2vgd.priors import check_count, check_positive
from s2vgd.structure import Structure

# Phi(f) is within 0.01 of the logistic function of this multiple of f.
_PROBIT_TO_LOGIT = 1.702


class Beliefs(NamedTuple):
    """All that is believed about a network.

    Attributes
    ----------
    mean, var : jax.Array, shape (D,)
        Of all entries of C and of all biases, laid out one after the other.
    rotations : tuple of Rotation
        P and Q of each layer.
    noise, prior : Gamma
        Precisions of the noise, and of the weights under the prior.
    sites : Sites
        What the prior contributed so far.
    """

    mean: jax.Array
    var: jax.Array
    rotations: tuple[Rotation, ...]
    noise: Gamma
    prior: Gamma
    sites: Sites


class State(NamedTuple):
    """Beliefs (``particles``, as `training` has it), the optimiser of the rotations, a key."""

    particles: Beliefs
    opt_state: optax.OptState
    key: jax.Array


def normal_log_evidence(units: Moments, noise: Gamma, y: jax.Array) -> jax.Array:
    """Return log Z of a real target, (): log N(y; mean, var + expected variance of the noise)."""
    return jnp.sum(norm.logpdf(y, units.mean, jnp.sqrt(units.var + noise.variance)))


def probit_log_evidence(units: Moments, noise: Gamma, y: jax.Array) -> jax.Array:
    """Return log Z of class 0 or 1, (): log Phi of ±mean / sqrt(1 + var); `noise` has no part."""
    return jnp.sum(log_ndtr((2.0 * y - 1.0) * units.mean / jnp.sqrt(1 + units.var)))


@dataclass(frozen=True)
class Model:
    """What the beliefs are about.

    Parameters
    ----------
    network : MLP
        With one output.
    n_classes : int
        2, or 0 for a real target.
    reflections : int
        K, of each side of a kernel that is long enough.
    a, b : float
        Shape and rate of both Gamma priors.
    """

    network: MLP
    n_classes: int
    reflections: int
    a: float
    b: float

    @property
    def layout(self) -> Layout:
        """Where each layer lies in the vector of all weights."""
        return Layout.of(jax.eval_shape(self.network.init, jax.random.key(0)), leading=0)

    def init(self, key: jax.Array) -> Beliefs:
        """Return the prior, with small random means so that hidden units differ."""
        layout, structure = self.layout, Structure(self.reflections, None)
        sides = [shape for shape in layout.shapes if len(shape) == 2]
        shapes = [(structure.reflections_of(side), side) for pair in sides for side in pair]
        *vectors, noise = normals(key, [*shapes, (layout.size,)])
        layers = layout.unflatten(noise)
        scales = [1 / math.sqrt(len(layer["kernel"]) + 1) for layer in layers]
        mean = layout.flatten(
            tuple(
                {name: scale * part for name, part in layer.items()}
                for scale, layer in zip(scales, layers, strict=True)
            )
        )
        gamma = Gamma(jnp.asarray(float(self.a)), jnp.asarray(float(self.b)))
        nothing = jnp.zeros(layout.size)
        sites = Sites(nothing + 1 / gamma.variance, nothing, nothing)
        rotations = tuple(map(Rotation, vectors[::2], vectors[1::2]))
        return Beliefs(mean, nothing + gamma.variance, rotations, gamma, gamma, sites)

    def predict(self, mean: Any, var: Any, rotations: Any, x: jax.Array) -> Moments:
        """Return the moments of the output, (1,), for one row (F,)."""
        layout = self.layout
        return _moments.network(layout.unflatten(mean), layout.unflatten(var), rotations, x)

    def draw(self, beliefs: Beliefs, key: jax.Array) -> Any:
        """Draw plain weights of the network."""
        noise = jax.random.normal(key, beliefs.mean.shape)
        layers = self.layout.unflatten(beliefs.mean + jnp.sqrt(beliefs.var) * noise)
        weights = []
        for layer, rotation in zip(layers, beliefs.rotations, strict=True):
            kernel = _moments.rotate_kernel(layer["kernel"], rotation)
            scale = math.sqrt(len(kernel) + 1)
            weights.append({"kernel": kernel / scale, "bias": layer["bias"] / scale})
        return tuple(weights)


# Cached, because what is compiled is kept by the identity of the step.
@functools.lru_cache(maxsize=64)
def build(model: Model, learning_rate: float, updates: int) -> Algorithm:
    """Return the algorithm.

    Parameters
    ----------
    model : Model
        What to learn about.
    learning_rate : float
        Of the rotations, at the start.
    updates : int
        Rows times epochs, over which it falls to zero.
    """
    optimizer = training.cosine_adam(learning_rate, updates)
    log_evidence = probit_log_evidence if model.n_classes else normal_log_evidence

    def init(key: jax.Array) -> State:
        init_key, key = jax.random.split(key)
        beliefs = model.init(init_key)
        return State(beliefs, optimizer.init(beliefs.rotations), key)

    def learn(
        carry: tuple[Beliefs, optax.OptState], row: Batch
    ) -> tuple[tuple[Beliefs, optax.OptState], jax.Array]:
        beliefs, opt_state = carry

        def log_z(mean: Any, var: Any, rotations: Any) -> tuple[jax.Array, Moments]:
            units = model.predict(mean, var, rotations, row.x)
            return log_evidence(units, beliefs.noise, row.y), units

        (value, units), gradient = jax.value_and_grad(log_z, argnums=(0, 1, 2), has_aux=True)(
            beliefs.mean, beliefs.var, beliefs.rotations
        )
        mean, var = filter_gaussian(beliefs.mean, beliefs.var, gradient[0], gradient[1])
        noise = beliefs.noise
        if not model.n_classes:
            noise = filter_gamma(noise, row.y[0], jax.tree.map(lambda leaf: leaf[0], units))
        updates, opt_state = optimizer.update(jax.tree.map(jnp.negative, gradient[2]), opt_state)
        rotations = optax.apply_updates(beliefs.rotations, updates)
        beliefs = beliefs._replace(mean=mean, var=var, rotations=rotations, noise=noise)
        return (beliefs, opt_state), value

    def step(state: State, data: Batch) -> tuple[State, Info]:
        key, order_key = jax.random.split(state.key)
        order = jax.random.permutation(order_key, len(data.x))
        rows = jax.tree.map(lambda leaf: leaf[order], data)
        carry = (state.particles, state.opt_state)
        (beliefs, opt_state), values = jax.lax.scan(learn, carry, rows)
        mean, var, prior, sites = refine_prior(
            beliefs.mean, beliefs.var, beliefs.prior, beliefs.sites
        )
        beliefs = beliefs._replace(mean=mean, var=var, prior=prior, sites=sites)
        return State(beliefs, opt_state, key), Info(jnp.mean(values))

    return Algorithm(jax.jit(init), step)


@functools.partial(jax.jit, static_argnums=0)
def _predict_rows(model: Model, beliefs: Beliefs, x: jax.Array) -> Moments:
    predict = functools.partial(model.predict, beliefs.mean, beliefs.var, beliefs.rotations)
    return jax.vmap(predict)(x)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _draw_many(model: Model, beliefs: Beliefs, key: jax.Array, n: int) -> Any:
    return jax.lax.map(lambda key: model.draw(beliefs, key), jax.random.split(key, n))


@dataclass(kw_only=True)
class PBP(Baseline):
    """Probabilistic back-propagation.

    Every row is an update of its own, so `steps` and `batch_size` play no part; `epochs` says how
    often each row is seen. `learning_rate` is that of the rotations, of which there are none here.
    The analytic prediction is one Gaussian, hence all its variance counts as ``aleatoric``.

    Parameters
    ----------
    epochs : int
        Passes over all rows.
    a, b : float
        Shape and rate of the Gamma priors of both precisions.
    draws : int
        Networks to keep for whoever wants draws; predictions do without.
    """

    epochs: int = 40
    a: float = 6.0
    b: float = 6.0
    draws: int = 100

    _model: Model = field(init=False, repr=False)
    _beliefs: Beliefs = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_count("epochs", self.epochs, 1)
        check_count("draws", self.draws, 1)
        check_positive("learning_rate", self.learning_rate)
        check_positive("a", self.a)
        check_positive("b", self.b)
        if self.a <= 1:
            raise ValueError(f"a must exceed 1, or variances have no mean; got {self.a!r}")
        if self.activation != "relu":
            raise ValueError(
                f"activation must be 'relu', whose moments are known, got {self.activation!r}"
            )

    def predict_dist(self, x: np.ndarray) -> Predictive:
        """Return what the method says about rows (N, F), in the units or labels of `y`."""
        rows = self._inputs(x)
        # Filled up to a power of two, so that few shapes are ever compiled.
        filled = np.zeros((1 << max(len(rows) - 1, 0).bit_length(), *rows.shape[1:]), rows.dtype)
        filled[: len(rows)] = rows
        units = _predict_rows(self._model, self._beliefs, jnp.asarray(filled))
        units = jax.tree.map(lambda part: np.asarray(part)[: len(rows)], units)
        if self._model.n_classes:
            z = units.mean[None] / np.sqrt(1 + units.var[None])
            logits = np.concatenate([log_ndtr(-z), log_ndtr(z)], axis=-1)
            return from_components("categorical", {"logits": logits}, **self._presentation)
        scale = np.sqrt(units.var + np.asarray(self._beliefs.noise.variance))
        components = {"loc": units.mean[None], "scale": scale[None]}
        return from_components("normal", components, **self._presentation)

    def _learn(self, problem: Problem, key: jax.Array) -> Posterior:
        init_key, train_key, draw_key = jax.random.split(key, 3)
        n_classes = getattr(problem.likelihood, "n_classes", 0)
        if n_classes > 2:
            raise ValueError(f"y has {n_classes} classes; this method can tell two apart, no more")
        network = dataclasses.replace(problem.network, n_outputs=1)
        model = Model(network, n_classes, self._n_reflections, self.a, self.b)
        algorithm = build(model, self.learning_rate, self.epochs * len(problem.data.x))
        result = training.train(
            algorithm,
            algorithm.init(init_key),
            problem.data,
            key=train_key,
            steps=self.epochs,
            chunk=1,
            progress=self.progress,
            description=type(self).__name__,
        )
        self._model, self._beliefs = model, result.state.particles
        draws = _draw_many(model, self._beliefs, draw_key, self.draws)
        if n_classes:
            return problem.posterior((*draws[:-1], _two_logits(draws[-1])))
        precision = jnp.full((self.draws, 1), 1 / self._beliefs.noise.variance)
        return problem.posterior(draws, {"log_precision": jnp.log(precision)})

    @property
    def _n_reflections(self) -> int:
        return 0


@dataclass(kw_only=True)
class PBPMV(PBP):
    """Probabilistic back-propagation with matrix-variate Gaussians.

    Parameters
    ----------
    reflections : int
        K, the Householder reflections on each side of a kernel.
    """

    reflections: int = 1

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_count("reflections", self.reflections, 1)

    @property
    def _n_reflections(self) -> int:
        return self.reflections


def _two_logits(last: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return a last layer with two outputs, of which the second is the log odds."""
    return jax.tree.map(
        lambda leaf: jnp.concatenate([jnp.zeros_like(leaf), _PROBIT_TO_LOGIT * leaf], axis=-1), last
    )


METHODS: dict[str, Any] = {"pbp": PBP, "pbp_mv": PBPMV}
