"""Agents in worlds: whole simulations as compiled loops over steps, side by side over seeds.

The steps between two looks from outside (progress, divergence, checkpoints) are one compiled
program whose length is an argument, so nothing is compiled twice and how a simulation is cut up
cannot change its result. Every step sees only the states, its own number and the keys of the seeds:
agents that are given the same seeds meet the same contexts and the same luck, and can be compared
in pairs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd import _compiled, checkpoints, files
from s2vgd.bandits.agents import Agent
from s2vgd.bandits.lanes import Lanes, in_groups
from s2vgd.bandits.worlds import Rules, World
from s2vgd.errors import DivergedError, ModelFileError
from s2vgd.priors import check_count
from s2vgd.progress import progress_bar

MAX_STEPS = 256
"""Most steps of one call of the compiled program."""
KIND = "bandit simulation"
VERSION = 1


class Record(NamedTuple):
    """What happened, by step; each has the shape (S, T) of S seeds and T steps.

    Attributes
    ----------
    action : int32
        The action taken.
    reward : float32
        Its reward.
    regret : float32
        The expected reward of the best available action, less that of the one taken.
    propensity : float32
        The probability with which the action was taken.
    particle : int32
        The opinion that decided, or -1.
    """

    action: Any
    reward: Any
    regret: Any
    propensity: Any
    particle: Any


class Simulation(NamedTuple):
    """What :func:`simulate` returns.

    Attributes
    ----------
    record : Record
        NumPy arrays of shape (S, T).
    states : pytree
        The agents at the end, with a leading axis S.
    seeds : tuple of int
        The seeds, in the order of the axis S.
    """

    record: Record
    states: Any
    seeds: tuple[int, ...]

    def curve(self, points: int = 1000) -> tuple[np.ndarray, np.ndarray]:
        """Return the cumulative regret at about `points` steps, the last one among them.

        Returns
        -------
        steps : ndarray, shape (P,)
            Counted from 1.
        regret : ndarray of float64, shape (S, P)
            One row a seed, since a mean would hide a seed that went astray.
        """
        check_count("points", points, 1)
        n_steps = self.record.regret.shape[1]
        steps = np.unique(np.linspace(1, n_steps, min(points, n_steps)).round().astype(int))
        steps[-1] = n_steps
        total = np.cumsum(self.record.regret, axis=1, dtype=np.float64)
        return steps, total[:, steps - 1]


def simulate(
    agent: Agent,
    world: World,
    steps: int,
    *,
    seeds: Sequence[int] | int = 1,
    progress: bool | None = False,
    description: str = "simulating",
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> Simulation:
    """Let an agent live in a world, once for each seed.

    Parameters
    ----------
    agent, world : Agent and World
        What is compiled for them is kept: simulating again with the same agent and a world of the
        same rules and shapes does not compile again.
    steps : int
        T, the number of decisions, counted from the first start when resumed.
    seeds : sequence of int, or int
        The seeds of the S runs, which go side by side; an int n stands for 0 ... n - 1. A run
        depends on its own seed, not on the others, up to the rounding of products of another shape.
    progress : bool or None
        Show a progress bar; None shows it only on a terminal.
    description : str
        The text before the progress bar.
    checkpoint_dir : path-like, optional
        A directory for the checkpoint, which is always replaced as a whole.
    checkpoint_every : int, optional
        Steps between two checkpoints; a tenth of the simulation by default. There is always one
        after the last step.
    resume : bool
        Go on from the checkpoint, if there is one; the result is that of an uninterrupted run, to
        the last bit with as many cores of the same machine. More steps than before make the
        simulation longer.
    settings : mapping, optional
        Anything, as JSON, that identifies agent and world. A checkpoint made with other settings,
        seeds, data, shapes or first states is refused.

    Raises
    ------
    DivergedError
        If a propensity, a reward, a regret, or the state of an agent becomes NaN or infinite.
    ModelFileError
        If the checkpoint cannot be read, or belongs to another simulation.
    """
    check_count("steps", steps, 1)
    seeds = _check_seeds(seeds)
    _compiled.keep()
    if checkpoint_every is None:
        checkpoint_every = max(1, steps // 10)
    check_count("checkpoint_every", checkpoint_every, 1)
    keys = _keys(seeds)
    states = _initial(agent.init)(keys)
    done, parts = 0, []
    store = None
    if checkpoint_dir is not None:
        identity = checkpoints.identify(
            {**(settings or {}), "seeds": list(seeds)}, data=world.data, first_states=states
        )
        store = _Store(Path(checkpoint_dir), identity)
        if resume and (found := store.load(states)) is not None:
            states, before = found
            parts, done = [before], before.action.shape[1]
            if done > steps:
                raise ValueError(
                    f"the checkpoint in {checkpoint_dir} is of step {done}, beyond the {steps} "
                    "wanted."
                )

    lanes = Lanes.of(states, len(seeds))
    run = compiled(agent, world.rules, lanes.group)
    in_lanes, of_lanes = lanes.cut(states), lanes.cut(keys)
    del states
    with progress_bar(progress, steps, description=description, done=done) as show:
        while done < steps:
            last = min(steps, done + MAX_STEPS)
            if store is not None:
                last = min(last, (done // checkpoint_every + 1) * checkpoint_every)
            limits = np.int32(done), np.int32(last)
            made = lanes.each(
                lambda states, keys, limits=limits: run(states, world.data, keys, *limits),
                in_lanes,
                of_lanes,
            )
            in_lanes = [states for states, _, _ in made]
            chunk = lanes.joined([rows for _, rows, _ in made], axis=1)
            part = Record(*(np.asarray(column)[: last - done].T for column in chunk))
            finite = lanes.joined([finite for _, _, finite in made])
            _raise_if_diverged(part, done, last, in_lanes[0], finite, seeds, store)
            parts.append(part)
            done = last
            show(done, None)
            if store is not None and (done % checkpoint_every == 0 or done == steps):
                parts = [_joined(parts)]
                store.save(lanes.joined(in_lanes), parts[0])
    return Simulation(_joined(parts), lanes.joined(in_lanes), seeds)


# Cached, because a compiled program is kept by the function that was compiled.
@functools.lru_cache(maxsize=64)
def compiled(agent: Agent, rules: Rules, group: int) -> Callable[..., tuple[Any, Record, Any]]:
    """Compile ``run(states, data, keys, first, last)``, in which so many seeds go at once.

    Returns
    -------
    run : callable
        Makes the decisions ``first`` to ``last - 1`` (counted from 0, at most `MAX_STEPS`) of all
        seeds; the states are used up. Returns the states, a Record of shape (MAX_STEPS, S) of which
        the first ``last - first`` rows count, and whether each leaf of the states is finite, (S,).
    """

    def one_step(state: Any, key: Array, data: Any, step: Array) -> tuple[Any, Record]:
        keys = jax.random.split(jax.random.fold_in(key, step), 4)
        context, hidden = rules.sample(data, keys[0], step)
        choice = agent.act(state, keys[1], context)
        reward = rules.reward(keys[2], hidden, choice.action)
        means = rules.expected(hidden)
        best = jnp.max(jnp.where(context.available, means, -jnp.inf))
        state = agent.update(state, keys[3], context, choice.action, reward)
        regret = best - means[choice.action]
        return state, Record(choice.action, reward, regret, choice.propensity, choice.particle)

    every_seed = jax.vmap(one_step, in_axes=(0, 0, None, None))

    def at_once(states: Any, data: Any, keys: Array, first: Array, last: Array) -> tuple[Any, ...]:
        def body(step: Array, carry: tuple[Any, Record]) -> tuple[Any, Record]:
            states, rows = carry
            states, new = every_seed(states, keys, data, step)
            rows = jax.tree.map(lambda held, row: held.at[step - first].set(row), rows, new)
            return states, rows

        _, shapes = jax.eval_shape(every_seed, states, keys, data, first)
        rows = jax.tree.map(lambda leaf: jnp.zeros((MAX_STEPS, *leaf.shape), leaf.dtype), shapes)
        states, rows = jax.lax.fori_loop(first, last, body, (states, rows))
        finite = [
            jnp.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)
            for leaf in jax.tree.leaves(states)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        return states, rows, finite

    def run(states: Any, data: Any, keys: Array, first: Array, last: Array) -> tuple[Any, ...]:
        def some(part: tuple[Any, Array]) -> tuple[Any, ...]:
            return at_once(part[0], data, part[1], first, last)

        return in_groups(some, (states, keys), group, axes=(0, 1, 0))

    return jax.jit(run, donate_argnums=0, compiler_options=_compiled.effort("live"))


@functools.lru_cache(maxsize=64)
def _initial(init: Callable[[Array], Any]) -> Callable[[Array], Any]:
    def first_state(key: Array) -> Any:
        # A key that no step is given: steps are counted from 0 upwards.
        state = init(jax.random.fold_in(key, np.uint32(2**32 - 1)))
        return jax.tree.map(_strong, state)

    return jax.jit(jax.vmap(first_state))


def _strong(leaf: Array) -> Array:
    """Return a leaf without a weak type, which a step would change: all would compile twice."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return jax.lax.convert_element_type(leaf, leaf.dtype)


def _keys(seeds: tuple[int, ...]) -> Array:
    return jnp.stack([jax.random.key(seed) for seed in seeds])


class _Store:
    """The place of the checkpoints of one simulation."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        files.check_target(path, kind=KIND)
        self._path = path
        self._identity = identity
        self.last_good: Path | None = None

    def save(self, states: Any, record: Record) -> None:
        arrays = files.tree_to_arrays(states, "states") | files.tree_to_arrays(record, "record")
        metadata = {"identity": self._identity}
        files.save_directory(self._path, arrays, metadata, kind=KIND, version=VERSION)
        self.last_good = self._path

    def load(self, like: Any) -> tuple[Any, Record] | None:
        if not files.is_saved(self._path):
            return None
        arrays, metadata, _ = files.load_directory(self._path, kind=KIND, max_version=VERSION)
        if differing := checkpoints.differences(metadata["identity"], self._identity):
            raise ModelFileError(
                f"the checkpoint in {self._path} belongs to another simulation, with other values "
                f"of {', '.join(differing[:5])}. Use another checkpoint_dir, or resume=False to "
                "start again and replace it."
            )
        self.last_good = self._path
        record = Record(*(arrays[f"record/{name}"] for name in Record._fields))
        return files.arrays_to_tree(arrays, like, "states"), record


def _joined(parts: list[Record]) -> Record:
    return Record(*(np.concatenate(columns, axis=1) for columns in zip(*parts, strict=True)))


def _raise_if_diverged(
    part: Record,
    first: int,
    last: int,
    states: Any,
    finite: list[Array],
    seeds: tuple[int, ...],
    store: _Store | None,
) -> None:
    """Look at the steps first + 1 ... last, that were just made, for anything not finite."""
    for quantity in ("propensity", "reward", "regret"):
        bad = np.argwhere(~np.isfinite(getattr(part, quantity)).T)
        if bad.size:
            step, run = bad[0]
            raise _diverged(first + 1 + int(step), quantity, seeds[run], store)
    names = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_leaves_with_path(states)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    for name, good in zip(names, map(np.asarray, finite), strict=True):
        if not good.all():
            raise _diverged(last, f"state {name}", seeds[int(np.argmin(good))], store)


def _diverged(step: int, quantity: str, seed: int, store: _Store | None) -> DivergedError:
    kept = store.last_good if store is not None else None
    advice = "A smaller learning rate often helps."
    if kept is not None:
        advice += f" The last good checkpoint is in {kept}."
    message = (
        f"the simulation diverged at step {step} of seed {seed}: the {quantity} became "
        f"non-finite. {advice}"
    )
    return DivergedError(message, step=step, quantity=quantity, checkpoint=kept)


def _check_seeds(seeds: Sequence[int] | int) -> tuple[int, ...]:
    if not isinstance(seeds, Sequence):
        check_count("seeds", seeds, 1)
        return tuple(range(int(seeds)))
    for i, seed in enumerate(seeds):
        check_count(f"seeds[{i}]", seed, 0)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be one or more different integers, got {seeds!r}")
    return tuple(int(seed) for seed in seeds)
