"""Linear agents against the same formulas in NumPy's float64, solved anew from all the data."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from s2vgd.bandits import hybrid, regression
from s2vgd.bandits.contexts import Context, ContextShape
from s2vgd.bandits.linear import lin_ts, lin_ucb, thompson_scores

N_ACTIONS, ALPHA, RIDGE = 4, 0.7, 0.5
SHAPE = ContextShape(N_ACTIONS, shared=3, per_action=2)


def value(pair):
    return np.asarray(pair, np.float64).sum(-1)


def one_hot_rows(n, attributes=8, levels=5, seed=0):
    """Rows like those of Mushroom: every attribute's indicators add up to the constant."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(levels, size=(n, attributes))
    blocks = (chosen[:, :, None] == np.arange(levels)).reshape(n, -1)
    return np.hstack([np.ones((n, 1)), blocks]).astype(np.float32)


def test_a_pair_does_not_rest_on_a_rounding_that_compilers_may_leave_out():
    """XLA for GPUs takes float64 -> float32 -> float64 for nothing, and the lower half with it."""
    with jax.enable_x64(True):
        numbers = jnp.asarray(np.random.default_rng(0).normal(size=5))
        steps = jax.make_jaxpr(regression.split)(numbers).eqns
        widened = [
            e
            for e in steps
            if e.outvars[0].aval.dtype == jnp.float64 and e.invars[0].aval.dtype == jnp.float32
        ]
        assert not widened
        np.testing.assert_array_max_ulp(value(regression.split(numbers)), numbers, maxulp=16)


def test_twenty_thousand_updates_keep_the_precision_of_float64():
    """The condition number is above 10^5: in float32 the same updates would leave few digits."""
    n, weak = 20_000, 0.1
    rng = np.random.default_rng(1)
    x = one_hot_rows(n)
    y = (rng.normal(size=n) * 7.5).astype(np.float32)
    which = rng.integers(2, size=n)

    @jax.jit
    def learn(ridge, x, y, which):
        return jax.lax.scan(lambda r, row: (regression.add(r, *row), None), ridge, (which, x, y))[0]

    ridge = learn(regression.empty(2, x.shape[1], weak), x, y, which)
    rows = one_hot_rows(2, seed=5)
    got = regression.estimate(ridge, rows)
    for r in range(2):
        own, target = x[which == r].astype(np.float64), y[which == r].astype(np.float64)
        precision = weak * np.eye(x.shape[1]) + own.T @ own
        assert np.linalg.cond(precision) > 1e5
        inverse = np.linalg.inv(precision)
        np.testing.assert_allclose(value(ridge.inverse[r]), inverse, atol=1e-9)
        np.testing.assert_allclose(value(ridge.moment[r]), own.T @ target, rtol=1e-9, atol=1e-8)
        np.testing.assert_allclose(value(ridge.squares[r]), target @ target, rtol=1e-10)
        assert ridge.n_rows[r] == len(own)
        weights = inverse @ (own.T @ target)
        np.testing.assert_allclose(got.mean[r], rows[r] @ weights, rtol=1e-5)
        np.testing.assert_allclose(got.leverage[r], rows[r] @ inverse @ rows[r], rtol=1e-5)
        _, rate = regression.noise_posterior(ridge, 1.0, 2.0)
        residual = ((target - own @ weights) ** 2).sum() + weak * weights @ weights
        np.testing.assert_allclose(rate[r], 2.0 + residual / 2, rtol=1e-6)
    assert jax.tree.leaves(ridge)[0].dtype == jnp.float32, "the state is of single precision"


def contexts(n, seed=2):
    rng = np.random.default_rng(seed)
    available = rng.random((n, N_ACTIONS)) < 0.7
    available[np.arange(n), rng.integers(N_ACTIONS, size=n)] = True
    parts = rng.normal(size=(n, 3)), rng.normal(size=(n, N_ACTIONS, 2))
    return Context(*(jnp.asarray(p, jnp.float32) for p in parts), jnp.asarray(available))


def run(agent, stream, rewards):
    """Let an agent decide on a stream of contexts; rewards (n, A) are those of all actions."""

    def step(state, row):
        key, context, reward = row
        choice = agent.act(state, key, context)
        state = agent.update(state, key, context, choice.action, reward[choice.action])
        return state, choice

    keys = jax.random.split(jax.random.key(0), len(rewards))
    return jax.jit(lambda s: jax.lax.scan(step, s, (keys, stream, rewards)))(
        agent.init(jax.random.key(1))
    )


def naive_design(model, shared, actions):
    """The rows (A, D) of the one large ridge regression that a model amounts to."""
    rows = []
    for a in range(N_ACTIONS):
        x, own = np.r_[1.0, shared], np.r_[1.0, shared, actions[a]]
        if model == "shared":
            rows.append(own)
        elif model == "disjoint":
            rows.append(np.kron(np.eye(N_ACTIONS)[a], own))
        else:
            cross = np.outer(x, np.r_[1.0, actions[a]]).ravel()
            rows.append(np.r_[cross, np.kron(np.eye(N_ACTIONS)[a], x)])
    return np.array(rows)


@pytest.mark.parametrize("model", ["disjoint", "shared", "hybrid"])
def test_lin_ucb_takes_the_highest_bound_of_the_naive_regression(model):
    n = 250
    stream = contexts(n)
    rewards = np.random.default_rng(3).normal(size=(n, N_ACTIONS)).astype(np.float32) + 1
    agent = lin_ucb(SHAPE, alpha=ALPHA, ridge=RIDGE, model=model)
    _, choices = run(agent, stream, jnp.asarray(rewards))
    stream = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), stream)
    size = naive_design(model, stream.shared[0], stream.actions[0]).shape[1]
    precision, moment = RIDGE * np.eye(size), np.zeros(size)
    for t in range(n):
        rows = naive_design(model, stream.shared[t], stream.actions[t])
        inverse = np.linalg.inv(precision)
        bound = rows @ inverse @ moment
        bound += ALPHA * np.sqrt(np.einsum("ai,ij,aj->a", rows, inverse, rows))
        bound[stream.available[t] == 0] = -np.inf
        action = int(choices.action[t])
        assert bound[action] >= bound.max() - 1e-5
        if np.sum(bound > bound.max() - 1e-4) == 1:
            assert float(choices.propensity[t]) == 1.0
        precision += np.outer(rows[action], rows[action])
        moment += rewards[t, action] * rows[action]


def test_the_hybrid_model_is_the_joint_ridge_regression_after_many_updates():
    n = 3000
    stream = contexts(n)
    rng = np.random.default_rng(4)
    action, reward = rng.integers(N_ACTIONS, size=n), rng.normal(size=n).astype(np.float32)
    agent = lin_ucb(SHAPE, ridge=RIDGE, model="hybrid")

    def step(state, row):
        return agent.update(state, None, *row), None

    state, _ = jax.jit(lambda s, rows: jax.lax.scan(step, s, rows))(
        agent.init(None), (stream, jnp.asarray(action), reward)
    )
    parts = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), stream)
    design = [naive_design("hybrid", parts.shared[t], parts.actions[t]) for t in range(n)]
    taken = np.array([design[t][action[t]] for t in range(n)])
    inverse = np.linalg.inv(RIDGE * np.eye(taken.shape[1]) + taken.T @ taken)
    x, z = hybrid._features(jax.tree.map(lambda leaf: leaf[0], stream))
    mean, variance = hybrid.estimate(state, x, z)
    np.testing.assert_allclose(mean, design[0] @ inverse @ taken.T @ reward, atol=1e-6)
    want = np.einsum("ai,ij,aj->a", design[0], inverse, design[0])
    np.testing.assert_allclose(variance, want, rtol=1e-5)


def trained(regressions, features=3, n=40, seed=6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype(np.float32)
    y = (x @ np.arange(1.0, features + 1) + rng.normal(size=n)).astype(np.float32)
    which = rng.integers(regressions, size=n)
    ridge = regression.empty(regressions, features, RIDGE)
    add = jax.jit(regression.add)
    for t in range(n):
        ridge = add(ridge, which[t], x[t], y[t])
    return ridge, x.astype(np.float64), y.astype(np.float64), which


@functools.lru_cache(maxsize=1)
def rows_to_ask():
    return np.random.default_rng(7).normal(size=(4, 3))


def naive_posterior(x, y):
    inverse = np.linalg.inv(RIDGE * np.eye(3) + x.T @ x)
    mean = inverse @ x.T @ y
    return mean, inverse, (y @ y - mean @ np.linalg.inv(inverse) @ mean) / 2


def test_draws_of_one_regression_have_the_posterior_mean_and_covariance_of_all_actions():
    ridge, x, y, _ = trained(1)
    rows, n = rows_to_ask(), 200_000
    draw = jax.jit(functools.partial(thompson_scores, draws=n, noise=0.8, a=1.0, b=1.0))
    scores = np.asarray(draw(ridge, jnp.asarray(rows, jnp.float32), jax.random.key(0)), np.float64)
    mean, inverse, _ = naive_posterior(x, y)
    covariance = 0.8**2 * rows @ inverse @ rows.T
    size = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    error = np.abs(scores.mean(0) - rows @ mean)
    assert (error < 5 * np.sqrt(np.diag(covariance) / n)).all()
    assert (np.abs(np.cov(scores.T) - covariance) < 5 * np.sqrt(2 / n) * size).all()


def test_draws_with_unknown_noise_have_the_student_t_distribution_of_each_action():
    ridge, x, y, which = trained(4, n=60)
    rows, n, a, b = rows_to_ask(), 50_000, 2.0, 1.5
    draw = jax.jit(functools.partial(thompson_scores, draws=n, noise=None, a=a, b=b))
    scores = np.asarray(draw(ridge, jnp.asarray(rows, jnp.float32), jax.random.key(0)), np.float64)
    for r in range(4):
        mean, inverse, half_residual = naive_posterior(x[which == r], y[which == r])
        shape, rate = a + (which == r).sum() / 2, b + half_residual
        scale = np.sqrt(rate / shape * (rows[r] @ inverse @ rows[r]))
        law = stats.t(2 * shape, rows[r] @ mean, scale)
        assert stats.kstest(scores[:, r], law.cdf).pvalue > 1e-3
    correlation = np.corrcoef(scores.T) - np.eye(4)
    assert np.abs(correlation).max() < 5 / np.sqrt(n), "actions are independent"


def test_thompson_actions_have_on_average_the_stated_propensities():
    """Propensities are given the draws; over draws both are those of Thompson sampling."""
    agent = lin_ts(SHAPE, noise=1.0, draws=5)
    state = agent.init(jax.random.key(0))
    context = jax.tree.map(lambda leaf: leaf[0], contexts(1))._replace(
        available=jnp.asarray([True, True, False, True])
    )
    n = 200_000
    keys = jax.random.split(jax.random.key(1), n)
    choices = jax.jit(jax.vmap(lambda key: agent.act(state, key, context)))(keys)
    found = np.bincount(choices.action, minlength=N_ACTIONS) / n
    stated = np.asarray(choices.propensities, np.float64)
    assert (np.abs(found - stated.mean(0)) < 5 * np.sqrt(0.25 / n)).all()
    assert found[2] == 0 and (stated[:, 2] == 0).all()
    np.testing.assert_allclose(stated * 5, np.round(stated * 5), atol=1e-6)


def test_impossible_settings_are_named():
    plain = ContextShape(3, 2)
    for call, name in [
        (lambda: lin_ucb(plain, alpha=0.0), "alpha"),
        (lambda: lin_ucb(plain, ridge=-1.0), "ridge"),
        (lambda: lin_ucb(plain, model="joint"), "model"),
        (lambda: lin_ucb(plain, model="shared"), "features of the actions"),
        (lambda: lin_ts(plain, noise=0.0), "noise"),
        (lambda: lin_ts(plain, draws=0), "draws"),
        (lambda: lin_ts(plain, epsilon=2.0), "epsilon"),
        (lambda: lin_ts(ContextShape(0, 2)), "actions"),
    ]:
        with pytest.raises(ValueError, match=name):
            call()
