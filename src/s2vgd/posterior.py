"""A posterior: a model and the draws that stand for it, predictions from them, and its files.

How the draws came about (SVGD, chains, a rival) does not matter here. What they say about new rows
is a :class:`~s2vgd.predictive.Predictive`; scaling of inputs and targets is the estimators' affair.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np

from s2vgd import _compiled, files, likelihoods, networks, priors, structure
from s2vgd._description import Vocabulary
from s2vgd.bnn import BNN
from s2vgd.errors import ModelFileError
from s2vgd.predictive import Predictive, from_components

KIND = "posterior"
VERSION = 1

# Numbers held at a time for one block of rows and one block of draws.
_BLOCK = 2**23
_DRAWS_AT_A_TIME = 32
# Rows at a time; on a CPU the hidden layers of these stay in its cache.
_ROWS, _ROWS_ON_ACCELERATORS = 2**12, 2**16

_MODELS = Vocabulary(
    networks.MLP,
    structure.Structure,
    priors.HierarchicalPrior,
    priors.FixedPrior,
    likelihoods.Gaussian,
    likelihoods.HeteroscedasticGaussian,
    likelihoods.StudentT,
    likelihoods.Laplace,
    likelihoods.Categorical,
    likelihoods.Bernoulli,
    BNN,
    advice="build the same BNN and pass it as bnn",
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Posterior:
    """Draws of a network's unknowns.

    Parameters
    ----------
    bnn : BNN
        The model.
    particles : pytree
        Leaves have a leading axis S of draws. Draws of several chains lie chain after chain.
    n_chains : int
        How many chains the draws came from; S particles of SVGD are S chains of one draw.
    """

    bnn: BNN
    particles: Any
    n_chains: int

    def __post_init__(self) -> None:
        """Check that the draws can be what they are said to be."""
        sizes = {leaf.shape[:1] for leaf in jax.tree.leaves(self.particles)}
        if len(sizes) != 1 or sizes == {()} or sizes == {(0,)}:
            raise ValueError(
                f"particles must have one leading axis of draws, got {sorted(sizes)} as sizes"
            )
        if not isinstance(self.n_chains, int) or self.n_chains < 1 or len(self) % self.n_chains:
            raise ValueError(f"n_chains={self.n_chains!r} does not divide the {len(self)} draws")

    def __getstate__(self) -> dict[str, Any]:
        """Pickle NumPy arrays: JAX would read float64 back as float32, unless it is told not to."""
        return {**self.__dict__, "particles": jax.tree.map(np.asarray, self.particles)}

    @classmethod
    def from_chains(cls, bnn: BNN, draws: Any) -> Posterior:
        """Pool draws with leading axes (C, S) of chains and draws."""
        n_chains, n_draws = jax.tree.leaves(draws)[0].shape[:2]
        pooled = jax.tree.map(
            lambda a: jax.device_put(np.reshape(a, (n_chains * n_draws, *a.shape[2:]))), draws
        )
        return cls(bnn, pooled, n_chains)

    def __len__(self) -> int:
        """Return S, the number of draws."""
        return jax.tree.leaves(self.particles)[0].shape[0]

    def components(self, x: Any) -> dict[str, np.ndarray]:
        """Return each draw's predictive parameters for each row, arrays (S, B, ...)."""
        x = np.asarray(x)
        if x.ndim < 2:
            raise ValueError(f"x must have shape (rows, features), got {x.shape}")
        _compiled.keep()
        # Filled up to a power of two, so that few shapes are ever compiled.
        size = 1 << max(len(x) - 1, 0).bit_length()
        filled = np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])
        components = _components(self.bnn, self.particles, filled)
        return {name: np.asarray(value)[:, : len(x)] for name, value in components.items()}

    def predict(self, x: Any, **presentation: Any) -> Predictive:
        """Say what the draws predict.

        Parameters
        ----------
        x : array, shape (B, F)
            Rows, scaled as the training rows were.
        **presentation
            ``shift``, ``scale``, ``classes`` and ``squeeze`` of
            :func:`s2vgd.predictive.from_components`, to speak in the user's units or labels.

        Returns
        -------
        Predictive
            It holds all S draws of all B rows; for very many rows use :meth:`map_rows`.
        """
        return from_components(self.bnn.likelihood.family, self.components(x), **presentation)

    def map_rows(self, function: Callable[[Predictive], T], x: Any, **presentation: Any) -> T:
        """Apply a function to the predictive of block after block of rows, in bounded memory.

        Parameters
        ----------
        function : callable
            From a `Predictive` to an array with the rows as its first axis, or a tuple of such.
        x : array, shape (B, F)
            Any number of rows.
        **presentation
            See :meth:`predict`.

        Returns
        -------
        array or tuple of arrays
            The results of all blocks, joined.
        """
        x = np.asarray(x)
        width = _BLOCK // (len(self) * self.bnn.likelihood.n_outputs(self.bnn.n_targets))
        most = _ROWS if jax.default_backend() == "cpu" else _ROWS_ON_ACCELERATORS
        width = min(1 << max(width.bit_length() - 1, 0), most)
        parts = [
            function(self.predict(x[first : first + width], **presentation))
            for first in range(0, max(len(x), 1), width)
        ]
        if len(parts) == 1:
            return parts[0]
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)

    def to_arviz(self) -> Any:
        """Return the draws as an ArviZ ``InferenceData``, one variable a leaf.

        Needs the extra ``s2vgd[arviz]``. Weights of a network can be permuted without any effect,
        so R-hat of single weights means little; look at predictions.
        """
        try:
            import arviz
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ: pip install s2vgd[arviz]") from error
        draws = {
            name.replace("/", "."): array.reshape(self.n_chains, -1, *array.shape[1:])
            for name, array in files.tree_to_arrays(self.particles, "").items()
            if array.size
        }
        return arviz.from_dict(posterior=draws)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to a directory of safetensors and JSON, atomically.

        A model with a network of your own (Flax, Equinox) is saved without the network, which then
        has to be given to :meth:`load`.
        """
        arrays, metadata = self.to_payload()
        files.save_directory(path, arrays, metadata, kind=KIND, version=VERSION)

    @classmethod
    def load(cls, path: str | os.PathLike[str], bnn: BNN | None = None) -> Posterior:
        """Read what :meth:`save` wrote.

        Parameters
        ----------
        path : path-like
            The directory.
        bnn : BNN, optional
            The model, if its network is not one of this library's. It must be equal to the one that
            was saved, as far as that can be told.

        Raises
        ------
        ModelFileError
            If the directory is damaged, foreign, or of a newer version.
        """
        arrays, metadata, _ = files.load_directory(path, kind=KIND, max_version=VERSION)
        return cls.from_payload(arrays, metadata, bnn)

    def to_payload(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays and JSON-able metadata from which :meth:`from_payload` rebuilds this."""
        metadata = {"bnn": _MODELS.describe(self.bnn), "n_chains": self.n_chains}
        return files.tree_to_arrays(self.particles, "particles"), metadata

    @classmethod
    def from_payload(
        cls, arrays: dict[str, np.ndarray], metadata: dict[str, Any], bnn: BNN | None = None
    ) -> Posterior:
        """Rebuild a posterior from :meth:`to_payload`."""
        try:
            described, n_chains = metadata["bnn"], metadata["n_chains"]
        except (KeyError, TypeError):
            raise ModelFileError("the saved posterior does not describe its model") from None
        if bnn is None:
            bnn = _MODELS.rebuild(described)
        elif _MODELS.describe(bnn) != described:
            raise ModelFileError(f"bnn is not the model that was saved, which was {described}")
        if not isinstance(bnn, BNN):
            raise ModelFileError("the saved posterior does not describe a model")
        particles = restore_particles(bnn, arrays, "particles")
        try:
            return cls(bnn, particles, n_chains)
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"the saved posterior is inconsistent: {error}") from None


def restore_particles(bnn: BNN, arrays: dict[str, np.ndarray], prefix: str) -> Any:
    """Return the particles of a model whose leaves were saved under a prefix.

    Raises
    ------
    ModelFileError
        If they are not particles of this model.
    """
    saved = [array for name, array in arrays.items() if name.startswith(f"{prefix}/")]
    if not saved or saved[0].ndim == 0:
        raise ModelFileError(f"the saved model has no {prefix!r}")
    try:
        one = jax.eval_shape(bnn.init, jax.random.key(0))
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelFileError(f"the saved model cannot be built: {error}") from None
    example = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((len(saved[0]), *leaf.shape), leaf.dtype), one
    )
    return files.arrays_to_tree(arrays, example, prefix)


@partial(jax.jit, static_argnums=0)
def _components(bnn: BNN, particles: Any, x: jax.Array) -> dict[str, jax.Array]:
    return jax.lax.map(
        lambda particle: bnn.components(particle, x), particles, batch_size=_DRAWS_AT_A_TIME
    )
