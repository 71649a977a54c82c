"""Gradients of the return: against naive sums, closed forms, and least squares."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from control_line import bandit
from s2vgd.control.critics import LinearCritic, LinearState, NetworkCritic
from s2vgd.control.gradients import (
    A2C,
    Reinforce,
    clip_each,
    clipped_gradients,
    generalised_advantages,
    log_probs,
    policy_gradients,
)
from s2vgd.control.policies import Policy
from s2vgd.control.rollouts import Trajectories, rollout
from s2vgd.structure import Structure

T, M, E, SIZE = 12, 2, 3, 2
SCALES = (2.0, 0.5)
PLAIN = Structure(reflections=0, scales=None)

# Compiled as a whole: operation by operation they take longer than all the rest.
advantages_of = jax.jit(
    lambda estimator, critics, made: estimator.advantages(critics, made, SCALES), static_argnums=0
)
gradients_of = jax.jit(policy_gradients, static_argnums=(0, 4))
clipped_of = jax.jit(clipped_gradients, static_argnums=(0, 5, 6))
log_probs_of = jax.jit(log_probs, static_argnums=0)


def particles_of(policy):
    return jax.jit(lambda key: policy.init_particles(key, M))(jax.random.key(1))


def random_trajectories(seed=0):
    rng = np.random.default_rng(seed)
    terminated = rng.random((T, M, E)) < 0.15
    truncated = (rng.random((T, M, E)) < 0.15) & ~terminated
    times = np.zeros((T, M, E), np.int32)
    for t in range(1, T):
        times[t] = np.where(terminated[t - 1] | truncated[t - 1], 0, times[t - 1] + 1)

    def draw(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return Trajectories(
        draw(T, M, E, SIZE),
        draw(T, M, E, 1),
        draw(T, M, E),
        terminated,
        truncated,
        draw(T, M, E, SIZE),
        times,
    )


def naive_rewards_to_go(made, discount):
    to_go = np.zeros((T, M, E))
    for m in range(M):
        for e in range(E):
            for t in range(T):
                weight = 1.0
                for k in range(t, T):
                    to_go[t, m, e] += weight * made.rewards[k, m, e]
                    weight *= discount
                    if made.terminated[k, m, e] or made.truncated[k, m, e]:
                        break
    return to_go


def naive_features(o, times):
    o = np.clip(np.asarray(o, np.float64), -10, 10)
    tau = np.asarray(times, np.float64)[..., None] / 100
    return np.concatenate([o, o**2, tau, tau**2, tau**3, np.ones_like(tau)], axis=-1)


def test_reinforce_without_a_baseline_standardises_the_rewards_to_go():
    made = random_trajectories()
    advantages, _ = advantages_of(Reinforce(0.9), (), made)
    to_go = naive_rewards_to_go(made, 0.9)
    for m in range(M):
        wanted = (to_go[:, m] - to_go[:, m].mean()) / to_go[:, m].std()
        np.testing.assert_allclose(advantages[:, m], wanted, rtol=1e-4, atol=1e-5)


def test_a_baseline_is_that_of_the_rollout_before():
    made, estimator = random_trajectories(), Reinforce(0.9, LinearCritic(), standardise=False)
    to_go = naive_rewards_to_go(made, 0.9)
    critics = estimator.init(jax.random.key(0), M, SIZE)
    first, critics = advantages_of(estimator, critics, made)
    np.testing.assert_allclose(first, to_go, rtol=1e-4, atol=1e-5)
    after = random_trajectories(1)
    second, _ = advantages_of(estimator, critics, after)
    features = naive_features(after.observations / np.array(SCALES), after.times)
    low, high = to_go.min(axis=(0, 2))[:, None], to_go.max(axis=(0, 2))[:, None]
    np.testing.assert_allclose(critics.low, low[:, 0], rtol=1e-5)
    values = np.einsum("tmef,mf->tme", features, np.asarray(critics.coefficients, np.float64))
    values = np.clip(values, low, high)
    np.testing.assert_allclose(
        second, naive_rewards_to_go(after, 0.9) - values, rtol=1e-3, atol=1e-3
    )


def naive_gae(made, values, after, discount, decay):
    advantages = np.zeros((T, M, E))
    for m in range(M):
        for e in range(E):
            for t in range(T):
                weight = 1.0
                for k in range(t, T):
                    following = 0.0 if made.terminated[k, m, e] else after[k, m, e]
                    delta = made.rewards[k, m, e] + discount * following - values[k, m, e]
                    advantages[t, m, e] += weight * delta
                    weight *= discount * decay
                    if made.terminated[k, m, e] or made.truncated[k, m, e]:
                        break
    return advantages


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
def test_a2c_gives_the_generalised_advantages_of_its_critic(decay):
    made = random_trajectories()
    estimator = A2C(0.9, decay, standardise=False)
    coefficients = np.random.default_rng(5).normal(size=(M, 2 * SIZE + 4)).astype(np.float32)
    advantages, critics = advantages_of(
        estimator, LinearState(jnp.asarray(coefficients), jnp.full(M, -2.0), jnp.full(M, 3.0)), made
    )

    def value(o, times):
        features = naive_features(o / np.array(SCALES), times)
        return np.clip(np.einsum("tmef,mf->tme", features, coefficients), -2, 3)

    values = value(made.observations, made.times)
    wanted = naive_gae(made, values, value(made.last_observations, made.times + 1), 0.9, decay)
    np.testing.assert_allclose(advantages, wanted, rtol=1e-4, atol=1e-4)
    # The critic is fitted to A + V, by least squares.
    features = naive_features(made.observations / np.array(SCALES), made.times)
    for m in range(M):
        x, y = features[:, m].reshape(T * E, -1), (wanted + values)[:, m].ravel()
        fitted = x @ np.linalg.lstsq(x, y, rcond=None)[0]
        np.testing.assert_allclose(
            x @ np.asarray(critics.coefficients[m], np.float64), fitted, atol=5e-2
        )


def test_what_is_cut_off_is_worth_what_the_critic_says_and_what_has_ended_is_not():
    rewards, values = jnp.ones((2, 1)), jnp.zeros((2, 1))
    ended = jnp.array([[False], [True]])
    worth = jnp.array([[0.0], [10.0]])
    truncated = generalised_advantages(rewards, values, worth, ended, 0.5, 1.0)
    terminated = generalised_advantages(rewards, values, 0 * worth, ended, 0.5, 1.0)
    np.testing.assert_allclose(truncated[:, 0], [1 + 0.5 * (1 + 5), 1 + 5])
    np.testing.assert_allclose(terminated[:, 0], [1.5, 1])


def test_linear_critic_is_least_squares_at_the_scale_of_long_episodes():
    rng = np.random.default_rng(0)
    n = 3000
    o = rng.normal(size=(n, 4)).astype(np.float32) * [1, 3, 0.1, 1] + [0, 5, 0, 0]
    o[:, 3] = 2.0  # a coordinate that never varies
    times = rng.integers(0, 500, n)
    y = 300 + 40 * o[:, 0] - times * 0.4 + rng.normal(size=n)
    critic = LinearCritic()
    state = jax.jit(critic.fit)(critic.init(None, 4), o.astype(np.float32), times, y)
    x = naive_features(o, times)
    exact = np.clip(x @ np.linalg.lstsq(x, y, rcond=None)[0], y.min(), y.max())
    found = critic.values(state, jnp.asarray(o, jnp.float32), jnp.asarray(times))
    assert np.abs(found - exact).max() < 2e-3 * y.std()


def test_network_critic_learns_what_bends_and_new_units_do_not_change_what_it_says():
    rng = np.random.default_rng(0)
    o = rng.uniform(-2, 2, size=(500, 1)).astype(np.float32)
    times = np.zeros(500, np.int32)
    y = (100 + 30 * np.sin(1.5 * o[:, 0] + 0.5)).astype(np.float32)
    critic = NetworkCritic((16,), steps=200)
    state = critic.init(jax.random.key(0), 1)
    np.testing.assert_array_equal(critic.values(state, o, times), 0)
    fit = jax.jit(critic.fit)
    for _ in range(8):
        state = fit(state, o, times, y)
    error = np.asarray(critic.values(state, o, times)) - y
    assert error.std() < 0.3 * y.std() and abs(error.mean()) < 1
    still = NetworkCritic((16,), steps=1, learning_rate=1e-12)
    before = still.values(state, o, times)
    after = still.values(still.fit(state, o, times, 5 * y - 20), o, times)
    np.testing.assert_allclose(after, before, rtol=1e-4)


def test_policy_gradient_is_the_sum_written_out():
    made = random_trajectories()
    policy = Policy.of(_Task(), hidden=(), structure=PLAIN, log_std=0.2)
    particles = particles_of(policy)
    advantages = np.random.default_rng(3).normal(size=(T, M, E)).astype(np.float32)
    values, slopes = gradients_of(policy, particles, made, advantages)
    for m in range(M):
        w = np.asarray(particles["weights"][0]["kernel"][m], np.float64)
        o = made.observations[:, m].reshape(-1, SIZE) / np.array(SCALES)
        a, weight = made.actions[:, m].ravel(), advantages[:, m].ravel()
        z = (a - (o @ w)[:, 0]) / np.exp(0.2)
        np.testing.assert_allclose(
            slopes["weights"][0]["kernel"][m][:, 0],
            np.mean((weight * z / np.exp(0.2))[:, None] * o, axis=0),
            rtol=1e-3,
            atol=1e-5,
        )
        np.testing.assert_allclose(
            slopes["log_std"][m][0], np.mean(weight * (z**2 - 1)), rtol=1e-3, atol=1e-5
        )
        log_p = -0.5 * z**2 - 0.2 - 0.5 * np.log(2 * np.pi)
        np.testing.assert_allclose(values[m], np.mean(weight * log_p), rtol=1e-3, atol=1e-5)


def test_gradient_of_policies_that_moved_on_is_the_clipped_sum_written_out():
    made = random_trajectories()
    policy = Policy.of(_Task(), hidden=(), structure=PLAIN, log_std=0.2)
    old = particles_of(policy)
    new = jax.tree.map(lambda leaf: leaf + 0.3, old)
    advantages = np.random.default_rng(3).normal(size=(T, M, E)).astype(np.float32)
    made_with = log_probs_of(policy, old, made)
    values, slopes = clipped_of(policy, new, made, advantages, made_with, 0.2, 0.1)
    shares = []
    for m in range(M):
        o = made.observations[:, m].reshape(-1, SIZE) / np.array(SCALES)
        a, weight = made.actions[:, m].ravel(), advantages[:, m].ravel()

        def z_and_log_p(particles, o=o, a=a, m=m):
            w = np.asarray(particles["weights"][0]["kernel"][m], np.float64)[:, 0]
            b, s = particles["weights"][0]["bias"][m], np.float64(particles["log_std"][m][0])
            z = (a - o @ w - np.float64(b)) / np.exp(s)
            return z, -0.5 * z**2 - s - 0.5 * np.log(2 * np.pi), s

        z, now, s = z_and_log_p(new)
        ratio = np.exp(now - z_and_log_p(old)[1])
        held = np.clip(ratio, 0.8, 1.2)
        counts = ratio * weight <= held * weight
        shares.append(counts.mean())
        wanted = np.mean((counts * ratio * weight * z / np.exp(s))[:, None] * o, axis=0)
        found = slopes["weights"][0]["kernel"][m][:, 0]
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
        # The entropy has the slope 1 in log_std.
        wanted = np.mean(counts * ratio * weight * (z**2 - 1)) + 0.1
        np.testing.assert_allclose(slopes["log_std"][m][0], wanted, rtol=1e-3, atol=1e-5)
        entropy = s + 0.5 * np.log(2 * np.pi * np.e)
        wanted = np.mean(np.minimum(ratio * weight, held * weight)) + 0.1 * entropy
        np.testing.assert_allclose(values[m], wanted, rtol=1e-3, atol=1e-5)
    assert min(shares) > 0.2 and max(shares) < 0.95, "some steps are held back and some are not"


def test_before_anything_has_moved_the_clipped_gradient_is_the_policy_gradient():
    made = random_trajectories()
    policy = Policy.of(_Task(), hidden=(3,), structure=Structure(1), log_std=0.2)
    particles = particles_of(policy)
    advantages = np.random.default_rng(3).normal(size=(T, M, E)).astype(np.float32)
    made_with = log_probs_of(policy, particles, made)
    _, found = clipped_of(policy, particles, made, advantages, made_with, 0.2, 0.1)
    _, wanted = gradients_of(policy, particles, made, advantages, 0.1)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_policies_that_moved_very_far_still_have_finite_gradients():
    """The ratio of two densities leaves float32 at e^88: inf - inf and 0 inf must not follow."""
    made = random_trajectories()
    policy = Policy.of(_Task(), hidden=(), structure=PLAIN, log_std=-3.0)
    particles = particles_of(policy)
    for sign in (-1.0, 1.0):
        advantages = np.full((T, M, E), sign, np.float32)
        made_with = log_probs_of(policy, particles, made) - 200.0
        values, slopes = clipped_of(policy, particles, made, advantages, made_with, 0.2, 0.0)
        assert np.isfinite(values).all()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


class _Task:
    observation_size = SIZE
    observation_scales = SCALES

    @property
    def action(self):
        return bandit().action


@pytest.mark.parametrize(
    "estimator",
    [Reinforce(standardise=False), Reinforce(0.99, LinearCritic(), False), A2C(standardise=False)],
    ids=["reinforce", "baseline", "a2c"],
)
def test_estimates_have_the_exact_gradient_as_their_mean(estimator):
    """J = -(μ - 1)² - σ², so that dJ/dμ = -2 (μ - 1) and dJ/dlog σ = -2 σ²."""
    policy = Policy.of(bandit(), hidden=(), structure=PLAIN, log_std=-0.5)
    particles = particles_of(policy)

    @jax.jit
    def slopes(key):
        first, second = jax.random.split(key)
        critics = estimator.init(key, M, 1)
        # A critic that has learned from one rollout judges the next.
        for k in (first, second):
            made = rollout(bandit(), policy, particles, k, environments=50, horizon=400)
            advantages, critics = estimator.advantages(critics, made, policy.scales)
        return policy_gradients(policy, particles, made, advantages)[1]

    found = slopes(jax.random.key(4))
    mean = np.asarray(particles["weights"][0]["kernel"])[:, 0, 0]
    # 20,000 draws; the standard error of a term of size about 10 is 0.07.
    np.testing.assert_allclose(found["weights"][0]["bias"][:, 0], -2 * (mean - 1), atol=0.25)
    np.testing.assert_allclose(found["log_std"][:, 0], -2 * np.exp(-1), atol=0.25)


def test_clipping_shortens_long_gradients_only_and_hides_nothing():
    rows = jnp.array([[3.0, 4.0], [0.03, 0.04], [jnp.nan, 1.0]])
    clipped, lengths = clip_each(rows, 1.0)
    np.testing.assert_allclose(clipped[:2], [[0.6, 0.8], [0.03, 0.04]], rtol=1e-6)
    np.testing.assert_allclose(lengths[:2], [5, 0.05], rtol=1e-6)
    assert np.isnan(clipped[2]).any() and np.isnan(lengths[2])
    np.testing.assert_array_equal(clip_each(rows, None)[0], rows)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: Reinforce(discount=1.5), "discount"),
        (lambda: A2C(decay=-0.1), "decay"),
        (lambda: LinearCritic(ridge=0.0), "ridge"),
        (lambda: NetworkCritic(steps=0), "steps"),
        (lambda: NetworkCritic(hidden=(0,)), "hidden"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(build, named):
    with pytest.raises(ValueError, match=named):
        build()
