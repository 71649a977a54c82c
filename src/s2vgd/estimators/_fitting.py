"""From standardised rows to a posterior: SVGD, then refinement. No scikit-learn here."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from s2vgd import svgd, training
from s2vgd._threads import in_background
from s2vgd.bnn import BNN, Batch
from s2vgd.likelihoods import HeteroscedasticGaussian
from s2vgd.networks import Network
from s2vgd.posterior import Posterior
from s2vgd.refine import Diagnostics, Refined, compile_refinement, refine

# Beyond this many rows a gradient of all of them costs more than the noise of a batch does.
FULL_BATCH_ROWS = 2048
BATCH_ROWS = 512
REFINE_FULL_BATCH_ROWS = 20_000
# With fewer rows the prior rules, its tails are long, and a sampler without an acceptance step
# drifts out along them.
REFINE_EXACT_ROWS = 100
ROWS_FOLLOWED = 32


class Recipe(NamedTuple):
    """How to fit; see the estimators for what each of them means."""

    particles: int
    steps: int
    batch_size: int | None
    learning_rate: float
    refine: str | None
    chains: int | None
    warmup: int | None
    draws: int | None
    thin: int | None
    progress: bool | None
    checkpoint_dir: str | os.PathLike[str] | None

    @property
    def n_particles(self) -> int:
        """How many particles SVGD moves: with refinement, no more than there are chains."""
        return min(self.particles, (self.refine and self.chains) or self.particles)


class Fit(NamedTuple):
    """A posterior, the particles of SVGD that it started from, and how the fit went."""

    posterior: Posterior
    particles: Any
    history: dict[str, np.ndarray]
    diagnostics: Diagnostics | None


def fit(bnn: BNN, data: Batch, recipe: Recipe, seed: int, start: Any = None) -> Fit:
    """Fit a model.

    Parameters
    ----------
    bnn : BNN
        The model.
    data : Batch
        All rows, standardised.
    recipe : Recipe
        How.
    seed : int
        Decides everything random.
    start : pytree, optional
        Particles to go on from, in place of fresh ones.
    """
    init_key, train_key, refine_key = jax.random.split(jax.random.key(seed), 3)
    n_total = float(len(data.x) if data.weight is None else data.weight.sum())
    refinement = None
    if recipe.refine is not None:
        refinement = _Refinement.of(bnn, data, n_total, recipe)
        # Compiled on another core while SVGD is compiled and run on this one.
        compilation = in_background(refinement.compile, _like_particles(bnn, recipe, start))
    if start is None:
        particles = bnn.init_particles(init_key, recipe.n_particles)
    else:
        particles = jax.tree.map(lambda leaf: jnp.asarray(leaf[: recipe.n_particles]), start)
    stages = _stages(bnn, recipe, fresh=start is None)
    algorithm = _algorithm(bnn, n_total, stages)
    state = algorithm.init(particles)
    for stage in stages:
        # Each continuation is a run of its own, which the number of rows identifies.
        folder = stage.name if start is None else f"{stage.name}-{len(data.x)}-rows"
        directory = recipe.checkpoint_dir
        result = training.train(
            algorithm,
            state,
            _Rows(data, np.full(len(data.x), stage.tied)),
            key=train_key,
            steps=stage.steps,
            batch_size=recipe.batch_size,
            progress=recipe.progress,
            description=stage.name,
            checkpoint_dir=None if directory is None else Path(directory) / folder,
            settings={"model": repr(bnn), "stages": stages},
        )
        state = result.state
    particles, history = state.particles, result.history
    if refinement is None:
        n_particles = len(jax.tree.leaves(particles)[0])
        return Fit(Posterior(bnn, particles, n_particles), particles, history, None)
    compilation.result()
    refined = refinement.run(particles, refine_key)
    posterior = Posterior.from_chains(bnn, refined.draws)
    return Fit(posterior, particles, history, refined.diagnostics)


def default_steps(refine: str | None, batch_size: int | None) -> int:
    """Return how many steps of SVGD to make, if the user does not say."""
    if refine is not None:
        return 1000  # the chains go on from there
    return 4000 if batch_size is None else 8000


def sampler_for(n_rows: int) -> str:
    """Return the sampler that "auto" stands for."""
    if n_rows < REFINE_EXACT_ROWS:
        return "hmc"
    return "mclmc" if n_rows <= REFINE_FULL_BATCH_ROWS else "sghmc"


class _Stage(NamedTuple):
    """One run of SVGD; while the noise is tied it is the same for all rows."""

    name: str
    tied: bool
    steps: int
    learning_rate: float


def _stages(bnn: BNN, recipe: Recipe, fresh: bool) -> tuple[_Stage, ...]:
    """Return the runs of SVGD, one after the other.

    Input-dependent noise is learned last: a network that may call its misfit noise from the first
    step does so, and does not recover.
    """
    steps, rate = recipe.steps, recipe.learning_rate
    if not (fresh and isinstance(bnn.likelihood, HeteroscedasticGaussian)):
        return (_Stage("SVGD", False, steps, rate),)
    # Refinement moves on from wherever the noise is; without it SVGD has to learn the noise.
    free = max(1, steps // 10 if recipe.refine else steps)
    return _Stage("SVGD", True, steps, rate), _Stage("SVGD-noise", False, free, rate / 5)


class _Rows(NamedTuple):
    """What SVGD learns from.

    Whether the noise is tied is said row by row, as data, so that both stages run the same
    compiled program.
    """

    batch: Batch
    tied: np.ndarray


@functools.lru_cache(maxsize=64)
def _algorithm(bnn: BNN, n_total: float, stages: tuple[_Stage, ...]) -> svgd.Algorithm:
    def log_density(particle: Any, rows: _Rows) -> jax.Array:
        network = _TiedNoise(bnn.network, rows) if len(stages) > 1 else bnn.network
        model = dataclasses.replace(bnn, network=network)
        return model.log_joint(particle, rows.batch, n_total)

    schedules = [optax.cosine_decay_schedule(s.learning_rate, s.steps) for s in stages]
    ends = np.cumsum([stage.steps for stage in stages[:-1]]).tolist()
    return svgd.build(log_density, optax.adam(optax.join_schedules(schedules, ends)))


class _TiedNoise(NamedTuple):
    """A network with one raw noise scale for all tied rows: the mean of its own, by weight."""

    network: Network
    rows: _Rows

    def init(self, key: jax.Array) -> Any:
        return self.network.init(key)

    def apply(self, weights: Any, x: jax.Array) -> jax.Array:
        loc, raw = jnp.split(self.network.apply(weights, x), 2, axis=-1)
        level = jnp.average(raw, axis=0, weights=self.rows.batch.weight)
        return jnp.concatenate([loc, jnp.where(self.rows.tied[:, None], level, raw)], axis=-1)


class _Refinement(NamedTuple):
    """Everything that :func:`s2vgd.refine.refine` is to be called with, but particles and key."""

    log_density: Callable[[Any, Batch], jax.Array]
    data: Batch
    arguments: dict[str, Any]
    progress: bool | None

    @classmethod
    def of(cls, bnn: BNN, data: Batch, n_total: float, recipe: Recipe) -> _Refinement:
        arguments: dict[str, Any] = {
            "method": recipe.refine,
            "warmup": recipe.warmup,
            "draws": recipe.draws,
            "thin": recipe.thin,
            "predict": _followed(bnn),
        }
        if recipe.refine == "sghmc":
            arguments["take"] = _taker(recipe.batch_size or BATCH_ROWS)
        return cls(_log_density(bnn, n_total), data, arguments, recipe.progress)

    def compile(self, particles: Any) -> None:
        compile_refinement(self.log_density, particles, self.data, **self.arguments)

    def run(self, particles: Any, key: jax.Array) -> Refined:
        return refine(
            *(self.log_density, particles, self.data),
            key=key,
            progress=self.progress,
            **self.arguments,
        )


def _like_particles(bnn: BNN, recipe: Recipe, start: Any) -> Any:
    """Return zeros of the shapes that the particles will have."""
    if start is None:
        start = jax.eval_shape(lambda: bnn.init_particles(jax.random.key(0), recipe.n_particles))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), start)
    return jax.tree.map(lambda leaf: leaf[: recipe.n_particles], zeros)


# Cached, because what is compiled is kept by the identity of these functions.
@functools.lru_cache(maxsize=64)
def _log_density(bnn: BNN, n_total: float) -> Callable[[Any, Batch], jax.Array]:
    return lambda particle, batch: bnn.log_joint(particle, batch, n_total)


@functools.lru_cache(maxsize=64)
def _followed(bnn: BNN) -> Callable[[Any, Batch], jax.Array]:
    """Return the first component (locations or logits) of some rows, to judge the chains by."""

    def predict(particle: Any, batch: Batch) -> jax.Array:
        components = bnn.components(particle, batch.x[:ROWS_FOLLOWED])
        return next(components[k] for k in ("loc", "logits") if k in components).ravel()

    return predict


@functools.lru_cache(maxsize=8)
def _taker(batch_size: int) -> Callable[[Batch, jax.Array], Batch]:
    def take(data: Batch, key: jax.Array) -> Batch:
        rows = jax.random.randint(key, (min(batch_size, len(data.x)),), 0, len(data.x))
        return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0), data)

    return take
