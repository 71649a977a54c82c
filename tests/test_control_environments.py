"""Environments: they move as mechanics says, end and pay as the tasks say, and compile once."""

from __future__ import annotations

import dataclasses
import functools
import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd.control.environments import (
    Box,
    Discrete,
    auto_reset,
    cart,
    double_pendulum,
    make,
    mechanics,
    names,
)
from s2vgd.control.environments.trigonometry import sin_cos

CART, LINKS = cart.CartParams(), double_pendulum.DoublePendulumParams()


# -- the mechanisms, written naively -----------------------------------------------------------


def bodies_of_cart(q, p):
    """Positions (x, y, angle) of the two bodies, one after the other; their masses; heights."""
    x, theta = q
    l = p.pole_centre  # noqa: E741
    return np.array([x, 0, 0, x - l * np.sin(theta), l * np.cos(theta), theta])


def bodies_of_links(q, p):
    a, b = q
    elbow = p.length * np.array([np.sin(a), -np.cos(a)])
    upper = p.centre * np.array([np.sin(a), -np.cos(a)])
    lower = elbow + p.centre * np.array([np.sin(b), -np.cos(b)])
    return np.array([*upper, a, *lower, b])


def weights(p):
    """Mass, mass and inertia of each body."""
    if isinstance(p, cart.CartParams):
        return np.array([p.cart_mass, p.cart_mass, 1.0, p.pole_mass, p.pole_mass, p.pole_inertia])
    return np.array([p.mass, p.mass, p.inertia] * 2)


SYSTEMS = {
    # mechanism, positions of bodies, constants, how the motor acts on the coordinates
    "cart": (cart.MECHANISM, bodies_of_cart, CART, np.array([1.0, 0.0])),
    "links": (double_pendulum.MECHANISM, bodies_of_links, LINKS, np.array([-1.0, 1.0])),
}


def jacobian(function, q, eps=1e-5):
    columns = [(function(q + eps * e) - function(q - eps * e)) / (2 * eps) for e in np.eye(len(q))]
    return np.stack(columns, axis=-1)


def energy(bodies, p, q, v):
    speed = jacobian(lambda q: bodies(q, p), q) @ v
    heights = bodies(q, p)[[1, 4]]
    return 0.5 * speed @ (weights(p) * speed) + p.gravity * weights(p)[[0, 3]] @ heights


def lagrangian(bodies, p, q, v):
    heights = bodies(q, p)[[1, 4]]
    return energy(bodies, p, q, v) - 2 * p.gravity * weights(p)[[0, 3]] @ heights


def euler_lagrange(bodies, p, q, v, motor, eps=1e-3):
    """Solve d/dt ∂L/∂v = ∂L/∂q + motor for the acceleration, with differences throughout."""

    def momentum(q, v):
        return jacobian(lambda v: lagrangian(bodies, p, q, v), v, eps)

    mass = jacobian(lambda v: momentum(q, v), v, eps)
    drift = jacobian(lambda q: momentum(q, v), q, eps) @ v
    slope = jacobian(lambda q: lagrangian(bodies, p, q, v), q, eps)
    return np.linalg.solve(mass, slope + motor - drift)


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def some_motions(n=6):
    rng = np.random.default_rng(0)
    return rng.uniform(-3, 3, (n, 2)), rng.uniform(-4, 4, (n, 2)), rng.uniform(-10, 10, n)


@pytest.mark.parametrize("system", SYSTEMS)
def test_accelerations_are_those_of_a_lagrangian_made_of_the_bodies(system, double):
    mechanism, bodies, p, motor = SYSTEMS[system]
    q, v, action = some_motions()
    found = jax.jit(
        jax.vmap(functools.partial(mechanics.acceleration, mechanism), (0, 0, 0, None))
    )(tuple(q.T), tuple(v.T), action, p)
    wanted = [
        euler_lagrange(bodies, p, *each[:2], motor * each[2])
        for each in zip(q, v, action, strict=True)
    ]
    np.testing.assert_allclose(np.stack(found, -1), wanted, rtol=1e-4, atol=1e-4)


def test_accelerations_of_the_cart_solve_the_two_equations_of_the_task(double):
    q, v, force = some_motions()
    theta, speed = q[:, 1], v[:, 1]
    x2, theta2 = mechanics.acceleration(cart.MECHANISM, tuple(q.T), tuple(v.T), force, CART)
    total, arm, inertia = 1.0 + 0.1, 0.1 * 0.5, 0.0084167 + 0.1 * 0.5**2
    sin, cos = np.sin(theta), np.cos(theta)
    np.testing.assert_allclose(total * x2 - arm * cos * theta2 + arm * sin * speed**2, force)
    np.testing.assert_allclose(inertia * theta2 - arm * cos * x2, arm * 10.0 * sin)


def projected(bodies, p, q, v, motor, h):
    """Box2D's step on free bodies: forces, then impulses of the joints, then the positions."""
    weight = weights(p)
    pushes = np.zeros(6)
    pushes[[1, 4]] = -p.gravity * weight[[0, 3]]
    if bodies is bodies_of_cart:
        pushes[0] += motor[0]
    else:
        pushes[[2, 5]] += motor
    free = jacobian(lambda q: bodies(q, p), q - h * v) @ v + h * pushes / weight
    # Velocities that the joints forbid are those that no motion of the coordinates makes.
    allowed = jacobian(lambda q: bodies(q, p), q)
    forbidden = np.linalg.svd(allowed.T)[2][2:]
    inverse = np.diag(1 / weight)
    impulse = np.linalg.solve(forbidden @ inverse @ forbidden.T, forbidden @ free)
    kept = free - inverse @ forbidden.T @ impulse
    v = np.linalg.lstsq(allowed, kept, rcond=None)[0]
    return q + h * v, v


@pytest.mark.parametrize("system", SYSTEMS)
def test_projection_is_the_smallest_change_that_restores_the_joints(system, double):
    mechanism, bodies, p, motor = SYSTEMS[system]
    q, v, action = some_motions()
    step = jax.jit(jax.vmap(functools.partial(mechanics.project, mechanism), (0, 0, 0, None, None)))
    found = step(tuple(q.T), tuple(v.T), action, p, 0.03)
    for i in range(len(q)):
        wanted = projected(bodies, p, q[i], v[i], motor * action[i], 0.03)
        np.testing.assert_allclose([np.stack(part, -1)[i] for part in found], wanted, rtol=1e-6)


# -- energy --------------------------------------------------------------------------------------

BATCH = 4


@functools.partial(jax.jit, static_argnums=0)
def batch_step(step, states, actions, params):
    """Step a batch; constants are arguments, so that one program serves all tests of a step."""
    return jax.vmap(step, (None, 0, 0, None))(None, states, actions, params)


def film(environment, states, n_steps, action, params=None):
    """Return the states after each of `n_steps` with the same action, time first."""
    actions = np.full((BATCH, 1), action, np.float32)
    seen = []
    for _ in range(n_steps):
        states = batch_step(environment.step, states, actions, params or environment.params).state
        seen.append(states)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(seen))


def coordinates(states):
    """Return q and v of states of either mechanism, the pair last, in float64."""
    if isinstance(states, cart.CartState):
        pairs = (states.x, states.theta), (states.x_dot, states.theta_dot)
    else:
        pairs = (states.theta1, states.theta2), (states.omega1, states.omega2)
    return [np.stack(pair, -1).astype(np.float64) for pair in pairs]


def energies(system, q, v, params):
    bodies = SYSTEMS[system][1]
    rows = zip(q.reshape(-1, 2), v.reshape(-1, 2), strict=True)
    return np.array([energy(bodies, params, *row) for row in rows]).reshape(q.shape[:-1])


def wild(system):
    """Return states with much energy: up to 8 rad/s."""
    rng = np.random.default_rng(1)
    values = [np.float32(rng.uniform(-1, 1, BATCH) * scale) for scale in (1, 3, 8, 8)]
    t = np.zeros(BATCH, np.int32)
    if system == "cart":
        return cart.CartState(values[0], values[2] / 8, values[1], values[3], t)
    return double_pendulum.DoublePendulumState(*values, t)


ENVIRONMENT = {"cart": "swing-up", "links": "double-pendulum"}


@pytest.mark.parametrize("system", SYSTEMS)
def test_without_a_motor_runge_kutta_keeps_the_energy(system):
    environment, start = make(ENVIRONMENT[system]), wild(system)
    states = film(environment, start, 500, 0.0)
    before = energies(system, *coordinates(start), environment.params)
    every_fifty = jax.tree.map(lambda leaf: leaf[49::50], states)
    kept = energies(system, *coordinates(every_fifty), environment.params)
    np.testing.assert_allclose(kept, np.broadcast_to(before, kept.shape), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("system", SYSTEMS)
def test_without_a_motor_the_projection_only_ever_loses_energy(system):
    environment = make(ENVIRONMENT[system], integrator="projection")
    floating = dataclasses.replace(environment.params, gravity=0.0)
    q, v = coordinates(film(environment, wild(system), 100, 0.0, floating))
    # What the bodies have are the velocities that the joints allowed before they moved.
    before = q - v * floating.dt / floating.substeps
    kinetic = energies(system, before, v, floating)
    assert (np.diff(kinetic, axis=0) <= 1e-5 * kinetic[:-1]).all()
    fast = kinetic[0] > 0.2
    assert fast.sum() >= 2 and (kinetic[-1][fast] < 0.9 * kinetic[0][fast]).all()


def test_double_pendulum_stays_finite_under_full_torque_with_either_integrator():
    def fastest(**settings):
        _, v = coordinates(film(make("double-pendulum", **settings), wild("links"), 500, 1.0))
        assert np.isfinite(v).all()
        return np.abs(v).max()

    # The projection stops by its own loss, far from a whole turn in a part of a step, 628 rad/s.
    assert 40 < fastest(integrator="projection", max_speed=1e9) < 100
    assert fastest() == 50


# -- rewards and ends ----------------------------------------------------------------------------


def batch_of(kind, rows):
    """Return a batch of states from rows of numbers and a clock."""
    rows = list(rows) + [rows[-1]] * (BATCH - len(rows))
    columns = [np.array(column, np.float32) for column in zip(*rows, strict=True)]
    return kind(*columns[:-1], columns[-1].astype(np.int32))


def act(environment, kind, rows, actions):
    actions = np.resize(np.float32(actions), (BATCH, 1))
    return jax.device_get(
        batch_step(environment.step, batch_of(kind, rows), actions, environment.params)
    )


def test_cartpole_pays_for_an_upright_pole_and_little_force():
    actions, forces = [0.3, 7.0, -7.0, 0.0], np.array([3.0, 10.0, -10.0, 0.0])
    after = act(make("cartpole"), cart.CartState, [(0, 0, 0.1, 0, 0)] * 4, actions)
    wanted = 10 - (1 - np.cos(after.state.theta)) - 1e-5 * forces**2
    np.testing.assert_allclose(after.reward, wanted, rtol=1e-6)
    assert not after.terminated.any() and not after.truncated.any() and (after.state.t == 1).all()
    # Within a step, the cart of about 1 kg goes about F dt²/2 farther than without the force.
    np.testing.assert_allclose(
        after.state.x - after.state.x[3], forces * 0.05**2 / 2, rtol=0.1, atol=1e-9
    )
    np.testing.assert_array_equal(after.observation, np.stack(after.state[:4], -1))


def test_cartpole_ends_beyond_its_limits_and_is_truncated_at_its_last_step():
    environment = make("cartpole")
    lost = [(2.41, 0, 0, 0, 0), (-2.41, 0, 0, 0, 0), (0, 0, 0.201, 0, 0), (0, 0, -0.201, 0, 0)]
    after = act(environment, cart.CartState, lost, 0.0)
    assert after.terminated.all() and not after.truncated.any() and (after.reward == 0).all()
    kept = [(2.39, 0, 0, 0, 0), (-2.39, 0, 0, 0, 0), (0, 0, 0.15, 0, 0), (0, 0, -0.15, 0, 0)]
    after = act(environment, cart.CartState, kept, 0.0)
    assert not after.terminated.any() and (after.reward > 9.9).all()
    late = [(0, 0, 0, 0, 498), (0, 0, 0, 0, 499), (3, 0, 0, 0, 499)]
    after = act(environment, cart.CartState, late, 0.0)
    assert after.truncated[:3].tolist() == [False, True, True]
    assert after.terminated[:3].tolist() == [False, False, True]
    assert after.reward[:3].tolist() == [10, 10, 0]


def test_swing_up_pays_the_cosine_and_a_penalty_for_leaving_the_track():
    environment = make("swing-up")
    angles = [(2.99, 0, 0.0, 0, 0), (-2.99, 0, 1.0, 0, 0), (0, 0, math.pi, 0, 0), (0, 0, -7, 0, 0)]
    after = act(environment, cart.CartState, angles, 0.0)
    np.testing.assert_allclose(after.reward, np.cos(after.state.theta), atol=1e-6)
    assert not after.terminated.any()
    after = act(environment, cart.CartState, [(-3.01, 0, 0, 0, 0), (3.01, 0, 3, 0, 0)], 0.0)
    assert after.terminated.all() and (after.reward == -100).all()


@pytest.mark.parametrize(
    ("settings", "sign"), [({}, 1), ({"tip": "rllab", "integrator": "projection"}, -1)]
)
def test_double_pendulum_pays_the_distance_of_either_tip_and_never_terminates(settings, sign):
    rows = [(0, 0, 0, 0, 499), (3.1, 3.2, 0, 0, 499), (0.5, -1.2, 1, 0, 499), (2, 2.5, 0, 0, 499)]
    kind = double_pendulum.DoublePendulumState
    after = act(make("double-pendulum", **settings), kind, rows, 0.0)
    a, b, u, v = after.state[:4]
    position = np.stack([np.sin(a) + sign * np.sin(b), -np.cos(a) - np.cos(b)])
    wanted = -np.linalg.norm(position - [[0], [2]], axis=0)
    np.testing.assert_allclose(after.reward, wanted, atol=2e-6)
    seen = np.stack([np.sin(a), np.cos(a), u, np.sin(b), np.cos(b), v], -1)
    np.testing.assert_allclose(after.observation, seen, atol=1e-6)
    assert after.truncated.all() and not after.terminated.any()


def test_torque_turns_the_second_link_forward_and_the_first_one_back():
    kind = double_pendulum.DoublePendulumState
    after = act(make("double-pendulum"), kind, [(0, 0, 0, 0, 0)], [1.0, 5.0, -1.0, 0.0])
    first, second = after.state.omega1, after.state.omega2
    assert second[0] > 0 > first[0] and second[2] < 0 < first[2]
    assert second[0] == second[1] and first[3] == second[3] == 0


# -- starts, resets, shapes, compilation ---------------------------------------------------------

STARTS = {
    # name: low and high of each number of the state but the clock
    "cartpole": ([-0.12, -0.2, -0.01, -0.2], [0.12, 0.2, 0.01, 0.2]),
    "swing-up": ([-1, -2, math.pi - 1, -3], [1, 2, math.pi + 1, 3]),
    "cartpole-v1": ([-0.05] * 4, [0.05] * 4),
    "pendulum": ([-math.pi, -1], [math.pi, 1]),
    "acrobot": ([-0.1] * 4, [0.1] * 4),
    "mountain-car": ([-0.6, -1e-6], [-0.4, 1e-6]),
}


@functools.partial(jax.jit, static_argnums=0)
def many_starts(environment):
    keys = jax.random.split(jax.random.key(0), 2000)
    return jax.vmap(environment.reset, (0, None))(keys, environment.params)[1]


@pytest.mark.parametrize("name", STARTS)
def test_starts_fill_the_range_they_should(name):
    states = many_starts(make(name))
    values = np.stack(states[:-1], -1)
    low, high = np.array(STARTS[name])
    assert (values >= low - 1e-6).all() and (values <= high + 1e-6).all()
    # The mean of 2000 uniform numbers is within 5 standard errors of the middle.
    error = 5 * (high - low) / np.sqrt(12 * 2000)
    np.testing.assert_array_less(np.abs(values.mean(0) - (low + high) / 2), error)
    assert (states.t == 0).all()


def test_double_pendulum_starts_from_normal_numbers():
    states = many_starts(make("double-pendulum"))
    std = np.std(np.stack(states[:4]), axis=1)
    np.testing.assert_allclose(std, [0.1, 0.1, 0.01, 0.01], rtol=0.08)


def random_actions(environment, rng):
    if isinstance(environment.action, Discrete):
        return rng.integers(environment.action.n, size=BATCH).astype(np.int32)
    return rng.normal(size=(BATCH, environment.action.size)).astype(np.float32) * 2


@pytest.mark.parametrize("name", names())
def test_steps_keep_their_types_their_bounds_and_their_program(name):
    environment, rng = make(name, max_steps=5), np.random.default_rng(0)
    low, high = np.float32(environment.observation.low), np.float32(environment.observation.high)
    states = jax.tree.map(lambda leaf: leaf[:BATCH], many_starts(make(name)))
    types = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), states)
    for t in range(1, 31):
        after = batch_step(
            environment.step, states, random_actions(environment, rng), environment.params
        )
        states = after.state
        found = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), states)
        assert found == types
        assert after.observation.dtype == after.reward.dtype == np.float32
        assert after.observation.shape == (BATCH, environment.observation_size)
        assert after.terminated.dtype == after.truncated.dtype == bool
        assert (after.observation >= low).all() and (after.observation <= high).all()
        assert np.isfinite(after.reward).all() and (after.truncated == (t >= 5)).all()
        if name == "cartpole-v1" and after.terminated.any():
            break  # its bounds are those of what can be seen until an episode ends
    compiled = batch_step._cache_size()
    again = make(name, max_steps=7)
    batch_step(again.step, states, random_actions(again, rng), again.params)
    assert batch_step._cache_size() == compiled


def test_episodes_follow_one_another_and_their_last_observation_is_kept():
    plain, rng = make("cartpole-v1", max_steps=12), np.random.default_rng(0)
    environment = auto_reset(plain)
    step = jax.jit(jax.vmap(environment.step, (0, 0, 0, None)))
    states = jax.tree.map(lambda leaf: leaf[:BATCH], many_starts(make("cartpole-v1")))
    n_terminated = n_truncated = 0
    for t in range(60):
        actions = random_actions(plain, rng)
        keys = jax.random.split(jax.random.key(t), BATCH)
        after = jax.device_get(step(keys, states, actions, plain.params))
        wanted = jax.device_get(batch_step(plain.step, states, actions, plain.params))
        ended = wanted.terminated | wanted.truncated
        last = after.info["last_observation"]
        np.testing.assert_allclose(last, wanted.observation, atol=1e-5)
        np.testing.assert_array_equal(after.observation[~ended], last[~ended])
        # A fresh episode begins at once, somewhere else in each environment.
        assert (after.state.t == np.where(ended, 0, wanted.state.t)).all()
        assert (np.abs(after.observation - last).max(-1)[ended] > 1e-3).all()
        assert len(np.unique(after.observation[ended], axis=0)) == ended.sum()
        np.testing.assert_array_equal(after.terminated, wanted.terminated)
        np.testing.assert_array_equal(after.truncated, wanted.truncated)
        n_terminated += after.terminated.sum()
        n_truncated += after.truncated.sum()
        states = after.state
    assert n_truncated > 0 and n_terminated > 0


def test_equal_settings_are_equal_environments():
    assert make("cartpole") == make("cartpole") != make("cartpole", max_steps=10)
    assert hash(make("pendulum")) == hash(make("pendulum"))
    assert auto_reset(make("cartpole")) is auto_reset(make("cartpole"))
    assert make("cartpole", integrator="projection").params.substeps == 1
    assert make("swing-up").time_limit == 500 and make("mountain-car").time_limit == 999


def test_constants_may_differ_from_one_environment_to_the_next():
    environment = make("mountain-car")
    params = dataclasses.replace(environment.params, power=jnp.array([0.001, 0.002, 0.0, 0.0]))
    axes = jax.tree.map(lambda leaf: 0 if np.ndim(leaf) else None, params)
    states = jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], BATCH), many_starts(environment))
    step = jax.jit(jax.vmap(environment.step, (None, 0, 0, axes)))
    speeds = step(None, states, np.ones((BATCH, 1), np.float32), params).state.x_dot
    np.testing.assert_allclose(speeds - speeds[3], params.power, rtol=1e-3, atol=1e-8)


# -- against Gymnasium ---------------------------------------------------------------------------

GYMNASIUM = {
    "cartpole-v1": "CartPole-v1",
    "pendulum": "Pendulum-v1",
    "acrobot": "Acrobot-v1",
    "mountain-car": "MountainCarContinuous-v0",
}


@pytest.mark.parametrize("name", GYMNASIUM)
def test_every_step_is_that_of_gymnasium(name, double):
    ours, theirs = make(name), gymnasium.make(GYMNASIUM[name])
    assert theirs.spec.max_episode_steps == ours.time_limit
    theirs.reset(seed=0)
    theirs = theirs.unwrapped
    step = jax.jit(lambda state, action: ours.step(None, state, action, ours.params))
    kind = type(ours.reset(jax.random.key(0), ours.params)[1])
    rng = np.random.default_rng(0)
    # MountainCarContinuous rounds its state to float32 after every step.
    tolerance = 1e-6 if name == "mountain-car" else 1e-9
    ends = 0
    for t in range(400):
        if t % 40 == 0:
            theirs.reset(seed=t)
            # From anywhere that the task allows, so that limits are met and not just the start.
            high = {"cartpole-v1": 0.2, "mountain-car": 0.5}.get(name, 3.0)
            theirs.state = rng.uniform(-high, high, len(theirs.state))
            if name == "mountain-car":
                theirs.state = np.array([rng.uniform(-1.2, 0.45), rng.uniform(-0.07, 0.07)])
        state = kind(*(jnp.float64(value) for value in theirs.state), jnp.int32(7))
        if isinstance(ours.action, Box):
            action = rng.uniform(1.5 * np.array(ours.action.low), 1.5 * np.array(ours.action.high))
        else:
            action = int(rng.integers(ours.action.n))
        after = step(state, jnp.asarray(action))
        observation, reward, terminated, _, _ = theirs.step(action)
        np.testing.assert_allclose(np.stack(after.state[:-1]), theirs.state, 0, tolerance)
        np.testing.assert_allclose(after.observation, observation, 0, 2e-6)
        np.testing.assert_allclose(after.reward, reward, 1e-9)
        assert bool(after.terminated) == terminated and after.state.t == 8
        if terminated:
            ends += 1
            theirs.reset(seed=t)
    assert ends > 0 or name == "pendulum"


# -- small things --------------------------------------------------------------------------------


def test_sine_and_cosine_are_exact_to_rounding_in_float32_and_stay_within_one():
    angles = np.random.default_rng(0).uniform(-1000, 1000, 200_000).astype(np.float32)
    angles = np.concatenate([angles, np.float32(np.pi / 4 * np.arange(-40, 41))])
    sin, cos = jax.jit(sin_cos)(angles)
    np.testing.assert_allclose(sin, np.sin(angles.astype(float)), rtol=0, atol=1.2e-7)
    np.testing.assert_allclose(cos, np.cos(angles.astype(float)), rtol=0, atol=1.2e-7)
    assert np.abs(sin).max() <= 1 and np.abs(cos).max() <= 1
    slope = jax.jit(jax.grad(lambda angle: sin_cos(angle)[0]))(jnp.float32(2.5))
    np.testing.assert_allclose(slope, np.cos(2.5), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cartpool", {}, "name must be one of"),
        ("cartpole", {"tip": "right"}, "cartpole has no setting 'tip'"),
        ("cartpole", {"integrator": "euler"}, "integrator must be one of"),
        ("double-pendulum", {"tip": "left"}, "tip must be one of"),
        ("swing-up", {"substeps": 0}, "substeps must be at least 1"),
        ("acrobot", {"max_steps": 0}, "max_steps must be at least 1"),
        ("pendulum", {"gravity": -1.0}, "gravity must be positive"),
        ("mountain-car", {"goal_speed": math.nan}, "goal_speed must be a finite number"),
    ],
)
def test_a_wrong_setting_is_named(name, settings, message):
    with pytest.raises(ValueError, match=message):
        make(name, **settings)


def test_spaces_refuse_what_is_none():
    for low, high in (((), ()), ((0.0,), (1.0, 2.0)), ((1.0,), (1.0,)), ((math.nan,), (1.0,))):
        with pytest.raises(ValueError, match="low"):
            Box(low, high)
    with pytest.raises(ValueError, match="n must be at least 2"):
        Discrete(1)
