"""Dropout: the statistics of its masks, and masks as draws of weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from s2vgd.baselines._base import PLAIN
from s2vgd.baselines._descent import to_the_mode
from s2vgd.baselines.dropout import (
    Dropout,
    MCDropout,
    Rates,
    _with_dropout,
    draw_masks,
    masked_outputs,
    masked_weights,
)
from s2vgd.bnn import BNN, Batch
from s2vgd.likelihoods import Gaussian
from s2vgd.networks import MLP
from s2vgd.priors import FixedPrior

NETWORK = MLP(3, (8, 5), 2, "tanh")
WEIGHTS = NETWORK.init(jax.random.key(0))
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def table(rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 3))
    return x, np.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.1 * rng.normal(size=rows)


def test_masks_drop_at_their_rates_and_have_mean_one():
    """20,000 masks: frequencies within 0.0125 of the rates, more than three standard errors."""
    masks = draw_masks(jax.random.key(1), NETWORK, Rates(inputs=0.1, hidden=0.4), 20_000)
    assert [mask.shape for mask in masks] == [(20_000, 3), (20_000, 8), (20_000, 5)]
    for mask, rate in zip(masks, (0.1, 0.4, 0.4), strict=True):
        np.testing.assert_allclose(np.unique(mask), [0.0, 1 / (1 - rate)], rtol=1e-6)
        np.testing.assert_allclose(np.mean(mask == 0, axis=0), rate, atol=0.0125)
    # Units are dropped independently of one another, in a layer and across layers.
    together = np.corrcoef(np.concatenate(masks, axis=1).T)
    assert np.abs(together - np.eye(16)).max() < 0.035


def test_a_rate_of_zero_drops_nothing():
    masks = draw_masks(jax.random.key(1), NETWORK, Rates(0.0, 0.0), 5)
    assert all(np.all(mask == 1) for mask in masks)
    np.testing.assert_allclose(
        masked_outputs(NETWORK, WEIGHTS, X, [mask[:1] for mask in masks]),
        NETWORK.apply(WEIGHTS, X),
        rtol=1e-5,
        atol=1e-6,
    )


def test_every_row_has_its_own_mask():
    """Against the forward pass of one row at a time in NumPy."""
    masks = draw_masks(jax.random.key(2), NETWORK, Rates(0.3, 0.5), 6)
    outputs = masked_outputs(NETWORK, WEIGHTS, X, masks)
    for i in range(6):
        row = X[i]
        for depth, layer in enumerate(WEIGHTS):
            row = (row * masks[depth][i]) @ layer["kernel"] + layer["bias"]
            row = row if depth == 2 else np.tanh(row)
        np.testing.assert_allclose(outputs[i], row, rtol=1e-4, atol=1e-5)
    assert not np.array_equal(masks[1][0], masks[1][1])


def test_masked_weights_are_the_masked_forward_pass():
    """One set of weights a mask, put through the ordinary network."""
    masks = draw_masks(jax.random.key(3), NETWORK, Rates(0.3, 0.5), 4)
    draws = masked_weights(WEIGHTS, masks)
    for t in range(4):
        np.testing.assert_allclose(
            NETWORK.apply(jax.tree.map(lambda leaf, t=t: leaf[t], draws), X),
            masked_outputs(NETWORK, WEIGHTS, X, [mask[t : t + 1] for mask in masks]),
            rtol=1e-4,
            atol=1e-5,
        )


def test_mc_dropout_predicts_the_mixture_of_its_masks():
    """Every draw is the same network with rows of its kernels zeroed, and the same noise."""
    x, y = table()
    model = MCDropout(hidden=(8,), steps=30, draws=12, rate=0.5).fit(x, y)
    particles = jax.tree.map(np.asarray, model._posterior.particles)
    first, second = particles["weights"]
    assert np.all(first["kernel"] == first["kernel"][0])  # no input is dropped by default
    dropped = np.all(second["kernel"] == 0, axis=2)
    assert 0.3 < dropped.mean() < 0.7
    for unit in range(8):
        kept = second["kernel"][~dropped[:, unit], unit]
        assert np.all(kept == kept[0])
    assert np.all(second["bias"] == second["bias"][0])
    assert np.ptp(particles["likelihood"]["log_precision"]) == 0

    inputs = (x - x.mean(axis=0)) / x.std(axis=0)
    hidden = np.maximum(inputs @ first["kernel"][0] + first["bias"][0], 0)
    outputs = np.stack([hidden @ k[:, 0] for k in second["kernel"]]) + second["bias"][0]
    np.testing.assert_allclose(
        model.predict_dist(x).mean, y.mean() + y.std() * outputs.mean(axis=0), rtol=1e-3, atol=1e-4
    )


def test_dropout_predicts_with_all_units():
    x, y = table()
    model = Dropout(hidden=(8,), steps=30, rate=0.5).fit(x, y)
    assert len(model._posterior) == 1
    assert not np.any(model._posterior.particles["weights"][1]["kernel"] == 0)


MODEL = BNN(MLP(3, (8,), 1), Gaussian(), PLAIN, FixedPrior())


def run(algorithm) -> tuple[np.ndarray, list[float]]:
    """Make five steps on all rows; return the first kernel and the objective at each step."""
    x, y = table()
    batch = Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y[:, None], jnp.float32))
    start = jax.tree.map(lambda leaf: leaf[0], MODEL.init_particles(jax.random.key(0), 1))
    state = algorithm.init(start, jax.random.key(1))
    step, values = jax.jit(algorithm.step), []
    for _ in range(5):
        state, info = step(state, batch)
        values.append(float(info.log_density))
    return np.asarray(state.particles["weights"][0]["kernel"]), values


def test_training_at_rate_zero_is_training_without_dropout():
    optimizer = optax.sgd(0.1)
    ends = [
        run(to_the_mode(MODEL, 60.0, optimizer))[0],
        run(_with_dropout(MODEL, 60.0, Rates(0.0, 0.0), optimizer))[0],
        run(_with_dropout(MODEL, 60.0, Rates(0.0, 0.5), optimizer))[0],
    ]
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-4, atol=1e-6)
    assert np.abs(ends[2] - ends[0]).max() > 1e-3


def test_masks_change_from_step_to_step():
    """With weights that stay as they are, only they make the objective change."""
    _, values = run(_with_dropout(MODEL, 60.0, Rates(0.0, 0.5), optax.set_to_zero()))
    assert len(set(values)) == 5


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (Dropout, {"rate": 1.0}, "rate must be at least 0 and below 1"),
        (Dropout, {"input_rate": -0.1}, "input_rate must be at least 0 and below 1"),
        (Dropout, {"optimizer": "lbfgs"}, "optimizer must be 'adam' or 'sgd'"),
        (MCDropout, {"draws": 0}, "draws must be at least 1"),
    ],
)
def test_bad_settings_are_named(method, settings, message):
    with pytest.raises(ValueError, match=message):
        method(**settings)
