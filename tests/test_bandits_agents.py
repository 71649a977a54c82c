"""What every agent stands on: contexts, exact propensities, warm-up, and the replay buffer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd.bandits import buffer as replay_buffer
from s2vgd.bandits.agents import NOBODY, Agent, choose, uniform, warm_up
from s2vgd.bandits.contexts import Context, ContextShape, always, joint_features, make_context
from s2vgd.bandits.learning import Learning
from s2vgd.errors import DataError

MILLION = 1_000_000
SHAPE = ContextShape(actions=3, shared=2, per_action=1)


def frequencies(act, available, n=MILLION):
    """Decide n times; return the share of each action, the propensities, and the choices."""
    keys = jax.random.split(jax.random.key(0), n)
    choices = jax.jit(jax.vmap(act, in_axes=(0, None)))(keys, available)
    n_actions = len(available)
    stated = np.asarray(choices.propensities, np.float64)
    assert (stated == stated[0]).all()
    actions = np.asarray(choices.action)
    np.testing.assert_array_equal(choices.propensity, stated[0].astype(np.float32)[actions])
    return np.bincount(actions, minlength=n_actions) / n, stated[0], choices


def assert_distributed(found, stated, n=MILLION):
    """Every share within five standard deviations, and impossible actions never taken."""
    np.testing.assert_allclose(stated.sum(), 1.0, rtol=1e-6)
    assert (np.abs(found - stated) <= 5 * np.sqrt(stated * (1 - stated) / n) + 1e-7).all()
    assert (found[stated == 0] == 0).all()


SCORES = jnp.asarray(
    [
        [3.0, 1.0, 2.0, 0.0],
        [3.0, 1.0, 9.0, 0.0],
        [0.0, 5.0, 5.0, 5.0],  # three actions tie
        [-1.0, -1.0, -2.0, 7.0],
        [2.0, 2.0, 2.0, 2.0],  # all of them tie
    ]
)
ALL = jnp.ones(4, bool)
SOME = jnp.asarray([True, True, False, True])


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("available", "epsilon", "by_hand"),
    [
        (ALL, 0.0, [(1 + 1 / 4) / 5, (1 / 3 + 1 / 4) / 5, (1 + 1 / 3 + 1 / 4) / 5, None]),
        (SOME, 0.0, [(2 + 1 / 3) / 5, (1 / 2 + 1 / 3) / 5, 0.0, None]),
        (SOME, 0.3, [0.7 * (7 / 15) + 0.1, 0.7 * (5 / 30) + 0.1, 0.0, None]),
    ],
)
def test_a_million_decisions_have_the_stated_propensities(available, epsilon, by_hand):
    found, stated, _ = frequencies(lambda key, who: choose(key, SCORES, who, epsilon), available)
    by_hand[-1] = 1 - sum(by_hand[:-1])
    np.testing.assert_allclose(stated, by_hand, rtol=1e-6)
    assert_distributed(found, stated)


@pytest.mark.optimised
def test_the_particle_of_a_choice_voted_for_its_action():
    _, _, choices = frequencies(lambda key, who: choose(key, SCORES, who, 0.3), SOME, 20_000)
    particle, action = np.asarray(choices.particle), np.asarray(choices.action)
    assert abs((particle == NOBODY).mean() - 0.3) < 0.02
    scores = np.where(SOME, SCORES, -np.inf)
    own = particle != NOBODY
    np.testing.assert_array_equal(scores[particle[own], action[own]], scores.max(1)[particle[own]])
    shares = np.bincount(particle[own], minlength=5) / own.sum()
    np.testing.assert_allclose(shares, 0.2, atol=0.02)


@pytest.mark.optimised
def test_epsilon_of_one_is_uniform_over_what_is_available():
    found, stated, choices = frequencies(
        lambda key, who: choose(key, SCORES, who, 1.0), SOME, 100_000
    )
    np.testing.assert_allclose(stated, [1 / 3, 1 / 3, 0, 1 / 3], rtol=1e-6)
    assert_distributed(found, stated, 100_000)
    assert (choices.particle == NOBODY).all()


def test_unavailable_actions_may_have_any_score():
    scores = jnp.asarray([[0.0, jnp.nan, 1.0], [2.0, jnp.inf, 1.0]])
    choice = choose(jax.random.key(0), scores, jnp.asarray([True, False, True]))
    np.testing.assert_allclose(choice.propensities, [0.5, 0.0, 0.5])


def test_a_nan_score_or_an_empty_pool_gives_nan_propensities_and_no_guess():
    key = jax.random.key(0)
    nan = choose(key, jnp.asarray([[0.0, jnp.nan], [0.0, 1.0]]), jnp.ones(2, bool))
    assert np.isnan(nan.propensities).all()
    empty = choose(key, jnp.zeros((2, 2)), jnp.zeros(2, bool), 0.1)
    assert np.isnan(empty.propensities).all()


@pytest.mark.optimised
def test_uniform_takes_every_available_action_equally_often():
    context = always(ContextShape(4), jnp.zeros(1))
    found, stated, _ = frequencies(
        lambda key, who: uniform().act((), key, context._replace(available=who)), SOME
    )
    np.testing.assert_allclose(stated, [1 / 3, 1 / 3, 0, 1 / 3], rtol=1e-6)
    assert_distributed(found, stated)


def test_warm_up_goes_round_the_available_actions_and_then_lets_the_agent_decide():
    agent = warm_up(uniform(), 5)
    shape = ContextShape(4, 1)
    state, taken, stated = agent.init(jax.random.key(0)), [], []
    for t in range(7):
        context = make_context(shape, [0.0], available=np.asarray(SOME))
        choice = agent.act(state, jax.random.key(t), context)
        taken.append(int(choice.action))
        stated.append(np.asarray(choice.propensities))
        state = agent.update(state, jax.random.key(t), context, choice.action, jnp.float32(0))
    assert taken[:5] == [0, 1, 3, 0, 1]
    np.testing.assert_array_equal(stated[2], [0, 0, 0, 1])
    np.testing.assert_allclose(stated[5], [1 / 3, 1 / 3, 0, 1 / 3], rtol=1e-6)
    assert warm_up(agent, 0) is agent
    assert warm_up(uniform(), 5) is agent, "equal settings give the same agent"
    assert isinstance(agent, Agent)


def test_contexts_are_checked_by_the_name_of_the_argument():
    good = make_context(SHAPE, [1, 2], [[1], [2], [3]], [True, False, True])
    np.testing.assert_array_equal(joint_features(good), [[1, 2, 1], [1, 2, 2], [1, 2, 3]])
    for name, arguments in {
        "shared": ([1, 2, 3], [[1], [2], [3]]),
        "actions": ([1, 2], [[1], [2]]),
        "available": ([1, 2], [[1], [2], [3]], [True, False]),
    }.items():
        with pytest.raises(DataError, match=name):
            make_context(SHAPE, *arguments)
    with pytest.raises(DataError, match="shared must be finite"):
        make_context(SHAPE, [1, np.nan], [[1], [2], [3]])
    with pytest.raises(DataError, match="actions must have shape"):
        make_context(SHAPE, [1, 2])
    with pytest.raises(DataError, match="at least one action"):
        make_context(SHAPE, [1, 2], [[1], [2], [3]], [False] * 3)
    with pytest.raises(DataError, match="shared must be numbers"):
        make_context(SHAPE, ["a", "b"], [[1], [2], [3]])
    alone = make_context(ContextShape(2, 1), [4.0])
    assert isinstance(alone, Context) and alone.actions.shape == (2, 0) and alone.available.all()


def filled(capacity, n):
    buffer = replay_buffer.empty({"t": jnp.zeros((), jnp.int32), "x": jnp.zeros(2)}, capacity)
    add = jax.jit(replay_buffer.add)
    for t in range(n):
        buffer = add(buffer, {"t": jnp.int32(t), "x": jnp.full(2, float(t))})
    return buffer


def test_the_buffer_is_a_ring_that_holds_the_newest_rows():
    buffer = filled(capacity=5, n=3)
    assert (int(buffer.seen), int(buffer.held), buffer.capacity) == (3, 3, 5)
    buffer = filled(capacity=5, n=13)
    assert (int(buffer.seen), int(buffer.held)) == (13, 5)
    assert sorted(buffer.rows["t"].tolist()) == [8, 9, 10, 11, 12]
    np.testing.assert_array_equal(buffer.rows["x"][:, 0], buffer.rows["t"])


@pytest.mark.parametrize(("capacity", "n", "first"), [(8, 5, 0), (5, 13, 8)])
def test_batches_are_uniform_over_what_is_held(capacity, n, first):
    rows = replay_buffer.sample(jax.random.key(1), filled(capacity, n), 200_000)
    np.testing.assert_array_equal(rows["x"][:, 1], rows["t"])
    shares = np.bincount(rows["t"], minlength=n) / 200_000
    np.testing.assert_allclose(shares[first:], 0.2, atol=5 * 0.4 / np.sqrt(200_000))
    assert (shares[:first] == 0).all()


@pytest.mark.parametrize(("capacity", "n"), [(8, 6), (6, 20)])
def test_forgetting_draws_rows_by_their_age_and_counts_them_so(capacity, n):
    buffer, half_life = filled(capacity, n), 1.7
    rows = replay_buffer.sample(jax.random.key(1), buffer, 400_000, half_life)
    weights = 0.5 ** (np.arange(6) / half_life)
    ages = n - 1 - np.asarray(rows["t"])
    p = weights / weights.sum()
    found = np.bincount(ages, minlength=6) / 400_000
    np.testing.assert_allclose(found, p, atol=5 * np.sqrt(0.25 / 400_000))
    mass = replay_buffer.mass(buffer.held, half_life)
    np.testing.assert_allclose(mass, weights.sum(), rtol=1e-5)


def test_the_likelihood_is_scaled_to_what_was_seen_held_or_remembered():
    buffer = filled(capacity=4, n=10)
    assert float(Learning().n_total(buffer)) == 10
    assert float(Learning(count="held").n_total(buffer)) == 4
    remembered = Learning(half_life=2.0).n_total(buffer)
    np.testing.assert_allclose(remembered, (0.5 ** (np.arange(10) / 2)).sum(), rtol=1e-5)


@pytest.mark.parametrize(("eager", "times"), [(0, 3), (4, 6)])
def test_learning_happens_at_its_cadence_alone_and_under_vmap(eager, times):
    """A step adds one, so the learner counts the gradient steps; 10 rewards, learned by threes."""
    learning = Learning(every=3, eager=eager, steps=2, batch_size=4)

    def steps_after(n):
        buffer = replay_buffer.empty(jnp.zeros(()), 5)

        def one(carry, t):
            buffer, total = carry
            buffer = replay_buffer.add(buffer, t)
            step = lambda learner, rows, n_total, key: learner + 1  # noqa: E731
            return (buffer, learning.learn(jax.random.key(0), buffer, step, total)), None

        (_, total), _ = jax.lax.scan(one, (buffer, jnp.zeros(())), jnp.arange(float(n)))
        return total

    assert float(jax.jit(steps_after, static_argnums=0)(10)) == times * 2
    both = jax.vmap(lambda extra: steps_after(10) + extra)(jnp.zeros(2))
    np.testing.assert_array_equal(both, [times * 2, times * 2])


def test_the_learning_rate_is_half_after_as_many_steps_as_decay_says():
    optimizer = Learning(learning_rate=0.1, decay=10.0).optimizer()
    state = optimizer.init(jnp.zeros(()))
    sizes = []
    for _ in range(21):
        move, state = optimizer.update(jnp.ones(()), state)
        sizes.append(-float(move))
    np.testing.assert_allclose([sizes[0], sizes[10], sizes[20]], [0.1, 0.05, 0.1 / 3], rtol=1e-4)
    assert Learning(decay=10.0).optimizer() is Learning(decay=10.0).optimizer()


@pytest.mark.parametrize("name", ["batch_size", "every", "steps", "capacity"])
def test_impossible_settings_of_learning_are_named(name):
    with pytest.raises(ValueError, match=name):
        Learning(**{name: 0})
    with pytest.raises(ValueError, match="half_life"):
        Learning(half_life=-1.0)
    with pytest.raises(ValueError, match="decay"):
        Learning(decay=0.0)
    with pytest.raises(ValueError, match="eager"):
        Learning(eager=-1)
    with pytest.raises(ValueError, match="count"):
        Learning(count="all")
