"""What a set of posterior draws says about new rows: the answer of every method and every rival.

``from_components`` turns what a likelihood knows about each draw into a ``Predictive``: a
``MixturePredictive`` for regression, a ``CategoricalPredictive`` for classes. How the draws were
made, and scores averaged over rows (``s2vgd.metrics``), live elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ._base import Predictive
from ._categorical import CategoricalPredictive
from ._mixture import MixturePredictive

__all__ = [
    "CategoricalPredictive",
    "MixturePredictive",
    "Predictive",
    "concatenate",
    "from_components",
    "spread_out",
]


def from_components(
    family: str,
    components: Mapping[str, ArrayLike],
    *,
    shift: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    classes: ArrayLike | None = None,
    squeeze: bool = True,
    spread: float = 1.0,
) -> Predictive:
    """Build the predictive of S draws from a likelihood's components.

    Parameters
    ----------
    family : {"normal", "student_t", "laplace", "categorical", "bernoulli"}
        The likelihood's family.
    components : mapping
        Arrays with the draws as leading axis. Regression: ``"loc"`` (S, N, T) or (S, N),
        ``"scale"`` and, for ``"student_t"``, ``"df"``, both broadcastable. Categorical:
        ``"logits"`` (S, N, C). Bernoulli: ``"logits"`` (S, N) or (S, N, 1), of the second class.
    shift, scale : array_like, optional
        Regression only: outcome = shift + scale * component, scalars or (T,).
    classes : array_like, optional
        Classification only: the labels. Default: 0, 1, ...
    squeeze : bool
        Whether results for one target are (N,), the default, or (N, 1).
    spread : float
        Regression only: a factor on all deviations from the mean of a row, see :func:`spread_out`.

    Returns
    -------
    Predictive
    """
    if family not in ("categorical", "bernoulli"):
        if classes is not None:
            raise ValueError(f"classes has no meaning for family {family!r}")
        components = components if spread == 1.0 else spread_out(components, spread)
        return MixturePredictive(family, components, shift=shift, scale=scale, squeeze=squeeze)
    if shift is not None or scale is not None or spread != 1.0:
        raise ValueError(f"shift, scale and spread have no meaning for family {family!r}")
    if set(components) != {"logits"}:
        raise ValueError(
            f"components of family {family!r} must have the key 'logits', got {sorted(components)}"
        )
    logits = np.asarray(components["logits"])
    if family == "bernoulli":
        if logits.ndim == 3 and logits.shape[2] == 1:
            logits = logits[..., 0]
        if logits.ndim != 2:
            raise ValueError(
                "components['logits'] of family 'bernoulli' must have shape (draws, rows) or "
                f"(draws, rows, 1), got {logits.shape}"
            )
        logits = np.stack([np.zeros_like(logits), logits], axis=-1)
    return CategoricalPredictive(logits, classes=classes)


def spread_out(
    components: Mapping[str, ArrayLike], factor: float, centre: ArrayLike | None = None
) -> dict[str, ArrayLike]:
    """Multiply the deviations from the mean by a factor, of locations and of noise alike.

    Parameters
    ----------
    components : mapping
        Those of a regression, see :func:`from_components`.
    factor : float
        Above one for wider predictions, below one for narrower ones.
    centre : array_like, shape of one draw of ``"loc"``, optional
        The mean; that of the draws by default.
    """
    if not 0 < factor < np.inf:
        raise ValueError(f"spread must be positive and finite, got {factor!r}")
    loc = np.asarray(components["loc"])
    mean = (loc.mean(axis=0) if centre is None else np.asarray(centre)).astype(loc.dtype)
    factor = loc.dtype.type(factor)
    scale = factor * np.asarray(components["scale"])
    return {**components, "loc": mean + factor * (loc - mean), "scale": scale}


def concatenate(parts: Sequence[Predictive]) -> Predictive:
    """Join predictives of different rows, made from the same draws, into one.

    Parameters
    ----------
    parts : sequence of Predictive
        At least one; all regression or all classification, alike in everything but their rows.
    """
    mixtures = [part for part in parts if isinstance(part, MixturePredictive)]
    if mixtures and len(mixtures) == len(parts):
        return MixturePredictive._concatenate(mixtures)
    categoricals = [part for part in parts if isinstance(part, CategoricalPredictive)]
    if categoricals and len(categoricals) == len(parts):
        return CategoricalPredictive._concatenate(categoricals)
    raise ValueError("parts must be one or more predictives of the same kind")
