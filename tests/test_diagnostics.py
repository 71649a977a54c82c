"""R-hat and effective sample size, against the formulas written out and chains that are known."""

from __future__ import annotations

import blackjax.diagnostics
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd.diagnostics import effective_sample_size, r_hat, split


def autoregressive(correlation: float, shape=(8, 400, 5), seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=shape)
    draws = noise.copy()
    for t in range(1, shape[1]):
        draws[:, t] = correlation * draws[:, t - 1] + (1 - correlation**2) ** 0.5 * noise[:, t]
    return draws


def test_split_cuts_each_chain_into_halves_and_drops_an_odd_draw():
    draws = np.arange(2 * 5 * 1).reshape(2, 5, 1)
    np.testing.assert_array_equal(split(draws)[..., 0], [[0, 1], [5, 6], [2, 3], [7, 8]])


def test_r_hat_is_the_formula_and_blackjaxs():
    draws = autoregressive(0.5)
    draws[:4, :, 2] += 3.0
    within = np.mean([np.var(chain, axis=0, ddof=1) for chain in draws], axis=0)
    between = np.var([chain.mean(axis=0) for chain in draws], axis=0, ddof=1)
    expected = np.sqrt((399 / 400 * within + between) / within)
    np.testing.assert_allclose(r_hat(draws), expected, rtol=1e-12)
    peer = blackjax.diagnostics.potential_scale_reduction(jnp.asarray(draws))
    np.testing.assert_allclose(r_hat(draws), peer, rtol=1e-4)
    assert r_hat(draws)[2] > 1.5 and np.all(np.delete(r_hat(draws), 2) < 1.05)


@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.5, 0.9])
def test_effective_sample_size_of_an_autoregression(correlation):
    """It is n (1 - rho) / (1 + rho); averaged over 40 quantities, to within 15 %."""
    draws = autoregressive(correlation, shape=(8, 1000, 40))
    expected = 8000 * (1 - correlation) / (1 + correlation)
    assert effective_sample_size(draws).mean() == pytest.approx(expected, rel=0.15)


def test_effective_sample_size_is_near_blackjaxs():
    """The two estimates differ in how they pair autocorrelations, not by much."""
    draws = autoregressive(0.8)
    peer = blackjax.diagnostics.effective_sample_size(jnp.asarray(draws))
    np.testing.assert_allclose(effective_sample_size(draws), peer, rtol=0.1)


def test_what_never_changes_has_no_diagnostics():
    """Neither a warning nor a division by zero: it is NaN."""
    constant = np.ones((4, 10, 1))
    assert np.isnan(r_hat(constant)).all()
    assert np.isnan(effective_sample_size(constant)).all()
