"""The two toy problems of the paper's supplement ("Experimental Results"), drawn on demand."""

from __future__ import annotations

from typing import Any

import numpy as np

from s2vgd.datasets.dataset import Dataset, Task

_NOISE_VARIANCE = 0.0009


def toy_function(x: np.ndarray) -> np.ndarray:
    """Evaluate the noise-free curve of the toy regression: x + sin(4x) + sin(13x), elementwise."""
    return x + np.sin(4 * x) + np.sin(13 * x)


def toy_regression(seed: Any, n: int = 20) -> Dataset:
    """Noisy points on a curve with a gap between 0.6 and 0.8.

    Three fifths of the points have x ~ U(0, 0.6), the rest x ~ U(0.8, 1), and
    y = z + sin(4z) + sin(13z) at z = x + eps with eps ~ N(0, 0.0009).

    Parameters
    ----------
    seed : int or JAX random key
        The same seed gives the same points.
    n : int
        Number of points; the paper has 20, that is 12 and 8.

    Returns
    -------
    Dataset
        With `x` of shape (n, 1), left part first.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    rng = _generator(seed)
    n_left = round(0.6 * n)
    x = np.concatenate([rng.uniform(0.0, 0.6, n_left), rng.uniform(0.8, 1.0, n - n_left)])
    y = toy_function(x + rng.normal(0.0, np.sqrt(_NOISE_VARIANCE), n))
    return _toy("toy_regression", x[:, None], y, "regression")


def toy_classification(seed: Any, n_per_class: int = 10) -> Dataset:
    """Two classes, uniform on the squares [-3, -1]² (class 0) and [1, 3]² (class 1).

    Parameters
    ----------
    seed : int or JAX random key
        The same seed gives the same points.
    n_per_class : int
        Points in each square; the paper has 10.

    Returns
    -------
    Dataset
        With `x` of shape (2 * n_per_class, 2), class 0 first.
    """
    if n_per_class < 1:
        raise ValueError(f"n_per_class must be at least 1, got {n_per_class}")
    rng = _generator(seed)
    shape = (n_per_class, 2)
    x = np.concatenate([rng.uniform(-3.0, -1.0, shape), rng.uniform(1.0, 3.0, shape)])
    y = np.repeat(np.arange(2), n_per_class)
    return _toy("toy_classification", x, y, "classification")


def _toy(name: str, x: np.ndarray, y: np.ndarray, task: Task) -> Dataset:
    return Dataset(
        name=name,
        x=x,
        y=y,
        feature_names=tuple(f"x{i + 1}" for i in range(x.shape[1])),
        target_name="y",
        task=task,
        licence="generated",
        source="Zhang, Li, Chen & Carin (AISTATS 2018), supplement",
        classes=("0", "1") if task == "classification" else (),
    )


def _generator(seed: Any) -> np.random.Generator:
    if isinstance(seed, int | np.integer):
        return np.random.default_rng(int(seed))
    import jax  # only a caller who holds a key needs it

    if not isinstance(seed, jax.Array):
        raise TypeError(f"seed must be an int or a JAX random key, got {type(seed).__name__}")
    words = np.asarray(jax.random.key_data(seed)).ravel()
    return np.random.default_rng([int(word) for word in words])
