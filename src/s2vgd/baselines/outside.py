"""Rivals of other libraries that are not networks: Gaussian processes, natural gradient boosting.

Each is fitted by its own library and only its predictions are put into our words. Both are for
numbers, and take the settings of networks (`hidden`, `steps`, ...) without using them, so that an
experiment can call all methods alike.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from s2vgd.baselines._base import Baseline
from s2vgd.predictive import Predictive, from_components
from s2vgd.priors import check_count, check_positive
from s2vgd.scaling import Scaler


@dataclass(kw_only=True)
class _Outside(Baseline):
    """A regressor of another library; subclasses fit it and ask it for mean and deviation."""

    _model: Any = field(init=False, repr=False)

    def fit(self, x: np.ndarray, y: np.ndarray) -> Self:
        """Learn from rows (N, F) and their targets (N,), real numbers."""
        x, y = np.asarray(x), np.asarray(y)
        if x.ndim != 2 or y.shape != x.shape[:1] or len(x) < 2:
            raise ValueError(f"x must be (N, F) and y (N,) with N > 1, got {x.shape} and {y.shape}")
        if not np.issubdtype(y.dtype, np.floating):
            raise ValueError(f"y must be real numbers, got {y.dtype}: there is no classifier here")
        if not np.isfinite(x).all() or not np.isfinite(y).all():
            raise ValueError("x and y must be finite")
        self._x_scaler = Scaler.of(x, None) if self.standardise else None
        self._model = self._fitted(self._inputs(x), y)
        return self

    def predict_dist(self, x: np.ndarray) -> Predictive:
        """Return one normal distribution a row of x (N, F), in the units of `y`."""
        mean, deviation = self._moments(self._inputs(x))
        return from_components("normal", {"loc": mean[None], "scale": deviation[None]})

    def _fitted(self, x: np.ndarray, y: np.ndarray) -> Any:
        raise NotImplementedError

    def _moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError


@dataclass(kw_only=True)
class GaussianProcess(_Outside):
    """Exact Gaussian process regression of scikit-learn.

    Matern-5/2 kernel with a length scale for each input, and white noise; all of them maximise the
    marginal likelihood. Targets are standardised by scikit-learn, inputs here.

    Parameters
    ----------
    max_rows : int
        The cost is cubic in the number of rows: of more than this, a random subset of this size is
        used and the rest is ignored.
    search_rows : int
        Of more rows than this, the hyperparameters are found on a random subset of this size,
        because the search is what takes long; then all rows that are used are conditioned on.
    restarts : int
        Searches for the hyperparameters from random starts, besides the first.
    """

    max_rows: int = 5000
    search_rows: int = 1000
    restarts: int = 0

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_count("max_rows", self.max_rows, 2)
        check_count("search_rows", self.search_rows, 2)
        check_count("restarts", self.restarts, 0)

    def _fitted(self, x: np.ndarray, y: np.ndarray) -> Any:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        if len(x) > min(self.max_rows, self.search_rows):
            rows = np.random.default_rng(self.seed).permutation(len(x))[: self.max_rows]
            x, y = x[rows], y[rows]
        matern = Matern(np.ones(x.shape[1]), (1e-2, 1e3), nu=2.5)
        kernel = ConstantKernel(1.0, (1e-2, 1e4)) * matern + WhiteKernel(0.1, (1e-6, 10.0))
        model = GaussianProcessRegressor(
            kernel, normalize_y=True, n_restarts_optimizer=self.restarts, random_state=self.seed
        )
        with warnings.catch_warnings():
            # An input without influence has its length scale at the bound, and that is all right.
            warnings.filterwarnings("ignore", "The optimal value found for dimension")
            model.fit(x[: self.search_rows], y[: self.search_rows])
        if len(x) <= self.search_rows:
            return model
        found = GaussianProcessRegressor(model.kernel_, optimizer=None, normalize_y=True)
        return found.fit(x, y)

    def _moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._model.predict(x, return_std=True)


@dataclass(kw_only=True)
class NGBoost(_Outside):
    """Natural gradient boosting of a normal distribution (Duan et al., 2020), by its authors.

    Needs the package ``ngboost``.

    Parameters
    ----------
    learning_rate : float
        Of the boosting.
    estimators : int
        Stages of boosting; the default and that of `learning_rate` are the package's own.
    """

    learning_rate: float = 0.01
    estimators: int = 500

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_positive("learning_rate", self.learning_rate)
        check_count("estimators", self.estimators, 1)

    def _fitted(self, x: np.ndarray, y: np.ndarray) -> Any:
        try:
            from ngboost import NGBRegressor
        except ImportError as error:
            raise ImportError(
                "the method ngboost needs its package: pip install ngboost"
            ) from error
        return NGBRegressor(
            n_estimators=self.estimators,
            learning_rate=self.learning_rate,
            random_state=self.seed,
            verbose=False,
        ).fit(x, y)

    def _moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parameters = self._model.pred_dist(x).params
        return parameters["loc"], parameters["scale"]


METHODS = {"gp": GaussianProcess, "ngboost": NGBoost}
