"""Do several chains agree, and how many independent draws are theirs worth.

Split R-hat and the effective sample size as in Gelman et al., Bayesian Data Analysis, 3rd ed.,
section 11.4-11.5, in NumPy: they are computed once a fit, and compiling them took longer. What to
think of the values is in :mod:`s2vgd.refine`.
"""

from __future__ import annotations

import numpy as np


def split(draws: np.ndarray) -> np.ndarray:
    """Cut every chain of (C, S, R) into halves, (2 C, S // 2, R), to see a drift within one."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, half : 2 * half]])


def r_hat(draws: np.ndarray) -> np.ndarray:
    """Return R-hat of each quantity.

    Parameters
    ----------
    draws : array, shape (C, S, R)
        S draws of R quantities by each of C chains, at least two.

    Returns
    -------
    array, shape (R,)
        The root of the ratio of the variance of all draws to that within chains: 1 when the chains
        agree, NaN for a quantity that never changes.
    """
    within, total = _variances(draws)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt(total / within)


def effective_sample_size(draws: np.ndarray) -> np.ndarray:
    """Return how many independent draws would estimate each mean as well.

    Autocorrelations are summed in pairs of neighbours while these are positive, and never larger
    than the pair before (Geyer's initial monotone sequence). `draws` is as for :func:`r_hat`; the
    result, (R,), is at most C S log10(C S), and NaN for a quantity that never changes.
    """
    n_chains, n_draws = draws.shape[:2]
    within, total = _variances(draws)
    centred = draws - draws.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * n_draws, axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :n_draws].mean(axis=0) / n_draws
    with np.errstate(invalid="ignore", divide="ignore"):  # of a quantity that never changes
        correlation = 1 - (within - covariance * n_draws / (n_draws - 1)) / total
    correlation[0] = 1.0
    pairs = correlation[: n_draws // 2 * 2].reshape(n_draws // 2, 2, -1).sum(axis=1)
    pairs = np.where(np.minimum.accumulate(pairs > 0, axis=0), pairs, 0.0)
    length = 2 * np.minimum.accumulate(pairs, axis=0).sum(axis=0) - 1
    n = n_chains * n_draws
    return np.where(within == 0, np.nan, n / np.maximum(length, 1 / np.log10(n)))


def _variances(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean variance within chains and the estimate of that of all draws, each (R,)."""
    n_draws = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    between = draws.mean(axis=1).var(axis=0, ddof=1)
    return within, within * (n_draws - 1) / n_draws + between
