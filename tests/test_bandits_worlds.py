"""Worlds: the rewards they give have the expectations they state."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd.bandits import worlds
from s2vgd.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(4, 3)
POISONOUS = np.array([False, True, True, False])


def draw(world, n, step=0):
    """Return contexts and hidden parts of n draws."""
    return _draw(world.rules.sample, n, world.data, jnp.int32(step))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _draw(sample, n, data, step):
    keys = jax.random.split(jax.random.key(0), n)
    return jax.vmap(sample, in_axes=(None, 0, None))(data, keys, step)


def rewards(world, hidden, action, n=40_000):
    return np.asarray(_rewards(world.rules.reward, hidden, jnp.int32(action), n))


@functools.partial(jax.jit, static_argnums=(0, 3))
def _rewards(reward, hidden, action, n):
    keys = jax.random.split(jax.random.key(1), n)
    return jax.vmap(reward, in_axes=(0, None, None))(keys, hidden, action)


@pytest.mark.parametrize(("bad", "expected"), [(-10.0, -2.5), (-35.0, -15.0)])
def test_mushroom_has_the_rewards_of_the_paper_and_of_blundell(bad, expected):
    world = worlds.mushroom(X, POISONOUS, bad=bad)
    assert world.shape == (2, 3, 0)
    for poisonous, mean, values in ((False, 5.0, {5.0}), (True, expected, {5.0, bad})):
        hidden = jnp.asarray(poisonous)
        np.testing.assert_allclose(world.rules.expected(hidden), [0.0, mean])
        assert (rewards(world, hidden, worlds.PASS) == 0).all()
        eaten = rewards(world, hidden, worlds.EAT)
        assert set(eaten.tolist()) == values
        np.testing.assert_allclose(eaten.mean(), mean, atol=5 * 20 / np.sqrt(len(eaten)))


def test_mushroom_draws_every_row_with_its_own_label():
    context, hidden = draw(worlds.mushroom(X, POISONOUS), 20_000)
    row = np.asarray(context.shared[:, 0]).astype(int) // 3
    np.testing.assert_array_equal(context.shared, X[row])
    np.testing.assert_array_equal(hidden, POISONOUS[row])
    np.testing.assert_allclose(np.bincount(row) / 20_000, 0.25, atol=0.02)
    assert context.available.all() and context.actions.shape == (20_000, 2, 0)


def test_classification_rewards_naming_the_class():
    world = worlds.classification(X, np.array([0, 2, 1, 2]))
    assert world.shape == (3, 3, 0)
    context, label = draw(world, 50)
    np.testing.assert_array_equal(
        label, np.array([0, 2, 1, 2])[np.asarray(context.shared[:, 0]).astype(int) // 3]
    )
    np.testing.assert_array_equal(world.rules.expected(jnp.int32(1)), [0, 1, 0])
    given = [float(world.rules.reward(None, jnp.int32(1), jnp.int32(a))) for a in range(3)]
    assert given == [0, 1, 0]


def test_the_wheel_is_uniform_on_the_disk_and_high_outside_the_circle():
    delta = 0.8
    world = worlds.wheel(delta)
    context, points = draw(world, 40_000)
    np.testing.assert_array_equal(context.shared, points)
    radius = np.linalg.norm(points, axis=1)
    assert radius.max() <= 1 + 1e-6
    for r in (0.3, 0.8):  # the area within r is r^2 of the disk
        np.testing.assert_allclose((radius < r).mean(), r * r, atol=0.01)
    inside = world.rules.expected(jnp.asarray([0.1, 0.1]))
    np.testing.assert_allclose(inside, [1.2, 1, 1, 1, 1])
    quadrants = {(1, 1): 1, (1, -1): 2, (-1, 1): 3, (-1, -1): 4}
    for (sx, sy), action in quadrants.items():
        means = np.asarray(world.rules.expected(jnp.asarray([0.7 * sx, 0.7 * sy])))
        assert means[action] == 50 and (np.delete(means, [0, action]) == 1).all()
    got = rewards(world, jnp.asarray([0.7, 0.7]), 1)
    np.testing.assert_allclose([got.mean(), got.std()], [50, 0.01], rtol=1e-2)


def test_the_nonlinear_world_has_the_truth_it_was_built_from():
    world = worlds.nonlinear(3, 4, waves=2, noise=0.5, seed=3)
    context, means = draw(world, 5)
    truth = jax.tree.map(np.asarray, world.data)
    want = np.sin(np.asarray(context.shared) @ truth.directions + truth.phases) @ truth.weights[0].T
    np.testing.assert_allclose(means, want, atol=1e-5)
    got = rewards(world, means[0], 2)
    np.testing.assert_allclose(got.mean(), means[0, 2], atol=5 * 0.5 / np.sqrt(len(got)))
    np.testing.assert_allclose(got.std(), 0.5, rtol=0.03)


def test_a_drifting_world_has_turned_round_after_half_a_period_and_back_after_one():
    world = worlds.nonlinear(3, 4, period=1000.0)
    now, half, later = (np.asarray(draw(world, 5, step)[1]) for step in (0, 500, 1000))
    np.testing.assert_allclose(half, -now, atol=1e-4)
    np.testing.assert_allclose(later, now, atol=1e-4)
    still = worlds.nonlinear(3, 4)
    np.testing.assert_array_equal(draw(still, 5, 0)[1], draw(still, 5, 500)[1])


def test_arms_come_and_go_with_the_stated_probability_and_never_all_at_once():
    world = worlds.nonlinear(4, 2, presence=0.3)
    context, _ = draw(world, 20_000)
    available = np.asarray(context.available)
    assert available.any(axis=1).all()
    # One of four that would all be absent is kept: 0.3 + 0.7^4 / 4.
    np.testing.assert_allclose(available.mean(), 0.3 + 0.7**4 / 4, atol=0.01)


def test_clicks_have_the_stated_chances():
    world = worlds.clicks(3, 2, 2, seed=1)
    assert world.shape == (3, 2, 2)
    context, chances = draw(world, 4)
    assert context.actions.shape == (4, 3, 2)
    assert ((chances > 0) & (chances < 1)).all()
    np.testing.assert_array_equal(world.rules.expected(chances[0]), chances[0])
    got = rewards(world, chances[0], 1)
    assert set(got.tolist()) <= {0.0, 1.0}
    np.testing.assert_allclose(got.mean(), chances[0, 1], atol=5 * 0.5 / np.sqrt(len(got)))


def test_worlds_with_the_same_settings_share_what_is_compiled():
    other = worlds.mushroom(X + 1, ~POISONOUS)
    assert worlds.mushroom(X, POISONOUS).rules is other.rules
    assert worlds.nonlinear(seed=1).rules is worlds.nonlinear(seed=2).rules
    assert worlds.wheel(0.5) == worlds.wheel(0.5)


def test_bad_tables_and_settings_are_named():
    with pytest.raises(DataError, match="x must be finite"):
        worlds.mushroom(np.full((4, 3), np.nan), POISONOUS)
    with pytest.raises(DataError, match="x must be a table"):
        worlds.classification(X[0], np.arange(3))
    with pytest.raises(DataError, match="poisonous must have one entry"):
        worlds.mushroom(X, POISONOUS[:2])
    with pytest.raises(DataError, match="poisonous must be true or false"):
        worlds.mushroom(X, np.arange(4))
    with pytest.raises(DataError, match="y must be classes"):
        worlds.classification(X, np.array([-1, 0, 1, 2]))
    with pytest.raises(ValueError, match="n_classes"):
        worlds.classification(X, np.arange(4), n_classes=3)
    for call, name in [
        (lambda: worlds.mushroom(X, POISONOUS, luck=2.0), "luck"),
        (lambda: worlds.wheel(1.5), "delta"),
        (lambda: worlds.nonlinear(noise=0.0), "noise"),
        (lambda: worlds.nonlinear(presence=0.0), "presence"),
        (lambda: worlds.nonlinear(period=-1.0), "period"),
        (lambda: worlds.clicks(waves=0), "waves"),
    ]:
        with pytest.raises(ValueError, match=name):
            call()
