"""The Stein policy gradient: rollouts, gradients and the update of eq. (SVGD), one compiled step.

An iteration lets all particles act, estimates the gradient of each one's return, and moves them
together. The pieces are in `rollouts`, `gradients` and `s2vgd.svgd`; many iterations, with files
and progress, are in `training`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from s2vgd import svgd
from s2vgd.control import temperature as temperatures
from s2vgd.control.environments import Environment
from s2vgd.control.gradients import (
    Estimator,
    clip_each,
    clipped_gradients,
    log_probs,
    policy_gradients,
)
from s2vgd.control.policies import Particle, Policy
from s2vgd.control.rollouts import Trajectories, first_episodes, rollout
from s2vgd.control.temperature import Adapted, Temperature
from s2vgd.kernels import Kernel, KernelResult, squared_distances
from s2vgd.layout import Layout
from s2vgd.priors import FixedPrior, check_count, check_positive


class State(NamedTuple):
    """What an iteration carries to the next.

    Attributes
    ----------
    particles : pytree
        The policies, leaves of shape (M, ...).
    opt_state : optax.OptState
        Of the optimizer, for the flat (M, D) particles.
    critics : pytree
        State of the estimator, leaves of shape (M, ...).
    temperature : Array, scalar
        α, where it is not scheduled.
    step : Array, scalar int32
        How many iterations were made.
    key : Array
        Random key of the next rollout.
    """

    particles: Particle
    opt_state: Any
    critics: Any
    temperature: Array
    step: Array
    key: Array


class Info(NamedTuple):
    """What an iteration tells about itself, measured before the particles moved the first time.

    Attributes
    ----------
    returns, discounted_returns, lengths : Array, shape (M,)
        Of the first episode, mean over the environments of each particle.
    objective : Array
        J / α + log p in the mean over particles, J being the surrogate mean(A log π).
    entropy : Array
        Of the actions in the states that were visited, in nats, mean over particles.
    gradient_norm : Array, shape (M,)
        Length of each particle's gradient of J before it was clipped.
    non_finite : Array, int32
        How many particles have a gradient that is not finite, at most in one of the moves.
    temperature, bandwidth, drive_norm, repulsion_norm, min_distance : Array
        α, and the fields of :class:`s2vgd.svgd.Info`.
    """

    returns: Array
    discounted_returns: Array
    lengths: Array
    objective: Array
    entropy: Array
    gradient_norm: Array
    non_finite: Array
    temperature: Array
    bandwidth: Array
    drive_norm: Array
    repulsion_norm: Array
    min_distance: Array


class Algorithm(NamedTuple):
    """The functions made by :func:`build`.

    Attributes
    ----------
    init : callable
        ``init(key, m) -> State`` with M new policies.
    step : callable
        ``step(state, batch=None) -> (State, Info)``: a whole iteration, compiled. The batch is for
        loops that give one, and is not looked at.
    learn : callable
        ``learn(state, trajectories) -> (State, Info)``: the same with a rollout from elsewhere.
    """

    init: Callable[[Array, int], State]
    step: Callable[..., tuple[State, Info]]
    learn: Callable[[State, Trajectories], tuple[State, Info]]


@functools.lru_cache(maxsize=64)
def build(
    environment: Environment | None,
    policy: Policy,
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    kernel: Kernel | None,
    *,
    environments: int = 10,
    horizon: int | None = None,
    temperature: Temperature = 1.0,
    prior: FixedPrior | None = None,
    clip: float | None = 0.2,
    updates: int = 1,
    trust: float = 0.2,
    entropy: float = 0.0,
) -> Algorithm:
    r"""Stein policy gradient, eq. (SVGD) of the section on MDPs.

    An iteration moves particle i along

    .. math::
        \frac1M \sum_j \Big[ \kappa(\theta_j, \theta_i) \nabla_{\theta_j}
        \Big(\frac1\alpha J(\theta_j) + \log p(\theta_j)\Big)
        + \nabla_{\theta_j} \kappa(\theta_j, \theta_i) \Big]

    as the optimizer sees fit.

    Parameters
    ----------
    environment : Environment or None
        Where policies act. With None there is only `learn`.
    policy : Policy
        What a particle is.
    estimator : Estimator
        `Reinforce` or `A2C`.
    optimizer : optax.GradientTransformation
        Acts on the flat (M, D) matrix of all particles.
    kernel : Kernel or None
        None for independent agents, κ(θ, θ') = 1 for θ = θ' and 0 elsewhere with the sum not
        divided by M.
    environments : int
        For each particle. One particle with M times as many is the agent that has the whole batch.
    horizon : int, optional
        Steps of a rollout, the environment's time limit by default.
    temperature : float, Adapted or callable
        α.
    prior : FixedPrior or None
        Density of all parameters; None is flat.
    clip : float or None
        Largest length of the gradient of one particle's J, before it is divided by α.
    updates : int
        Moves of the particles an iteration. From the second on the rollout is of policies that are
        no longer there, see :func:`~s2vgd.control.gradients.clipped_gradients`.
    trust : float
        How far the probability of an action may have moved by then, relatively.
    entropy : float
        Weight of the entropy of the actions, in nats, beside J.

    Returns
    -------
    Algorithm
        The same object for equal arguments, so that nothing is compiled twice.
    """
    check_count("environments", environments, 1)
    if horizon is not None:
        check_count("horizon", horizon, 1)
    if clip is not None:
        check_positive("clip", clip)
    check_count("updates", updates, 1)
    check_positive("trust", trust)
    if not 0 <= entropy < math.inf:
        raise ValueError(f"entropy must be a finite number, at least 0, got {entropy!r}")
    temperatures.check(temperature)
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(f"optimizer must be an optax.GradientTransformation, got {optimizer!r}")
    kernel_at = _independent if kernel is None else kernel

    def init(key: Array, m: int) -> State:
        check_count("m", m, 1)
        policy_key, critic_key, key = jax.random.split(key, 3)
        particles = policy.init_particles(policy_key, m)
        return State(
            particles=particles,
            opt_state=optimizer.init(Layout.of(particles).flatten(particles)),
            critics=estimator.init(critic_key, m, policy.network.n_inputs),
            temperature=jnp.asarray(temperatures.first(temperature), jnp.float32),
            step=jnp.zeros((), jnp.int32),
            key=key,
        )

    def move(state: State, slopes: Array, surrogates: Array) -> tuple[State, dict[str, Array]]:
        """Move the particles along the slopes (M, D) of J, by eq. (SVGD); also fields of `Info`."""
        particles = state.particles
        layout = Layout.of(particles)
        flat = layout.flatten(particles)
        clipped, lengths = clip_each(slopes, clip)
        alpha = temperatures.at(temperature, state.temperature, state.step)
        gradients, objective = clipped / alpha, jnp.mean(surrogates) / alpha
        if prior is not None:
            log_prior = jax.vmap(jax.value_and_grad(lambda particle: prior.log_prob(particle, {})))
            densities, prior_slopes = log_prior(particles)
            gradients = gradients + layout.flatten(prior_slopes)
            objective = objective + jnp.mean(densities)
        at = kernel_at(flat, svgd.blocks(particles))
        drive, push = svgd.terms(at, gradients)
        changes, opt_state = optimizer.update(-(drive + push), state.opt_state, flat)
        moved = layout.unflatten(optax.apply_updates(flat, changes))
        made = {
            "objective": objective,
            "gradient_norm": lengths,
            "non_finite": jnp.sum(~jnp.isfinite(gradients).all(axis=1), dtype=jnp.int32),
            "temperature": alpha,
            "bandwidth": at.bandwidth,
            "drive_norm": svgd.rms_length(drive),
            "repulsion_norm": svgd.rms_length(push),
            "min_distance": svgd.min_distance(at.squared_distances),
        }
        return state._replace(particles=moved, opt_state=opt_state), made

    def learn(state: State, trajectories: Trajectories) -> tuple[State, Info]:
        advantages, critics = estimator.advantages(state.critics, trajectories, policy.scales)
        before = state.particles
        layout = Layout.of(before)
        surrogates, slopes = policy_gradients(policy, before, trajectories, advantages, entropy)
        state, first = move(state, layout.flatten(slopes), surrogates)
        non_finite = first["non_finite"]
        if updates > 1:
            made_with = log_probs(policy, before, trajectories)

            def again(_: Array, carry: tuple[State, Array]) -> tuple[State, Array]:
                state, non_finite = carry
                surrogates, slopes = clipped_gradients(
                    policy, state.particles, trajectories, advantages, made_with, trust, entropy
                )
                state, made = move(state, layout.flatten(slopes), surrogates)
                return state, jnp.maximum(non_finite, made["non_finite"])

            state, non_finite = jax.lax.fori_loop(1, updates, again, (state, non_finite))
        held = state.temperature
        if isinstance(temperature, Adapted):
            held = temperature.next(held, first["drive_norm"], first["repulsion_norm"])
        episodes = first_episodes(trajectories, estimator.discount)
        info = Info(
            returns=jnp.mean(episodes.returns, axis=1),
            discounted_returns=jnp.mean(episodes.discounted_returns, axis=1),
            lengths=jnp.mean(episodes.lengths.astype(jnp.float32), axis=1),
            entropy=_entropy(policy, before, trajectories),
            **{**first, "non_finite": non_finite},
        )
        return state._replace(critics=critics, temperature=held, step=state.step + 1), info

    def step(state: State, batch: None = None) -> tuple[State, Info]:
        if environment is None:
            raise ValueError("environment is None: use learn, with rollouts from elsewhere")
        key, rollout_key = jax.random.split(state.key)
        trajectories = rollout(
            environment,
            policy,
            state.particles,
            rollout_key,
            environments=environments,
            horizon=horizon or environment.time_limit,
        )
        return learn(state._replace(key=key), trajectories)

    return Algorithm(init, jax.jit(step), jax.jit(learn))


@functools.lru_cache(maxsize=64)
def halving_adam(learning_rate: float, halve_every: int | None) -> optax.GradientTransformation:
    """Return Adam whose learning rate is halved after every so many updates, or never."""
    if halve_every is None:
        return optax.adam(learning_rate)
    return optax.adam(optax.exponential_decay(learning_rate, halve_every, 0.5, staircase=True))


def _independent(flat: Array, _: Any) -> KernelResult:
    """Return the kernel of particles that do not know of one another: M on the diagonal."""
    m = len(flat)
    return KernelResult(
        matrix=m * jnp.eye(m, dtype=flat.dtype),
        repulsion=jnp.zeros_like(flat),
        bandwidth=jnp.zeros((), flat.dtype),
        squared_distances=squared_distances(flat - flat[0]),
    )


def _entropy(policy: Policy, particles: Particle, trajectories: Trajectories) -> Array:
    """Return the mean entropy at every tenth step, which is as telling as at every one."""
    some = jnp.moveaxis(trajectories.observations[::10], 1, 0)
    rows = some.reshape(some.shape[0], -1, some.shape[-1])
    return jnp.mean(jax.vmap(policy.entropy)(particles, rows))
