"""Regression: a number, or several, with error bars."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Self

import jax
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from s2vgd.estimators import _fitting
from s2vgd.estimators._base import S2VGDEstimator
from s2vgd.estimators._rows import ROWS, weighted_rows
from s2vgd.estimators._trials import (
    best_share,
    best_spread,
    held_out_rows,
    shares_to_choose_from,
)
from s2vgd.likelihoods import Gaussian, HeteroscedasticGaussian, Laplace, Likelihood, StudentT
from s2vgd.priors import FixedPrior, HierarchicalPrior, Prior
from s2vgd.refine import length_of
from s2vgd.scaling import Scaler

NOISES = ("constant", "input", "auto", "student_t", "laplace")


class S2VGDRegressor(RegressorMixin, S2VGDEstimator):
    """Bayesian neural network regression by structured Stein variational gradient descent.

    Inputs and targets are standardised inside and everything is reported in the user's units.

    Parameters
    ----------
    hidden : tuple of int, default=(50,)
        Widths of the hidden layers.
    particles : int, default=20
        M, the networks that SVGD moves together. With refinement there are no more of them than
        `chains`, and a chain starts at each.
    reflections : int, default=1
        K, Householder reflections on each side of a weight matrix; 0 for none.
    scales : {"lognormal", "gaussian"} or None, default="lognormal"
        The diagonals of a structured weight; with ``reflections=0`` and None it is plain SVGD.
    noise : {"input", "constant", "auto", "student_t", "laplace"}, default="input"
        Gaussian noise that depends on the input, or of one size everywhere; or "auto": some chains
        of either kind, a quarter at least, in the proportion and with the spread that predict a
        held-out sixth of the training rows best, which takes about half as long again. The last
        two are for data with outliers.
    prior : {"auto", "hierarchical"} or float, default="auto"
        Learned variances of the weights a layer, eq. (fullmode), or a fixed variance. "auto" is
        1.0 with refinement, "hierarchical" without.
    refine : {"auto", "mclmc", "hmc", "nuts", "sghmc"} or None, default="auto"
        Sampler that refines the particles; None leaves them as SVGD found them, which is faster
        and too sure of itself. "auto" is "hmc" below 100 rows, "mclmc" up to 20,000
        (200,000 on an accelerator) and "sghmc" beyond.
    steps : int or "auto", optional
        Steps of SVGD. By default 1000 before a refinement by anything but "sghmc"; else 4000 when
        each step sees all rows, and 8000 when it sees a batch. Without refinement "auto" tries
        1000, 4000 and 16000 for as long as that predicts a held-out sixth of the training rows
        better.
    batch_size : int, "auto" or None, default="auto"
        Rows a step; None for all. "auto" is all up to 2048, else 512.
    learning_rate : float, default=1e-2
        Of Adam; it falls to zero along a cosine, without refinement over the last quarter of the
        steps only.
    activation : {"relu", "tanh", "gelu", "silu"}, default="relu"
        Of the hidden units.
    chains : int or None, default=8
        How many chains the refinement runs; None for one a particle. A few long chains serve
        better than many short ones.
    warmup, draws, thin : int, optional
        Length of the refinement: steps of tuning, draws kept of each chain, steps between two.
        The defaults are those of :mod:`s2vgd.refine`.
    dtype : {"float32", "float64"}, default="float32"
        Precision of the computation.
    products : {"float32", "tf32", "bfloat16"}, default="float32"
        To what a GPU rounds the factors of the networks' matrix products, whose sums stay in
        float32. Anything but float32 is faster where layers are hundreds of units wide, and limits
        how small a noise can be learned. Structure, kernel and CPUs are not concerned.
    checkpoint_dir : path-like, optional
        Where SVGD keeps checkpoints; fitting again with the same data goes on from there.
    random_state : int, RandomState or None, default=None
        The same integer gives the same result on the same machine.
    verbose : bool, default=False
        Show progress bars.

    Attributes
    ----------
    posterior_ : Posterior
        The draws.
    diagnostics_ : Diagnostics or None
        How the chains of the refinement did.
    history_ : dict of array
        The log density and more, along the steps of SVGD.
    noise_ : str
        The noise model in use. With ``noise="auto"`` "mixed" for both kinds; "input" or "constant"
        if there are too few chains to mix.
    constant_share_ : float
        The share of the draws whose noise has one size everywhere.
    spread_ : float
        What all deviations from the mean prediction are multiplied by: one, unless ``noise="auto"``
        found on the held-out rows that predictions are too wide or too narrow.
    n_features_in_, feature_names_in_, n_iter_
        As in scikit-learn.

    Examples
    --------
    >>> from s2vgd import S2VGDRegressor, datasets
    >>> data = datasets.load("yacht")
    >>> train, test = data.splits[0]
    >>> model = S2VGDRegressor(random_state=0).fit(data.x[train], data.y[train])
    >>> lower, upper = model.predict_interval(data.x[test], level=0.9)
    """

    _kind: ClassVar[str] = "regressor"

    # The share of constant noise that noise="auto" has come to.
    _tied: float | None = None

    def __init__(
        self,
        hidden: tuple[int, ...] = (50,),
        *,
        particles: int = 20,
        reflections: int = 1,
        scales: str | None = "lognormal",
        noise: str = "input",
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
        self.noise = noise
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
        y : array-like, shape (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : array-like, shape (n_samples,), optional
            How often each row counts.

        Returns
        -------
        self
        """
        x, y, weight = self._check_rows(X, y, sample_weight, reset=True)
        if len(x) < 2:
            raise ValueError("sample_weight must be positive for two rows or more, got one sample")
        self._fit_rows(x, y, weight)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Go on with new rows: the posterior given all rows so far, from where it was.

        The rows seen so far are kept in memory. Scaling and noise model stay those of the first
        call, which is a :meth:`fit`.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(X, y, sample_weight)
        x, y, weight = self._check_rows(X, y, sample_weight, reset=False)
        if y.shape[1] != self._y_scaler.shift.size:
            raise ValueError(f"y must have {self._y_scaler.shift.size} targets, got {y.shape[1]}")
        self._partial_fit_rows(x, y, weight)
        return self

    def predict(
        self, X: Any, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the mean.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Inputs.
        return_std : bool
            Also return the standard deviation of the prediction, noise included.

        Returns
        -------
        array, shape (n_samples,) or (n_samples, n_targets), or two of them
        """
        if return_std:
            return self._map(lambda p: (p.mean, p.std), X)
        return self._map(lambda p: p.mean, X)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and upper end of the central interval of probability `level`."""
        return self._map(lambda p: p.interval(level), X)

    def predict_quantiles(self, X: Any, q: Any) -> np.ndarray:
        """Return quantiles of the predictive distribution.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Inputs.
        q : float or array-like, shape (n_quantiles,)
            Probabilities, between 0 and 1.

        Returns
        -------
        array, shape (n_samples, ...) for one q, else (n_samples, ..., n_quantiles)
        """
        if np.ndim(q) == 0:
            return self._map(lambda p: p.quantile(q), X)
        return self._map(lambda p: np.moveaxis(p.quantile(np.asarray(q)), 0, -1), X)

    @property
    def constant_share_(self) -> float:
        """The share of the draws whose noise has one size everywhere."""
        check_is_fitted(self, "posterior_")
        return float(self.noise_ != "input") if self._tied is None else self._tied

    def _check_rows(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        if self.noise not in NOISES:
            raise ValueError(f"noise must be one of {NOISES}, got {self.noise!r}")
        x, y = validate_data(
            self,
            *(X, y),
            reset=reset,
            **ROWS,
            multi_output=True,
            y_numeric=True,
            # One row says nothing of the scale of anything.
            ensure_min_samples=2 if reset else 1,
        )
        if reset:
            self._squeeze = y.ndim == 1
        return weighted_rows(x, np.asarray(y, np.float64).reshape(len(x), -1), sample_weight)

    def _fit_rows(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        self.noise_, self._tied, self.spread_ = self.noise, None, 1.0
        super()._fit_rows(x, y, weight)

    def _needs_trial(self) -> bool:
        return self.noise == "auto" or super()._needs_trial()

    def _choose(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        if self.noise == "auto":
            self._tied, self.spread_ = self._choose_noise(x, y, weight)
            self.noise_ = {0.0: "input", 1.0: "constant"}.get(self._tied, "mixed")
        super()._choose(x, y, weight)

    def _choose_noise(
        self, x: np.ndarray, y: np.ndarray, weight: np.ndarray
    ) -> tuple[float, float]:
        """Return the share of constant noise and the spread that predict held-out rows best."""
        if len(held_out_rows(len(x))) == 0:
            return 1.0, 1.0
        recipe = self._recipe(len(x))
        n = recipe.n_particles
        # Both kinds need a particle for the trial. Chains run two by two.
        both, unit = max(n, 2), 2 if recipe.refine and n % 2 == 0 else 1
        recipe = recipe._replace(
            particles=both, chains=both, tied=0.5, purpose="choosing the noise: "
        )
        if recipe.refine is not None:  # half as long is long enough to compare
            length = length_of(recipe.refine, self.warmup, self.draws, self.thin)
            recipe = recipe._replace(warmup=-(-length.warmup // 2), thin=-(-length.thin // 2))
        trial = self._trial(x, y, weight, recipe)
        n_free = recipe.n_free(both) * recipe.draws_each
        free, tied = trial.of(slice(n_free)), trial.of(slice(n_free, None))
        share = best_share(free, tied, shares_to_choose_from(n, unit))
        return share, best_spread(free, tied, share)

    def _recipe(self, n_rows: int) -> _fitting.Recipe:
        return super()._recipe(n_rows)._replace(tied=self._tied)

    def _likelihood(self) -> Likelihood:
        if self.noise_ in ("input", "auto") or self._tied is not None:
            return HeteroscedasticGaussian(self._floor)
        return {"constant": Gaussian, "student_t": StudentT, "laplace": Laplace}[self.noise_]()

    def _default_prior(self) -> Prior:
        # Particles that stop near a mode need variances that adapt to it. Chains go far from it,
        # and predict better when nothing shrinks the weights as they go.
        return HierarchicalPrior() if self.refine is None else FixedPrior()

    def _prepare_targets(self, y: np.ndarray, weight: np.ndarray | None) -> None:
        self._y_scaler = Scaler.of(y, weight)
        rounding = _resolution(self._y_scaler(y)) / 12**0.5  # its standard deviation
        self._floor = max(HeteroscedasticGaussian.floor, rounding)

    def _encode_targets(self, y: np.ndarray) -> jax.Array:
        return self._array(self._y_scaler(y))

    def _presentation(self) -> dict[str, Any]:
        return {
            "shift": self._y_scaler.shift,
            "scale": self._y_scaler.scale,
            "squeeze": self._squeeze,
            "spread": self.spread_,
        }

    def _target_arrays(self) -> dict[str, np.ndarray]:
        return {"y_shift": self._y_scaler.shift, "y_scale": self._y_scaler.scale}

    def _target_metadata(self) -> dict[str, Any]:
        return {
            "squeeze": self._squeeze,
            "noise": self.noise_,
            "tied": self._tied,
            "floor": self._floor,
            "spread": self.spread_,
        }

    def _restore_targets(self, arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> None:
        self._y_scaler = Scaler(arrays["y_shift"], arrays["y_scale"])
        self._squeeze = bool(metadata["squeeze"])
        self.noise_, self._floor = metadata["noise"], metadata["floor"]
        self._tied, self.spread_ = metadata["tied"], float(metadata["spread"])
        if self._tied is not None and not 0.0 <= self._tied <= 1.0:
            raise ValueError(f"the share of constant noise is {self._tied}")
        self._likelihood()  # to refuse a noise that there is not

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that several targets are fine."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


def _resolution(y: np.ndarray) -> float:
    """Return the finest step between different targets, over all columns of (N, T).

    Grades and counts repeat. A network that may name the noise of each row would call it zero where
    it can name the grade, and then one wrong grade is infinitely surprising.
    """
    steps = [np.diff(np.unique(column)) for column in y.T]
    return min((float(step.min()) for step in steps if step.size), default=0.0)
