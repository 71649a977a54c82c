"""Policies and their rollouts: distributions, the fast path, episodes, and the mixture."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from control_line import discrete_line, line
from s2vgd.control.environments import Box
from s2vgd.control.policies import Policy
from s2vgd.control.rollouts import act_of_each, act_of_mixture, first_episodes, rollout
from s2vgd.networks import MLP
from s2vgd.structure import Structure

KEY = jax.random.key(3)
GAUSSIAN = Policy.of(line(), hidden=(6, 5), structure=Structure(2), log_std=-0.3)
CATEGORICAL = Policy.of(discrete_line(), hidden=(6,), structure=Structure(1))


# Compiled as a whole: operation by operation they take longer than all the rest.
outputs_of = jax.jit(
    lambda policy, particles, o: jax.vmap(policy.outputs, (0, None))(particles, o), static_argnums=0
)
log_prob_and_entropy = jax.jit(
    lambda policy, particle, o, a: (policy.log_prob(particle, o, a), policy.entropy(particle, o)),
    static_argnums=0,
)
all_outputs = jax.jit(
    lambda policy, particles, o: policy.outputs_of_all(policy.stacked(particles), o),
    static_argnums=0,
)


@functools.cache
def particles_of(policy):
    return jax.jit(lambda key: policy.init_particles(key, 3))(KEY)


def take(tree, i):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[i], tree)


def test_gaussian_log_prob_and_entropy_are_those_of_scipy():
    particle = take(particles_of(GAUSSIAN), 0)
    o = np.random.default_rng(0).normal(size=(11, 2)).astype(np.float32)
    a = np.random.default_rng(1).normal(size=(11, 1)).astype(np.float32)
    law = scipy.stats.norm(
        np.asarray(outputs_of(GAUSSIAN, particles_of(GAUSSIAN), o)[0]), np.exp(-0.3)
    )
    log_prob, entropy = log_prob_and_entropy(GAUSSIAN, particle, o, a)
    np.testing.assert_allclose(log_prob, law.logpdf(a)[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(entropy, law.entropy()[:, 0], rtol=1e-5)


def test_categorical_log_prob_and_entropy_are_those_of_the_softmax():
    particle = take(particles_of(CATEGORICAL), 1)
    o = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    a = np.arange(9) % 3
    logits = np.asarray(outputs_of(CATEGORICAL, particles_of(CATEGORICAL), o)[1], np.float64)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    log_prob, entropy = log_prob_and_entropy(CATEGORICAL, particle, o, a)
    np.testing.assert_allclose(log_prob, np.log(p[np.arange(9), a]), rtol=1e-4)
    np.testing.assert_allclose(entropy, -(p * np.log(p)).sum(axis=1), rtol=1e-4)


@pytest.mark.parametrize("hidden", [(6, 5), (70,), ()])
def test_outputs_of_all_particles_are_those_of_each(hidden):
    policy = Policy.of(line(), hidden=hidden, structure=Structure(2))
    particles = particles_of(policy)
    o = np.random.default_rng(2).normal(size=(2, 4, 3)).astype(np.float32)
    together = np.asarray(all_outputs(policy, particles, o))
    for m in range(3):
        alone = outputs_of(policy, particles, np.ascontiguousarray(o[:, :, m].T))[m]
        np.testing.assert_allclose(together[:, :, m].T, alone, rtol=1e-4, atol=1e-5)


def test_bounded_boxes_are_stretched_and_unbounded_ones_are_not():
    box = Box((-2.0, 0.0, -np.inf), (2.0, 10.0, 5.0))
    policy = Policy(MLP(2, (), 3), box, (1.0, 1.0))
    given = policy.to_environment(jnp.array([[0.5], [-1.0], [3.0]]))
    np.testing.assert_allclose(given[:, 0], [1.0, 0.0, 3.0])


def test_draws_have_the_frequencies_of_the_mixture():
    n = 4000
    particles = particles_of(CATEGORICAL)
    o = np.array([0.4, -1.3], np.float32)

    @jax.jit
    def act(particles):
        stacked = CATEGORICAL.stacked(particles)
        seen = jnp.broadcast_to(jnp.array(o)[:, None, None], (2, n, 3))
        noise = CATEGORICAL.noise(KEY, (1, n, 3))[0]
        chosen = jax.random.randint(jax.random.key(9), (n, 3), 0, 3)
        return (
            act_of_each(CATEGORICAL, stacked, seen, noise),
            act_of_mixture(CATEGORICAL, stacked, seen, noise, chosen),
            act_of_mixture(CATEGORICAL, stacked, seen, None, None),
        )

    each, one, likeliest = map(np.asarray, act(particles))
    p = scipy.special.softmax(np.asarray(outputs_of(CATEGORICAL, particles, o[None]))[:, 0], axis=1)
    for m in range(3):
        found = np.bincount(each[:, m], minlength=3) / n
        np.testing.assert_allclose(found, p[m], atol=5 * 0.5 / n**0.5)
    found = np.bincount(one.ravel(), minlength=3) / (3 * n)
    np.testing.assert_allclose(found, p.mean(axis=0), atol=5 * 0.5 / (3 * n) ** 0.5)
    assert np.all(likeliest == p.mean(axis=0).argmax())


def test_the_mean_of_a_gaussian_mixture_is_the_mean_of_the_means():
    particles = particles_of(GAUSSIAN)
    act = jax.jit(
        lambda p: act_of_mixture(GAUSSIAN, GAUSSIAN.stacked(p), jnp.ones((2, 1, 3)), None, None)
    )
    means = np.asarray(outputs_of(GAUSSIAN, particles, np.ones((1, 2), np.float32)))[:, 0, 0]
    np.testing.assert_allclose(act(particles)[0, 0], np.full(3, means.mean()), rtol=1e-4)


@pytest.fixture(scope="module")
def played():
    environment = line()
    particles = particles_of(GAUSSIAN)
    run = jax.jit(lambda p, k: rollout(environment, GAUSSIAN, p, k, environments=4, horizon=23))
    return particles, jax.tree.map(np.asarray, run(particles, KEY))


def test_every_step_of_a_rollout_follows_from_the_one_before(played):
    _, made = played
    x = made.observations[..., 0]
    after = x + 0.3 * np.clip(2 * made.actions[..., 0], -2, 2)
    np.testing.assert_allclose(made.last_observations[..., 0], after, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(made.terminated, np.abs(after) > 1)
    out_of_time = (made.times + 1 >= 7) & ~made.terminated
    np.testing.assert_array_equal(made.truncated, out_of_time)
    np.testing.assert_allclose(
        made.rewards, np.where(made.terminated, -1, 1 - after**2), rtol=1e-4, atol=1e-5
    )
    ended = (made.terminated | made.truncated)[:-1]
    np.testing.assert_array_equal(
        made.observations[1:][~ended], made.last_observations[:-1][~ended]
    )
    assert np.all(np.abs(made.observations[1:][ended][:, 0]) <= 0.5), "a fresh start"
    np.testing.assert_array_equal(made.times[1:], np.where(ended, 0, made.times[:-1] + 1))
    assert made.terminated.any() and made.truncated.any()


def test_actions_are_draws_of_the_policy_that_saw_the_observation(played):
    particles, made = played
    for m in range(3):
        o = made.observations[:, m].reshape(-1, 2)
        mean = np.asarray(outputs_of(GAUSSIAN, particles, o))[m, :, 0]
        z = (made.actions[:, m].reshape(-1) - mean) / np.exp(-0.3)
        assert abs(z.mean()) < 4 / z.size**0.5 and abs(z.std() - 1) < 4 / (2 * z.size) ** 0.5
        assert scipy.stats.kstest(z, "norm").pvalue > 1e-3


def test_first_episodes_end_where_they_end_and_nothing_after_counts(played):
    _, made = played
    episodes = jax.jit(first_episodes)(made, 0.9)
    episodes = jax.tree.map(np.asarray, episodes)
    for m in range(3):
        for e in range(4):
            total, discounted, length = 0.0, 0.0, 0
            for t in range(23):
                total += made.rewards[t, m, e]
                discounted += 0.9**t * made.rewards[t, m, e]
                length += 1
                if made.terminated[t, m, e] or made.truncated[t, m, e]:
                    break
            assert episodes.lengths[m, e] == length
            np.testing.assert_allclose(episodes.returns[m, e], total, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(
                episodes.discounted_returns[m, e], discounted, rtol=1e-4, atol=1e-5
            )
    assert np.all(episodes.complete)


def test_every_environment_of_every_particle_starts_somewhere_else(played):
    _, made = played
    assert len(np.unique(made.observations[0, ..., 0])) == 12


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"scales": (1.0,)}, "scales"),
        ({"scales": (1.0, 0.0)}, "scales"),
        ({"log_std": float("nan")}, "log_std"),
        ({"last_layer": 0.0}, "last_layer"),
        ({"hidden": (0,)}, "hidden"),
        ({"activation": "cosine"}, "activation"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_by_the_name_of_the_argument(settings, named):
    with pytest.raises(ValueError, match=named):
        Policy.of(line(), **settings)


def test_a_network_must_have_as_many_outputs_as_there_are_actions():
    with pytest.raises(ValueError, match="outputs"):
        Policy(MLP(2, (3,), 2), Box((-1.0,), (1.0,)), (1.0, 1.0))
