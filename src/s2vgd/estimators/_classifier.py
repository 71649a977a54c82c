"""Classification: probabilities of classes, and how much of the doubt is the model's own."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Self

import jax
import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from s2vgd.errors import ModelFileError
from s2vgd.estimators._base import S2VGDEstimator
from s2vgd.estimators._rows import ROWS, weighted_rows
from s2vgd.likelihoods import Bernoulli, Categorical, Likelihood
from s2vgd.priors import FixedPrior, Prior


class S2VGDClassifier(ClassifierMixin, S2VGDEstimator):
    """Bayesian neural network classification by structured Stein variational gradient descent.

    Parameters
    ----------
    hidden, particles, reflections, scales, refine, steps, batch_size, learning_rate
        As for :class:`S2VGDRegressor`.
    prior : {"auto", "hierarchical"} or float, default="auto"
        As for :class:`S2VGDRegressor`, but "auto" is always 1.0: labels say too little to keep SVGD
        out of the mode of learned variances at which all weights are zero.
    activation, chains, warmup, draws, thin, dtype, products, checkpoint_dir, random_state, verbose
        As for :class:`S2VGDRegressor`.

    Attributes
    ----------
    classes_ : array, shape (n_classes,)
        The labels.
    posterior_, diagnostics_, history_, n_features_in_, feature_names_in_, n_iter_
        As for :class:`S2VGDRegressor`.
    """

    _kind: ClassVar[str] = "classifier"

    def __init__(
        self,
        hidden: tuple[int, ...] = (50,),
        *,
        particles: int = 20,
        reflections: int = 1,
        scales: str | None = "lognormal",
        prior: str | float = "auto",
        refine: str | None = "auto",
        steps: int | str | None = None,
        batch_size: int | str | None = "auto",
        learning_rate: float = 1e-2,
        activation: str = "relu",
        chains: int | None = 8,
        warmup: int | None = None,
        draws: int | None = None,
        thin: int | None = None,
        dtype: str = "float32",
        products: str = "float32",
        checkpoint_dir: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        self.hidden = hidden
        self.particles = particles
        self.reflections = reflections
        self.scales = scales
        self.prior = prior
        self.refine = refine
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.activation = activation
        self.chains = chains
        self.warmup = warmup
        self.draws = draws
        self.thin = thin
        self.dtype = dtype
        self.products = products
        self.checkpoint_dir = checkpoint_dir
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the posterior.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Inputs.
        y : array-like, shape (n_samples,)
            Class labels, of any type.
        sample_weight : array-like, shape (n_samples,), optional
            How often each row counts.

        Returns
        -------
        self
        """
        return self._fit(X, y, sample_weight, classes=None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Go on with new rows: the posterior given all rows so far, from where it was.

        Parameters
        ----------
        X, y, sample_weight
            As for :meth:`fit`; the rows seen so far are kept in memory.
        classes : array-like, optional
            In the first call, all labels that will ever occur, if that call has not got them all.

        Returns
        -------
        self
        """
        if not hasattr(self, "posterior_"):
            return self._fit(X, y, sample_weight, classes)
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes={classes!r} is not the same as in the first call: {self.classes_!r}"
            )
        x, y = validate_data(self, X, y, reset=False, **ROWS)
        x, y, weight = weighted_rows(x, y, sample_weight)
        self._partial_fit_rows(x, self._numbers(y), weight)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable label of each row, shape (n_samples,)."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, averaged over the posterior.

        Returns
        -------
        array, shape (n_samples, n_classes)
            In the order of ``classes_``.
        """
        return self._map(lambda p: p.mean, X)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the central interval, over the posterior, of each class's probability.

        Returns
        -------
        lower, upper : arrays, shape (n_samples, n_classes)
        """
        return self._map(lambda p: p.interval(level), X)

    def predict_quantiles(self, X: Any, q: Any) -> np.ndarray:
        """Return quantiles, over the posterior, of each class's probability.

        Returns
        -------
        array, shape (n_samples, n_classes), or (n_samples, n_classes, n_quantiles) for several q
        """
        if np.ndim(q) == 0:
            return self._map(lambda p: p.quantile(q), X)
        return self._map(lambda p: np.moveaxis(p.quantile(np.asarray(q)), 0, -1), X)

    def _fit(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> Self:
        x, y = validate_data(self, X, y, **ROWS)
        check_classification_targets(y)
        x, y, weight = weighted_rows(x, y, sample_weight)
        self.classes_ = np.unique(y if classes is None else np.asarray(classes))
        if len(self.classes_) < 2:
            raise ValueError(
                "y must hold at least two classes, got one class only: "
                f"{', '.join(map(repr, self.classes_.tolist())) or 'none'}"
            )
        self._fit_rows(x, self._numbers(y), weight)
        return self

    def _numbers(self, y: np.ndarray) -> np.ndarray:
        """Return the position of each label in `classes_`."""
        position = {label: i for i, label in enumerate(self.classes_.tolist())}
        labels = y.tolist()
        if unknown := sorted(set(labels) - position.keys(), key=str):
            raise ValueError(f"y has labels that are not in classes: {unknown[:5]}")
        return np.array([position[label] for label in labels])

    def _default_prior(self) -> Prior:
        return FixedPrior()

    def _likelihood(self) -> Likelihood:
        n_classes = len(self.classes_)
        return Bernoulli() if n_classes == 2 else Categorical(n_classes)

    def _prepare_targets(self, y: np.ndarray, weight: np.ndarray | None) -> None:
        """Do nothing: labels have no scale."""

    def _encode_targets(self, y: np.ndarray) -> jax.Array:
        return jax.device_put(np.asarray(y, np.int32))

    def _presentation(self) -> dict[str, Any]:
        return {"classes": self.classes_}

    def _target_arrays(self) -> dict[str, np.ndarray]:
        return {} if self.classes_.dtype.kind in "OUS" else {"classes": self.classes_}

    def _target_metadata(self) -> dict[str, Any]:
        if self.classes_.dtype.kind not in "OUS":
            return {"classes": None}
        labels = self.classes_.tolist()
        if not all(isinstance(label, str) for label in labels):
            raise TypeError("only string, number and boolean labels can be saved")
        return {"classes": labels, "objects": self.classes_.dtype == object}

    def _restore_targets(self, arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> None:
        labels = metadata["classes"]
        if labels is None:
            self.classes_ = arrays["classes"]
        else:
            self.classes_ = np.array(labels, object if metadata["objects"] else None)
        if self.classes_.ndim != 1 or len(self.classes_) < 2:
            raise ModelFileError("the saved classifier does not know its classes")
