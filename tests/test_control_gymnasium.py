"""Gymnasium both ways: ours pass its checks, and its environments end episodes in one way."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from s2vgd.control import names
from s2vgd.control.environments import Box, Discrete
from s2vgd.control.gym import IDS, GymVector, JaxEnv, register
from s2vgd.errors import DataError


def test_every_environment_has_an_id():
    register()
    assert tuple(IDS.values()) == names()
    assert all(gym_id in gymnasium.registry for gym_id in IDS)


@pytest.mark.parametrize("gym_id", IDS)
def test_gymnasium_finds_nothing_wrong(gym_id):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(gymnasium.make(gym_id, render_mode="rgb_array").unwrapped)
    # Pendulum's torque goes to 2, and where a cart is has no bound; anything else would be wrong.
    expected = ("infinity", "symmetric and normalized space")
    found = [str(each.message) for each in caught if issubclass(each.category, UserWarning)]
    assert not [message for message in found if not any(part in message for part in expected)]


def test_settings_reach_the_environment_and_the_limit_truncates():
    environment = gymnasium.make("s2vgd/Pendulum-v0", max_steps=3)
    first, _ = environment.reset(seed=7)
    ends = [environment.step(np.zeros(1, np.float32))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    assert environment.metadata["render_fps"] == 20 and environment.render_mode is None
    again, _ = environment.reset(seed=7)
    np.testing.assert_array_equal(first, again)
    other, _ = environment.reset()
    assert np.abs(other - again).max() > 1e-3
    with pytest.raises(ValueError, match="gravity must be positive"):
        gymnasium.make("s2vgd/Pendulum-v0", gravity=-1)


def test_wrong_calls_are_refused_by_name():
    environment = gymnasium.make("s2vgd/Pendulum-v0").unwrapped
    with pytest.raises(RuntimeError, match="reset must be called"):
        environment.step(np.zeros(1, np.float32))
    environment.reset(seed=0)
    for action in (np.zeros(2), np.array([np.nan])):
        with pytest.raises(ValueError, match="action must be"):
            environment.step(action)
    with pytest.raises(ValueError, match="render_mode"):
        JaxEnv("pendulum", render_mode="human")
    discrete = gymnasium.make("s2vgd/CartPoleV1-v0").unwrapped
    discrete.reset(seed=0)
    with pytest.raises(ValueError, match="action must be one of 0 to 1"):
        discrete.step(2)


# -- a small environment whose every number is known -------------------------------------------


class Counter(gymnasium.Env):
    """Counts to `length`; sees (copy, episode, step) as a 1×3 picture, gets 10·episode + step."""

    def __init__(self, length=3, by_limit=False, start=0, n=4):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1, 3))
        self.action_space = gymnasium.spaces.Discrete(n, start=start)
        self.length, self.by_limit, self.episode = length, by_limit, -1

    def _seen(self):
        return np.array([[self.np_random_seed, self.episode, self.count]], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.action, self.count = action, self.count + 1
        ended = self.count >= self.length
        reward = 10 * self.episode + self.count
        return self._seen(), reward, ended and not self.by_limit, ended and self.by_limit, {}


def walk(vector, n_steps):
    seen = [vector.reset(100)]
    rows = []
    for _ in range(n_steps):
        row = vector.step(np.zeros(vector.num_envs, int))
        rows.append((*row, vector.valid.copy()))
        seen.append(row[0])
    return np.array(seen[:-1]), [np.array(column) for column in zip(*rows, strict=True)]


def ready_made(mode):
    lengths = (2, 3)
    makers = [lambda length=length: Counter(length, by_limit=length == 3) for length in lengths]
    return SyncVectorEnv(makers, autoreset_mode=mode)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_all_modes_of_gymnasium_show_the_same_episodes(mode):
    before, (after, reward, terminated, truncated, last, valid) = walk(
        GymVector(ready_made(mode)), 12
    )
    assert before.dtype == after.dtype == last.dtype == reward.dtype == np.float32
    for copy, length in enumerate((2, 3)):
        kept = valid[:, copy]
        assert kept.all() == (mode is not AutoresetMode.NEXT_STEP)
        # Steps to learn from, whatever the mode: 0 -> 1, ..., and the last one is not lost.
        n = kept.sum()
        episode, count = np.divmod(np.arange(n), length)
        np.testing.assert_array_equal(before[kept, copy, 1:], np.stack([episode, count], -1))
        np.testing.assert_array_equal(last[kept, copy, 1:], np.stack([episode, count + 1], -1))
        np.testing.assert_array_equal(reward[kept, copy], 10 * episode + count + 1)
        ended = (terminated if length == 2 else truncated)[kept, copy]
        np.testing.assert_array_equal(ended, count + 1 == length)
        assert not (truncated if length == 2 else terminated)[:, copy].any()
        assert (before[:, copy, 0] == 100 + copy).all()
        if mode is not AutoresetMode.NEXT_STEP:
            np.testing.assert_array_equal(after[ended, copy, 2], 0)


def test_actions_are_shifted_and_wrong_ones_refused():
    vector = GymVector(SyncVectorEnv([lambda: Counter(start=5)] * 2))
    assert vector.action == Discrete(4) and vector.observation_size == 3
    vector.reset(0)
    vector.step(np.array([0, 3]))
    assert [env.action for env in vector._envs.envs] == [5, 8]
    for wrong in (np.zeros(3, int), np.zeros(2), np.array([0, 4]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="actions must be"):
            vector.step(wrong)


def test_continuous_actions_are_clipped_and_steps_are_those_of_the_single_environment():
    with GymVector("Pendulum-v1", 2, observation_scales=(1, 1, 8)) as vector:
        assert vector.action == Box((-2.0,), (2.0,)) and vector.observation_scales == (1, 1, 8)
        assert vector.name == "Pendulum-v1" and vector.time_limit == 200
        singles = [gymnasium.make("Pendulum-v1") for _ in range(2)]
        starts = [env.reset(seed=3 + i)[0] for i, env in enumerate(singles)]
        np.testing.assert_array_equal(vector.reset(3), starts)
        actions = np.array([[5.0], [-0.5]])
        observation, reward, *_, last = vector.step(actions)
        wanted = [
            env.step(np.float32([action])) for env, action in zip(singles, (2, -0.5), strict=True)
        ]
        np.testing.assert_array_equal(observation, [each[0] for each in wanted])
        np.testing.assert_array_equal(last, observation)
        np.testing.assert_allclose(reward, [each[1] for each in wanted], rtol=1e-6)
        for wrong in (np.zeros(2), np.array([[np.nan], [0.0]])):
            with pytest.raises(ValueError, match="actions must"):
                vector.step(wrong)


def test_copies_in_processes_of_their_own_do_the_same():
    rng = np.random.default_rng(0)
    actions = rng.integers(2, size=(40, 2))
    with GymVector("CartPole-v1", 2, "async") as apart, GymVector("CartPole-v1", 2) as together:
        np.testing.assert_array_equal(apart.reset(5), together.reset(5))
        n_ended = 0
        for action in actions:
            found, wanted = apart.step(action), together.step(action)
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one, other)
            n_ended += wanted[2].sum()
        assert n_ended > 0


class Odd(gymnasium.Env):
    """An environment with spaces of choice, that sees what it is told to see."""

    def __init__(self, observation_space, action_space, seen=None):
        self.observation_space, self.action_space, self.seen = observation_space, action_space, seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen, {}

    def step(self, action):
        return self.seen, 0.0, True, False, {}


def test_observations_of_any_form_become_rows():
    parts = {"a": gymnasium.spaces.Discrete(3), "b": gymnasium.spaces.Box(0, 1, (2,))}
    space = gymnasium.spaces.Dict(parts)
    seen = {"a": 1, "b": np.array([0.25, 0.5], np.float32)}
    odd = SyncVectorEnv(
        [lambda: Odd(space, gymnasium.spaces.Box(-1, 1, (2, 2)), seen)] * 2,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    vector = GymVector(odd)
    wanted = [[0, 1, 0, 0.25, 0.5]] * 2
    np.testing.assert_array_equal(vector.reset(0), wanted)
    assert vector.action.size == 4
    *_, last = vector.step(np.zeros((2, 4)))
    np.testing.assert_array_equal(last, wanted)


def test_what_cannot_be_used_is_refused_by_name():
    box = gymnasium.spaces.Box(-1, 1, (2,))
    several = SyncVectorEnv([lambda: Odd(box, gymnasium.spaces.MultiDiscrete([2, 3]))])
    with pytest.raises(DataError, match="neither a Box nor Discrete"):
        GymVector(several)
    graph = gymnasium.spaces.Sequence(box)
    with pytest.raises(DataError, match="no fixed size"):
        GymVector(SyncVectorEnv([lambda: Odd(graph, box, ())]))
    broken = GymVector(SyncVectorEnv([lambda: Odd(box, box, np.full(2, np.nan, np.float32))]))
    with pytest.raises(DataError, match="not finite"):
        broken.reset(0)
    with pytest.raises(ValueError, match="vectorization must be one of"):
        GymVector("CartPole-v1", 2, "threads")
    with pytest.raises(ValueError, match="num_envs must be at least 1"):
        GymVector("CartPole-v1", 0)
    with pytest.raises(ValueError, match="observation_scales must have 4 entries"):
        GymVector("CartPole-v1", 1, observation_scales=(1.0,))
