"""Markov chains on a log density, many at a time: MCLMC, HMC, NUTS and SGHMC.

The transition kernels are BlackJAX's. What is here is what runs them: one chain a particle, all in
one compiled program, each chain tuned by itself, the density's data passed in as arguments so that
nothing is compiled twice. Where the chains start and what is made of their draws is the business
of :mod:`s2vgd.refine`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.integrators import IntegratorState, isokinetic_mclachlan
from jax import Array

from s2vgd.layout import Layout

LogDensity = Callable[[Any, Any], Array]
Tick = Callable[[int], None]

# Steps between two looks from outside. Also the length of the buffer that draws are collected in.
CHUNK = 100


class Chains(NamedTuple):
    """What a sampler returns.

    Parameters
    ----------
    draws : Array, shape (C, S, D)
        S draws of each of C chains, as flat particles.
    log_density : Array, shape (C, S)
        Of each draw; NaN for a sampler that never sees all of the data.
    acceptance : Array, shape (C,)
        Mean acceptance probability; NaN for a sampler without an acceptance step.
    divergences : Array, shape (C,)
        Transitions after warm-up that were refused because the numbers left the representable.
    step_size : Array, shape (C,)
        What the tuning arrived at.
    """

    draws: Array
    log_density: Array
    acceptance: Array
    divergences: Array
    step_size: Array


def mclmc(
    log_density: LogDensity,
    layout: Layout,
    start: Array,
    data: Any,
    *,
    key: Array,
    warmup: int,
    draws: int,
    thin: int,
    tick: Tick,
    energy_variance: tuple[float, float] = (0.1, 0.001),
    decoherence: float = 1000.0,
) -> Chains:
    """Unadjusted microcanonical Langevin Monte Carlo, the step size tuned chain by chain.

    The step size is moved until the energy error of a step has the wanted variance a dimension.
    That begins large, to leave the starting point quickly, and falls geometrically over the first
    three quarters of the warm-up; the last quarter's geometric mean is kept. There is no
    acceptance step, so what is sampled is the density up to a bias that grows with the variance:
    about 5e-4 is exact for practical purposes, the default trades exactness of the far tails for
    the speed with which a chain crosses a network's posterior.

    Parameters
    ----------
    log_density : callable
        ``log_density(particle, data) -> scalar``.
    layout : Layout
        Of one particle.
    start : Array, shape (C, D)
        Where each chain starts.
    data : pytree
        Passed on to the density.
    key : key
        Decides everything random.
    warmup, draws, thin : int
        Steps of tuning; draws kept, and steps from one to the next.
    tick : callable
        Told the number of steps done, now and then.
    energy_variance : pair of float
        Wanted variance of the energy error a dimension, at first and in the end.
    decoherence : float
        Steps over which the direction of motion is forgotten.
    """
    if start.shape[1] < 2:
        raise ValueError("mclmc needs a density of at least two dimensions; use 'hmc' or 'nuts'.")
    chains, dimension = start.shape
    settings = tuple(jnp.asarray(value, start.dtype) for value in (*energy_variance, decoherence))

    def advance(state: Any, tuner: _Tuner, first: int, last: int, thin: int) -> Any:
        counts = np.array([first, last, thin, warmup], np.int32)
        return _mclmc_advance(log_density, layout, state, tuner, key, counts, data, settings)

    # A step of size zero goes nowhere but fills in density and gradient. It costs no compilation.
    momentum = jnp.full_like(start, dimension**-0.5)
    blank = IntegratorState(start + 0, momentum, jnp.zeros_like(start[:, 0]), jnp.ones_like(start))
    state, _, _ = advance(blank, _Tuner.fresh(chains, 0.0, start.dtype), warmup, warmup + 1, 1)
    tuner = _Tuner.fresh(chains, 1e-3 * dimension**0.5, start.dtype)
    for first, last in _spans(0, warmup, CHUNK):
        state, tuner, _ = advance(state, tuner, first, last, 1)
        tick(last)
    tuner = tuner.settled()
    kept, densities = [], []
    per_call = max(1, CHUNK // thin)
    for begin, end in _spans(0, draws, per_call):
        first, last = warmup + begin * thin, warmup + end * thin
        state, tuner, (positions, values) = advance(state, tuner, first, last, thin)
        kept.append(np.asarray(positions[: end - begin]))
        densities.append(np.asarray(values[: end - begin]))
        tick(last)
    return Chains(
        draws=jnp.asarray(np.concatenate(kept).swapaxes(0, 1)),
        log_density=jnp.asarray(np.concatenate(densities).T),
        acceptance=jnp.full(chains, jnp.nan),
        divergences=tuner.divergences,
        step_size=tuner.step_size,
    )


class _Tuner(NamedTuple):
    """Step sizes of all chains, each (C,), and what they are estimated from."""

    step_size: Array
    unit: Array  # the first step size; sixth powers of others would leave the range of float32
    weight: Array
    inverse_sixth: Array  # running sum of (energy error / wanted)² (unit / step)⁶
    log_sum: Array
    n_summed: Array
    divergences: Array

    @classmethod
    def fresh(cls, chains: int, step_size: float, dtype: Any) -> _Tuner:
        zero = jnp.zeros(chains, dtype)
        step = jnp.full(chains, step_size, dtype)
        return cls(step, step, zero, zero, zero, zero, jnp.zeros(chains, jnp.int32))

    def updated(self, error: Array, fine: Array, wanted: Array, averaging: Array) -> _Tuner:
        """Move the step size towards the wanted variance, using that it grows as step⁶."""
        ratio = error**2 / wanted + 1e-8
        # A single error far from what is wanted says little about the right step size.
        trust = jnp.where(fine, jnp.exp(-0.5 * (jnp.log(ratio) / 9.0) ** 2), 0.0)
        decay = 0.987  # some 150 steps of memory
        weight = decay * self.weight + trust
        inverse_sixth = (
            decay * self.inverse_sixth + trust * ratio * (self.unit / self.step_size) ** 6
        )
        # A step into nowhere: forget what was measured at it, and halve the step.
        inverse_sixth = jnp.where(
            fine, inverse_sixth, weight * (2 * self.unit / self.step_size) ** 6
        )
        target = self.unit * (inverse_sixth / jnp.maximum(weight, 1e-30)) ** (-1 / 6)
        target = jnp.where(fine, target, self.step_size / 2)
        step_size = jnp.clip(target, self.step_size / 3, self.step_size * 3)
        return self._replace(
            step_size=step_size,
            weight=weight,
            inverse_sixth=inverse_sixth,
            log_sum=self.log_sum + averaging * jnp.log(step_size),
            n_summed=self.n_summed + averaging,
        )

    def settled(self) -> _Tuner:
        mean = jnp.exp(self.log_sum / jnp.maximum(self.n_summed, 1))
        return self._replace(step_size=jnp.where(self.n_summed > 0, mean, self.step_size))


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2,))
def _mclmc_advance(
    log_density: LogDensity,
    layout: Layout,
    state: Any,
    tuner: _Tuner,
    key: Array,
    counts: Array,
    data: Any,
    settings: tuple[Array, ...],
) -> tuple[Any, _Tuner, tuple[Array, Array]]:
    """Run the steps first, ..., last - 1; tune while below warm-up, keep every thin-th position."""
    first, last, thin, warmup = counts
    begin, end, decoherence = settings
    chains, dimension = state.position.shape
    integrator = isokinetic_mclachlan(partial(_flat_density, log_density, layout, data), 1.0)

    def one_step(i: Array, carry: Any) -> Any:
        state, tuner, (positions, values) = carry
        moved, kinetic_change = jax.vmap(integrator)(state, tuner.step_size)
        error = kinetic_change - moved.logdensity + state.logdensity
        fine = jnp.isfinite(error) & jnp.isfinite(moved.logdensity_grad).all(axis=1)
        # A step into nowhere is undone, and the chain turns round.
        back = state._replace(momentum=-state.momentum)
        moved = jax.tree.map(partial(_where_chain, fine), moved, back)
        noise = jax.random.normal(jax.random.fold_in(key, i), (chains, dimension), positions.dtype)
        state = moved._replace(momentum=_turn(moved.momentum, noise, decoherence))
        progress = jnp.clip(i / (0.75 * jnp.maximum(warmup, 1)), 0.0, 1.0)
        wanted = dimension * begin * (end / begin) ** progress
        tuned = tuner.updated(jnp.where(fine, error, 0.0), fine, wanted, (progress >= 1) * 1.0)
        tuning = i < warmup
        tuner = jax.tree.map(partial(jnp.where, tuning), tuned, tuner)
        failed = (~tuning & ~fine).astype(jnp.int32)
        tuner = tuner._replace(divergences=tuner.divergences + failed)
        slot = (i - first) // thin
        kept = positions.at[slot].set(state.position), values.at[slot].set(state.logdensity)
        return state, tuner, kept

    buffer = (
        jnp.zeros((CHUNK, chains, dimension), state.position.dtype),
        jnp.zeros((CHUNK, chains), state.logdensity.dtype),
    )
    state, tuner, kept = jax.lax.fori_loop(first, last, one_step, (state, tuner, buffer))
    return state, tuner, kept


def _where_chain(condition: Array, x: Array, y: Array) -> Array:
    """Choose chain by chain between arrays (C, ...)."""
    return jnp.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y)


def _turn(momentum: Array, noise: Array, decoherence: Array) -> Array:
    """Turn unit vectors (C, D) a little, so that direction is lost in some `decoherence` steps."""
    size = jnp.sqrt(jnp.expm1(2.0 / decoherence) / momentum.shape[1])
    turned = momentum + size * noise
    return turned / jnp.linalg.norm(turned, axis=1, keepdims=True)


def hmc(
    log_density: LogDensity,
    layout: Layout,
    start: Array,
    data: Any,
    *,
    key: Array,
    warmup: int,
    draws: int,
    thin: int,
    tick: Tick,
    leapfrogs: int = 60,
    acceptance: float = 0.8,
) -> Chains:
    """Hamiltonian Monte Carlo, step size and diagonal metric adapted chain by chain.

    Parameters are those of :func:`mclmc`, and `leapfrogs`, the length of a trajectory in gradients,
    and `acceptance`, the acceptance probability that the step size is adapted to.
    """
    return _adjusted(
        "hmc",
        (("num_integration_steps", leapfrogs),),
        acceptance,
        log_density,
        layout,
        start,
        data,
        key=key,
        warmup=warmup,
        draws=draws,
        thin=thin,
        tick=tick,
    )


def nuts(
    log_density: LogDensity,
    layout: Layout,
    start: Array,
    data: Any,
    *,
    key: Array,
    warmup: int,
    draws: int,
    thin: int,
    tick: Tick,
    max_doublings: int = 8,
    acceptance: float = 0.8,
) -> Chains:
    """No-U-turn sampler, step size and diagonal metric adapted chain by chain.

    Parameters are those of :func:`mclmc`, and `max_doublings`: a trajectory has at most two to
    that power gradients. All chains wait for the one with the longest trajectory.
    """
    return _adjusted(
        "nuts",
        (("max_num_doublings", max_doublings),),
        acceptance,
        log_density,
        layout,
        start,
        data,
        key=key,
        warmup=warmup,
        draws=draws,
        thin=thin,
        tick=tick,
    )


def _adjusted(
    name: str,
    options: tuple[tuple[str, int], ...],
    acceptance: float,
    log_density: LogDensity,
    layout: Layout,
    start: Array,
    data: Any,
    *,
    key: Array,
    warmup: int,
    draws: int,
    thin: int,
    tick: Tick,
) -> Chains:
    tune_key, draw_key = jax.random.split(key)
    shared = (name, options, log_density, layout)
    dtype = start.dtype
    start = start.astype(jnp.result_type(float))  # BlackJAX wants the precision that JAX is set to
    state, parameters = _adjusted_warmup(*shared, acceptance, warmup, start, data, tune_key)
    tick(warmup)
    kept: list[Any] = []
    per_call = max(1, CHUNK // (4 * thin))
    for begin, end in _spans(0, draws, per_call):
        state, out = _adjusted_draws(
            *shared, per_call, state, parameters, data, draw_key, np.int32(begin), np.int32(thin)
        )
        kept.append(jax.tree.map(lambda column, n=end - begin: np.asarray(column[:n]), out))
        tick(warmup + end * thin)
    positions, values, rates, divergent = jax.tree.map(lambda *parts: np.concatenate(parts), *kept)
    return Chains(
        draws=jnp.asarray(positions.swapaxes(0, 1), dtype),
        log_density=jnp.asarray(values.T),
        acceptance=jnp.asarray(rates.mean(axis=0)),
        divergences=jnp.asarray(divergent.sum(axis=0)),
        step_size=parameters["step_size"],
    )


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def _adjusted_warmup(
    name: str,
    options: tuple[tuple[str, int], ...],
    log_density: LogDensity,
    layout: Layout,
    acceptance: float,
    warmup: int,
    start: Array,
    data: Any,
    key: Array,
) -> Any:
    adaptation = blackjax.window_adaptation(
        getattr(blackjax, name),
        partial(_flat_density, log_density, layout, data),
        target_acceptance_rate=acceptance,
        initial_step_size=1e-3,
        adaptation_info_fn=lambda *_: (),
        **dict(options),
    )

    def tune(key: Array, x: Array) -> Any:
        (state, parameters), _ = adaptation.run(key, x, warmup)
        # The options are known when compiling, and must stay so.
        tuned = {k: parameters[k] for k in ("step_size", "inverse_mass_matrix")}
        return state, tuned

    return jax.vmap(tune)(jax.random.split(key, len(start)), start)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), donate_argnums=(5,))
def _adjusted_draws(
    name: str,
    options: tuple[tuple[str, int], ...],
    log_density: LogDensity,
    layout: Layout,
    n_draws: int,
    state: Any,
    parameters: Any,
    data: Any,
    key: Array,
    begin: Array,
    thin: Array,
) -> Any:
    density = partial(_flat_density, log_density, layout, data)
    kernel = getattr(blackjax, name).build_kernel()
    chains = len(state.position)

    def transition(key: Array, state: Any, parameters: Any) -> Any:
        return kernel(key, state, density, **parameters, **dict(options))

    def one_draw(state: Any, i: Array) -> Any:
        def one_step(j: Array, carry: Any) -> Any:
            state, rate, divergent = carry
            keys = jax.random.split(jax.random.fold_in(key, i * thin + j), chains)
            state, info = jax.vmap(transition)(keys, state, parameters)
            return state, rate + info.acceptance_rate / thin, divergent + info.is_divergent

        none = jnp.zeros(chains, state.logdensity.dtype)
        carry = (state, none, jnp.zeros(chains, jnp.int32))
        state, rate, divergent = jax.lax.fori_loop(0, thin, one_step, carry)
        return state, (state.position, state.logdensity, rate, divergent)

    return jax.lax.scan(one_draw, state, begin + jnp.arange(n_draws))


def sghmc(
    log_density: LogDensity,
    layout: Layout,
    start: Array,
    data: Any,
    *,
    key: Array,
    warmup: int,
    draws: int,
    thin: int,
    tick: Tick,
    take: Callable[[Any, Array], Any],
    step_size: float = 0.1,
    leapfrogs: int = 10,
    friction: float = 1.0,
) -> Chains:
    """Stochastic-gradient Hamiltonian Monte Carlo, for data too large to go through at each step.

    Langevin dynamics with friction, each gradient from a batch of its own. In the warm-up every
    chain learns two things about each coordinate, and keeps them afterwards: the mean square of its
    gradients, which is the curvature of the log density plus the noise of the batches and sets the
    length of a move; and that noise, from the difference of one gradient and the next, so that it
    can be left out of the noise that is put in.

    Parameters are those of :func:`mclmc`, and

    Parameters
    ----------
    take : callable
        ``take(data, key) -> data``: a random batch, in the form that the density takes.
    step_size : float
        Of the discretisation, in units in which all coordinates have about the same scale.
    leapfrogs : int
        Gradients in one step.
    friction : float
        The momentum is forgotten over ``1 / (friction step_size)`` gradients.
    """
    settings = (step_size, friction, warmup * leapfrogs)
    advance = partial(_sghmc_advance, log_density, layout, take, data=data, settings=settings)
    zero = jnp.zeros_like(start)
    state = _Langevin(start, zero, zero, zero + jnp.inf, zero)
    kept = []
    spans = _spans(0, warmup, CHUNK) + _spans(warmup, warmup + draws * thin, thin)
    for first, last in spans:
        state = advance(state, key, first * leapfrogs, last * leapfrogs)
        if first >= warmup:
            kept.append(np.asarray(state.position))
        tick(last)
    positions = jnp.asarray(np.stack(kept, axis=1))
    unknown = jnp.full(len(start), jnp.nan)
    return Chains(
        draws=positions,
        log_density=jnp.full(positions.shape[:2], jnp.nan),
        acceptance=unknown,
        divergences=jnp.sum(~jnp.isfinite(positions).all(axis=2), axis=1),
        step_size=jnp.full(len(start), step_size),
    )


class _Langevin(NamedTuple):
    """All chains of SGHMC, each array (C, D)."""

    position: Array
    momentum: Array
    gradient: Array  # the last one
    square: Array  # running mean of its square
    noise: Array  # running estimate of its variance over batches


@partial(jax.jit, static_argnums=(0, 1, 2))
def _sghmc_advance(
    log_density: LogDensity,
    layout: Layout,
    take: Callable[[Any, Array], Any],
    state: _Langevin,
    key: Array,
    first: Array,
    last: Array,
    *,
    data: Any,
    settings: tuple[Array, Array, Array],
) -> _Langevin:
    """Take the gradients first, ..., last - 1, and learn their size while below warm-up."""
    step_size, friction, warmup = settings
    persistence = jnp.exp(-friction * step_size)
    # A tenth of the warm-up is remembered: what was measured far from equilibrium is forgotten.
    memory = jnp.exp(-10 / warmup)

    def one_gradient(i: Array, state: _Langevin) -> _Langevin:
        position, momentum, previous, square, noise = state
        batch_key, noise_key = jax.random.split(jax.random.fold_in(key, i))
        batch = take(data, batch_key)
        move = step_size / jnp.sqrt(1 + square)
        injected = jnp.sqrt(jnp.maximum(1 - persistence**2 - move**2 * noise, 0))
        # Half a drift, friction and noise, half a drift, a kick: exact for Gaussians.
        position = position + 0.5 * move * momentum
        momentum = persistence * momentum
        momentum = momentum + injected * jax.random.normal(
            noise_key, momentum.shape, momentum.dtype
        )
        position = position + 0.5 * move * momentum
        gradient = jax.vmap(jax.grad(partial(_flat_density, log_density, layout, batch)))(position)
        momentum = momentum + move * gradient
        # The first moves are those of the stiffest coordinate, whatever the others are like.
        largest = jnp.max(gradient**2, axis=1, keepdims=True)
        learned = jnp.where(
            i == 0,
            jnp.stack([jnp.broadcast_to(largest, square.shape), jnp.zeros_like(noise)]),
            memory * jnp.stack([square, noise])
            + (1 - memory) * jnp.stack([gradient**2, 0.5 * (gradient - previous) ** 2]),
        )
        square, noise = jnp.where(i < warmup, learned, jnp.stack([square, noise]))
        return _Langevin(position, momentum, gradient, square, noise)

    return jax.lax.fori_loop(first, last, one_gradient, state)


def _flat_density(log_density: LogDensity, layout: Layout, data: Any, flat: Array) -> Array:
    return log_density(layout.unflatten(flat), data)


def _spans(start: int, stop: int, width: int) -> list[tuple[int, int]]:
    return [(first, min(first + width, stop)) for first in range(start, stop, width)]
