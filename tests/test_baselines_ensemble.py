"""Deep ensembles: members that know nothing of one another, each of them a MAP estimate."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from s2vgd.baselines._base import Problem
from s2vgd.baselines._descent import Algorithm, Info, side_by_side, to_the_mode
from s2vgd.baselines.ensemble import DeepEnsemble, DeepEnsembleInput
from s2vgd.bnn import Batch
from s2vgd.likelihoods import Gaussian
from s2vgd.networks import MLP
from s2vgd.priors import FixedPrior
from s2vgd.training import cosine_adam

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3)).astype(np.float32)
Y = (np.sin(X[:, :1]) + 0.1 * rng.normal(size=(40, 1))).astype(np.float32)
PROBLEM = Problem(Batch(jnp.asarray(X), jnp.asarray(Y)), Gaussian(), MLP(3, (6,), 1))


def test_one_member_is_map_training_with_adam():
    """A loop over optax.adam written here, from the same start, on all rows."""
    model = DeepEnsemble(members=1, steps=50, batch_size=None, prior_variance=0.3)
    key = jax.random.key(0)
    found = model._learn(PROBLEM, key).particles

    bnn = PROBLEM.bnn(FixedPrior(0.3))
    start = bnn.init_particles(jax.random.split(key)[0], 1)
    particle = jax.tree.map(lambda leaf: leaf[0], start)
    optimizer = optax.adam(lambda t: 0.01 * 0.5 * (1 + jnp.cos(jnp.pi * t / 50)))
    state = optimizer.init(particle)

    @jax.jit
    def descend(particle, state):
        gradient = jax.grad(lambda p: -bnn.log_joint(p, PROBLEM.data, 40.0) / 40.0)(particle)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(particle, updates), state

    for _ in range(50):
        particle, state = descend(particle, state)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours[0], theirs, rtol=1e-3, atol=1e-5),
        found,
        particle,
    )
    moved = found["weights"][0]["kernel"] - start["weights"][0]["kernel"]
    assert np.abs(moved).max() > 0.05


def test_members_are_those_that_would_have_been_trained_alone():
    bnn = PROBLEM.bnn(FixedPrior())
    one = to_the_mode(bnn, 40.0, cosine_adam(0.01, 20))
    together = side_by_side(one, None)
    starts = bnn.init_particles(jax.random.key(1), 3)
    members = together.init(starts, jax.random.key(2), 40)
    alone = [
        one.init(jax.tree.map(lambda leaf, m=m: leaf[m], starts), jax.random.key(3))
        for m in range(3)
    ]
    step, step_together = jax.jit(one.step), jax.jit(together.step)
    for _ in range(20):
        members, info = step_together(members, PROBLEM.data)
        results = [step(state, PROBLEM.data) for state in alone]
        alone = [state for state, _ in results]
    mean = np.mean([float(result.log_density) for _, result in results])
    np.testing.assert_allclose(info.log_density, mean, rtol=1e-4)
    for m, state in enumerate(alone):
        jax.tree.map(
            lambda ours, theirs, m=m: np.testing.assert_allclose(
                ours[m], theirs, rtol=1e-3, atol=1e-5
            ),
            members.particles,
            state.particles,
        )


class Counts(NamedTuple):
    particles: Any


def counting(n_rows: int) -> Algorithm:
    """Count how often each row was seen, in place of learning anything from it."""

    def step(state, batch):
        return Counts(state.particles.at[batch.x].add(1.0)), Info(jnp.zeros(()))

    return Algorithm(lambda particle, key: Counts(particle), step)


@pytest.mark.parametrize("n_rows", [12, 14])
def test_each_member_sees_every_row_once_an_epoch_in_its_own_order(n_rows):
    """Batches of 4, hence 3 an epoch; of 14 rows, 2 are left over."""
    algorithm = side_by_side(counting(n_rows), 4)
    rows = Batch(jnp.arange(n_rows), jnp.zeros(n_rows))
    state = algorithm.init(jnp.zeros((2, n_rows)), jax.random.key(0), n_rows)
    step = jax.jit(algorithm.step)
    seen = []
    for _ in range(6):
        state, _ = step(state, rows)
        seen.append(np.asarray(state.particles))
    batches = np.diff(np.stack([np.zeros((2, n_rows)), *seen]), axis=0)  # (6, 2, n_rows)
    assert np.all(batches.sum(axis=2) == 4)
    for epoch in (batches[:3], batches[3:]):
        assert np.all(np.sort(epoch.sum(axis=0))[:, n_rows - 12 :] == 1)
    assert not np.array_equal(batches[:, 0], batches[:, 1])
    assert not np.array_equal(batches[:3], batches[3:])


def test_a_batch_of_more_rows_than_there_are_is_all_of_them():
    algorithm = side_by_side(counting(5), 8)
    state = algorithm.init(jnp.zeros((2, 5)), jax.random.key(0), 5)
    state, _ = algorithm.step(state, Batch(jnp.arange(5), jnp.zeros(5)))
    np.testing.assert_array_equal(state.particles, np.ones((2, 5)))


def test_noise_that_depends_on_the_input_is_found():
    """Noise of 0.1 to the left of zero and 1 to the right: told apart by a factor of 4."""
    draws = np.random.default_rng(1)
    x = draws.uniform(-2, 2, size=(400, 1))
    y = x[:, 0] + np.where(x[:, 0] < 0, 0.1, 1.0) * draws.normal(size=400)
    model = DeepEnsembleInput(hidden=(10,), members=3, steps=800).fit(x, y)
    left, right = model.predict_dist(np.array([[-1.0], [1.0]])).std
    assert right > 4 * left
    with pytest.raises(ValueError, match="y must be real numbers"):
        model.fit(x, np.arange(400) % 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": 0}, "members must be at least 1"),
        ({"prior_variance": 0.0}, "prior_variance must be positive"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        DeepEnsemble(**settings)
