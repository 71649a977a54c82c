"""VMG: matrix-variate Gaussian posteriors with pseudo-data (Louizos and Welling, 2016).

The weights of a layer are one matrix W of n rows, the last of which is the bias, and m columns;
inputs get a 1 at their end and are divided by the square root of n. Its posterior starts from
MN(M, U, V) with diagonal U and V, the prior being MN(0, s^2 I, I), and is then conditioned on
pseudo-data: k rows A and B, learned for each layer, with ``A W + noise = B``. The result is again a
matrix normal, of row covariance ``U - U Aᵀ (A U Aᵀ + eps I)⁻¹ A U``: the hidden units are linear
Gaussian processes that have seen the pseudo-data. While learning, outputs of a layer are drawn row
by row from their Gaussian given the pseudo-data, and covariances between rows are left out, as in
the paper; what is drawn for predictions is whole matrices, which each row by itself cannot tell
from that. The bound and its ascent are in ``_variational``. The two methods differ thus:

``vmg``
    Pseudo-data are points, and the bound charges the divergence of the *conditioned* matrix normal
    from the prior, which makes it a bound on the evidence. The authors charge that of MN(M, U, V),
    so that points would make weights certain at no cost, and overfit.
``vmg_dropout``
    The authors' own: the divergence of MN(M, U, V), and pseudo-data with multiplicative Gaussian
    noise, the variational dropout of Kingma et al. (2015) with its log-uniform prior, redrawn for
    each batch and each predicting network. The variances alpha of the noise are learned below a
    limit, which the authors' code keeps by clipping; here alpha is the limit times a sigmoid of a
    term for the pseudo-row and one for the column.

For real targets that code also has one alpha a layer, learned scales of the prior, and a Gamma
posterior of the noise level; here it is the model for classes everywhere, with s as a setting and
the noise level as a point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from s2vgd._random import normals
from s2vgd.baselines._variational import Family, Variational
from s2vgd.networks import ACTIVATIONS, MLP
from s2vgd.priors import check_count, check_positive

# A variance is a difference, of which single precision keeps no more than this share.
_LEAST_SHARE = 1e-6
# Of Kingma et al. (2015), for the log-uniform prior and variances of at most one.
_DROPOUT_KL = (1.16145124, -1.50204118, 0.58629921)

Layer = dict[str, jax.Array]


class MatrixNormal(NamedTuple):
    """The distribution MN(mean, row covariance, diag(column)) of an (n, m) matrix.

    Its columns have covariance ``column_j (diag(row) - sharedᵀ shared)`` and are independent.

    Parameters
    ----------
    mean : jax.Array, shape (n, m)
        Mean.
    row : jax.Array, shape (n,)
        Diagonal of the row covariance, before what pseudo-data explain.
    shared : jax.Array, shape (k, n)
        What pseudo-data explain; k is 0 without them.
    column : jax.Array, shape (m,)
        Diagonal of the column covariance.
    row_log_det : jax.Array, shape ()
        Log determinant of the row covariance.
    """

    mean: jax.Array
    row: jax.Array
    shared: jax.Array
    column: jax.Array
    row_log_det: jax.Array


def matrix_normal(mean: jax.Array, row: jax.Array, column: jax.Array) -> MatrixNormal:
    """Return MN(mean, diag(row), diag(column))."""
    nothing = jnp.zeros((0, len(row)), row.dtype)
    return MatrixNormal(mean, row, nothing, column, jnp.sum(jnp.log(row)))


def condition(w: MatrixNormal, x: jax.Array, y: jax.Array) -> MatrixNormal:
    """Return the distribution of W given that ``x W + noise = y``.

    Parameters
    ----------
    w : MatrixNormal
        With a diagonal row covariance.
    x, y : jax.Array, shapes (k, n) and (k, m)
        Pseudo-data. Their noise is MN(0, pseudo_variance(w.row, x) I, diag(w.column)).
    """
    variance = pseudo_variance(w.row, x)
    # An accelerator's usual product of 10 bits would leave no Cholesky factor.
    with jax.default_matmul_precision("highest"):
        gram = (x * w.row) @ x.T + variance * jnp.eye(len(x), dtype=x.dtype)
        root = jnp.linalg.cholesky(gram, symmetrize_input=False)
        sides = jnp.concatenate([x * w.row, y - x @ w.mean], axis=1)
        shared, surprise = jnp.split(solve_triangular(root, sides, lower=True), [len(w.row)], 1)
        mean = w.mean + shared.T @ surprise
    log_det = len(x) * jnp.log(variance) - 2 * jnp.sum(jnp.log(jnp.diag(root)))
    return w._replace(mean=mean, shared=shared, row_log_det=w.row_log_det + log_det)


def pseudo_variance(row: jax.Array, x: jax.Array) -> jax.Array:
    """Return the variance of the noise of pseudo-data, for columns of variance one.

    Pseudo-inputs find their own scale, so the first part is no setting; the second keeps the
    matrix that is factorised positive definite in single precision however large they become.
    """
    return 1e-3 + 1e-4 * jnp.mean(jnp.square(x) @ row)


def kl(w: MatrixNormal, prior_std: float) -> jax.Array:
    """Return KL(w, MN(0, prior_std^2 I, I)), as Louizos and Welling (2016) have it."""
    n, m = w.mean.shape
    variance = (jnp.sum(w.row) - jnp.sum(jnp.square(w.shared))) * jnp.sum(w.column)
    squares = (variance + jnp.sum(jnp.square(w.mean))) / prior_std**2
    log_det = m * w.row_log_det + n * jnp.sum(jnp.log(w.column))
    return 0.5 * (squares - n * m - log_det) + n * m * math.log(prior_std)


def output_moments(w: MatrixNormal, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean and variance, (B, m) each, of ``inputs W`` for inputs (B, n)."""
    with jax.default_matmul_precision("highest"):
        whole = jnp.square(inputs) @ w.row
        explained = jnp.sum(jnp.square(inputs @ w.shared.T), axis=1)
    variance = jnp.maximum(whole - explained, _LEAST_SHARE * whole)
    return inputs @ w.mean, variance[:, None] * w.column


@dataclass(frozen=True)
class MatrixGaussian:
    """Matrix normals conditioned on pseudo-data, and charged for what they are then.

    Parameters
    ----------
    network : MLP
        The network.
    pseudo_rows : int
        k, the pseudo-data of each layer.
    prior_std : float
        s; what a layer puts out has about this size under the prior.
    initial_std : float
        Standard deviation of all entries of W at the start.
    """

    network: MLP
    pseudo_rows: int
    prior_std: float
    initial_std: float

    def init(self, key: jax.Array) -> tuple[Layer, ...]:
        """Return the parameters to start from: pseudo-data that tell little, and nothing new."""
        network_key, pseudo_key = jax.random.split(key)
        means = [_matrix(layer) for layer in self.network.init(network_key)]
        places = normals(pseudo_key, [(self.pseudo_rows, len(mean)) for mean in means])
        return tuple(
            self._init_layer(mean, 0.1 / math.sqrt(len(mean)) * x)
            for mean, x in zip(means, places, strict=True)
        )

    def forward(
        self, params: tuple[Layer, ...], x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return outputs by local reparameterisation, and what the layers cost."""
        activate = ACTIVATIONS[self.network.activation]
        shapes = [[*self._noise_shapes(p), (len(x), p["y"].shape[1])] for p in params]
        noise = iter(normals(key, [*chain(*shapes)]))
        hidden, cost = x, jnp.zeros(())
        for i, layer in enumerate(params):
            before = _before(layer)
            after = condition(before, *self._pseudo_data(layer, noise))
            loc, variance = output_moments(after, _inputs(activate(hidden) if i else hidden))
            hidden = loc + jnp.sqrt(variance) * next(noise)
            cost += self._cost(layer, before, after)
        return hidden, cost

    def draw(self, params: tuple[Layer, ...], key: jax.Array) -> tuple[Layer, ...]:
        """Draw weights, by Matheron's rule: condition a draw of what was there before."""
        shapes = [[*self._noise_shapes(p), p["mean"].shape, p["y"].shape] for p in params]
        noise = iter(normals(key, [*chain(*shapes)]))
        weights = []
        for layer in params:
            x, y = self._pseudo_data(layer, noise)
            before = _before(layer)
            column = jnp.sqrt(before.column)
            start = before.mean + jnp.sqrt(before.row)[:, None] * next(noise) * column
            error = jnp.sqrt(pseudo_variance(before.row, x)) * next(noise) * column
            weights.append(_weights(condition(before._replace(mean=start), x, y - error).mean))
        return tuple(weights)

    def _init_layer(self, mean: jax.Array, x: jax.Array) -> Layer:
        n, m = mean.shape
        log_variance = math.log(self.initial_std)  # of either factor; their product is its square
        return {
            "mean": mean,
            "log_row": jnp.full(n, log_variance),
            "log_column": jnp.full(m, log_variance),
            "x": x,
            "y": x @ mean,
        }

    def _noise_shapes(self, layer: Layer) -> list[tuple[int, ...]]:
        """Return the shapes of the noise that `_pseudo_data` takes."""
        return []

    def _pseudo_data(self, layer: Layer, noise: Iterator[jax.Array]) -> tuple[jax.Array, jax.Array]:
        return layer["x"], layer["y"]

    def _cost(self, layer: Layer, before: MatrixNormal, after: MatrixNormal) -> jax.Array:
        return kl(after, self.prior_std)


@dataclass(frozen=True)
class MatrixGaussianDropout(MatrixGaussian):
    """Matrix normals conditioned on noisy pseudo-data, and charged for what they were before.

    Parameters
    ----------
    max_alpha : float
        Limit of the variances of the noise, at most 1.
    """

    max_alpha: float

    def _init_layer(self, mean: jax.Array, x: jax.Array) -> Layer:
        n, m = mean.shape
        logits = {"alpha_row": jnp.ones(len(x)), "alpha_x": jnp.ones(n), "alpha_y": jnp.ones(m)}
        return super()._init_layer(mean, x) | logits

    def _noise_shapes(self, layer: Layer) -> list[tuple[int, ...]]:
        return [layer["x"].shape, layer["y"].shape]

    def _pseudo_data(self, layer: Layer, noise: Iterator[jax.Array]) -> tuple[jax.Array, jax.Array]:
        x_std, y_std = (jnp.exp(0.5 * log_alpha) for log_alpha in self._log_alphas(layer))
        return layer["x"] * (1 + x_std * next(noise)), layer["y"] * (1 + y_std * next(noise))

    def _cost(self, layer: Layer, before: MatrixNormal, after: MatrixNormal) -> jax.Array:
        noise = sum(jnp.sum(dropout_kl(log_alpha)) for log_alpha in self._log_alphas(layer))
        return kl(before, self.prior_std) + noise

    def _log_alphas(self, layer: Layer) -> list[jax.Array]:
        """Return the log variances of the noise of ``x`` and ``y``."""
        logits = [layer["alpha_row"][:, None] + layer[name] for name in ("alpha_x", "alpha_y")]
        return [math.log(self.max_alpha) + jax.nn.log_sigmoid(logit) for logit in logits]


def dropout_kl(log_alpha: jax.Array) -> jax.Array:
    """Return KL(N(t, alpha t^2), log-uniform) up to a constant, for alpha of at most one.

    The polynomial of Kingma et al. (2015), good to 0.04; it does not depend on t.
    """
    alpha = jnp.exp(log_alpha)
    c1, c2, c3 = _DROPOUT_KL
    return -(0.5 * log_alpha + alpha * (c1 + alpha * (c2 + alpha * c3)))


def _before(layer: Layer) -> MatrixNormal:
    """Return MN(M, U, V), without the pseudo-data."""
    row, column = jnp.exp(layer["log_row"]), jnp.exp(layer["log_column"])
    return matrix_normal(layer["mean"], row, column)


def _inputs(x: jax.Array) -> jax.Array:
    """Append a 1 for the bias, and divide by the root of the number of inputs."""
    whole = jnp.concatenate([x, jnp.ones((len(x), 1), x.dtype)], axis=1)
    return whole / math.sqrt(whole.shape[1])


def _matrix(layer: Layer) -> jax.Array:
    """Return the W of plain weights."""
    whole = jnp.concatenate([layer["kernel"], layer["bias"][None]])
    return whole * math.sqrt(len(whole))


def _weights(w: jax.Array) -> Layer:
    """Return the plain weights of a W."""
    whole = w / math.sqrt(len(w))
    return {"kernel": whole[:-1], "bias": whole[-1]}


@dataclass(kw_only=True)
class VMG(Variational):
    """VMG with pseudo-data that are points.

    Parameters
    ----------
    pseudo_rows : int
        Pseudo-data of each layer. The authors' code has 5 for Yacht and 50 for MNIST.
    prior_std : float
        Scale of the prior: what a layer puts out has about this size.
    initial_std : float
        Standard deviation of a weight at the start, where the prior has `prior_std`.
    """

    pseudo_rows: int = 10
    prior_std: float = 1.0
    initial_std: float = 0.1

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_count("pseudo_rows", self.pseudo_rows, 1)
        check_positive("prior_std", self.prior_std)
        check_positive("initial_std", self.initial_std)

    def _family(self, network: MLP) -> Family:
        return MatrixGaussian(network, self.pseudo_rows, self.prior_std, self.initial_std)


@dataclass(kw_only=True)
class VMGDropout(VMG):
    """VMG with variational dropout of the pseudo-data.

    Parameters
    ----------
    max_alpha : float
        Limit of the variances of the multiplicative noise, at most 1. The authors' code has 0.005
        for Yacht and 0.0001 for MNIST.
    """

    max_alpha: float = 0.005

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_positive("max_alpha", self.max_alpha)
        if self.max_alpha > 1:
            raise ValueError(f"max_alpha must be at most 1, got {self.max_alpha!r}")

    def _family(self, network: MLP) -> Family:
        return MatrixGaussianDropout(
            *(network, self.pseudo_rows, self.prior_std, self.initial_std), self.max_alpha
        )


METHODS: dict[str, Any] = {"vmg": VMG, "vmg_dropout": VMGDropout}
