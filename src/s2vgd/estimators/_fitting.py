"""From standardised rows to a posterior: SVGD, then refinement. No scikit-learn here."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from s2vgd import _compiled, loop, svgd, training
from s2vgd._threads import in_background
from s2vgd.bnn import BNN, Batch
from s2vgd.estimators._noise import Rows, frozen
from s2vgd.likelihoods import HeteroscedasticGaussian
from s2vgd.posterior import Posterior
from s2vgd.refine import Diagnostics, Refined, compile_refinement, length_of, refine

# Beyond this many rows a gradient of all of them costs more than the noise of a batch does.
FULL_BATCH_ROWS = 2048
BATCH_ROWS = 512
REFINE_FULL_BATCH_ROWS = 20_000
REFINE_FULL_BATCH_ROWS_ON_ACCELERATORS = 200_000
# With fewer rows the prior rules, its tails are long, and a sampler without an acceptance step
# drifts out along them.
REFINE_EXACT_ROWS = 100
ROWS_FOLLOWED = 32
# Steps times numbers of all particles: on two cores, some 4,000 steps for a table of 13 columns
# cost then half of what compiling for them in less time saves.
BRIEF_WORK = 8e7


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
    # The share of the particles, the last ones, whose noise stays tied; None to tie none and not
    # to compile for it either.
    tied: float | None = None
    purpose: str = ""

    @property
    def n_particles(self) -> int:
        """How many particles SVGD moves: with refinement, no more than there are chains."""
        return min(self.particles, (self.refine and self.chains) or self.particles)

    def n_free(self, n: int) -> int:
        """Return how many of n particles have noise that may depend on the input."""
        return n - round((self.tied or 0.0) * n)

    @property
    def draws_each(self) -> int:
        """How many draws a particle becomes."""
        if self.refine is None:
            return 1
        return length_of(self.refine, self.warmup, self.draws, self.thin).draws


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
    _compiled.keep()
    init_key, train_key, refine_key = _keys(seed)
    if start is None:
        particles = bnn.init_particles(init_key, recipe.n_particles)
    else:
        particles = jax.tree.map(lambda leaf: jax.device_put(leaf[: recipe.n_particles]), start)
    descent = _Descent(bnn, data, recipe, fresh=start is None)
    state = descent.algorithm.init(particles)
    refinement = None
    if recipe.refine is not None:
        refinement = _Refinement(bnn, data, recipe)
        # Compiled on another core while SVGD is compiled and run on this one.
        descent.lower(state, train_key)
        compilation = in_background(refinement.compile, particles, refine_key)
    particles, history = descent.run(state, train_key)
    if refinement is not None:
        compilation.result()
        refined = refinement.run(particles, refine_key)
        posterior = Posterior.from_chains(bnn, refined.draws)
        return Fit(posterior, particles, history, refined.diagnostics)
    free, tied = _split(particles, recipe)
    draws = particles if tied is None else _joined(free, frozen(tied))
    n_particles = len(jax.tree.leaves(draws)[0])
    return Fit(Posterior(bnn, draws, n_particles), particles, history, None)


@_compiled.jit("once")
def _keys(seed: int) -> tuple[jax.Array, ...]:
    return tuple(jax.random.split(jax.random.key(seed), 3))


class _Descent(NamedTuple):
    """The runs of SVGD, one after the other, from fresh particles or from those of another fit."""

    bnn: BNN
    data: Batch
    recipe: Recipe
    fresh: bool

    @property
    def stages(self) -> tuple[_Stage, ...]:
        return _stages(self.bnn, self.recipe, self.fresh)

    @property
    def algorithm(self) -> svgd.Algorithm:
        n_total = None if self.recipe.batch_size is None else _mass(self.data)
        rows_at_once = self.bnn.rows_at_once(self.recipe.n_particles)
        return _algorithm(self.bnn, n_total, rows_at_once, self.stages)

    def is_brief(self, state: svgd.State) -> bool:
        """Whether the steps will take less time than they would save by better compilation."""
        numbers = sum(leaf.size for leaf in jax.tree.leaves(state.particles))
        return numbers * sum(stage.steps for stage in self.stages) <= BRIEF_WORK

    def lower(self, state: svgd.State, key: jax.Array) -> None:
        """Leave nothing but compilation to be done before :meth:`run` runs."""
        rows, brief = Rows.of(self.data, self.stages[0].tied), self.is_brief(state)
        step, carried = self.algorithm.step, self.algorithm.carried
        loop.lower(step, state, rows, key, self.recipe.batch_size, brief, carried)

    def run(self, state: svgd.State, key: jax.Array) -> tuple[Any, dict[str, np.ndarray]]:
        """Move the particles; return them and the history of the last stage."""
        recipe, stages, brief = self.recipe, self.stages, self.is_brief(state)
        ends = []
        for stage in stages:
            # Each continuation is a run of its own, which the number of rows identifies.
            folder = stage.name if self.fresh else f"{stage.name}-{len(self.data.x)}-rows"
            directory = recipe.checkpoint_dir
            result = training.train(
                self.algorithm,
                state,
                Rows.of(self.data, stage.tied),
                key=key,
                steps=stage.steps,
                batch_size=recipe.batch_size,
                progress=recipe.progress,
                description=recipe.purpose + stage.name,
                checkpoint_dir=None if directory is None else Path(directory) / folder,
                brief=brief,
                settings={"model": repr(self.bnn), "stages": stages},
            )
            state = result.state
            ends.append(state.particles)
            if recipe.tied == 1.0:
                break
        # Particles whose noise stays tied are done when the others begin to learn theirs.
        free, tied = _split(ends[-1], recipe)[0], _split(ends[0], recipe)[1]
        return _joined(free, tied), result.history


def default_steps(refine: str | None, batch_size: int | None) -> int:
    """Return how many steps of SVGD to make, if the user does not say."""
    if refine not in (None, "sghmc"):
        return 1000  # the chains go on from there; those of SGHMC do not get far
    return 4000 if batch_size is None else 8000


def sampler_for(n_rows: int) -> str:
    """Return the sampler that "auto" stands for."""
    if n_rows < REFINE_EXACT_ROWS:
        return "hmc"
    on_cpu = jax.default_backend() == "cpu"
    most = REFINE_FULL_BATCH_ROWS if on_cpu else REFINE_FULL_BATCH_ROWS_ON_ACCELERATORS
    return "mclmc" if n_rows <= most else "sghmc"


class _Stage(NamedTuple):
    """One run of SVGD; while the noise is tied it is the same for all rows."""

    name: str
    tied: bool | None
    steps: int
    learning_rate: float
    flat: float = 0.0  # the share of the steps before the learning rate begins to fall

    @property
    def schedule(self) -> optax.Schedule:
        flat = int(self.flat * self.steps)
        fall = optax.cosine_decay_schedule(self.learning_rate, self.steps - flat)
        return optax.join_schedules([optax.constant_schedule(self.learning_rate), fall], [flat])


def _stages(bnn: BNN, recipe: Recipe, fresh: bool) -> tuple[_Stage, ...]:
    """Return the runs of SVGD, one after the other.

    Input-dependent noise is learned last: a network that may call its misfit noise from the first
    step does so, and does not recover.
    """
    steps, rate = recipe.steps, recipe.learning_rate
    # Large steps keep the particles apart, and where nothing follows that is all there is.
    flat = 0.75 if recipe.refine is None else 0.0
    learns_noise = isinstance(bnn.likelihood, HeteroscedasticGaussian)
    if not learns_noise or not (fresh or recipe.tied):
        return (_Stage("SVGD", None, steps, rate, flat),)
    # Refinement moves on from wherever the noise is; without it SVGD has to learn the noise.
    free = max(1, steps // 10 if recipe.refine else steps)
    return (
        _Stage("SVGD", True, steps, rate, flat),
        _Stage("SVGD-noise", False, free, rate / 5, flat),
    )


@functools.lru_cache(maxsize=64)
def _algorithm(
    bnn: BNN, n_total: float | None, rows_at_once: int | None, stages: tuple[_Stage, ...]
) -> svgd.Algorithm:
    ends = np.cumsum([stage.steps for stage in stages[:-1]]).tolist()
    optimizer = optax.adam(optax.join_schedules([stage.schedule for stage in stages], ends))
    return svgd.build(_log_density(bnn, n_total, rows_at_once), optimizer)


class _Refinement(NamedTuple):
    """Everything that :func:`s2vgd.refine.refine` is to be called with, but particles and key."""

    bnn: BNN
    data: Batch
    recipe: Recipe

    @property
    def _arguments(self) -> dict[str, Any]:
        recipe = self.recipe
        arguments: dict[str, Any] = {
            "method": recipe.refine,
            "warmup": recipe.warmup,
            "draws": recipe.draws,
            "thin": recipe.thin,
            "predict": _followed(self.bnn),
        }
        if recipe.refine == "sghmc":
            arguments["take"] = _taker(recipe.batch_size or BATCH_ROWS)
        return arguments

    @property
    def _log_density(self) -> Callable[[Any, Rows], jax.Array]:
        n_total = _mass(self.data) if self.recipe.refine == "sghmc" else None
        return _log_density(self.bnn, n_total)

    def compile(self, particles: Any, key: jax.Array) -> None:
        rows = Rows.of(self.data, None if self.recipe.tied is None else False)
        free, tied = _split(particles, self.recipe)
        compile_refinement(
            *(self._log_density, tied if free is None else free, rows),
            key=key,
            **self._arguments,
        )

    def run(self, particles: Any, key: jax.Array) -> Refined:
        """Refine particles with free and with tied noise apart, and put them together."""
        free, tied = _split(particles, self.recipe)
        parts = []
        if free is not None:
            rows = Rows.of(self.data, None if self.recipe.tied is None else False)
            parts.append(self._run_alike(free, rows, key, "refining"))
        if tied is not None:
            rows = Rows.of(self.data, True)
            description = "refining, constant noise"
            part = self._run_alike(tied, rows, jax.random.fold_in(key, 1), description)
            parts.append(part._replace(draws=jax.vmap(frozen)(part.draws)))
        report = Diagnostics.joined([part.diagnostics for part in parts])
        return Refined(_joined(*[part.draws for part in parts]), report)

    def _run_alike(self, particles: Any, rows: Rows, key: jax.Array, description: str) -> Refined:
        return refine(
            *(self._log_density, particles, rows),
            key=key,
            progress=self.recipe.progress,
            description=self.recipe.purpose + description,
            **self._arguments,
        )


def _split(particles: Any, recipe: Recipe) -> tuple[Any, Any]:
    """Return the particles with free and those with tied noise, None where there are none."""
    size = len(jax.tree.leaves(particles)[0])
    n = recipe.n_free(size)
    if n == size:
        return particles, None
    if n == 0:
        return None, particles
    particles = jax.tree.map(np.asarray, particles)
    free = jax.tree.map(lambda leaf: leaf[:n], particles)
    return free, jax.tree.map(lambda leaf: leaf[n:], particles)


def _joined(*parts: Any) -> Any:
    """Put sets of particles or chains, some of which may be None, one after the other."""
    present = [part for part in parts if part is not None]
    if len(present) == 1:
        return present[0]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *present)


def _mass(data: Batch) -> float:
    return float(len(data.x) if data.weight is None else data.weight.sum())


# Cached, because what is compiled is kept by the identity of these functions.
@functools.lru_cache(maxsize=64)
def _log_density(
    bnn: BNN, n_total: float | None, rows_at_once: int | None = None
) -> Callable[[Any, Rows], jax.Array]:
    return lambda particle, rows: rows.model(bnn).log_joint(
        particle, rows.batch, n_total, rows_at_once
    )


@functools.lru_cache(maxsize=64)
def _followed(bnn: BNN) -> Callable[[Any, Rows], jax.Array]:
    """Return the first component (locations or logits) of some rows, to judge the chains by."""

    def predict(particle: Any, rows: Rows) -> jax.Array:
        components = bnn.components(particle, rows.batch.x[:ROWS_FOLLOWED])
        return next(components[k] for k in ("loc", "logits") if k in components).ravel()

    return predict


@functools.lru_cache(maxsize=8)
def _taker(batch_size: int) -> Callable[[Rows, jax.Array], Rows]:
    def take(rows: Rows, key: jax.Array) -> Rows:
        n_rows = len(rows.batch.x)
        chosen = jax.random.randint(key, (min(batch_size, n_rows),), 0, n_rows)
        return jax.tree.map(lambda leaf: jnp.take(leaf, chosen, axis=0), rows)

    return take
