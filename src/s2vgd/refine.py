"""Refinement: one Markov chain from each particle, on the same log joint, and their draws pooled.

A few particles of SVGD in many dimensions lie too close together, and predictions made with them
are too sure of themselves. Chains that start at the particles need no search, and restore the
spread. The samplers are in :mod:`s2vgd.samplers`; here are the choice between them, their default
lengths, and the diagnostics that say whether to trust the result.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd import _compiled, diagnostics, samplers
from s2vgd._threads import in_background, n_cores, with_same_precision
from s2vgd.errors import DivergedError
from s2vgd.layout import Layout
from s2vgd.progress import progress_bar


class Length(NamedTuple):
    """How long to run: steps of tuning, draws kept of each chain, steps from one to the next."""

    warmup: int
    draws: int
    thin: int


LARGEST_R_HAT, FEWEST_DRAWS = 2.0, 20
"""What :meth:`Diagnostics.problems` lets pass: medians over the predictions."""

# Chosen for a fit of a thousand rows in tens of seconds on two cores.
DEFAULT_LENGTHS = {
    "mclmc": Length(5000, 100, 20),
    "hmc": Length(300, 100, 6),
    "nuts": Length(300, 100, 2),
    "sghmc": Length(1000, 100, 20),
}


def length_of(method: str, warmup: int | None, draws: int | None, thin: int | None) -> Length:
    """Return how long to run, the method's defaults standing in for None."""
    if method not in DEFAULT_LENGTHS:
        known = ", ".join(map(repr, DEFAULT_LENGTHS))
        raise ValueError(f"method must be one of {known}, got {method!r}")
    given = {"warmup": warmup, "draws": draws, "thin": thin}
    lengths = {k: _check_length(k, v) for k, v in given.items() if v is not None}
    return DEFAULT_LENGTHS[method]._replace(**lengths)


class RefinementWarning(UserWarning):
    """The chains did not do well enough for their draws to be taken at face value."""


class Diagnostics(NamedTuple):
    """How the chains did: C chains, S draws each, R predictions that were followed.

    Parameters
    ----------
    method : str
        The sampler.
    acceptance : array, shape (C,)
        Mean acceptance probability; NaN for samplers without an acceptance step.
    divergences : array, shape (C,)
        Transitions after warm-up at which the numbers ran away.
    divergence_rate : float
        Their share of all transitions.
    r_hat : array, shape (R,)
        Split R-hat of each prediction: 1 when all chains agree.
    effective_draws : array, shape (R,)
        Effective number of independent draws of each prediction, of C S in all.
    log_density : array, shape (C, S)
        Of each draw; NaN for stochastic-gradient samplers.
    step_size : array, shape (C,)
        As tuned.
    """

    method: str
    acceptance: np.ndarray
    divergences: np.ndarray
    divergence_rate: float
    r_hat: np.ndarray
    effective_draws: np.ndarray
    log_density: np.ndarray
    step_size: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Diagnostics]) -> Diagnostics:
        """Describe chains of several runs, which need not agree with those of another run."""
        if len(parts) == 1:
            return parts[0]
        sizes = [len(part.acceptance) for part in parts]
        chains = ("acceptance", "divergences", "log_density", "step_size")
        return cls(
            method=parts[0].method,
            divergence_rate=float(np.average([p.divergence_rate for p in parts], weights=sizes)),
            r_hat=np.max([part.r_hat for part in parts], axis=0),
            effective_draws=np.sum([part.effective_draws for part in parts], axis=0),
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in chains},
        )

    def problems(self) -> list[str]:
        """Say in words what is wrong; empty when nothing is."""
        found = []
        if self.divergence_rate > 0.01:
            found.append(
                f"{self.divergence_rate:.0%} of the steps ran off to infinity and were undone, so "
                "some regions were not visited (longer warm-up helps, as does standardised input)"
            )
        if np.nanmin(self.acceptance, initial=1.0) < 0.4:
            found.append(
                f"a chain accepted only {np.nanmin(self.acceptance):.0%} of its steps and hardly "
                "moved (a longer warm-up helps)"
            )
        if self.r_hat.size and np.median(self.r_hat) > LARGEST_R_HAT:
            found.append(
                f"the chains disagree about the predictions (median R-hat "
                f"{np.median(self.r_hat):.1f}, 1 is perfect): each explored a part of its own, and "
                "pooled error bars are a rough guide (more steps or more particles help)"
            )
        if self.effective_draws.size and np.median(self.effective_draws) < FEWEST_DRAWS:
            found.append(
                f"the draws are worth only {np.median(self.effective_draws):.0f} independent ones, "
                "so intervals beyond 90 % are coarse (more draws, or more steps between them, help)"
            )
        return found


class Refined(NamedTuple):
    """Draws as a pytree, leaves (C, S, ...), and how the chains did."""

    draws: Any
    diagnostics: Diagnostics


def refine(
    log_density: Callable[[Any, Any], Array],
    particles: Any,
    data: Any = None,
    *,
    key: Array,
    method: str = "mclmc",
    warmup: int | None = None,
    draws: int | None = None,
    thin: int | None = None,
    predict: Callable[[Any, Any], Array] | None = None,
    progress: bool | None = False,
    description: str = "refining",
    **options: Any,
) -> Refined:
    """Start a chain at each particle and collect its draws.

    Parameters
    ----------
    log_density : callable
        ``log_density(particle, data) -> scalar``. What is compiled is kept for as long as the very
        same function is passed.
    particles : pytree
        Where to start; leaves have a leading axis C.
    data : pytree, optional
        Passed on to `log_density` and `predict`.
    key : key
        Decides everything random.
    method : {"mclmc", "hmc", "nuts", "sghmc"}
        The sampler; see :mod:`s2vgd.samplers`. "sghmc" needs ``take``, which draws a batch.
    warmup, draws, thin : int, optional
        Steps of tuning, draws kept of each chain, and steps from one draw to the next.
    predict : callable, optional
        ``predict(particle, data) -> (R,)``: the quantities whose R-hat and effective number of
        draws are computed. Weights themselves are no good for that: two networks with their hidden
        units in another order are far apart and predict the same.
    progress : bool or None
        Show a progress bar; None shows it only on a terminal.
    description : str
        The text before the progress bar.
    **options
        Passed on to the sampler, for example ``energy_variance=(0.5, 5e-4)`` for "mclmc".

    Returns
    -------
    Refined
        The draws and their diagnostics.

    Raises
    ------
    DivergedError
        If a draw is not finite.

    Warns
    -----
    RefinementWarning
        If the diagnostics are bad, in words.
    """
    length = length_of(method, warmup, draws, thin)
    sizes = {leaf.shape[:1] for leaf in jax.tree.leaves(particles)}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(f"particles must share one leading axis, got sizes {sorted(sizes)}")
    layout = Layout.of(particles)
    start = layout.flatten(jax.tree.map(np.asarray, particles))
    if not np.isfinite(start).all():
        raise ValueError("particles must be finite to start chains from")
    total = length.warmup + length.draws * length.thin
    run = partial(getattr(samplers, method), log_density, layout, data=data, **options)
    with progress_bar(progress, total, description=description) as show:
        chains = _run_in_groups(partial(run, **length._asdict()), start, key, show)
    if not np.isfinite(chains.draws).all():
        raise DivergedError(
            f"a chain of {method!r} left the finite numbers during sampling; a smaller step size "
            "or standardised data often help",
            step=length.warmup,
            quantity="draws",
        )
    r_hat = effective = np.zeros(0)
    if predict is not None and length.draws >= 4:
        followed = diagnostics.split(np.asarray(_follow(predict, layout, chains.draws, data)))
        r_hat = diagnostics.r_hat(followed)
        effective = diagnostics.effective_sample_size(followed)
    report = Diagnostics(
        method=method,
        acceptance=np.asarray(chains.acceptance),
        divergences=np.asarray(chains.divergences),
        divergence_rate=float(np.mean(chains.divergences)) / (length.draws * length.thin),
        r_hat=r_hat,
        effective_draws=effective,
        log_density=np.asarray(chains.log_density),
        step_size=np.asarray(chains.step_size),
    )
    for problem in report.problems():
        warnings.warn(problem, RefinementWarning, stacklevel=2)
    return Refined(layout.unflatten(chains.draws), report)


def compile_refinement(
    log_density: Callable[[Any, Any], Array],
    particles: Any,
    data: Any = None,
    *,
    key: Array | None = None,
    method: str = "mclmc",
    warmup: int | None = None,
    draws: int | None = None,
    thin: int | None = None,
    predict: Callable[[Any, Any], Array] | None = None,
    **options: Any,
) -> None:
    """Compile what :func:`refine` will run when it is called with the same arguments.

    Of the particles only the shapes matter, and it need not be the same key. Meant for another
    thread, while this one still moves the particles. Samplers whose lengths are part of the
    compiled program ("hmc", "nuts") are left alone: they could not be compiled without being run.
    """
    n_draws = length_of(method, warmup, draws, thin).draws
    layout = Layout.of(particles)
    start = layout.flatten(jax.tree.map(np.asarray, particles))
    size = _group_size(len(start))
    key = jax.random.key(0) if key is None else key
    group_key, *_ = _group_keys(key, len(start), size)
    if method in ("mclmc", "sghmc"):
        getattr(samplers, method)(
            *(log_density, layout, start[:size], data),
            **{"key": group_key, "warmup": 1, "draws": 1, "thin": 1},
            tick=lambda step: None,
            **options,
        )
    if predict is not None and n_draws >= 4:  # not needed before the chains are done
        in_background(_follow, predict, layout, np.repeat(start[:, None], n_draws, 1), data)


def _run_in_groups(
    run: Callable[..., samplers.Chains], start: np.ndarray, key: Array, show: Callable[..., None]
) -> samplers.Chains:
    """Run a sampler on a few chains at a time, each group in a thread of its own.

    A step of a small network is too little work to be shared between the cores of a CPU, and takes
    longer when it is. Groups do not depend on one another, hence not on the number of cores.
    """
    size = _group_size(len(start))
    firsts = range(0, len(start), size)
    done = dict.fromkeys(firsts, 0)
    lock, stop = threading.Lock(), threading.Event()

    def run_group(first: int, group_key: Array) -> samplers.Chains:
        def tick(step: int) -> None:
            if stop.is_set():
                raise InterruptedError("another group of chains has failed")
            with lock:
                done[first] = step
                show(sum(done.values()) // len(done), None)

        return run(start=start[first : first + size], key=group_key, tick=tick)

    pool = ThreadPoolExecutor(min(len(firsts), n_cores()))
    try:
        keys = _group_keys(key, len(start), size)
        groups = list(pool.map(with_same_precision(run_group), firsts, keys))
    finally:
        stop.set()  # after a failure or Ctrl-C the others end at their next tick
        pool.shutdown(cancel_futures=True)
    return jax.tree.map(lambda *parts: np.concatenate(parts), *groups)


def _group_size(chains: int) -> int:
    if jax.default_backend() != "cpu":
        return chains
    return 2 if chains % 2 == 0 else 1


@_compiled.jit("once", static_argnums=(1, 2))
def _group_keys(key: Array, chains: int, size: int) -> tuple[Array, ...]:
    """Return a key for each group, which the number of its first chain decides."""
    firsts = jnp.arange(0, chains, size, jnp.uint32)
    return tuple(jax.vmap(partial(jax.random.fold_in, key))(firsts))


@_compiled.jit("once", static_argnums=(0, 1))
def _follow(predict: Callable[[Any, Any], Array], layout: Layout, draws: Array, data: Any) -> Array:
    """Return the predictions of all draws (C, S, D), as (C, S, R)."""

    def of_chains(flat: Array) -> Array:
        return jax.vmap(lambda one: predict(layout.unflatten(one), data))(flat)

    return jax.lax.map(of_chains, draws.swapaxes(0, 1)).swapaxes(0, 1)


def _check_length(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return int(value)
