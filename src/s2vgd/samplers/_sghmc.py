"""Stochastic-gradient Hamiltonian Monte Carlo: gradients from batches of the data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd.layout import Layout
from s2vgd.samplers._chains import CHUNK, Chains, LogDensity, Tick, flat_density, spans


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

    Langevin dynamics with friction, each gradient from a batch of its own. Every chain learns two
    things about each coordinate: the mean square of its gradients, which is the curvature of the
    log density plus the noise of the batches and sets the length of a move; and that noise, from
    the difference of one gradient and the next, so that it can be left out of the noise that is put
    in. After the warm-up it goes on learning, ever more slowly: where the noise of the data depends
    on the input, gradients keep growing as the fit improves, and moves of the length that was right
    at the end of the warm-up end in infinity.

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
    for first, last in spans(0, warmup, CHUNK) + spans(warmup, warmup + draws * thin, thin):
        state = advance(state, key, first * leapfrogs, last * leapfrogs)
        if first >= warmup:
            kept.append(np.asarray(state.position))
        tick(last)
    positions = np.stack(kept, axis=1)
    return Chains(
        draws=positions,
        log_density=np.full(positions.shape[:2], np.nan),
        acceptance=np.full(len(positions), np.nan),
        divergences=np.sum(~np.isfinite(positions).all(axis=2), axis=1),
        step_size=np.full(len(positions), step_size),
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
    """Take the gradients first, ..., last - 1."""
    step_size, friction, warmup = settings
    persistence = jnp.exp(-friction * step_size)

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
        gradient = jax.vmap(jax.grad(partial(flat_density, log_density, layout, batch)))(position)
        momentum = momentum + move * gradient
        # The first moves are those of the stiffest coordinate, whatever the others are like.
        largest = jnp.max(gradient**2, axis=1, keepdims=True)
        # A tenth of the warm-up is remembered, then a tenth of everything: what was measured far
        # from equilibrium is forgotten.
        memory = jnp.exp(-10 / jnp.maximum(i + 1, warmup))
        square, noise = jnp.where(
            i == 0,
            jnp.stack([jnp.broadcast_to(largest, square.shape), jnp.zeros_like(noise)]),
            memory * jnp.stack([square, noise])
            + (1 - memory) * jnp.stack([gradient**2, 0.5 * (gradient - previous) ** 2]),
        )
        # A coordinate whose gradients have overflowed would never move again, and look like a draw.
        position = jnp.where(jnp.isfinite(square), position, jnp.nan)
        return _Langevin(position, momentum, gradient, square, noise)

    return jax.lax.fori_loop(first, last, one_gradient, state)
