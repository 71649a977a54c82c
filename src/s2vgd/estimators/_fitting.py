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

from s2vgd import svgd, training
from s2vgd.bnn import BNN, Batch
from s2vgd.likelihoods import HeteroscedasticGaussian
from s2vgd.networks import Network
from s2vgd.posterior import Posterior
from s2vgd.refine import Diagnostics, refine

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
    particles = bnn.init_particles(init_key, recipe.particles) if start is None else start
    history: dict[str, np.ndarray] = {}
    for name, tied, steps, rate in _stages(bnn, recipe, fresh=start is None):
        algorithm = _algorithm(bnn, n_total, tied, rate, steps)
        # Each continuation is a run of its own, which the number of rows identifies.
        folder = name if start is None else f"{name}-{len(data.x)}-rows"
        directory = recipe.checkpoint_dir
        result = training.train(
            algorithm,
            algorithm.init(particles),
            data,
            key=train_key,
            steps=steps,
            batch_size=recipe.batch_size,
            progress=recipe.progress,
            description=name,
            checkpoint_dir=None if directory is None else Path(directory) / folder,
            settings={"model": repr(bnn), "learning_rate": rate},
        )
        particles, history = result.state.particles, result.history
    if recipe.refine is None:
        n_particles = len(jax.tree.leaves(particles)[0])
        return Fit(Posterior(bnn, particles, n_particles), particles, history, None)
    options: dict[str, Any] = {}
    if recipe.refine == "sghmc":
        options["take"] = _taker(recipe.batch_size or BATCH_ROWS)
    refined = refine(
        _log_density(bnn, n_total),
        jax.tree.map(lambda leaf: leaf[: recipe.chains], particles),
        data,
        key=refine_key,
        method=recipe.refine,
        warmup=recipe.warmup,
        draws=recipe.draws,
        thin=recipe.thin,
        predict=_followed(bnn),
        progress=recipe.progress,
        **options,
    )
    posterior = Posterior.from_chains(bnn, refined.draws)
    return Fit(posterior, particles, history, refined.diagnostics)


def sampler_for(n_rows: int) -> str:
    """Return the sampler that "auto" stands for."""
    if n_rows < REFINE_EXACT_ROWS:
        return "hmc"
    return "mclmc" if n_rows <= REFINE_FULL_BATCH_ROWS else "sghmc"


def _stages(bnn: BNN, recipe: Recipe, fresh: bool) -> list[tuple[str, bool, int, float]]:
    """Return (name, whether the noise is tied, steps, learning rate) of each run of SVGD.

    Input-dependent noise is learned last: a network that may call its misfit noise from the first
    step does so, and does not recover.
    """
    steps, rate = recipe.steps, recipe.learning_rate
    if not (fresh and isinstance(bnn.likelihood, HeteroscedasticGaussian)):
        return [("SVGD", False, steps, rate)]
    # Refinement moves on from wherever the noise is; without it SVGD has to learn the noise.
    free = max(1, steps // 10 if recipe.refine else steps)
    return [("SVGD", True, steps, rate), ("SVGD-noise", False, free, rate / 5)]


@functools.lru_cache(maxsize=64)
def _algorithm(
    bnn: BNN, n_total: float, tied: bool, learning_rate: float, steps: int
) -> svgd.Algorithm:
    log_density = (_tied_log_density if tied else _log_density)(bnn, n_total)
    return svgd.build(log_density, training.cosine_adam(learning_rate, steps))


# Cached, because what is compiled is kept by the identity of these functions.
@functools.lru_cache(maxsize=64)
def _log_density(bnn: BNN, n_total: float) -> Callable[[Any, Batch], jax.Array]:
    return lambda particle, batch: bnn.log_joint(particle, batch, n_total)


def _tied_log_density(bnn: BNN, n_total: float) -> Callable[[Any, Batch], jax.Array]:
    def log_density(particle: Any, batch: Batch) -> jax.Array:
        network = _TiedNoise(bnn.network, batch.weight)
        return dataclasses.replace(bnn, network=network).log_joint(particle, batch, n_total)

    return log_density


class _TiedNoise(NamedTuple):
    """A network with one raw noise scale for all rows, the mean of its own, by their weights."""

    network: Network
    weight: jax.Array | None

    def init(self, key: jax.Array) -> Any:
        return self.network.init(key)

    def apply(self, weights: Any, x: jax.Array) -> jax.Array:
        loc, raw = jnp.split(self.network.apply(weights, x), 2, axis=-1)
        level = jnp.average(raw, axis=0, weights=self.weight)
        return jnp.concatenate([loc, jnp.broadcast_to(level, raw.shape)], axis=-1)


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
