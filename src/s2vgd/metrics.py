"""Scores of predictions against what happened, averaged over rows.

Each function takes a predictive distribution, or plain arrays where a point prediction or
probabilities are enough, and returns floats. Scores row by row are methods of
``s2vgd.predictive.Predictive``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from .predictive import CategoricalPredictive, MixturePredictive, Predictive

_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


def rmse(predicted: MixturePredictive | ArrayLike, y: ArrayLike) -> float:
    """Root mean squared error of the predictive mean, over all rows and targets.

    Parameters
    ----------
    predicted : MixturePredictive or array_like
        A predictive, of which the mean is scored, or the predictions themselves.
    y : array_like
        Outcomes, (N,) or (N, T).
    """
    if _is_predictive(predicted):
        predicted = _regression(predicted).mean
    mean = _numbers("predicted", predicted)
    return float(np.sqrt(_mean(np.square(mean - _outcomes(y, mean.shape)))))


def log_likelihood(predictive: Predictive, y: ArrayLike) -> float:
    """Mean over rows of the log predictive density (of several targets jointly) or probability."""
    if not _is_predictive(predictive):
        raise TypeError(f"predictive must be a predictive distribution, got {predictive!r}")
    return _mean(predictive.log_prob(y))


def crps(predictive: MixturePredictive, y: ArrayLike) -> float:
    """Mean continuous ranked probability score over all rows and targets, in the units of ``y``."""
    return _mean(_regression(predictive).crps(y))


def coverage(
    predictive: MixturePredictive | tuple[ArrayLike, ArrayLike], y: ArrayLike, level: float = 0.9
) -> float:
    """Fraction of outcomes inside the central interval of probability ``level``.

    Parameters
    ----------
    predictive : MixturePredictive or (lower, upper)
        A predictive, or intervals already computed, for which ``level`` is not used.
    y : array_like
        Outcomes, (N,) or (N, T).
    level : float
        Nominal probability, in (0, 1); a calibrated predictive covers that fraction.
    """
    if isinstance(predictive, tuple):
        lower, upper = _bounds(predictive)
        outcomes = _outcomes(y, lower.shape)
        return _mean((lower <= outcomes) & (outcomes <= upper))
    return coverage_table(predictive, y, [level])[float(level)]


def coverage_table(
    predictive: MixturePredictive, y: ArrayLike, levels: Iterable[float] = _LEVELS
) -> dict[float, float]:
    """Observed coverage of the central interval at each of several nominal levels."""
    levels = [_probability("levels", level) for level in levels]
    # The interval holds y exactly when F(y) lies in the middle: no quantile has to be found.
    from_centre = 2.0 * np.abs(_pit(predictive, y) - 0.5)
    return {level: _mean(from_centre <= level) for level in levels}


def interval_width(
    predictive: MixturePredictive | tuple[ArrayLike, ArrayLike], level: float = 0.9
) -> float:
    """Mean width of the central interval of probability ``level``, in the units of the outcome."""
    if isinstance(predictive, tuple):
        lower, upper = _bounds(predictive)
    else:
        lower, upper = _regression(predictive).interval(level)
    return _mean(upper - lower)


def calibration_curve(
    predictive: MixturePredictive, y: ArrayLike, points: int = 19
) -> tuple[np.ndarray, np.ndarray]:
    """Fraction of outcomes below each predictive quantile, against the fraction expected.

    Parameters
    ----------
    predictive : MixturePredictive
    y : array_like
        Outcomes, (N,) or (N, T).
    points : int
        How many levels, evenly spaced inside (0, 1).

    Returns
    -------
    nominal, observed : ndarray of shape (points,)
        Equal, up to sampling, when calibrated; an S shape crossing the diagonal from below means
        intervals too wide, from above too narrow.
    """
    nominal = np.arange(1, _count("points", points) + 1) / (points + 1)
    pit = np.sort(_pit(predictive, y), axis=None)
    return nominal, np.searchsorted(pit, nominal, side="right") / pit.size


def calibration_error(predictive: MixturePredictive, y: ArrayLike, points: int = 99) -> float:
    """Mean absolute distance of the calibration curve from the diagonal: 0 best, 1/2 worst."""
    nominal, observed = calibration_curve(predictive, y, points)
    return _mean(np.abs(observed - nominal))


def accuracy(predicted: CategoricalPredictive | ArrayLike, y: ArrayLike) -> float:
    """Fraction of rows whose most probable label, or whose given label, is the right one."""
    if _is_predictive(predicted):
        predicted = _classification(predicted).mode
    labels, outcomes = np.asarray(predicted), np.asarray(y)
    if labels.ndim != 1 or labels.shape != outcomes.shape:
        raise ValueError(f"y must be labels of shape {labels.shape}, got {outcomes.shape}")
    return _mean(labels == outcomes)


def brier(predicted: CategoricalPredictive | ArrayLike, y: ArrayLike) -> float:
    """Mean Brier score: squared error of the probabilities summed over classes, from 0 to 2.

    Parameters
    ----------
    predicted : CategoricalPredictive or array_like
        A predictive, or probabilities (N, C) of the labels 0, ..., C - 1.
    y : array_like
        Labels, (N,).
    """
    probabilities, codes = _probabilities_and_codes(predicted, y)
    hit = codes[:, None] == np.arange(probabilities.shape[1])
    return _mean(np.square(probabilities - hit).sum(axis=-1))


def expected_calibration_error(
    predicted: CategoricalPredictive | ArrayLike, y: ArrayLike, bins: int = 15
) -> float:
    """Average gap between confidence and accuracy.

    Rows are put in equally wide bins of confidence, the probability of the most probable class; the
    gap of a bin is |its accuracy - its mean confidence|, and bins count by their number of rows.

    Parameters
    ----------
    predicted : CategoricalPredictive or array_like
        A predictive, or probabilities (N, C) of the labels 0, ..., C - 1.
    y : array_like
        Labels, (N,).
    bins : int
        Number of bins of (0, 1]; a bin holds its right edge.
    """
    bins = _count("bins", bins)
    probabilities, codes = _probabilities_and_codes(predicted, y)
    confidence = probabilities.max(axis=1)
    excess = (probabilities.argmax(axis=1) == codes) - confidence
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    return float(np.abs(np.bincount(place, weights=excess, minlength=bins)).sum() / len(codes))


def summary(predictive: Predictive, y: ArrayLike) -> dict[str, float]:
    """Compute the usual scores at once.

    Returns
    -------
    dict of str to float
        Regression: ``rmse``, ``log_likelihood``, ``crps``, ``coverage_90``, ``width_90``,
        ``calibration_error``. Classification: ``accuracy``, ``log_likelihood``, ``brier``, ``ece``.
    """
    if hasattr(predictive, "classes"):
        classes = _classification(predictive)
        return {
            "accuracy": accuracy(classes, y),
            "log_likelihood": log_likelihood(classes, y),
            "brier": brier(classes, y),
            "ece": expected_calibration_error(classes, y),
        }
    mixture = _regression(predictive)
    return {
        "rmse": rmse(mixture, y),
        "log_likelihood": log_likelihood(mixture, y),
        "crps": crps(mixture, y),
        "coverage_90": coverage(mixture, y, 0.9),
        "width_90": interval_width(mixture, 0.9),
        "calibration_error": calibration_error(mixture, y),
    }


def _is_predictive(value: Any) -> bool:
    return hasattr(value, "log_prob")


def _regression(value: Any) -> MixturePredictive:
    if not hasattr(value, "cdf"):
        raise TypeError(f"predictive must be the predictive of a regression, got {value!r}")
    return value


def _classification(value: Any) -> CategoricalPredictive:
    if not hasattr(value, "classes"):
        raise TypeError(f"predicted must be the predictive of a classifier, got {value!r}")
    return value


def _mean(values: np.ndarray) -> float:
    if not values.size:
        raise ValueError("there are no rows to score")
    return float(np.mean(values))


def _pit(predictive: MixturePredictive, y: ArrayLike) -> np.ndarray:
    pit = _regression(predictive).cdf(y)
    if not pit.size:
        raise ValueError("there are no rows to score")
    return pit


def _numbers(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers") from error
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} contains NaN or infinite values")
    return array


def _outcomes(y: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    array = _numbers("y", y)
    if {array.shape, shape} == {shape[:1], (*shape[:1], 1)}:
        array = array.reshape(shape)  # one target, with or without its axis
    if array.shape != shape:
        raise ValueError(f"y must have the shape {shape} of the predictions, got {array.shape}")
    return array


def _bounds(interval: tuple[ArrayLike, ArrayLike]) -> tuple[np.ndarray, np.ndarray]:
    if len(interval) != 2:
        raise ValueError("an interval must be a pair (lower, upper)")
    lower, upper = _numbers("lower", interval[0]), _numbers("upper", interval[1])
    if lower.shape != upper.shape or np.any(lower > upper):
        raise ValueError(
            "lower and upper must have the same shape, and lower must not exceed upper"
        )
    return lower, upper


def _probabilities_and_codes(predicted: Any, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Class probabilities (N, C) and the position of each label among the classes (N,)."""
    if _is_predictive(predicted):
        probabilities = _classification(predicted).proba
        classes = predicted.classes
    else:
        probabilities = _numbers("predicted", predicted)
        if probabilities.ndim != 2:
            raise ValueError(f"predicted must be probabilities (N, C), got {probabilities.shape}")
        if np.any(probabilities < 0) or not np.allclose(probabilities.sum(axis=1), 1.0, atol=1e-4):
            raise ValueError("predicted must hold probabilities that sum to one in each row")
        classes = np.arange(probabilities.shape[1])
    labels = np.asarray(y)
    if labels.shape != probabilities.shape[:1] or not labels.size:
        raise ValueError(
            f"y must have shape {probabilities.shape[:1]} and rows, got {labels.shape}"
        )
    hit = labels[:, None] == classes
    if not np.all(hit.any(axis=1)):
        raise ValueError(f"y must hold labels among {classes!r}")
    return probabilities, hit.argmax(axis=1)


def _probability(name: str, value: float) -> float:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return float(value)


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return int(value)
