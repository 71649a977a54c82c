"""Samplers with an acceptance step, hence without bias: HMC and NUTS."""

from __future__ import annotations

from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd.layout import Layout
from s2vgd.samplers._chains import CHUNK, Chains, LogDensity, Tick, flat_density, spans


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
    for begin, end in spans(0, draws, per_call):
        state, out = _adjusted_draws(
            *shared, per_call, state, parameters, data, draw_key, np.int32(begin), np.int32(thin)
        )
        kept.append(jax.tree.map(lambda column, n=end - begin: np.asarray(column[:n]), out))
        tick(warmup + end * thin)
    positions, values, rates, divergent = jax.tree.map(lambda *parts: np.concatenate(parts), *kept)
    return Chains(
        draws=positions.swapaxes(0, 1).astype(dtype),
        log_density=values.T,
        acceptance=rates.mean(axis=0),
        divergences=divergent.sum(axis=0),
        step_size=np.asarray(parameters["step_size"]),
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
        partial(flat_density, log_density, layout, data),
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
    density = partial(flat_density, log_density, layout, data)
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
