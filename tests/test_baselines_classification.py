"""Every rival that can tell classes apart does, on a part of the mushroom data."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from s2vgd import baselines, datasets, metrics

SHORT = {"hidden": (8,), "steps": 200, "batch_size": 50}
SETTINGS = {
    "sgd": {"learning_rate": 0.1},
    "rmsprop": {},
    "rmsspectral": {},
    "dropout": {"rate": 0.2, "input_rate": 0.1},
    "mc_dropout": {"rate": 0.2, "draws": 10},
    "deep_ensemble": {"members": 3},
    "sgld": {"draws": 10, "steps": 400, "learning_rate": 3e-2},
    "psgld": {"draws": 10},
    "svgd": {"particles": 5},
    "s2vgd": {"particles": 5},
}


@functools.cache
def split():
    """300 rows to learn from and 300 others, their labels 3 and 7 in place of 0 and 1."""
    mushroom = datasets.load("mushroom")
    rows = np.random.default_rng(0).permutation(len(mushroom.y))[:600]
    x, y = mushroom.x[rows], np.array([3, 7])[mushroom.y[rows]]
    return x[:300], y[:300], x[300:], y[300:]


@pytest.mark.parametrize("name", SETTINGS)
def test_it_beats_the_majority(name):
    """At least 90 % right and 0.3 more log-likelihood than the classes' frequencies."""
    x, y, test_x, test_y = split()
    model = baselines.methods()[name](**{**SHORT, **SETTINGS[name]}).fit(x, y)
    says = model.predict_dist(test_x)
    frequency = np.mean(y == 7)
    constant = np.mean(np.log(np.where(test_y == 7, frequency, 1 - frequency)))
    assert np.mean(test_y == 3) < 0.6  # hence nobody gets 90 % by always saying the same
    assert np.mean(np.array([3, 7])[says.mean.argmax(axis=1)] == test_y) > 0.9
    assert metrics.log_likelihood(says, test_y) > constant + 0.3


def test_the_stein_methods_have_a_fixed_prior_for_classes():
    x, y, _, _ = split()
    model = baselines.methods()["svgd"](**{**SHORT, "particles": 5, "steps": 1}).fit(x, y)
    assert model._posterior.particles["prior"] == {}
