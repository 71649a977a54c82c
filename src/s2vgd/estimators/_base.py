"""What regressor and classifier share: parameters, validation, scaling, fitting, files."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self, TypeVar

import jax
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from s2vgd import files
from s2vgd.bnn import BNN, Batch
from s2vgd.errors import DivergedError, ModelFileError
from s2vgd.estimators import _fitting
from s2vgd.estimators._parameters import PRODUCTS, check_integer, check_parameters, jsonable
from s2vgd.estimators._rows import ROWS, is_plain_table
from s2vgd.estimators._trials import STEPS_TO_CHOOSE_FROM, Trial, held_out_rows
from s2vgd.likelihoods import Likelihood
from s2vgd.networks import MLP
from s2vgd.posterior import Posterior, restore_particles
from s2vgd.predictive import Predictive
from s2vgd.priors import FixedPrior, HierarchicalPrior, Prior
from s2vgd.refine import RefinementWarning
from s2vgd.scaling import Scaler
from s2vgd.structure import Structure

VERSION = 1

_WITHOUT_ROWS = (
    "and this model was loaded without them; save it with save(path, rows=True) to go on with it"
)
T = TypeVar("T")


class S2VGDEstimator(BaseEstimator):
    """Base class; see :class:`S2VGDRegressor` and :class:`S2VGDClassifier`."""

    _kind: ClassVar[str]

    # Set by the subclasses' __init__, which scikit-learn wants to be explicit.
    hidden: Any
    particles: int
    reflections: int
    scales: Any
    prior: Any
    refine: str | None
    steps: Any
    batch_size: Any
    learning_rate: float
    activation: str
    chains: int | None
    warmup: int | None
    draws: int | None
    thin: int | None
    dtype: str
    products: str
    checkpoint_dir: Any
    random_state: Any
    verbose: Any

    # The number of steps that steps="auto" has come to.
    _steps: int | None = None
    # The training rows, which partial_fit needs; y is (N, T) or class numbers (N,).
    _rows: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None

    # -- fitting -----------------------------------------------------------------------------

    def _fit_rows(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Fit afresh on validated rows; y is (N, T) floats, or (N,) class numbers."""
        self._check_parameters()
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._x_scaler = Scaler.of(x, weight)
        self._prepare_targets(y, weight)
        self._steps = None
        if self._needs_trial():
            weight = np.ones(len(x)) if weight is None else weight
            self._choose(x, y, weight)
        self._learn(x, y, weight, start=None)

    def _learn(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None, start: Any) -> None:
        self._rows = x, y, weight
        with self._precision():
            data = self._batch(x, y, weight)
            recipe = self._recipe(len(x))
            result = _fitting.fit(self._model(x, y), data, recipe, self._seed, start)
        self.posterior_ = result.posterior
        self.history_ = result.history
        self.diagnostics_ = result.diagnostics
        self._particles = jax.tree.map(np.asarray, result.particles)
        self.n_iter_ = recipe.steps

    def _needs_trial(self) -> bool:
        """Say whether something is to be chosen on held-out rows."""
        return self.steps == "auto" and self.refine is None

    def _choose(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        """Choose what is left to be chosen, by how well it predicts rows that are held out."""
        held_out = held_out_rows(len(x))
        if self.steps != "auto" or self.refine is not None or len(held_out) == 0:
            return
        best = -np.inf
        for steps in STEPS_TO_CHOOSE_FROM:
            recipe = self._recipe(len(x))._replace(steps=steps, purpose=f"trying {steps} steps: ")
            try:
                density = self._trial(x, y, weight, recipe).log_prob()
            except DivergedError:
                if self._steps is None:
                    raise
                break  # fewer steps went well
            score = np.average(density, weights=weight[held_out])
            if score <= best:
                break
            best, self._steps = score, steps

    def _trial(
        self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, recipe: _fitting.Recipe
    ) -> Trial:
        """Fit without the held-out rows; return what the draws say about those.

        The trial differs from the fit in the weights of the rows alone, which are zero for those
        held out, so that nothing is compiled for it that the fit will not use.
        """
        held_out = held_out_rows(len(x))
        left = weight.copy()
        left[held_out] = 0.0
        recipe = recipe._replace(checkpoint_dir=None)
        with self._precision(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RefinementWarning)
            data = self._batch(x, y, left)
            result = _fitting.fit(self._model(x, y), data, recipe, self._seed)
            components = result.posterior.components(data.x[held_out])
        family = result.posterior.bnn.likelihood.family
        return Trial(family, components, np.asarray(data.y[held_out]), weight[held_out])

    def _partial_fit_rows(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        self._check_parameters()
        if self._rows is None:
            raise ValueError(f"partial_fit needs the rows seen so far, {_WITHOUT_ROWS}")
        old_x, old_y, old_weight = self._rows
        if weight is not None or old_weight is not None:
            old_weight = np.ones(len(old_x)) if old_weight is None else old_weight
            weight = np.ones(len(x)) if weight is None else weight
            weight = np.concatenate([old_weight, weight])
        if self._model(x, y) != self.posterior_.bnn:
            raise ValueError(
                "partial_fit goes on with the network that was fitted, so parameters that define "
                "it (hidden, activation, reflections, scales, prior) cannot change; use fit"
            )
        rows = np.concatenate([old_x, x]), np.concatenate([old_y, y])
        self._learn(*rows, weight, start=self._particles)

    def _batch(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> Batch:
        return Batch(
            self._array(self._x_scaler(x)),
            self._encode_targets(y),
            None if weight is None else self._array(weight),
        )

    def _array(self, values: np.ndarray) -> jax.Array:
        # Rounded by NumPy: JAX would compile a program for it, one for each shape.
        return jax.device_put(values.astype(self.dtype))

    def _model(self, x: np.ndarray, y: np.ndarray) -> BNN:
        likelihood = self._likelihood()
        n_targets = y.shape[1] if y.ndim == 2 else 1
        network = MLP(
            x.shape[1], tuple(self.hidden), likelihood.n_outputs(n_targets), self.activation
        )
        structure = Structure(self.reflections, self.scales)
        return BNN(network, likelihood, structure, self._prior(), n_targets)

    def _prior(self) -> Prior:
        if self.prior == "auto":
            return self._default_prior()
        if self.prior == "hierarchical":
            return HierarchicalPrior()
        return FixedPrior(variance=float(self.prior))

    def _recipe(self, n_rows: int) -> _fitting.Recipe:
        batch_size = self.batch_size
        if batch_size == "auto":
            batch_size = _fitting.BATCH_ROWS if n_rows > _fitting.FULL_BATCH_ROWS else None
        steps = self._steps if self.steps == "auto" else self.steps
        method = self.refine
        if method == "auto":
            method = _fitting.sampler_for(n_rows)
        return _fitting.Recipe(
            particles=self.particles,
            steps=steps or _fitting.default_steps(method, batch_size),
            batch_size=batch_size,
            learning_rate=self.learning_rate,
            refine=method,
            chains=self.chains,
            warmup=self.warmup,
            draws=self.draws,
            thin=self.thin,
            progress=bool(self.verbose),
            checkpoint_dir=self.checkpoint_dir,
        )

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        # Accelerators round the inputs of a product to 10 bits by default. Networks for tables are
        # too small to gain much from it, and where the noise is low it is what limits the fit.
        rounded = PRODUCTS[self.products if jax.default_backend() == "gpu" else "float32"]
        with jax.enable_x64(self.dtype == "float64"), jax.default_matmul_precision(rounded):
            yield

    def _check_parameters(self) -> None:
        check_parameters(self)

    # -- what the subclasses know --------------------------------------------------------------

    def _likelihood(self) -> Likelihood:
        raise NotImplementedError

    def _default_prior(self) -> Prior:
        raise NotImplementedError

    def _prepare_targets(self, y: np.ndarray, weight: np.ndarray | None) -> None:
        raise NotImplementedError

    def _encode_targets(self, y: np.ndarray) -> jax.Array:
        raise NotImplementedError

    def _presentation(self) -> dict[str, Any]:
        """Return what `from_components` needs to speak in the user's units or labels."""
        raise NotImplementedError

    # -- predicting ----------------------------------------------------------------------------

    def _inputs(self, X: Any) -> np.ndarray:
        """Return validated rows as the networks want them."""
        check_is_fitted(self, "posterior_")
        is_plain = is_plain_table(X, self.n_features_in_) and not hasattr(self, "feature_names_in_")
        x = X if is_plain else validate_data(self, X, reset=False, **ROWS)
        return self._x_scaler(x).astype(self.dtype)

    def _map(self, function: Callable[[Predictive], T], X: Any) -> T:
        x = self._inputs(X)
        with self._precision():
            return self.posterior_.map_rows(function, x, **self._presentation())

    def predict_dist(self, X: Any) -> Predictive:
        """Return all that the posterior says about some rows.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            The rows. All draws of all rows are held, so keep to some ten thousand at a time.

        Returns
        -------
        Predictive
            Means, spreads, quantiles, densities, scores; see :mod:`s2vgd.predictive`.
        """
        x = self._inputs(X)
        with self._precision():
            return self.posterior_.predict(x, **self._presentation())

    def sample(self, X: Any, n: int = 1, random_state: int | None = None) -> np.ndarray:
        """Draw outcomes from the predictive distribution of each row.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            The rows.
        n : int
            Draws a row.
        random_state : int, optional
            Seed; by default that of the fit, so that the same call gives the same draws.

        Returns
        -------
        array, shape (n, n_samples) or (n, n_samples, n_targets)
            Outcomes, or class labels.
        """
        check_integer("n", n, 1)
        predictive = self.predict_dist(X)
        seed = self._seed if random_state is None else random_state
        return predictive.sample(jax.random.key(seed), n)

    # -- files ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], rows: bool = False) -> None:
        """Write the fitted model to a directory of safetensors and JSON, atomically.

        Parameters
        ----------
        path : path-like
            The directory; a model that is there is replaced.
        rows : bool
            Keep the training rows as well, which `partial_fit` needs after loading.
        """
        check_is_fitted(self, "posterior_")
        arrays, posterior = self.posterior_.to_payload()
        arrays |= {"x_shift": self._x_scaler.shift, "x_scale": self._x_scaler.scale}
        arrays |= self._target_arrays()
        if rows:
            if self._rows is None:
                raise ValueError(f"rows=True needs the rows, {_WITHOUT_ROWS}")
            x, y, weight = self._rows
            arrays |= {"rows/x": x, "rows/y": y}
            arrays |= {} if weight is None else {"rows/weight": weight}
            arrays |= files.tree_to_arrays(self._particles, "start")
        names = getattr(self, "feature_names_in_", None)
        metadata = {
            "posterior": posterior,
            "parameters": jsonable(self.get_params(deep=False)),
            "features": self.n_features_in_,
            "feature_names": None if names is None else list(map(str, names)),
            "seed": self._seed,
            "steps": self.n_iter_,
            "targets": self._target_metadata(),
        }
        files.save_directory(path, arrays, metadata, kind=self._kind, version=VERSION)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that :meth:`save` wrote.

        Raises
        ------
        ModelFileError
            If it is damaged, foreign, of the other kind, or of a newer version.
        """
        arrays, metadata, _ = files.load_directory(path, kind=cls._kind, max_version=VERSION)
        try:
            parameters = dict(metadata["parameters"])
            if isinstance(parameters.get("hidden"), list):
                parameters["hidden"] = tuple(parameters["hidden"])
            model = cls(**parameters)
            model._check_parameters()
            model.n_features_in_ = metadata["features"]
            if metadata["feature_names"] is not None:
                model.feature_names_in_ = np.asarray(metadata["feature_names"], dtype=object)
            model._seed, model.n_iter_ = metadata["seed"], metadata["steps"]
            model._steps = model.n_iter_
            model._x_scaler = Scaler(arrays["x_shift"], arrays["x_scale"])
            model._restore_targets(arrays, metadata["targets"])
            model._rows = None
            if "rows/x" in arrays:
                model._rows = arrays["rows/x"], arrays["rows/y"], arrays.get("rows/weight")
            payload = metadata["posterior"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelFileError(f"{path} does not describe a {cls.__name__}: {error}") from None
        with model._precision():
            model.posterior_ = Posterior.from_payload(arrays, payload)
            if model._rows is not None:
                model._particles = restore_particles(model.posterior_.bnn, arrays, "start")
        network, scaler = model.posterior_.bnn.network, model._x_scaler
        widths = {(model.n_features_in_,), scaler.shift.shape, scaler.scale.shape}
        if not isinstance(network, MLP) or widths != {(network.n_inputs,)}:
            raise ModelFileError(f"{path} is inconsistent about its number of features")
        model.history_, model.diagnostics_ = {}, None
        return model

    def _target_arrays(self) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _target_metadata(self) -> dict[str, Any]:
        raise NotImplementedError

    def _restore_targets(self, arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> None:
        raise NotImplementedError
