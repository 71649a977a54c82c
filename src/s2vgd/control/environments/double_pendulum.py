"""Two links with a motor in the elbow, with rllab's constants (Duan et al., 2016).

Gymnasium's Acrobot, with other constants, three torques and another goal, is in `classic`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.control.environments.base import Box, Environment, Step
from s2vgd.control.environments.mechanics import Matrix, Mechanism, Pair, move
from s2vgd.control.environments.trigonometry import sin_cos

TIPS = ("right", "rllab")


class DoublePendulumState(NamedTuple):
    """Where the two links are.

    Attributes
    ----------
    theta1, theta2 : scalar
        Angle of each link in rad, not of one to the other: 0 hanging, counter-clockwise positive.
    omega1, omega2 : scalar
        Their velocities, in rad/s.
    t : int scalar
        Steps since the episode began.
    """

    theta1: Array
    theta2: Array
    omega1: Array
    omega2: Array
    t: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DoublePendulumParams:
    """Constants of the two links, which are alike, in SI units; rllab's by default.

    Parameters
    ----------
    gravity, dt : float
        Acceleration and duration of a step.
    max_torque : float
        Of the motor; an action of 1 turns the second link by this much, and the first one back.
    mass, length, centre, inertia : float
        Of a link; its centre is counted from its upper end, its inertia about the centre.
    max_speed : float
        Velocities of the links are cut off at this. Under full torque to one side they would grow
        for ever; at 50 rad/s a link turns by half a radian in a part of a step, which is as much
        as the Runge-Kutta method follows well.
    max_steps : int
        An episode is truncated after so many steps.
    integrator : {"rk4", "projection"}
        How the motion is followed; see `mechanics`.
    substeps : int
        Parts of a step in which it is.
    tip : {"right", "rllab"}
        Which point should reach the top: the tip, at (sin θ1 + sin θ2, -cos θ1 - cos θ2), or the
        point at (sin θ1 - sin θ2, -cos θ1 - cos θ2), which rllab takes for it and which
        published curves are about.
    """

    gravity: float = 10.0
    dt: float = 0.02
    max_torque: float = 50.0
    mass: float = 0.5
    length: float = 1.0
    centre: float = 0.5
    inertia: float = 0.0420833
    max_speed: float = 50.0
    max_steps: int = 500
    integrator: str = field(default="rk4", metadata={"static": True})
    substeps: int = field(default=2, metadata={"static": True})
    tip: str = field(default="right", metadata={"static": True})


class _Pose(NamedTuple):
    sin1: Array
    cos1: Array
    sin2: Array
    cos2: Array


def _pose(q: Pair) -> _Pose:
    return _Pose(*sin_cos(q[0]), *sin_cos(q[1]))


def _mass(at: _Pose, other: _Pose, p: DoublePendulumParams) -> Matrix:
    coupling = p.mass * p.length * p.centre
    upper = p.mass * (p.centre**2 + p.length**2)
    lower = p.mass * p.centre**2
    return (
        (
            p.inertia + upper * (at.cos1 * other.cos1 + at.sin1 * other.sin1),
            coupling * (at.cos1 * other.cos2 + at.sin1 * other.sin2),
        ),
        (
            coupling * (at.cos2 * other.cos1 + at.sin2 * other.sin1),
            p.inertia + lower * (at.cos2 * other.cos2 + at.sin2 * other.sin2),
        ),
    )


def _bias(at: _Pose, v: Pair, p: DoublePendulumParams) -> Pair:
    across = at.sin1 * at.cos2 - at.cos1 * at.sin2
    coupling = p.mass * p.length * p.centre * across
    return coupling * v[1] ** 2, -coupling * v[0] ** 2


def _force(at: _Pose, torque: Array, p: DoublePendulumParams) -> Pair:
    weight = p.mass * p.gravity
    return (
        -weight * (p.centre + p.length) * at.sin1 - torque,
        -weight * p.centre * at.sin2 + torque,
    )


MECHANISM = Mechanism(_pose, _mass, _bias, _force)
"""Coordinates: the angles of the links; the elbow is at (L sin θ1, -L cos θ1)."""


def _observe(state: DoublePendulumState) -> tuple[Array, _Pose]:
    at = _pose((state.theta1, state.theta2))
    return jnp.stack([at.sin1, at.cos1, state.omega1, at.sin2, at.cos2, state.omega2]), at


def reset(key: Array, params: DoublePendulumParams) -> tuple[Array, DoublePendulumState]:
    """Start hanging, nearly at rest: angles N(0, 0.1²), velocities N(0, 0.01²)."""
    drawn = jax.random.normal(key, (4,))
    state = DoublePendulumState(
        theta1=0.1 * drawn[0],
        theta2=0.1 * drawn[1],
        omega1=0.01 * drawn[2],
        omega2=0.01 * drawn[3],
        t=jnp.zeros((), jnp.int32),
    )
    return _observe(state)[0], state


def step(
    key: Array, state: DoublePendulumState, action: Array, params: DoublePendulumParams
) -> Step:
    """Turn the elbow; the reward is minus the distance of the tip to the point over the pivot."""
    torque = params.max_torque * jnp.clip(action[0], -1.0, 1.0).astype(state.theta1.dtype)
    (theta1, theta2), (omega1, omega2) = move(
        MECHANISM,
        (state.theta1, state.theta2),
        (state.omega1, state.omega2),
        torque,
        params,
        duration=params.dt,
        integrator=params.integrator,
        substeps=params.substeps,
        max_speed=params.max_speed,
    )
    state = DoublePendulumState(theta1, theta2, omega1, omega2, state.t + 1)
    observation, at = _observe(state)
    across = at.sin1 + at.sin2 if params.tip == "right" else at.sin1 - at.sin2
    below = 2.0 + at.cos1 + at.cos2
    reward = -params.length * jnp.sqrt(across**2 + below**2)
    never = jnp.zeros((), bool)
    return Step(observation, state, reward, never, state.t >= params.max_steps, {})


def double_pendulum(**settings: Any) -> Environment:
    """Return rllab's Double Pendulum: bring the tip over the pivot; it never ends by itself."""
    params = DoublePendulumParams(**settings)
    return Environment(
        name="double-pendulum",
        params=params,
        observation=Box((-1.0, -1.0, -params.max_speed) * 2, (1.0, 1.0, params.max_speed) * 2),
        action=Box((-1.0,), (1.0,)),
        observation_scales=(1.0, 1.0, 10.0) * 2,
        reset=reset,
        step=step,
    )
