"""Predicted rewards for the direct and doubly robust methods, from any scikit-learn model.

Cross-fitting alone: the model is the caller's, and what is done with its predictions is not here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from s2vgd.bandits.evaluation.data import Floats, Ints, LoggedData, finite
from s2vgd.errors import DataError


def cross_fit(
    model: Any,
    data: LoggedData,
    *,
    folds: int = 5,
    seed: int = 0,
    action_features: ArrayLike | None = None,
) -> Floats:
    """Predict the reward of every action in every row by models that have not seen the row.

    The rows are split at random into folds; a clone of `model` is fitted to all but one of them
    and predicts that one (Chernozhukov et al., 2018). Inputs are the contexts, then an indicator of
    the position where there are positions, then the features of the action. A model without
    interactions gives all contexts the same best action: use trees, or a pipeline that adds them.

    Parameters
    ----------
    model : scikit-learn regressor or classifier
        It is cloned, never fitted itself. A classifier predicts the mean of the rewards it has
        seen under its probabilities.
    data : LoggedData
        N rows, A actions.
    folds : int
        From 2 to N.
    seed : int
        Of the split.
    action_features : array of shape (A, D), optional
        What is known about each action; an indicator of the action by default.

    Returns
    -------
    ndarray of shape (N, A)
    """
    n, n_actions = len(data), data.n_actions
    if not 2 <= folds <= n:
        raise DataError(f"folds must be from 2 to the number of rows, {n}, got {folds}")
    if action_features is None:
        features = np.eye(n_actions)
    else:
        features = finite("action_features", action_features, (n_actions, None))
    shared = _shared_inputs(data)
    predictions = np.empty((n, n_actions))
    for held_out in _split(n, folds, seed):
        seen = np.setdiff1d(np.arange(n), held_out)
        inputs = np.hstack([shared[seen], features[data.actions[seen]]])
        predict = _fitted(model, inputs, data.rewards[seen])
        for action in range(n_actions):
            repeated = np.broadcast_to(features[action], (held_out.size, features.shape[1]))
            predictions[held_out, action] = predict(np.hstack([shared[held_out], repeated]))
    return finite("predictions", predictions, (n, n_actions))


def _shared_inputs(data: LoggedData) -> Floats:
    """Return what does not depend on the action, of shape (N, F + number of positions)."""
    blocks = [np.empty((len(data), 0))]
    if data.contexts is not None:
        blocks.append(data.contexts)
    if data.positions is not None:
        levels = np.unique(data.positions)
        blocks.append((data.positions[:, None] == levels).astype(np.float64))
    return np.hstack(blocks)


def _split(n: int, folds: int, seed: int) -> list[Ints]:
    shuffled = np.random.default_rng(seed).permutation(n)
    return [np.sort(part) for part in np.array_split(shuffled, folds)]


def _fitted(model: Any, inputs: Floats, rewards: Floats) -> Any:
    """Return the function from inputs to mean rewards that a clone of `model` learns."""
    from sklearn.base import clone, is_classifier

    levels = np.unique(rewards)
    if levels.size == 1:  # with rare rewards it happens, and classifiers refuse a single class
        return lambda rows: np.full(len(rows), levels[0])
    learner = clone(model)
    if not is_classifier(model):
        learner.fit(inputs, rewards)
        return learner.predict
    # Classes are given as indices, since classifiers refuse labels that are not whole numbers.
    learner.fit(inputs, np.searchsorted(levels, rewards))
    return lambda rows: learner.predict_proba(rows) @ levels[learner.classes_]
