"""A Bayesian neural network: network, structure, prior and likelihood joined into one log density.

What lives here is the composition only. A particle is a pytree, one draw of everything unknown, and
`BNN` scores it or predicts with it; who moves the particles (`svgd`, `refine`) and how their
predictions are averaged (`predictive`) is none of this module's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from s2vgd import _compiled
from s2vgd._blocks import blocks_of, summed
from s2vgd.likelihoods import Components, Likelihood
from s2vgd.networks import MLP, Network
from s2vgd.priors import HierarchicalPrior, Prior, check_count
from s2vgd.structure import Structure, materialise, structure_weights

Particle: TypeAlias = dict[str, Any]

# A megabyte or two of numbers for each core: more does not stay in the caches of common processors.
ACTIVATIONS_AT_ONCE = 2**20


class Batch(NamedTuple):
    """Rows to learn from.

    Parameters
    ----------
    x : jax.Array, shape (B, ...)
        Inputs.
    y : jax.Array, shape (B, T) or (B,)
        Targets, or class labels.
    weight : jax.Array, shape (B,), optional
        How often each row counts; once when absent.
    """

    x: jax.Array
    y: jax.Array
    weight: jax.Array | None = None


@dataclass(frozen=True)
class BNN:
    """The model of the paper's section "Structural BNNs Revisited", eq. (fullmode) and after.

    A particle theta = {"weights", "prior", "likelihood"} holds the structured weights, the log
    precisions of their prior and the parameters of the noise.

    Parameters
    ----------
    network : Network
        ``init(key) -> weights`` and ``apply(weights, x) -> outputs``.
    likelihood : Likelihood
        How targets scatter about the outputs.
    structure : Structure
        The form given to every weight matrix; ``Structure(reflections=0, scales=None)`` gives the
        ordinary network of plain SVGD.
    prior : Prior
        Density of the structured weights.
    n_targets : int
        T, the number of target columns; 1 for classes.

    Notes
    -----
    Models compare and hash by value, so jitted functions may take one as a static argument and
    are compiled once for all equal models.
    """

    network: Network
    likelihood: Likelihood
    structure: Structure = Structure()  # noqa: RUF009  (frozen, hence safe to share)
    prior: Prior = HierarchicalPrior()  # noqa: RUF009
    n_targets: int = 1

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_count("n_targets", self.n_targets, 1)
        # Adapted networks learn their width from the data, and are checked when they meet it.
        self._check_width(getattr(self.network, "n_outputs", self._width))

    def init(self, key: jax.Array) -> Particle:
        """Draw one particle to start from."""
        network_key, structure_key, prior_key, likelihood_key = jax.random.split(key, 4)
        plain = self.network.init(network_key)
        weights = structure_weights(structure_key, plain, self.structure)
        return {
            "weights": weights,
            "prior": self.prior.init(prior_key, weights),
            "likelihood": self.likelihood.init(likelihood_key, self.n_targets),
        }

    def init_particles(self, key: jax.Array, m: int) -> Particle:
        """Draw `m` particles: the tree of `init` with a leading axis of length `m`."""
        check_count("m", m, 1)
        return _init_particles(self, key, m)

    def outputs(self, particle: Particle, x: jax.Array) -> jax.Array:
        """Return what the particle's network puts out, (B, O)."""
        weights = particle["weights"]
        if not getattr(self.network, "takes_structured", False):
            weights = materialise(weights)
        outputs = self.network.apply(weights, x)
        self._check_width(outputs.shape[-1])
        return outputs

    def components(self, particle: Particle, x: jax.Array) -> Components:
        """Return the parameters of the particle's predictive family, each with leading axis B."""
        return self.likelihood.components(particle["likelihood"], self.outputs(particle, x))

    def log_likelihood(self, particle: Particle, batch: Batch) -> jax.Array:
        """Return log p(y | x, theta) of every row, (B,); weights of rows play no part."""
        outputs = self.outputs(particle, batch.x)
        return self.likelihood.log_prob(particle["likelihood"], outputs, batch.y)

    def log_joint(
        self,
        particle: Particle,
        batch: Batch,
        n_total: float | jax.Array | None = None,
        rows_at_once: int | None = None,
    ) -> jax.Array:
        """Return the log joint density of a particle and all the data, estimated from a batch.

        ``log p(theta) + N / (sum_i w_i) * sum_i w_i log p(y_i | x_i, theta)``, over rows i of the
        batch, with w_i = 1 where the batch has no weights.

        Parameters
        ----------
        particle : pytree
            One particle, without a leading axis.
        batch : Batch
            Some rows, or all. A row of integer weight w counts as w equal rows, one of weight 0 not
            at all; a batch whose weights are all 0 leaves the prior alone.
        n_total : float, optional
            N, the number of rows of the whole data, or the sum of their weights. By default the
            batch is the whole of the data.
        rows_at_once : int, optional
            How many rows, at most, go through the network at a time; by default all. On a CPU
            a large batch takes up to twice as long if what the layers put out does not fit into the
            cache, see :meth:`rows_at_once`. The gradient with respect to the particle is added up
            in the same pass, and costs no second one; the batch cannot be differentiated then.

        Returns
        -------
        jax.Array, shape ()
            Exact for the whole data. Over batches of one size without weights its mean is the exact
            value; with weights it is a ratio estimate, whose bias vanishes as 1/B.
        """
        n_rows = len(batch.y)
        if rows_at_once is not None:
            check_count("rows_at_once", rows_at_once, 1)
        mass: float | jax.Array = float(n_rows)
        if batch.weight is not None:
            mass = jnp.sum(batch.weight)
            mass = jnp.where(mass > 0, mass, 1.0)
        if rows_at_once is None or n_rows <= rows_at_once:
            data = self._log_likelihood_of_all(particle, batch)
        else:
            data = summed(self._log_likelihood_of_all, particle, blocks_of(batch, rows_at_once))
        data = data if n_total is None else n_total / mass * data
        return (
            self.prior.log_prob(particle["weights"], particle["prior"])
            + self.likelihood.log_prior(particle["likelihood"])
            + data
        )

    def rows_at_once(self, particles: int) -> int | None:
        """Return how many rows so many particles are best shown at a time; None is all.

        On a CPU, what the widest layer of all of them puts out stays in the cache then. But weights
        are read once for each block, which has to be little beside what the layers put out.
        """
        if jax.default_backend() != "cpu" or not isinstance(self.network, MLP):
            return None
        widths = (*self.network.hidden, self.network.n_outputs)
        weights = sum(a * b for a, b in pairwise((self.network.n_inputs, *widths)))
        in_cache = ACTIVATIONS_AT_ONCE // (particles * max(widths))
        return max(128, in_cache, 5 * weights // sum(widths))

    def _log_likelihood_of_all(self, particle: Particle, batch: Batch) -> jax.Array:
        rows = self.log_likelihood(particle, batch)
        return jnp.sum(rows if batch.weight is None else batch.weight * rows)

    @property
    def _width(self) -> int:
        return self.likelihood.n_outputs(self.n_targets)

    def _check_width(self, n_outputs: int) -> None:
        if n_outputs != self._width:
            raise ValueError(
                f"network has {n_outputs} outputs but {self.likelihood} needs {self._width} "
                f"for n_targets={self.n_targets}"
            )


# Compiled once for all equal models. A map and not a vmap: the random bits of a batch of keys take
# half as long again to compile, and this runs once.
@_compiled.jit("once", static_argnums=(0, 2))
def _init_particles(bnn: BNN, key: jax.Array, m: int) -> Particle:
    particles = jax.lax.map(bnn.init, jax.random.split(key, m))
    # Strong types, which the first step would want and get by a program for each leaf.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), particles)
