"""A pole on a cart with rllab's constants (Duan et al., 2016): Cartpole and Cartpole Swing-Up.

The motor pushes the cart with a force of any strength up to ten newtons. The pole of the same
name with two forces and other constants, Gymnasium's CartPole-v1, is in `classic`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.control.environments.base import Box, Environment, Step
from s2vgd.control.environments.mechanics import Matrix, Mechanism, Pair, move
from s2vgd.control.environments.trigonometry import sin_cos


class CartState(NamedTuple):
    """Where cart and pole are.

    Attributes
    ----------
    x, x_dot : scalar
        Position and velocity of the cart, in m and m/s.
    theta, theta_dot : scalar
        Angle of the pole and its velocity, in rad and rad/s: 0 upright, counter-clockwise positive.
    t : int scalar
        Steps since the episode began.
    """

    x: Array
    x_dot: Array
    theta: Array
    theta_dot: Array
    t: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CartParams:
    """Constants of the cart and the pole, in SI units; rllab's by default.

    Parameters
    ----------
    gravity, dt : float
        Acceleration and duration of a step.
    max_force : float
        Of the motor; an action of 1 is this much.
    cart_mass, pole_mass : float
        Masses.
    pole_centre, pole_inertia : float
        Distance of the centre of the pole from the joint, and its inertia about the centre.
    max_x : float
        An episode ends where the cart is farther from the middle than this.
    max_steps : int
        An episode is truncated after so many steps.
    integrator : {"rk4", "projection"}
        How the motion is followed; see `mechanics`.
    substeps : int
        Parts of a step in which it is: two, or one for the projection, as in rllab.
    """

    gravity: float = 10.0
    dt: float = 0.05
    max_force: float = 10.0
    cart_mass: float = 1.0
    pole_mass: float = 0.1
    pole_centre: float = 0.5
    pole_inertia: float = 0.0084167
    max_x: float = 3.0
    max_steps: int = 500
    integrator: str = field(default="rk4", metadata={"static": True})
    substeps: int = field(default=2, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CartpoleParams(CartParams):
    """Constants of Cartpole, where the pole may not fall.

    Parameters
    ----------
    max_theta : float
        An episode ends where the pole leans more than this.
    """

    max_x: float = 2.4
    max_theta: float = 0.2


def _pose(q: Pair) -> Pair:
    return sin_cos(q[1])


def _mass(pose: Pair, other: Pair, p: CartParams) -> Matrix:
    (s, c), (s_other, c_other) = pose, other
    arm = p.pole_mass * p.pole_centre
    turning = p.pole_inertia + arm * p.pole_centre * (c * c_other + s * s_other)
    return (p.cart_mass + p.pole_mass, -arm * c_other), (-arm * c, turning)


def _bias(pose: Pair, v: Pair, p: CartParams) -> Pair:
    return p.pole_mass * p.pole_centre * pose[0] * v[1] ** 2, jnp.zeros_like(v[1])


def _force(pose: Pair, force: Array, p: CartParams) -> Pair:
    return force, p.pole_mass * p.gravity * p.pole_centre * pose[0]


MECHANISM = Mechanism(_pose, _mass, _bias, _force)
"""Coordinates: x of the cart and θ of the pole, whose centre is at (x - l sin θ, l cos θ)."""


def _start(key: Array, centre: tuple[float, ...], spread: tuple[float, ...]) -> CartState:
    drawn = jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
    x, x_dot, theta, theta_dot = (c + s * u for c, s, u in zip(centre, spread, drawn, strict=True))
    return CartState(x, x_dot, theta, theta_dot, jnp.zeros((), jnp.int32))


def _push(state: CartState, action: Array, p: CartParams) -> tuple[CartState, Array]:
    force = p.max_force * jnp.clip(action[0], -1.0, 1.0).astype(state.x.dtype)
    (x, theta), (x_dot, theta_dot) = move(
        MECHANISM,
        (state.x, state.theta),
        (state.x_dot, state.theta_dot),
        force,
        p,
        duration=p.dt,
        integrator=p.integrator,
        substeps=p.substeps,
    )
    return CartState(x, x_dot, theta, theta_dot, state.t + 1), force


def _observe(state: CartState) -> Array:
    return jnp.stack(state[:4])


def reset_cartpole(key: Array, params: CartpoleParams) -> tuple[Array, CartState]:
    """Start near the middle, nearly upright and nearly at rest: uniform ±0.05·(2.4, 4, 0.2, 4)."""
    state = _start(key, (0.0, 0.0, 0.0, 0.0), (0.12, 0.2, 0.01, 0.2))
    return _observe(state), state


def step_cartpole(key: Array, state: CartState, action: Array, params: CartpoleParams) -> Step:
    """Push; the reward is 10 - (1 - cos θ) - 1e-5 F², and 0 where the pole or the cart is lost."""
    state, force = _push(state, action, params)
    lost = (jnp.abs(state.x) > params.max_x) | (jnp.abs(state.theta) > params.max_theta)
    kept = 10.0 - (1.0 - sin_cos(state.theta)[1]) - 1e-5 * force**2
    reward = jnp.where(lost, 0.0, kept)
    return Step(_observe(state), state, reward, lost, state.t >= params.max_steps, {})


def reset_swing_up(key: Array, params: CartParams) -> tuple[Array, CartState]:
    """Start hanging, more or less, and moving: x ±1, ẋ ±2, θ in π ± 1, θ̇ ±3."""
    state = _start(key, (0.0, 0.0, math.pi, 0.0), (1.0, 2.0, 1.0, 3.0))
    return _observe(state), state


def step_swing_up(key: Array, state: CartState, action: Array, params: CartParams) -> Step:
    """Push; the reward is cos θ, and -100 where the cart leaves the track."""
    state, _ = _push(state, action, params)
    lost = jnp.abs(state.x) > params.max_x
    reward = jnp.where(lost, -100.0, sin_cos(state.theta)[1])
    return Step(_observe(state), state, reward, lost, state.t >= params.max_steps, {})


_EVERYWHERE = Box((-math.inf,) * 4, (math.inf,) * 4)
_PUSH = Box((-1.0,), (1.0,))


def _with_substeps(settings: dict[str, Any]) -> dict[str, Any]:
    return {"substeps": 1 if settings.get("integrator") == "projection" else 2, **settings}


def cartpole(**settings: Any) -> Environment:
    """Return rllab's Cartpole: keep the pole upright and the cart on the track."""
    return Environment(
        name="cartpole",
        params=CartpoleParams(**_with_substeps(settings)),
        observation=_EVERYWHERE,
        action=_PUSH,
        observation_scales=(2.4, 4.0, 0.2, 4.0),
        reset=reset_cartpole,
        step=step_cartpole,
    )


def swing_up(**settings: Any) -> Environment:
    """Return rllab's Cartpole Swing-Up: bring the pole up from below, and keep it there."""
    return Environment(
        name="swing-up",
        params=CartParams(**_with_substeps(settings)),
        observation=_EVERYWHERE,
        action=_PUSH,
        observation_scales=(1.0, 1.0, 1.0, 1.0),
        reset=reset_swing_up,
        step=step_swing_up,
    )
