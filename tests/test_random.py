"""Orders of rows: permutations, one for each key, that show no trace of the order before."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from s2vgd._random import _WORTH_MIXING, random_order

N, DRAWS, BINS = 5000, 300, 20


@pytest.fixture(scope="module")
def orders() -> np.ndarray:
    keys = jax.random.split(jax.random.key(0), DRAWS)
    return np.asarray(jax.vmap(lambda key: random_order(key, N))(keys))


@pytest.mark.parametrize("n", [1, 2, 7, _WORTH_MIXING - 1, _WORTH_MIXING, 16384, 16385, 100_001])
def test_every_number_is_there_once_and_the_key_decides_where(n: int) -> None:
    order = random_order(jax.random.key(1), n)
    assert order.dtype == jnp.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    np.testing.assert_array_equal(
        order, jax.jit(random_order, static_argnums=1)(jax.random.key(1), n)
    )
    if n > 2:
        assert not np.array_equal(order, random_order(jax.random.key(2), n))


def test_every_number_may_come_anywhere(orders: np.ndarray) -> None:
    """Counts of number by place, both in bins, over many keys: chi-squared, and not too even."""
    place = np.broadcast_to(np.arange(N), orders.shape)
    table, _, _ = np.histogram2d(orders.ravel(), place.ravel(), bins=BINS)
    expected = DRAWS * N / BINS**2
    # The sums of rows and columns are fixed, which leaves (bins - 1)^2 degrees of freedom.
    statistic = np.sum((table - expected) ** 2) / expected
    assert 0.001 < stats.chi2.sf(statistic, (BINS - 1) ** 2) < 0.999


@pytest.mark.parametrize("apart", [1, 2, 64, 4096])
def test_neighbours_go_their_own_ways(orders: np.ndarray, apart: int) -> None:
    """Places of numbers that differ by a step, or by a power of two, do not go together."""
    place = np.argsort(orders, axis=1).astype(float)
    one, other = place[:, :-apart], place[:, apart:]
    pairs = np.array([stats.pearsonr(a, b).statistic for a, b in zip(one, other, strict=True)])
    error = 1 / np.sqrt(one.shape[1])
    assert abs(pairs.mean()) < 4 * error / np.sqrt(DRAWS)
    assert np.std(pairs) < 1.2 * error
    # How far apart they land has the triangular law of two independent places.
    far = np.abs(one - other).ravel() / N
    assert abs(far.mean() - 1 / 3) < 0.002


def test_every_bit_of_a_number_is_as_often_set_in_each_half(orders: np.ndarray) -> None:
    """Low bits too, which weak mixing leaves alone."""
    for bit in range(12):
        is_set = (orders >> bit) & 1
        share = is_set[:, : N // 2].mean(axis=1)
        error = 0.5 / np.sqrt(N // 2) * np.sqrt(0.5)  # drawn without replacement
        assert abs(np.mean(share) - is_set.mean()) < 4 * error / np.sqrt(DRAWS)
        assert 0.8 * error < np.std(share) < 1.2 * error


def test_orders_of_different_keys_have_nothing_in_common(orders: np.ndarray) -> None:
    same = [np.mean(a == b) for a, b in itertools.pairwise(orders)]
    assert abs(np.mean(same) - 1 / N) < 4 / N / np.sqrt(DRAWS)
