"""An agent compiled for use with a log: it chooses, learns what the log holds, and does it again.

The state of an agent is a function of its seed and of the log: the key of decision n and that of
the n-th reward learned are folded from the seed. Threads, files and names of arms are in
:mod:`s2vgd.bandits.live`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2vgd.bandits.agents import Agent
from s2vgd.bandits.arms import Arms
from s2vgd.bandits.buffer import Buffer
from s2vgd.bandits.contexts import Context, ContextShape
from s2vgd.bandits.log import DecisionLog
from s2vgd.bandits.log_events import ArmChanged, Decided, Outcome, Updated
from s2vgd.errors import DataError, DivergedError
from s2vgd.priors import check_count

CHUNK = 32
"""The most rewards that one call of the compiled program learns."""

Arrays = Sequence[np.ndarray]
"""A context as arrays: shared features (F,), features of the actions (A, G), availability (A,)."""


class Held(NamedTuple):
    """A state of the agent and how it came about; immutable.

    Attributes
    ----------
    state : pytree
        Of the agent.
    version : int
        How many updates made it.
    learned : int
        How many rewards it has learned.
    up_to : int
        The number of the last of these in the log.
    """

    state: Any
    version: int
    learned: int
    up_to: int


class Choice(NamedTuple):
    """A :class:`~s2vgd.bandits.agents.Choice` in plain numbers."""

    action: int
    propensity: float
    propensities: np.ndarray
    particle: int


class Learner:
    """The functions of an agent, compiled, with their keys.

    Parameters
    ----------
    agent : Agent
        The functions.
    shape : ContextShape
        Of its contexts.
    seed : int
        From 0 to 2^32 - 1.
    """

    def __init__(self, agent: Agent, shape: ContextShape, seed: int) -> None:
        check_count("seed", seed, 0)
        if seed >= 2**32:
            raise ValueError(f"seed must be below 2**32, got {seed}")
        self._shape = shape
        self._programs = _programs(agent)
        # The implementation is named, because the default is a setting that can be changed.
        root = jax.random.key(seed, impl="threefry2x32")
        start, act, learn = (jax.random.fold_in(root, i) for i in range(3))
        self._act_key, self._learn_key = jax.random.key_data(act), jax.random.key_data(learn)
        self.blank = Held(self._programs.init(start), 0, 0, 0)

    @property
    def signature(self) -> dict[str, str]:
        """The types of the arrays of the state, by their names."""
        leaves = jax.tree_util.tree_leaves_with_path(self.blank.state)
        return {
            jax.tree_util.keystr(path, simple=True, separator="/"): f"{x.dtype}{list(x.shape)}"
            for path, x in leaves
        }

    def choose(self, held: Held, number: int, context: Arrays) -> Choice:
        """Make decision `number`.

        Raises
        ------
        DivergedError
            If the probabilities of the actions are not numbers.
        """
        packed = np.asarray(
            self._programs.act(held.state, self._act_key, np.uint32(number), *context)
        )
        numbers = packed[2:].view(np.float32)
        if not np.isfinite(numbers).all():
            raise DivergedError(
                f"version {held.version} of the agent gives no probabilities to the actions",
                step=held.learned,
                quantity="propensities",
            )
        return Choice(int(packed[0]), float(numbers[0]), numbers[1:], int(packed[1]))

    def learn(self, log: DecisionLog, held: Held, until: int, most: int | None = None) -> Held:
        """Learn the rewards that come after those already learned, in their order.

        Parameters
        ----------
        log : DecisionLog
            Has them.
        held : Held
            The state before.
        until : int
            The last event to look at.
        most : int, optional
            The most rewards to learn.

        Raises
        ------
        DivergedError
            If that leads to NaN.
        """
        state, learned, up_to = held.state, held.learned, held.up_to
        end = log.n_rewards if most is None else held.learned + most
        is_lost = False
        while outcomes := log.outcomes(up_to, until, min(CHUNK, end - learned)):
            state, has_nan = self._learn_chunk(state, learned, outcomes)
            is_lost |= bool(has_nan)
            learned, up_to = learned + len(outcomes), outcomes[-1].seq
        if is_lost:
            raise DivergedError(
                f"learning rewards {held.learned + 1} to {learned} led to NaN; a smaller learning "
                "rate, or rewards on a smaller scale, may help",
                step=learned,
                quantity="state",
            )
        return Held(state, held.version + 1, learned, up_to)

    def catch_up(self, log: DecisionLog, held: Held) -> Held:
        """Learn again what the log says was learned after a state."""
        for update in log.updates(held.version):
            held = self.learn(log, held, update.up_to)
        return held

    def compile(self, held: Held) -> None:
        """Compile everything, and change nothing."""
        n_actions, n_shared, n_own = self._shape
        blank = np.zeros(n_shared, np.float32), np.zeros((n_actions, n_own), np.float32)
        self.choose(held, 0, (*blank, np.ones(n_actions, bool)))
        self._learn_chunk(held.state, 0, [])

    def replay(self, log: DecisionLog, arms: Arms | None) -> int:
        """Make all decisions of a log again and compare them; see :meth:`.live.Live.replay`."""
        held, verified = self.blank, 0
        for event in log.events():
            if isinstance(event, Updated):
                held = self.learn(log, held, event.up_to)
                _same(event, version=held.version, up_to=held.up_to)
            elif isinstance(event, ArmChanged) and arms is not None:
                place = arms.place(event.name, event.features)[0] if event.added else None
                _same(event, slot=arms.slot_of(event.name) if place is None else place)
                arms.apply(*event[2:])
            elif isinstance(event, Decided):
                made = self.choose(held, verified, event.context)
                arm = None if arms is None else arms.name_of(made.action)
                _same(event, number=verified, version=held.version, arm=arm, **made._asdict())
                verified += 1
        return verified

    def _learn_chunk(
        self, state: Any, learned: int, outcomes: Sequence[Outcome]
    ) -> tuple[Any, Array]:
        """Return the state after these rewards, and whether there is a NaN in it."""
        n_actions, n_shared, n_own = self._shape
        shared = np.zeros((CHUNK, n_shared), np.float32)
        features = np.zeros((CHUNK, n_actions, n_own), np.float32)
        available = np.ones((CHUNK, n_actions), bool)
        actions, rewards = np.zeros(CHUNK, np.int32), np.zeros(CHUNK, np.float32)
        for i, (_, value, decision) in enumerate(outcomes):
            shared[i], features[i], available[i] = decision.context
            actions[i], rewards[i] = decision.action, value
        numbers = np.uint32(learned), np.int32(len(outcomes))
        contexts = (shared, features, available)
        learn = self._programs.learn
        return jax.block_until_ready(
            learn(state, self._learn_key, *numbers, contexts, actions, rewards)
        )


class _Programs(NamedTuple):
    """The compiled programs of an agent."""

    init: Callable[..., Any]
    act: Callable[..., Array]
    learn: Callable[..., tuple[Any, Array]]


# Cached, so that agents of equal settings share what is compiled.
@functools.lru_cache(maxsize=64)
def _programs(agent: Agent) -> _Programs:
    @jax.jit
    def init(key: Array) -> Any:
        return jax.tree.map(_of_firm_type, agent.init(key))

    # One thread: a decision is too small to share out, and must not queue behind what is learned.
    @functools.partial(jax.jit, compiler_options={"xla_cpu_multi_thread_eigen": False})
    def act(
        state: Any, key: Array, number: Array, shared: Array, actions: Array, available: Array
    ) -> Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), number)
        choice = agent.act(state, key, Context(shared, actions, available))
        # All in one array: what is fetched from a device costs by the piece.
        whole = jnp.stack([choice.action, choice.particle]).astype(jnp.int32)
        parts = jnp.concatenate([choice.propensity[None], choice.propensities])
        bits = jax.lax.bitcast_convert_type(parts.astype(jnp.float32), jnp.int32)
        return jnp.concatenate([whole, bits])

    @jax.jit
    def learn(
        state: Any,
        key: Array,
        first: Array,
        count: Array,
        contexts: tuple[Array, Array, Array],
        actions: Array,
        rewards: Array,
    ) -> tuple[Any, Array]:
        root = jax.random.wrap_key_data(key, impl="threefry2x32")

        def one(i: Array, state: Any) -> Any:
            context = Context(*(part[i] for part in contexts))
            own_key = jax.random.fold_in(root, first + i.astype(jnp.uint32))
            return agent.update(state, own_key, context, actions[i], rewards[i])

        # The bound is an argument: any number of rewards runs this one program, and none of the
        # rows that fill up the arrays is ever looked at.
        state = jax.lax.fori_loop(0, count, one, state)
        return state, _has_nan(state)

    return _Programs(init, act, learn)


def _has_nan(state: Any) -> Array:
    """Whether there is a NaN in a state, not counting buffers: their rows were checked before."""
    parts = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Buffer))
    found = [
        jnp.any(jnp.isnan(leaf))
        for leaf in parts
        if not isinstance(leaf, Buffer) and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return jnp.any(jnp.stack(found)) if found else jnp.zeros((), bool)


def _of_firm_type(leaf: Array) -> Array:
    """Return a leaf without a weak type, which learning would lose and so compile all anew."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf if is_key else jax.lax.convert_element_type(leaf, leaf.dtype)


def _same(event: Any, **again: Any) -> None:
    """Raise at the first value that is not, bit by bit, what the event says."""
    for name, value in again.items():
        logged = getattr(event, name)
        is_same = (
            np.array_equal(value.view(np.int32), logged.view(np.int32))
            if isinstance(value, np.ndarray)
            else value == logged
        )
        if not is_same:
            what = f"decision {event.number}" if isinstance(event, Decided) else "it"
            raise DataError(
                f"the replay differs at event {event.seq}: {what} has {name} {logged} in the log, "
                f"and {value} when it is made again"
            )
