"""Four tasks that everybody knows, as Gymnasium 1.x has them: constants, order of sums and all.

CartPole-v1, Pendulum-v1, Acrobot-v1 and MountainCarContinuous-v0 step for step, but for the random
numbers they start from. The time limits, which Gymnasium adds from outside, are a part of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.control.environments.base import Box, Discrete, Environment, Step
from s2vgd.control.environments.cart import CartState
from s2vgd.control.environments.trigonometry import sin_cos

# -- CartPole-v1 ---------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CartPoleV1Params:
    """Constants of CartPole-v1 (Barto, Sutton and Anderson, 1983).

    Parameters
    ----------
    gravity, dt, force : float
        Acceleration, duration of a step, and the force of either action.
    cart_mass, pole_mass, half_length : float
        Masses, and half the length of the pole.
    max_x, max_theta : float
        An episode ends beyond these.
    max_steps : int
        An episode is truncated after so many steps.
    """

    gravity: float = 9.8
    dt: float = 0.02
    force: float = 10.0
    cart_mass: float = 1.0
    pole_mass: float = 0.1
    half_length: float = 0.5
    max_x: float = 2.4
    max_theta: float = 12 * 2 * math.pi / 360
    max_steps: int = 500


def reset_cartpole_v1(key: Array, params: CartPoleV1Params) -> tuple[Array, CartState]:
    """Start with all four numbers uniform in ±0.05."""
    drawn = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
    x, x_dot, theta, theta_dot = drawn
    return drawn, CartState(x, x_dot, theta, theta_dot, jnp.zeros((), jnp.int32))


def step_cartpole_v1(key: Array, state: CartState, action: Array, params: CartPoleV1Params) -> Step:
    """Push left (0) or right (1) and take a step of Euler's method; the reward is 1.

    The angle is clockwise positive here, as in Gymnasium.
    """
    x, x_dot, theta, theta_dot, t = state
    force = jnp.where(action == 1, params.force, -params.force).astype(x.dtype)
    sin, cos = sin_cos(theta)
    total = params.cart_mass + params.pole_mass
    arm = params.pole_mass * params.half_length
    pushed = (force + arm * theta_dot**2 * sin) / total
    turning = (params.gravity * sin - cos * pushed) / (
        params.half_length * (4.0 / 3.0 - params.pole_mass * cos**2 / total)
    )
    moving = pushed - arm * turning * cos / total
    state = CartState(
        x=x + params.dt * x_dot,
        x_dot=x_dot + params.dt * moving,
        theta=theta + params.dt * theta_dot,
        theta_dot=theta_dot + params.dt * turning,
        t=t + 1,
    )
    lost = (jnp.abs(state.x) > params.max_x) | (jnp.abs(state.theta) > params.max_theta)
    reward = jnp.ones_like(x)
    return Step(jnp.stack(state[:4]), state, reward, lost, state.t >= params.max_steps, {})


def cartpole_v1(**settings: Any) -> Environment:
    """Return Gymnasium's CartPole-v1: keep the pole upright with two forces."""
    params = CartPoleV1Params(**settings)
    bounds = (2 * params.max_x, math.inf, 2 * params.max_theta, math.inf)
    return Environment(
        name="cartpole-v1",
        params=params,
        observation=_symmetric(bounds),
        action=Discrete(2),
        observation_scales=(2.4, 4.0, 0.2, 4.0),
        reset=reset_cartpole_v1,
        step=step_cartpole_v1,
    )


# -- Pendulum-v1 ---------------------------------------------------------------------------------


class PendulumState(NamedTuple):
    """Angle (0 upright, counter-clockwise positive), its velocity, and the steps of the episode."""

    theta: Array
    theta_dot: Array
    t: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PendulumParams:
    """Constants of Pendulum-v1.

    Parameters
    ----------
    gravity, dt, mass, length : float
        Acceleration, duration of a step, mass and length of the rod.
    max_torque, max_speed : float
        Torque and velocity are cut off at these.
    max_steps : int
        An episode is truncated after so many steps.
    """

    gravity: float = 10.0
    dt: float = 0.05
    mass: float = 1.0
    length: float = 1.0
    max_torque: float = 2.0
    max_speed: float = 8.0
    max_steps: int = 200


def _observe_pendulum(state: PendulumState) -> Array:
    sin, cos = sin_cos(state.theta)
    return jnp.stack([cos, sin, state.theta_dot])


def reset_pendulum(key: Array, params: PendulumParams) -> tuple[Array, PendulumState]:
    """Start anywhere (θ in ±π) at a velocity in ±1."""
    drawn = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
    state = PendulumState(math.pi * drawn[0], drawn[1], jnp.zeros((), jnp.int32))
    return _observe_pendulum(state), state


def step_pendulum(key: Array, state: PendulumState, action: Array, params: PendulumParams) -> Step:
    """Turn; the reward is -(θ² + 0.1 θ̇² + 0.001 u²) of before the step, θ in ±π."""
    theta, theta_dot, t = state
    torque = jnp.clip(action[0], -params.max_torque, params.max_torque).astype(theta.dtype)
    from_top = jnp.mod(theta + math.pi, 2 * math.pi) - math.pi
    reward = -(from_top**2 + 0.1 * theta_dot**2 + 0.001 * torque**2)
    falling = 3 * params.gravity / (2 * params.length) * sin_cos(theta)[0]
    driven = 3.0 / (params.mass * params.length**2) * torque
    theta_dot = theta_dot + (falling + driven) * params.dt
    theta_dot = jnp.clip(theta_dot, -params.max_speed, params.max_speed)
    state = PendulumState(theta + theta_dot * params.dt, theta_dot, t + 1)
    never = jnp.zeros((), bool)
    truncated = state.t >= params.max_steps
    return Step(_observe_pendulum(state), state, reward, never, truncated, {})


def pendulum(**settings: Any) -> Environment:
    """Return Gymnasium's Pendulum-v1: swing a rod up with little torque."""
    params = PendulumParams(**settings)
    return Environment(
        name="pendulum",
        params=params,
        observation=_symmetric((1.0, 1.0, params.max_speed)),
        action=_symmetric((params.max_torque,)),
        observation_scales=(1.0, 1.0, 8.0),
        reset=reset_pendulum,
        step=step_pendulum,
    )


# -- Acrobot-v1 ----------------------------------------------------------------------------------


class AcrobotState(NamedTuple):
    """Angles, velocities and steps; θ1 is 0 hanging, θ2 is the angle of the elbow."""

    theta1: Array
    theta2: Array
    omega1: Array
    omega2: Array
    t: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AcrobotParams:
    """Constants of Acrobot-v1 (Sutton and Barto, 1998), of two links that are alike.

    Parameters
    ----------
    gravity, dt, torque : float
        Acceleration, duration of a step, and torque of the actions 0 (minus) and 2 (plus).
    mass, length, centre, inertia : float
        Of a link; its centre is counted from its upper end.
    max_speed1, max_speed2 : float
        Velocities are cut off at these.
    max_steps : int
        An episode is truncated after so many steps.
    """

    gravity: float = 9.8
    dt: float = 0.2
    torque: float = 1.0
    mass: float = 1.0
    length: float = 1.0
    centre: float = 0.5
    inertia: float = 1.0
    max_speed1: float = 4 * math.pi
    max_speed2: float = 9 * math.pi
    max_steps: int = 500


def _observe_acrobot(state: AcrobotState) -> Array:
    (sin1, cos1), (sin2, cos2) = sin_cos(state.theta1), sin_cos(state.theta2)
    return jnp.stack([cos1, sin1, cos2, sin2, state.omega1, state.omega2])


def reset_acrobot(key: Array, params: AcrobotParams) -> tuple[Array, AcrobotState]:
    """Start hanging, nearly at rest: all four numbers uniform in ±0.1."""
    drawn = jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
    theta1, theta2, omega1, omega2 = drawn
    state = AcrobotState(theta1, theta2, omega1, omega2, jnp.zeros((), jnp.int32))
    return _observe_acrobot(state), state


def _acrobot_slope(y: tuple[Array, ...], torque: Array, p: AcrobotParams) -> tuple[Array, ...]:
    """Return the derivatives of angles and velocities; equations of Sutton and Barto's book."""
    theta1, theta2, omega1, omega2 = y
    arm = p.mass * p.length * p.centre
    (sin1, cos1), (sin2, cos2) = sin_cos(theta1), sin_cos(theta2)
    own = p.mass * p.centre**2 + p.inertia
    d1 = 2 * own + p.mass * p.length**2 + 2 * arm * cos2
    d2 = own + arm * cos2
    phi2 = p.mass * p.centre * p.gravity * (sin1 * cos2 + cos1 * sin2)
    phi1 = (
        -arm * omega2 * (omega2 + 2 * omega1) * sin2
        + p.mass * (p.centre + p.length) * p.gravity * sin1
        + phi2
    )
    alpha2 = (torque + d2 / d1 * phi1 - arm * omega1**2 * sin2 - phi2) / (own - d2**2 / d1)
    return omega1, omega2, -(d2 * alpha2 + phi1) / d1, alpha2


def _wrapped(angle: Array) -> Array:
    """Bring an angle into ±π, leaving those that are there as they are."""
    turns = jnp.ceil((jnp.abs(angle) - math.pi) / (2 * math.pi))
    return angle - jnp.sign(angle) * 2 * math.pi * jnp.maximum(turns, 0)


def step_acrobot(key: Array, state: AcrobotState, action: Array, params: AcrobotParams) -> Step:
    """Turn the elbow and take a Runge-Kutta step; the reward is -1 until the tip is high enough."""
    y, dt = state[:4], params.dt
    torque = params.torque * (action - 1).astype(y[0].dtype)

    def ahead(by: float, slope: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(now + by * rate for now, rate in zip(y, slope, strict=True))

    k1 = _acrobot_slope(y, torque, params)
    k2 = _acrobot_slope(ahead(dt / 2, k1), torque, params)
    k3 = _acrobot_slope(ahead(dt / 2, k2), torque, params)
    k4 = _acrobot_slope(ahead(dt, k3), torque, params)
    total = tuple(a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
    theta1, theta2, omega1, omega2 = ahead(dt / 6, total)
    state = AcrobotState(
        theta1=_wrapped(theta1),
        theta2=_wrapped(theta2),
        omega1=jnp.clip(omega1, -params.max_speed1, params.max_speed1),
        omega2=jnp.clip(omega2, -params.max_speed2, params.max_speed2),
        t=state.t + 1,
    )
    reached = -sin_cos(state.theta1)[1] - sin_cos(state.theta2 + state.theta1)[1] > 1.0
    reward = jnp.where(reached, 0.0, -jnp.ones_like(omega1))
    truncated = state.t >= params.max_steps
    return Step(_observe_acrobot(state), state, reward, reached, truncated, {})


def acrobot(**settings: Any) -> Environment:
    """Return Gymnasium's Acrobot-v1: swing the tip of two links above a line."""
    params = AcrobotParams(**settings)
    return Environment(
        name="acrobot",
        params=params,
        observation=_symmetric((1.0, 1.0, 1.0, 1.0, params.max_speed1, params.max_speed2)),
        action=Discrete(3),
        observation_scales=(1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi),
        reset=reset_acrobot,
        step=step_acrobot,
    )


# -- MountainCarContinuous-v0 --------------------------------------------------------------------


class MountainCarState(NamedTuple):
    """Position, velocity, and the steps of the episode."""

    x: Array
    x_dot: Array
    t: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MountainCarParams:
    """Constants of MountainCarContinuous-v0.

    Parameters
    ----------
    power, gravity : float
        What the motor and the slope add to the velocity in a step.
    min_x, max_x, max_speed : float
        Positions and velocities are cut off at these.
    goal_x, goal_speed : float
        The episode ends at this position with at least this velocity.
    max_steps : int
        An episode is truncated after so many steps.
    """

    power: float = 0.0015
    gravity: float = 0.0025
    min_x: float = -1.2
    max_x: float = 0.6
    max_speed: float = 0.07
    goal_x: float = 0.45
    goal_speed: float = 0.0
    max_steps: int = 999


def reset_mountain_car(key: Array, params: MountainCarParams) -> tuple[Array, MountainCarState]:
    """Start at rest in the valley, between -0.6 and -0.4."""
    x = jax.random.uniform(key, minval=-0.6, maxval=-0.4)
    state = MountainCarState(x, jnp.zeros_like(x), jnp.zeros((), jnp.int32))
    return jnp.stack(state[:2]), state


def step_mountain_car(
    key: Array, state: MountainCarState, action: Array, params: MountainCarParams
) -> Step:
    """Drive; the reward is 100 at the goal, less 0.1 a² (of the action before it is clipped)."""
    x, x_dot, t = state
    asked = action[0].astype(x.dtype)
    force = jnp.clip(asked, -1.0, 1.0)
    x_dot = x_dot + force * params.power - params.gravity * sin_cos(3 * x)[1]
    x_dot = jnp.clip(x_dot, -params.max_speed, params.max_speed)
    x = jnp.clip(x + x_dot, params.min_x, params.max_x)
    x_dot = jnp.where((x == params.min_x) & (x_dot < 0), 0.0, x_dot)
    reached = (x >= params.goal_x) & (x_dot >= params.goal_speed)
    state = MountainCarState(x, x_dot, t + 1)
    reward = jnp.where(reached, 100.0, 0.0) - 0.1 * asked**2
    return Step(jnp.stack(state[:2]), state, reward, reached, state.t >= params.max_steps, {})


def mountain_car(**settings: Any) -> Environment:
    """Return Gymnasium's MountainCarContinuous-v0: rock a weak car out of a valley."""
    params = MountainCarParams(**settings)
    return Environment(
        name="mountain-car",
        params=params,
        observation=Box((params.min_x, -params.max_speed), (params.max_x, params.max_speed)),
        action=_symmetric((1.0,)),
        observation_scales=(1.0, 0.07),
        reset=reset_mountain_car,
        step=step_mountain_car,
    )


def _symmetric(bounds: tuple[float, ...]) -> Box:
    return Box(tuple(-bound for bound in bounds), bounds)
