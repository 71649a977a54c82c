"""Scores of one run, and distances between what two methods predict.

Single scores are :mod:`s2vgd.metrics`; here they are gathered as the tables want them, with those
that only experiments need.
"""

from __future__ import annotations

import numpy as np

from s2vgd import metrics
from s2vgd.predictive import CategoricalPredictive, MixturePredictive

LEVELS = (50, 90, 95)


def regression(predictive: MixturePredictive, y: np.ndarray) -> dict[str, float]:
    """Return RMSE, log-likelihood, CRPS and coverage of the 50, 90 and 95 % intervals."""
    coverage = metrics.coverage_table(predictive, y, [level / 100 for level in LEVELS])
    return {
        "rmse": metrics.rmse(predictive, y),
        "log_likelihood": metrics.log_likelihood(predictive, y),
        "crps": metrics.crps(predictive, y),
        **{f"coverage_{level}": coverage[level / 100] for level in LEVELS},
    }


def classification(predictive: CategoricalPredictive, y: np.ndarray) -> dict[str, float]:
    """Return the error in per cent, the log-likelihood and the calibration error."""
    return {
        "error": 100.0 * (1.0 - metrics.accuracy(predictive, y)),
        "log_likelihood": metrics.log_likelihood(predictive, y),
        "ece": metrics.expected_calibration_error(predictive, y),
    }


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """Area under the ROC curve of a score that should be larger outside the distribution.

    Parameters
    ----------
    inside, outside : array, shapes (N,) and (O,)
        The score of rows of the distribution, and of others.

    Returns
    -------
    float
        The probability that a row from outside has the larger score, ties counting one half.
    """
    from sklearn.metrics import roc_auc_score

    is_outside = np.repeat([0, 1], [len(inside), len(outside)])
    return float(roc_auc_score(is_outside, np.concatenate([inside, outside])))


def out_of_distribution(
    inside: CategoricalPredictive, outside: CategoricalPredictive, name: str
) -> dict[str, float]:
    """Return how well entropy, and mutual information of label and draw, tell a set from ours.

    A single network has no mutual information, and no score of it.
    """
    found = {f"auroc_{name}_entropy": auroc(inside.entropy, outside.entropy)}
    if inside.n_draws > 1:
        found[f"auroc_{name}_information"] = auroc(inside.epistemic, outside.epistemic)
    return found


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    """Return the total variation distance of class probabilities (G, C), averaged over rows."""
    return float(np.mean(0.5 * np.abs(np.asarray(p) - np.asarray(q)).sum(axis=-1)))


def midpoints(n: int) -> np.ndarray:
    """Return the n levels at which :func:`wasserstein` wants quantiles."""
    return (np.arange(n) + 0.5) / n


def wasserstein(p: np.ndarray, q: np.ndarray) -> float:
    r"""Return the 1-Wasserstein distance of two predictive distributions, averaged over rows.

    In one dimension it is :math:`\int_0^1 |F^{-1}(u) - G^{-1}(u)| du`, here by the midpoint rule.

    Parameters
    ----------
    p, q : array, shape (L, G)
        Quantiles of either at the levels :func:`midpoints` (L), for each of G rows.
    """
    return float(np.mean(np.abs(np.asarray(p) - np.asarray(q))))
