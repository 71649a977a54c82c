"""``CategoricalPredictive``: the answer of a classifier, class probabilities of every draw.

Regression is in ``_mixture``. A Bernoulli model becomes the two-class case in ``from_components``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp
from numpy.typing import ArrayLike

from ._base import Predictive, check_count, check_q, device_dtype, row_chunks, row_index


class _Summary(NamedTuple):
    mean: Any
    var: Any
    total_entropy: Any
    expected_entropy: Any


class CategoricalPredictive(Predictive):
    """Class probabilities of S draws for each of N rows and C classes.

    Parameters
    ----------
    logits : array_like
        (S, N, C); ``-inf`` is a probability of zero. Log-probabilities are logits too.
    classes : array_like, optional
        The C labels, in the order of the last axis. Default: 0, 1, ..., C - 1.
    """

    def __init__(self, logits: ArrayLike, *, classes: ArrayLike | None = None) -> None:
        array = np.asarray(logits)
        if array.ndim != 3 or array.shape[0] < 1 or array.shape[2] < 2:
            raise ValueError(
                "components['logits'] must have shape (draws, rows, classes) with at least one "
                f"draw and two classes, got {array.shape}"
            )
        if array.dtype != np.float32:
            array = array.astype(np.float64)
        if np.any(np.isnan(array)) or not np.all(np.isfinite(array.max(axis=-1))):
            raise ValueError("components['logits'] contains NaN, +inf, or a row of -inf only")
        self._logits = array
        self.n_draws, self._n_rows, self.n_classes = array.shape
        labels = np.arange(self.n_classes) if classes is None else np.asarray(classes)
        if labels.shape != (self.n_classes,) or len(np.unique(labels)) != self.n_classes:
            raise ValueError(
                f"classes must be {self.n_classes} different labels, one a logit, got {classes!r}"
            )
        self.classes = labels

    def __len__(self) -> int:
        """Count the rows."""
        return self._n_rows

    def __getitem__(self, rows: Any) -> CategoricalPredictive:
        """Predictive of some of the rows; an integer gives a predictive of one row."""
        index = row_index(rows, len(self))
        return CategoricalPredictive(self._logits[:, index], classes=self.classes)

    def __repr__(self) -> str:
        """Sizes."""
        return (
            f"CategoricalPredictive(rows={len(self)}, draws={self.n_draws}, "
            f"classes={self.n_classes})"
        )

    @classmethod
    def _concatenate(cls, parts: Sequence[CategoricalPredictive]) -> CategoricalPredictive:
        first = parts[0]
        for part in parts[1:]:
            if part.n_draws != first.n_draws or not np.array_equal(part.classes, first.classes):
                raise ValueError(
                    f"cannot concatenate {part!r} to {first!r}: they differ in more than rows"
                )
        return cls(np.concatenate([part._logits for part in parts], axis=1), classes=first.classes)

    @cached_property
    def mean(self) -> np.ndarray:
        """Predictive class probabilities: the average over draws, (N, C); rows sum to one."""
        return self._summary.mean / self._summary.mean.sum(axis=-1, keepdims=True)

    @property
    def proba(self) -> np.ndarray:
        """The same as ``mean``, under the name classifiers use."""
        return self.mean

    @property
    def mode(self) -> np.ndarray:
        """Most probable label of each row, (N,)."""
        return self.classes[self.mean.argmax(axis=-1)]

    @cached_property
    def var(self) -> np.ndarray:
        """Variance over the draws of each class's probability, (N, C)."""
        return self._summary.var

    @cached_property
    def entropy(self) -> np.ndarray:
        """Entropy in nats of the predictive probabilities, (N,): ``epistemic + aleatoric``."""
        return self._summary.total_entropy

    @cached_property
    def aleatoric(self) -> np.ndarray:
        """Average over the draws of the entropy of each, (N,)."""
        return self._summary.expected_entropy

    @cached_property
    def epistemic(self) -> np.ndarray:
        """Mutual information of label and draw, (N,): total minus expected entropy, at least 0."""
        return np.maximum(self.entropy - self.aleatoric, 0.0)

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Log predictive probability of each row's label, (N,)."""
        codes = self._codes(y)
        result = np.empty(len(self))
        for rows, index, logits in self._chunks():
            value = np.asarray(_label_log_prob(logits, codes[index]))
            result[rows] = value[: rows.stop - rows.start]
        return result

    def brier(self, y: ArrayLike) -> np.ndarray:
        """Brier score of each row, (N,): squared error of the probabilities, summed over classes.

        From 0 (certain and right) to 2 (certain and wrong).
        """
        hit = self._codes(y)[:, None] == np.arange(self.n_classes)
        return np.square(self.mean - hit).sum(axis=-1)

    def crps(self, y: ArrayLike) -> NoReturn:
        """Labels have no order, so there is no CRPS: raise ``TypeError`` naming ``brier``."""
        raise TypeError("class labels have no CRPS; use brier(y), its counterpart for classes")

    def quantile(self, q: ArrayLike) -> np.ndarray:
        """Quantiles over the draws of each class's probability, with linear interpolation.

        They say how far the draws disagree about the probability; labels themselves have no
        quantiles.

        Parameters
        ----------
        q : float or array_like
            One probability in (0, 1), or a one-dimensional array of Q of them.

        Returns
        -------
        ndarray
            (N, C) for a number, (Q, N, C) for an array.
        """
        q = check_q(q)
        result = np.empty((*q.shape, len(self), self.n_classes))
        for rows, _, logits in self._chunks():
            probabilities = np.asarray(jax.nn.softmax(logits), np.float64)
            values = np.quantile(probabilities, q, axis=0)
            result[..., rows, :] = values[..., : rows.stop - rows.start, :]
        return result

    def sample(self, key: Array, n: int) -> np.ndarray:
        """Draw ``n`` labels a row, (n, N).

        Each of the n samples uses one draw for all rows, so that correlations between rows are
        those of the posterior.
        """
        n = check_count(n)
        key_draw, key_label = jax.random.split(key)
        draw = np.asarray(jax.random.randint(key_draw, (n,), 0, self.n_draws))
        codes = np.empty((n, len(self)), dtype=int)
        for rows, _, logits in self._chunks(max(n, self.n_draws) * self.n_classes):
            key_rows = jax.random.fold_in(key_label, rows.start)
            chosen = np.asarray(jax.random.categorical(key_rows, logits[draw]))
            codes[:, rows] = chosen[:, : rows.stop - rows.start]
        return self.classes[codes]

    @cached_property
    def _summary(self) -> _Summary:
        shape = (len(self), self.n_classes)
        summary = _Summary(np.empty(shape), np.empty(shape), np.empty(shape[0]), np.empty(shape[0]))
        for rows, _, logits in self._chunks():
            for whole, part in zip(summary, _summarise(logits), strict=True):
                whole[rows] = np.asarray(part)[: rows.stop - rows.start]
        return summary

    def _chunks(
        self, cells_per_row: int | None = None
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        for rows, index in row_chunks(len(self), cells_per_row or self.n_draws * self.n_classes):
            logits = self._logits[:, index].astype(np.float64)
            # Shifted in double precision, so that a large common offset costs no digits.
            yield rows, index, (logits - logits.max(axis=-1, keepdims=True)).astype(device_dtype())

    def _codes(self, y: ArrayLike) -> np.ndarray:
        """Return the position of each label among the classes, (N,)."""
        labels = np.asarray(y)
        if labels.shape != (len(self),):
            raise ValueError(f"y must have shape ({len(self)},), got {labels.shape}")
        order = np.argsort(self.classes)
        try:
            place = np.searchsorted(self.classes, labels, sorter=order)
        except TypeError as error:
            raise ValueError(f"y must hold labels among {self.classes!r}") from error
        codes = order[np.minimum(place, self.n_classes - 1)]
        unknown = self.classes[codes] != labels
        if np.any(unknown):
            raise ValueError(
                f"y contains {labels[unknown][0]!r}, which is not one of {self.classes!r}"
            )
        return codes


@jax.jit
def _label_log_prob(logits: Array, codes: Array) -> Array:
    log_p = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_p, codes[None, :, None], axis=-1)[..., 0]
    return logsumexp(chosen, axis=0) - jnp.log(logits.shape[0])


def _entropy(log_p: Array) -> Array:
    return -jnp.sum(jnp.exp(log_p) * jnp.where(jnp.isfinite(log_p), log_p, 0.0), axis=-1)


@jax.jit
def _summarise(logits: Array) -> _Summary:
    log_p = jax.nn.log_softmax(logits)
    p = jnp.exp(log_p)
    log_mean = logsumexp(log_p, axis=0) - jnp.log(logits.shape[0])
    return _Summary(p.mean(axis=0), p.var(axis=0), _entropy(log_mean), _entropy(log_p).mean(axis=0))
