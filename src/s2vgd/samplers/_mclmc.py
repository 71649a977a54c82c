"""Microcanonical Langevin Monte Carlo, unadjusted: the default sampler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd import _compiled
from s2vgd._precise import matmul
from s2vgd.layout import Layout
from s2vgd.samplers._chains import CHUNK, Chains, LogDensity, Tick, flat_density, spans

# McLachlan's integrator of minimal norm (1995): the sizes of its kicks, and of the drifts between.
_KICKS = (0.1931833275037836, 1 - 2 * 0.1931833275037836, 0.1931833275037836)
_DRIFT = 0.5
_SMALL = 2048
"""Parameters up to which steps of chains lose next to nothing by being compiled in less time."""


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
    advance_chains = _briefly if dimension <= _SMALL else _mclmc_advance
    settings = tuple(np.asarray(value, start.dtype) for value in (*energy_variance, decoherence))

    def advance(state: Any, tuner: _Tuner, first: int, last: int, thin: int) -> Any:
        counts = np.array([first, last, thin, warmup], np.int32)
        return advance_chains(log_density, layout, state, tuner, key, counts, data, settings)

    # A step of size zero goes nowhere but fills in density and gradient. It costs no compilation.
    momentum = np.full(start.shape, dimension**-0.5, start.dtype)
    blank = _State(
        np.asarray(start), momentum, np.zeros_like(momentum[:, 0]), np.ones_like(momentum)
    )
    state, _, _ = advance(blank, _Tuner.fresh(chains, 0.0, start.dtype), warmup, warmup + 1, 1)
    tuner = _Tuner.fresh(chains, 1e-3 * dimension**0.5, start.dtype)
    for first, last in spans(0, warmup, CHUNK):
        state, tuner, _ = advance(state, tuner, first, last, 1)
        tick(last)
    tuner = tuner.settled()
    kept, densities = [], []
    per_call = max(1, CHUNK // thin)
    for begin, end in spans(0, draws, per_call):
        first, last = warmup + begin * thin, warmup + end * thin
        state, tuner, (positions, values) = advance(state, tuner, first, last, thin)
        kept.append(np.asarray(positions)[: end - begin])
        densities.append(np.asarray(values)[: end - begin])
        tick(last)
    return Chains(
        draws=np.concatenate(kept).swapaxes(0, 1),
        log_density=np.concatenate(densities).T,
        acceptance=np.full(chains, np.nan),
        divergences=np.asarray(tuner.divergences),
        step_size=np.asarray(tuner.step_size),
    )


class _State(NamedTuple):
    """Where the chains are, and what the density is there; BlackJAX's ``IntegratorState``."""

    position: Any
    momentum: Any
    logdensity: Any
    logdensity_grad: Any


class _Tuner(NamedTuple):
    """Step sizes of all chains, each (C,), and what they are estimated from."""

    step_size: Any
    unit: Any  # the first step size; sixth powers of others would leave the range of float32
    weight: Any
    inverse_sixth: Any  # running sum of (energy error / wanted)² (unit / step)⁶
    log_sum: Any
    n_summed: Any
    divergences: Any

    @classmethod
    def fresh(cls, chains: int, step_size: float, dtype: Any) -> _Tuner:
        zero = np.zeros(chains, dtype)
        step = np.full(chains, step_size, dtype)
        return cls(step, step, zero, zero, zero, zero, np.zeros(chains, np.int32))

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
        here = jax.tree.map(np.asarray, self)
        mean = np.exp(here.log_sum / np.maximum(here.n_summed, 1))
        return here._replace(step_size=np.where(here.n_summed > 0, mean, here.step_size))


def _advance(
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
    integrator = partial(_integrate, partial(flat_density, log_density, layout, data))

    def one_step(i: Array, carry: Any) -> Any:
        state, tuner, (positions, values) = carry
        moved, kinetic_change = jax.vmap(integrator)(state, tuner.step_size)
        error = kinetic_change - moved.logdensity + state.logdensity
        fine = jnp.isfinite(error) & jnp.isfinite(moved.logdensity_grad).all(axis=1)
        # A step into nowhere is undone, and the chain turns round.
        back = state._replace(momentum=-state.momentum)
        moved = jax.tree.map(partial(_where_chain, fine), moved, back)
        turned = _turned(jax.random.fold_in(key, i), moved.momentum, decoherence)
        state = moved._replace(momentum=turned)
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


_mclmc_advance = _compiled.jit("loop", static_argnums=(0, 1))(_advance)
_briefly = _compiled.jit("brief", static_argnums=(0, 1))(_advance)


def _integrate(
    density: Callable[[Array], Array], state: _State, step_size: Array
) -> tuple[_State, Array]:
    """Make McLachlan's step of size `step_size`; return where it leads and the kinetic change.

    BlackJAX's ``isokinetic_mclachlan``, its two gradients being rounds of a loop: half as much
    to compile.
    """
    *kicks, last = np.array(_KICKS, step_size.dtype)

    def half(k: Array, carry: Any) -> Any:
        state, change = carry
        momentum, more = _kick(
            state.momentum, state.logdensity_grad, step_size * jnp.asarray(kicks)[k]
        )
        position = state.position + _DRIFT * step_size * momentum
        value, gradient = jax.value_and_grad(density)(position)
        return type(state)(position, momentum, value, gradient), change + more

    state, change = jax.lax.fori_loop(0, len(kicks), half, (state, jnp.zeros_like(step_size)))
    momentum, more = _kick(state.momentum, state.logdensity_grad, step_size * last)
    return state._replace(momentum=momentum), change + more


def _kick(momentum: Array, gradient: Array, size: Array) -> tuple[Array, Array]:
    """Turn a unit vector (D,) towards a gradient (D,); return it and the change of kinetic energy.

    The exact flow of du/dt = (1 - u uᵀ) g / (D - 1) over a time `size`.
    """
    rest = momentum.shape[0] - 1
    norm = jnp.sqrt(matmul(gradient, gradient))
    towards = gradient / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny)
    along = matmul(momentum, towards)
    angle = size * norm / rest
    left = jnp.exp(-angle)
    turned = towards * (1 - left) * (1 + left + along * (1 - left)) + 2 * left * momentum
    turned /= jnp.sqrt(matmul(turned, turned))
    stretch = jnp.log(0.5 * (1 + along) * (1 - left**2) + left**2)
    return turned, (angle + stretch) * rest


def _where_chain(condition: Array, x: Array, y: Array) -> Array:
    """Choose chain by chain between arrays (C, ...)."""
    return jnp.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y)


def _turned(key: Array, momentum: Array, decoherence: Array) -> Array:
    """Turn unit vectors (C, D) a little, so that direction is lost in some `decoherence` steps.

    By random signs, one bit each: it takes many steps to turn, and their sum is normal anyway.
    """
    chains, dimension = momentum.shape
    words = jax.random.bits(key, (chains, -(-dimension // 32), 1), jnp.uint32)
    bits = (words >> jnp.arange(32, dtype=jnp.uint32)) & 1
    signs = 2.0 * bits.reshape(chains, -1)[:, :dimension].astype(momentum.dtype) - 1.0
    size = jnp.sqrt(jnp.expm1(2.0 / decoherence) / dimension)
    turned = momentum + size * signs
    return turned / jnp.linalg.norm(turned, axis=1, keepdims=True)
