"""Stein policy gradient: the update written out, interrupted runs, logs, and learning at all."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from control_line import line
from s2vgd.control import (
    A2C,
    Adapted,
    Reinforce,
    SteinPolicyGradient,
    stein,
    temperature,
    train_together,
)
from s2vgd.control.gradients import clipped_gradients, log_probs, policy_gradients
from s2vgd.control.policies import Policy
from s2vgd.control.rollouts import rollout
from s2vgd.errors import DivergedError, ModelFileError
from s2vgd.kernels import rbf
from s2vgd.layout import Layout
from s2vgd.priors import FixedPrior
from s2vgd.structure import Structure

POLICY = Policy.of(line(), hidden=(4,), structure=Structure(1))
ESTIMATOR = Reinforce(0.9)
SGD = optax.sgd(1.0)  # a step of it is the direction itself
SMALL = dict(particles=3, reflections=1, hidden=(4,), environments=2, horizon=9)


@functools.cache
def some_trajectories(m=4):
    """Make policies and what they did, and the gradients of their returns; the first m of four."""

    @jax.jit
    def make(key):
        particles = POLICY.init_particles(key, 4)
        made = rollout(line(), POLICY, particles, key, environments=5, horizon=11)
        advantages, _ = ESTIMATOR.advantages((), made, POLICY.scales)
        return particles, made, policy_gradients(POLICY, particles, made, advantages)[1]

    if m < 4:
        particles, made, flat, slopes = some_trajectories()
        first = jax.tree.map(lambda leaf: leaf[:m], particles)
        return first, jax.tree.map(lambda leaf: leaf[:, :m], made), flat[:m], slopes[:m]
    particles, made, slopes = jax.tree.map(np.asarray, make(jax.random.key(2)))
    flatten = Layout.of(particles).flatten
    return particles, made, np.asarray(flatten(particles)), np.asarray(flatten(slopes))


def learn(kernel, m, made=None, **settings):
    """Return where one iteration from the given trajectories takes the particles."""
    particles, known, flat, _ = some_trajectories(m)
    algorithm = stein.build(None, POLICY, ESTIMATOR, SGD, kernel, **settings)
    count = np.zeros((), np.int32)
    alpha = np.float32(settings.get("temperature", 1.0))
    state = stein.State(particles, SGD.init(flat), (), alpha, count, jax.random.key(0))
    state, info = algorithm.learn(state, made or known)
    return np.asarray(Layout.of(particles).flatten(state.particles)), info


def clipped(slopes, limit):
    lengths = np.linalg.norm(slopes, axis=1, keepdims=True)
    return slopes * np.minimum(1, limit / lengths)


def log_prior_slopes(variance):
    """Of N(0, variance) on weights and log_std, N(0, 1) on vectors, N(0, 0.01) on log scales."""
    particles, _, flat, _ = some_trajectories()
    first = jax.tree.map(lambda leaf: leaf[0], particles)
    names = [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(particles)
    ]
    variances = [
        np.full(leaf.size, 1.0 if ".v_" in name else 0.01 if ".s_" in name else variance)
        for name, leaf in zip(names, jax.tree.leaves(first), strict=True)
    ]
    return -flat / np.concatenate(variances)


def test_the_update_is_the_double_sum_of_the_paper():
    _, _, theta, slopes = some_trajectories()
    drive = clipped(slopes, 0.1) / 2.0 + log_prior_slopes(0.5)
    m, h = 4, 3.0
    wanted = np.zeros_like(theta)
    for i in range(m):
        for j in range(m):
            k = np.exp(-np.sum((theta[i] - theta[j]) ** 2) / h)
            wanted[i] += (k * drive[j] + k * 2 / h * (theta[i] - theta[j])) / m
    found, info = learn(rbf(h), m, temperature=2.0, prior=FixedPrior(0.5), clip=0.1)
    np.testing.assert_allclose(found - theta, wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(info.gradient_norm, np.linalg.norm(slopes, axis=1), rtol=1e-4)
    assert info.non_finite == 0 and info.temperature == 2.0


def test_one_particle_climbs_its_own_return():
    _, _, theta, slopes = some_trajectories(1)
    found, _ = learn(rbf(), 1, temperature=2.0, clip=None)
    np.testing.assert_allclose(found - theta, slopes / 2, rtol=1e-3, atol=1e-6)


def test_independent_agents_climb_their_own_and_know_nothing_of_the_others():
    _, made, theta, slopes = some_trajectories()
    alone, _ = learn(None, 4, clip=0.1)
    np.testing.assert_allclose(alone - theta, clipped(slopes, 0.1), rtol=1e-3, atol=1e-6)
    rewards = made.rewards.copy()
    rewards[:, 2] *= -3
    other = made._replace(rewards=rewards)
    changed, _ = learn(None, 4, made=other, clip=0.1)
    np.testing.assert_array_equal(alone[[0, 1, 3]], changed[[0, 1, 3]])
    assert np.abs(alone[2] - changed[2]).max() > 1e-3


def test_a_second_update_learns_from_the_same_rollout_at_the_policies_that_moved():
    particles, made, theta, slopes = some_trajectories()
    layout = Layout.of(particles)
    advantages, _ = ESTIMATOR.advantages((), made, POLICY.scales)

    @jax.jit
    def second(particles, flat):
        made_with = log_probs(POLICY, particles, made)
        moved = layout.unflatten(flat)
        gradients = clipped_gradients(POLICY, moved, made, advantages, made_with, 0.2)
        return layout.flatten(gradients[1])

    once = theta + clipped(slopes, 0.1)
    twice = once + clipped(np.asarray(second(particles, once)), 0.1)
    found, info = learn(None, 4, clip=0.1, updates=2)
    np.testing.assert_allclose(found, twice, rtol=1e-3, atol=1e-5)
    assert np.abs(twice - once).max() > 1e-2
    # What is told is of the policies that made the rollout.
    np.testing.assert_allclose(info.gradient_norm, np.linalg.norm(slopes, axis=1), rtol=1e-4)


def test_temperature_may_follow_a_schedule_or_the_share_of_the_repulsion():
    schedule = optax.linear_schedule(4.0, 2.0, 10)
    assert temperature.at(schedule, jnp.zeros(()), jnp.array(5)) == 3.0
    assert temperature.at(7.0, jnp.array(temperature.first(7.0)), jnp.array(5)) == 7.0
    rule = Adapted(share=0.5, rate=0.1)
    up = rule.next(jnp.array(1.0), jnp.array(2.0), jnp.array(0.1))
    np.testing.assert_allclose(up, (2.0 * 0.5 / 0.1) ** 0.1, rtol=1e-5)
    assert rule.next(jnp.array(1.0), jnp.array(0.1), jnp.array(2.0)) < 1
    assert rule.next(jnp.array(100.0), jnp.array(1.0), jnp.array(0.0)) == 100


def agents(**settings):
    return SteinPolicyGradient(line(), **{**SMALL, **settings})


def leaves(trained):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(trained.policies.particles)]


def assert_same(one, other):
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def straight():
    return agents().train(12)


def test_how_a_training_is_cut_up_does_not_change_a_bit_and_nothing_compiles_twice(straight):
    again = agents()
    with compilations() as seen:
        again.train(5, chunk=2).train(12, chunk=5)
    assert not seen
    assert again.iterations == 12
    assert_same(again, straight)
    np.testing.assert_array_equal(again.history["return"], straight.history["return"])


@contextlib.contextmanager
def compilations():
    """Collect the compilations that take place, by listening to JAX."""
    seen, listening = [], [True]

    def listen(event, duration, **_):
        if listening and event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    listening.clear()


def test_seeds_that_are_trained_together_become_what_they_become_alone():
    seeds = (3, 5)
    together = [agents(seed=seed) for seed in seeds]
    train_together(together, 3, chunk=2)
    train_together(together, 4)
    for one, seed in zip(together, seeds, strict=True):
        alone = agents(seed=seed).train(4, progress=False)
        assert one.iterations == 4
        for a, b in zip(leaves(one), leaves(alone), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(one.history["return"], alone.history["return"], rtol=1e-3)
    assert np.abs(leaves(together[0])[0] - leaves(together[1])[0]).max() > 0.01


@pytest.mark.parametrize(
    ("others", "named"),
    [
        (lambda: [], "at least one"),
        (lambda: [agents(), agents(clip=0.5)], "equal settings"),
        (lambda: [agents(), agents(seed=1).train(1, progress=False)], "as many iterations"),
    ],
)
def test_only_what_differs_in_its_seed_is_trained_together(others, named):
    with pytest.raises(ValueError, match=named):
        train_together(others(), 2)


def test_the_listener_hears_a_compilation():
    with compilations() as seen:
        jax.jit(lambda x: x * 3.25 + 1)(np.ones(7, np.float32))
    assert seen


def test_another_seed_gives_other_policies(straight):
    other = agents(seed=1).train(12)
    assert np.abs(leaves(other)[0] - leaves(straight)[0]).max() > 1e-3


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from control_line import line
from s2vgd.control import SteinPolicyGradient
def die(iteration, columns):
    if iteration == 8:
        os.kill(os.getpid(), signal.SIGKILL)
agents = SteinPolicyGradient(line(), **{small!r})
agents.train(12, checkpoint={path!r}, checkpoint_every=3, log={log!r}, callback=die, chunk=4)
"""


def test_a_run_that_is_killed_goes_on_to_the_same_bits(straight, tmp_path):
    path, log = tmp_path / "checkpoint", tmp_path / "log.jsonl"
    script = SCRIPT.format(
        tests=str(Path(__file__).parent), small=SMALL, path=str(path), log=str(log)
    )
    killed = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    resumed = agents().train(12, checkpoint=path, log=log)
    assert_same(resumed, straight)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["iteration"] for line in lines] == list(range(1, 13))
    assert lines[-1]["environment_steps"] == 12 * 3 * 2 * 9
    np.testing.assert_allclose(
        [line["return"] for line in lines], straight.history["return"], rtol=1e-6
    )
    # The directory is also what save writes and load reads.
    loaded = SteinPolicyGradient.load(path, environment=line())
    assert loaded.iterations == 12
    assert_same(loaded, straight)
    with pytest.raises(ModelFileError, match="object of your own"):
        SteinPolicyGradient.load(path)
    with pytest.raises(ModelFileError, match="another run"):
        agents(seed=5).train(12, checkpoint=path)


def test_gradients_that_are_not_finite_are_counted_and_raised(tmp_path):
    path = tmp_path / "checkpoint"
    good = agents().train(6, checkpoint=path, checkpoint_every=3)
    poisoned = good.run.state.particles
    poisoned["log_std"] = poisoned["log_std"].at[1].set(1e30)
    with pytest.raises(DivergedError, match=r"iteration 7: the gradients of [13] of 3") as caught:
        good.train(12, checkpoint=path, checkpoint_every=3)
    assert caught.value.checkpoint == path and caught.value.step == 7
    assert SteinPolicyGradient.load(path, environment=line()).iterations == 6


def test_tensorboard_gets_the_same_scalars(tmp_path):
    agents().train(3, tensorboard=tmp_path)
    (events,) = tmp_path.glob("events*")
    assert events.stat().st_size > 100


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"particles": 0}, "particles"),
        ({"estimator": "ppo"}, "estimator"),
        ({"kernel": "cosine"}, "kernel"),
        ({"temperature": 0.0}, "temperature"),
        ({"clip": -1.0}, "clip"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"environments": 0}, "environments"),
        ({"prior_variance": 0.0}, "variance"),
        ({"halve_every": 0}, "halve_every"),
        ({"updates": 0}, "updates"),
        ({"trust": 0.0}, "trust"),
        ({"entropy": -0.1}, "entropy"),
        ({"reflections": -1}, "reflections"),
        ({"settings": {"max_steps": 3}}, "settings"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, named):
    with pytest.raises(ValueError, match=named):
        agents(**settings)


def test_a_name_that_nobody_knows_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match="cartpole"):
        SteinPolicyGradient("no-such-task-v0")


def test_cartpole_is_learned_within_seconds():
    trained = SteinPolicyGradient(
        "cartpole", particles=4, reflections=2, environments=8, horizon=200,
        estimator=A2C(), learning_rate=2e-2, settings={"max_steps": 200},
    ).train(25)  # fmt: skip
    returns = trained.history["return"]
    assert returns[0] < 300
    assert returns[-3:].mean() > 1200, "of at most 2000"
