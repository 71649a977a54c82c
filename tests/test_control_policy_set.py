"""Sets of policies: acting, scoring, exploring, and files that are whole or refused."""

from __future__ import annotations

import functools
import json

import jax
import numpy as np
import pytest
from PIL import Image

from control_line import discrete_line, line
from s2vgd.control import PolicySet, SteinPolicyGradient
from s2vgd.control.exploration import coverage, explore
from s2vgd.control.policies import Policy
from s2vgd.control.policy_set import Evaluation
from s2vgd.control.rollouts import first_episodes
from s2vgd.control.tasks import GymTask, play, resolve
from s2vgd.errors import ModelFileError
from s2vgd.structure import Structure

KEY = jax.random.key(1)


@functools.cache
def policies(task=line):
    policy = Policy.of(task(), hidden=(5,), structure=Structure(1), log_std=-1.0)
    particles = jax.jit(lambda key: policy.init_particles(key, 3))(KEY)
    return PolicySet(policy, particles, "line")


@functools.partial(jax.jit, static_argnums=0)
def outputs_of(policy, particles, o):
    return jax.vmap(policy.outputs, (0, None))(particles, o)


def means(some, o):
    o = np.atleast_2d(o).astype(np.float32)
    return np.asarray(outputs_of(some.policy, some.particles, o))


def test_actions_are_those_of_the_particle_that_was_asked():
    some, o = policies(), np.array([[0.1, 0.2], [-0.4, 0.3]])
    exact = 2 * means(some, o)  # the box is [-2, 2]
    each = some.act(o, particle=None, deterministic=True)
    assert each.shape == (3, 2, 1)
    np.testing.assert_allclose(each, exact, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        some.act(o, particle=1, deterministic=True), exact[1], rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(some.act(o, deterministic=True), exact.mean(axis=0), rtol=1e-4)
    assert some.act(o[0], KEY).shape == (1,)
    np.testing.assert_array_equal(some.act(o, KEY), some.act(o, KEY))


def test_draws_of_the_mixture_have_its_mean_and_variance():
    some = policies()
    drawn = some.act(np.tile([0.3, -0.2], (6000, 1)), KEY)[:, 0] / 2
    centres = means(some, [0.3, -0.2])[:, 0, 0]
    spread = np.sqrt(np.exp(-2.0) + centres.var())
    assert abs(drawn.mean() - centres.mean()) < 5 * spread / 6000**0.5
    assert abs(drawn.std() / spread - 1) < 5 / 6000**0.5


def test_discrete_actions_are_integers():
    some = policies(discrete_line)
    likeliest = some.act([0.3, 0.1], particle=2, deterministic=True)
    assert likeliest.shape == () and likeliest == means(some, [0.3, 0.1])[2, 0].argmax()
    assert set(np.unique(some.act(np.zeros((500, 2)), KEY))) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"observation": [1.0], "deterministic": True}, "observation"),
        ({"observation": [1.0, 2.0]}, "key"),
        ({"observation": [1.0, 2.0], "particle": 3, "deterministic": True}, "particle"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        policies().act(**arguments)


def test_evaluation_counts_whole_first_episodes():
    some = policies()
    found = some.evaluate(line(), episodes=6, seed=4, deterministic=True, discount=0.5)
    assert found.returns.shape == (3, 6) and found.mixture.shape == (6,)
    key, _ = jax.random.split(jax.random.key(4))
    made = play(line(), some.policy, some.particles, key, environments=6, deterministic=True)
    made = jax.tree.map(np.asarray, made)
    wanted = means(some, made.observations.reshape(-1, 2)).reshape(3, 7, 3, 6)
    for m in range(3):
        np.testing.assert_allclose(made.actions[:, m, :, 0], wanted[m, :, m], rtol=1e-3, atol=1e-5)
    episodes = jax.jit(first_episodes)(made, 0.5)
    np.testing.assert_allclose(found.returns, episodes.returns, rtol=1e-5)
    np.testing.assert_allclose(found.discounted_returns, episodes.discounted_returns, rtol=1e-5)
    assert found.summary()["mean"] == pytest.approx(found.returns.mean())


def test_the_best_particle_is_scored_on_episodes_that_did_not_choose_it():
    returns = np.array([[9.0, 9.0, 0.0, 0.0], [5.0, 5.0, 6.0, 6.0], [0.0, 0.0, 1.0, 1.0]])
    found = Evaluation(returns, returns, returns[0], returns[0], False)
    assert found.best_particle == 1 and found.best == 5.5
    # The first half chooses particle 0, worth 0 on the second; that one chooses 1, worth 5.
    assert found.best_fresh == 2.5


def test_coverage_counts_cells():
    points = np.array([[0.1, 0.1], [0.4, 0.2], [0.6, 0.1], [-0.1, 0.1], [0.6, 0.9]])
    assert coverage(points, 0.5) == 4


def test_exploration_measures_are_those_of_the_definitions():
    some = policies()
    o = np.random.default_rng(0).normal(size=(4, 3, 2, 2)).astype(np.float32)
    found = explore(some.policy, some.particles, o, states=10**6)
    outputs = means(some, o.reshape(-1, 2))[:, :, 0]
    gaps = [np.abs(outputs[i] - outputs[j]).mean() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert found.behaviour_distance == pytest.approx(np.mean(gaps), rel=1e-4)
    assert found.entropy == pytest.approx(-1 + 0.5 * np.log(2 * np.pi * np.e), rel=1e-5)
    cells = {tuple(row) for row in np.floor(o.reshape(-1, 2) / [1.0, 0.5] / 0.5).astype(int)}
    assert found.coverage == len(cells)
    assert 0 < found.coverage_of_each <= found.coverage
    one = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[:1], 3, axis=0), some.particles)
    same = explore(some.policy, one, o)
    assert same.behaviour_distance < 1e-6 and same.parameter_distance < 1e-2
    assert found.parameter_distance > 0.1


def test_what_is_saved_is_what_is_loaded(tmp_path):
    some = policies(discrete_line)
    some.save(tmp_path / "set")
    loaded = PolicySet.load(tmp_path / "set")
    assert loaded.policy == some.policy and loaded.task == "line" and len(loaded) == 3
    for a, b in zip(
        jax.tree.leaves(loaded.particles), jax.tree.leaves(some.particles), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("damage", ["tensor", "manifest", "policy", "nothing"])
def test_a_damaged_directory_is_refused_in_words(tmp_path, damage):
    path = tmp_path / "set"
    policies().save(path)
    manifest = path / "manifest.json"
    (tensors,) = path.glob("*.safetensors")
    if damage == "tensor":
        content = bytearray(tensors.read_bytes())
        content[-3] ^= 1
        tensors.write_bytes(content)
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:-40])
    elif damage == "policy":
        content = json.loads(manifest.read_text())
        content["metadata"]["policy"]["log_std"] = 5.0
        manifest.write_text(json.dumps(content))
    else:
        manifest.unlink()
    with pytest.raises(ModelFileError, match="set"):
        PolicySet.load(path)


def test_a_checkpoint_is_not_a_set_of_policies(tmp_path):
    agents = SteinPolicyGradient(line(), particles=2, hidden=(3,), environments=1)
    agents.save(tmp_path / "agents")
    with pytest.raises(ModelFileError, match="checkpoint"):
        PolicySet.load(tmp_path / "agents")
    agents.policies.save(tmp_path / "set")
    with pytest.raises(ModelFileError, match="policy-set"):
        SteinPolicyGradient.load(tmp_path / "set")


def test_a_gymnasium_task_is_trained_and_goes_on_from_a_file_to_the_same_bits(tmp_path):
    agents = SteinPolicyGradient(
        "CartPole-v1", particles=2, hidden=(4,), reflections=1, environments=3, horizon=30
    ).train(2)
    assert isinstance(agents.task, GymTask)
    assert np.all(agents.history["return"] > 5)
    agents.save(tmp_path / "agents")
    loaded = SteinPolicyGradient.load(tmp_path / "agents").train(3)
    agents.train(3)
    for a, b in zip(
        jax.tree.leaves(agents.policies.particles),
        jax.tree.leaves(loaded.policies.particles),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_host_rollouts_hold_what_the_environment_said():
    some = Policy.of(resolve("Pendulum-v1"), hidden=(4,), structure=Structure(1))
    particles = jax.jit(lambda key: some.init_particles(key, 2))(KEY)
    made = play(resolve("Pendulum-v1"), some, particles, KEY, environments=2, horizon=203)
    made = jax.tree.map(np.asarray, made)
    assert made.observations.shape == (203, 2, 2, 3) and made.actions.shape == (203, 2, 2, 1)
    np.testing.assert_array_equal(made.truncated.any(axis=(1, 2)), np.arange(203) == 199)
    np.testing.assert_array_equal(made.times[:, 0, 0], np.arange(203) % 200)
    cos, sin, speed = np.moveaxis(made.observations, -1, 0)
    torque = np.clip(2 * made.actions[..., 0], -2, 2)
    angle = np.arctan2(sin, cos)
    np.testing.assert_allclose(
        made.rewards, -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2), rtol=1e-3, atol=1e-3
    )
    np.testing.assert_array_equal(made.last_observations[:199], made.observations[1:200])


@pytest.mark.parametrize("task", ["swing-up", "s2vgd/SwingUp-v0"])
def test_an_episode_is_written_as_a_moving_picture(tmp_path, task):
    agents = SteinPolicyGradient(task, particles=2, hidden=(3,))
    path = agents.watch(tmp_path / "episode.gif", max_steps=9)
    with Image.open(path) as film:
        assert film.n_frames == 10
    with pytest.raises(ValueError, match="path"):
        agents.watch(tmp_path / "episode.avi")
