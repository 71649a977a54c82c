"""An agent for use with a log: it chooses, learns what the log holds, and does it all again.

The state of an agent is a function of its seed and of the log: the key of decision n and that of
the n-th reward learned are folded from the seed. What is compiled is in
:mod:`s2vgd.bandits.programs`; threads, files and names of arms are in :mod:`s2vgd.bandits.live`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from s2vgd.bandits.agents import Agent
from s2vgd.bandits.arms import Arms
from s2vgd.bandits.contexts import ContextShape
from s2vgd.bandits.log import DecisionLog
from s2vgd.bandits.log_events import ArmChanged, Decided, Outcome, Updated
from s2vgd.bandits.programs import (
    CHUNK,
    Answer,
    Arrays,
    copied,
    keys_of,
    n_words,
    programs,
    root_of,
    to_words,
)
from s2vgd.errors import DataError, DivergedError
from s2vgd.priors import check_count

SPARE_EVERY = 64
"""Rewards between two copies of a state that learns in place, see :class:`Pupil`."""


class Held(NamedTuple):
    """A state of the agent and how it came about.

    Attributes
    ----------
    state : pytree
        Of the agent. Learning overwrites it, and leaves the arrays here deleted.
    shown : list of Array
        What decisions look at, made of the state; stays as it is.
    version : int
        How many updates made it.
    learned : int
        How many rewards it has learned.
    up_to : int
        The number of the last of these in the log.
    """

    state: Any
    shown: list[Array]
    version: int
    learned: int
    up_to: int


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
        self._programs = programs(agent, shape)
        self._start = root_of(seed, 0)
        self._act_key, self._learn_key = keys_of(seed, 1), keys_of(seed, 2)

    def blank(self) -> Held:
        """Return the state of an agent that has learned nothing."""
        return self.hold(self._programs.init(self._start), 0, 0, 0)

    def hold(self, state: Any, version: int, learned: int, up_to: int) -> Held:
        """Return a state with what it shows; its own memory is taken for that."""
        state, shown, _ = self._learn_chunk(state, 0, [])
        return Held(state, shown, version, learned, up_to)

    @property
    def signature(self) -> dict[str, str]:
        """The types of the arrays of the state, by their names."""
        state = jax.eval_shape(self._programs.init, self._start)
        leaves = jax.tree_util.tree_leaves_with_path(state)
        return {
            jax.tree_util.keystr(path, simple=True, separator="/"): f"{x.dtype}{list(x.shape)}"
            for path, x in leaves
        }

    def choose(self, held: Held, number: int, context: Arrays) -> Answer:
        """Make decision `number`.

        Raises
        ------
        DivergedError
            If the probabilities of the actions are not numbers.
        """
        words = to_words(self._act_key(number), context)
        answer = Answer.of(np.asarray(self._programs.act(held.shown, words)))
        if not np.isfinite(answer.propensities).all():
            raise DivergedError(
                f"version {held.version} of the agent gives no probabilities to the actions",
                step=held.learned,
                quantity="propensities",
            )
        return answer

    def learn(self, log: DecisionLog, held: Held, until: int, most: int | None = None) -> Held:
        """Learn the rewards that come after those already learned, in their order.

        Parameters
        ----------
        log : DecisionLog
            Has them.
        held : Held
            The state before, which is overwritten.
        until : int
            The last event to look at.
        most : int, optional
            The most rewards to learn.

        Raises
        ------
        DivergedError
            If that leads to NaN.
        """
        state, shown, _, learned, up_to = held
        end = log.n_rewards if most is None else held.learned + most
        is_lost = False
        while learned < end:
            outcomes = log.outcomes(up_to, until, min(CHUNK, end - learned))
            if not outcomes:
                break
            state, shown, has_nan = self._learn_chunk(state, learned, outcomes)
            is_lost |= has_nan
            learned, up_to = learned + len(outcomes), outcomes[-1].seq
        if is_lost:
            raise DivergedError(
                f"learning rewards {held.learned + 1} to {learned} led to NaN; a smaller learning "
                "rate, or rewards on a smaller scale, may help",
                step=learned,
                quantity="state",
            )
        return Held(state, shown, held.version + 1, learned, up_to)

    def catch_up(self, log: DecisionLog, held: Held) -> Held:
        """Learn again what the log says was learned after a state."""
        for update in log.updates(held.version):
            held = self.learn(log, held, update.up_to)
        return held

    def compile(self) -> None:
        """Compile everything, and change nothing."""
        n_actions, n_shared, n_own = self._shape
        blank = np.zeros(n_shared, np.float32), np.zeros((n_actions, n_own), np.float32)
        self.choose(self.blank(), 0, (*blank, np.ones(n_actions, bool)))

    def replay(self, log: DecisionLog, arms: Arms | None) -> int:
        """Make all decisions of a log again and compare them; see :meth:`.live.Live.replay`."""
        held, verified = self.blank(), 0
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
    ) -> tuple[Any, list[Array], bool]:
        """Return the state after these rewards, what it shows, and whether there is a NaN in it."""
        rows = np.zeros((CHUNK, n_words(self._shape)), np.int32)
        for i, (_, value, decision) in enumerate(outcomes):
            key = self._learn_key(learned + i)
            rows[i] = to_words(key, decision.context, decision.action, value)
        count = np.int32(len(outcomes))
        state, shown, has_nan = self._programs.learn(state, rows, count)
        return state, shown, bool(has_nan)  # which waits for all of them


class Pupil:
    """A state that learns in place, since a copy of all its rewards for each new one takes long.

    What learning has overwritten when it fails is made again: from a copy that is kept and is
    renewed now and then, and from the log.

    Parameters
    ----------
    learner : Learner
        Of the agent.
    log : DecisionLog
        What there is to learn.
    start : Held
        A state of the past, from which to catch up with the log.
    """

    def __init__(self, learner: Learner, log: DecisionLog, start: Held) -> None:
        self._learner, self._log = learner, log
        self.held = learner.catch_up(log, start)
        self._spare = self._copy(self.held)
        self._overwritten: Held | None = None

    def whole(self) -> Held:
        """Return the state, made again if a failure has cost it."""
        if self._overwritten is self.held or self.held.version != self._log.version:
            self.held = self._learner.catch_up(self._log, self._copy(self._spare))
        return self.held

    def learn(self, until: int, most: int) -> Held:
        """Return what :meth:`Learner.learn` makes of :attr:`held`, which can but decide then."""
        held = self.whole()
        if held.learned + most > self._spare.learned + SPARE_EVERY:
            self._spare = self._copy(held)
        self._overwritten = held
        return self._learner.learn(self._log, held, until, most)

    def copy(self) -> Held:
        """Return the state in memory of its own."""
        return self._copy(self.whole())

    @staticmethod
    def _copy(held: Held) -> Held:
        return held._replace(state=copied(held.state))


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
