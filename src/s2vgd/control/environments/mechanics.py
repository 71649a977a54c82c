"""Motion of two-coordinate mechanisms: the equations, and two ways to follow them in time.

A mechanism is given by what its bodies weigh and how they hang together; its accelerations
(`acceleration`), the fourth-order Runge-Kutta method and the projection of velocities all follow
from the same three functions. Which mechanisms there are, and what they are rewarded for, is said
in `cart` and `double_pendulum`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

Scalar: TypeAlias = Array | float
Pair: TypeAlias = tuple[Array, Array]
"""One number for each of the two coordinates."""
Matrix: TypeAlias = tuple[tuple[Scalar, Scalar], tuple[Scalar, Scalar]]
"""The rows of a 2×2 matrix."""

INTEGRATORS = ("rk4", "projection")


class Mechanism(NamedTuple):
    """Rigid bodies with two coordinates q, velocities v; c(q) are all positions of the bodies.

    Let J(q) = ∂c/∂q and B the masses and inertias of the bodies. The mechanism obeys
    Jᵀ B (J v̇ + J̇ v) = force.

    Attributes
    ----------
    pose : callable
        ``pose(q)``: the sines and cosines of the coordinates that the others need.
    mass : callable
        ``mass(pose, other, params)``: the matrix J(q)ᵀ B J(q'), of shape 2×2. At q' = q it is the
        mass matrix; between two configurations it is what a projection of velocities needs.
    bias : callable
        ``bias(pose, v, params)``: Jᵀ B J̇ v, the centrifugal terms.
    force : callable
        ``force(pose, action, params)``: the generalised force, of gravity and of the motor.
    """

    pose: Callable[[Pair], Any]
    mass: Callable[[Any, Any, Any], Matrix]
    bias: Callable[[Any, Pair, Any], Pair]
    force: Callable[[Any, Array, Any], Pair]


def solve(matrix: Matrix, right: Pair) -> Pair:
    """Return x of ``matrix x = right``, by Cramer's rule."""
    (a, b), (c, d) = matrix
    scale = 1.0 / (a * d - b * c)
    return (d * right[0] - b * right[1]) * scale, (a * right[1] - c * right[0]) * scale


def acceleration(mechanism: Mechanism, q: Pair, v: Pair, action: Array, params: Any) -> Pair:
    """Return v̇ of the equations of motion, Jᵀ B J v̇ = force - Jᵀ B J̇ v."""
    pose = mechanism.pose(q)
    force, bias = mechanism.force(pose, action, params), mechanism.bias(pose, v, params)
    return solve(mechanism.mass(pose, pose, params), (force[0] - bias[0], force[1] - bias[1]))


def move(
    mechanism: Mechanism,
    q: Pair,
    v: Pair,
    action: Array,
    params: Any,
    *,
    duration: Scalar,
    integrator: str,
    substeps: int,
    max_speed: Scalar | None = None,
) -> tuple[Pair, Pair]:
    """Follow the motion for `duration` seconds under a constant action.

    Parameters
    ----------
    mechanism : Mechanism
        What moves.
    q, v : pair of scalars
        Coordinates and their velocities.
    action : scalar
        The force or torque of the motor.
    params : dataclass
        Constants of the mechanism.
    duration : float
        Seconds to go.
    integrator : {"rk4", "projection"}
        See `runge_kutta` and `project`.
    substeps : int
        Equal parts in which the duration is gone through.
    max_speed : float, optional
        Velocities are cut off at this after each part. A motor that always pushes forward gives
        energy without end, and a method with steps of fixed length cannot follow it there.

    Returns
    -------
    q, v : pair of scalars
        After that time.
    """
    method = {"rk4": runge_kutta, "projection": project}[integrator]
    h = duration / substeps

    def substep(_: int, qv: tuple[Pair, Pair]) -> tuple[Pair, Pair]:
        q, v = method(mechanism, *qv, action, params, h)
        if max_speed is not None:
            v = jnp.clip(v[0], -max_speed, max_speed), jnp.clip(v[1], -max_speed, max_speed)
        return q, v

    # Not unrolled: XLA on a CPU would compute the last part again for each coordinate of what is
    # observed, which took ten times as long.
    return jax.lax.fori_loop(0, substeps, substep, (q, v))


def runge_kutta(
    mechanism: Mechanism, q: Pair, v: Pair, action: Array, params: Any, h: Scalar
) -> tuple[Pair, Pair]:
    """Take one step of the classical fourth-order Runge-Kutta method.

    Its error a step is of fifth order in h, and without a motor the energy is kept to that order.
    """

    def slope(q: Pair, v: Pair) -> tuple[Pair, Pair]:
        return v, acceleration(mechanism, q, v, action, params)

    def ahead(by: Scalar, slope: tuple[Pair, Pair]) -> tuple[Pair, Pair]:
        return jax.tree.map(lambda now, rate: now + by * rate, (q, v), slope)

    first = slope(q, v)
    second = slope(*ahead(0.5 * h, first))
    third = slope(*ahead(0.5 * h, second))
    fourth = slope(*ahead(h, third))
    mean = jax.tree.map(lambda a, b, c, d: (a + 2 * (b + c) + d) / 6, first, second, third, fourth)
    return ahead(h, mean)


def project(
    mechanism: Mechanism, q: Pair, v: Pair, action: Array, params: Any, h: Scalar
) -> tuple[Pair, Pair]:
    """Take one step as Box2D does: push each body freely, restore the joints, then move.

    The bodies arrive with the velocities J(q⁻) v that obeyed the joints one step ago, where
    q⁻ = q - h v. Forces act on each body as if there were no joints; then the impulses of the
    joints bring the velocities back to those which the joints allow at q, changing them as little
    as possible in the metric of the masses:

        v⁺ = (J(q)ᵀ B J(q))⁻¹ (J(q)ᵀ B J(q⁻) v + h force(q)),    q⁺ = q + h v⁺.

    There is no centrifugal term; turning the velocities of the bodies takes its place. Since a
    projection never lengthens a vector, the kinetic energy only grows by the work of forces. What
    turns by an angle h v a step loses a share of about (h v)² of it: at 30 rad/s and h = 0.01 s,
    9 % a step. This is the limit to which Box2D's iterations (20 in rllab) converge, except
    that Box2D moves the bodies apart and pulls them together again, where here the angles are
    what is moved and the joints hold exactly: a difference of third order in h v.
    """
    pose, before = mechanism.pose(q), mechanism.pose((q[0] - h * v[0], q[1] - h * v[1]))
    (a, b), (c, d) = mechanism.mass(pose, before, params)
    force = mechanism.force(pose, action, params)
    momentum = a * v[0] + b * v[1] + h * force[0], c * v[0] + d * v[1] + h * force[1]
    v = solve(mechanism.mass(pose, pose, params), momentum)
    return (q[0] + h * v[0], q[1] + h * v[1]), v
