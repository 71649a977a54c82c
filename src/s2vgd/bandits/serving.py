"""Any agent in use: decisions now, rewards later, and nothing lost when the process dies.

:class:`Live` puts an agent behind three calls, for all threads of a process. The state of an agent
is a function of its settings, its seed and the log (:mod:`s2vgd.bandits.log`): everything here
either appends to the log or is computed from it, by :mod:`s2vgd.bandits.learner`. The short way to
Stein Thompson sampling is in :mod:`s2vgd.bandits.live`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from s2vgd import _compiled
from s2vgd._description import is_complete
from s2vgd.bandits import snapshots
from s2vgd.bandits.agents import Agent
from s2vgd.bandits.arms import Arms
from s2vgd.bandits.contexts import ContextShape, checked_parts
from s2vgd.bandits.description import Decision, Setup
from s2vgd.bandits.learner import Learner, Pupil
from s2vgd.bandits.log import DecisionLog
from s2vgd.bandits.snapshots import Snapshot
from s2vgd.errors import DataError, ModelFileError
from s2vgd.priors import check_count

_LARGEST = float(np.finfo(np.float32).max)


class Live:
    """An agent behind an application.

    Calls may come from any thread. Decisions and rewards follow one another; learning does not keep
    them waiting: while :meth:`update` runs, decisions are made by the state before it.

    Parameters
    ----------
    agent : Agent
        Any of this package, or of your own.
    shape : ContextShape
        That the agent was built for.
    seed : int
        The n-th decision and the n-th reward learned have keys of their own, made from it.
    log : path-like, optional
        Where every decision and reward is written before the call returns. If the file exists, the
        agent takes up where it ended. Without a path the log is in memory, and is part of what
        :meth:`save` saves.
    durable : bool
        Whether each write waits for the disk, which makes it safe against power loss and not only
        against the death of the process.
    named_arms : bool
        Whether actions are arms with names, :meth:`add_arm`; there are none at first.
    reuse_slots : bool
        Whether the slot of an arm that was removed may be given to another; only where the agent
        knows arms by their features alone.
    """

    def __init__(
        self,
        agent: Agent,
        shape: ContextShape,
        *,
        seed: int = 0,
        log: str | os.PathLike[str] | None = None,
        durable: bool = False,
        named_arms: bool = False,
        reuse_slots: bool = False,
    ) -> None:
        self._start(Setup(agent, shape.check(), named_arms, reuse_slots), seed, log, durable)

    def _start(
        self,
        setup: Setup,
        seed: int,
        log: str | os.PathLike[str] | None,
        durable: bool,
        snapshot: Snapshot | None = None,
    ) -> None:
        _compiled.keep()
        self._setup = setup
        self._learner = Learner(setup.agent, setup.shape, seed)
        self._about = {
            "shape": list(setup.shape),
            "seed": int(seed),
            "named_arms": setup.named_arms,
            "reuse_slots": setup.reuse_slots,
            "settings": setup.settings,
            "state": self._learner.signature,
        }
        self._durable = bool(durable)
        self._lock = threading.RLock()
        self._learning = threading.Lock()
        content = None if snapshot is None else snapshot.log_content
        self._log = DecisionLog(log, self._about, durable=durable, content=content)
        try:
            self._arms = self._new_arms()
            if self._arms is not None:
                for change in self._log.arm_changes():
                    self._arms.apply(*change[2:])
            start = self._learner.blank()
            if snapshot is not None:
                start = self._learner.hold(*snapshot.restore(self._log, start.state))
            self._pupil = Pupil(self._learner, self._log, start)
        except BaseException:
            self._log.close()
            raise

    def _new_arms(self) -> Arms | None:
        setup = self._setup
        return Arms(setup.shape, setup.reuse_slots) if setup.named_arms else None

    # -- what an application calls -----------------------------------------------------------

    def decide(self, context: Any = None, actions: Any = None, available: Any = None) -> Decision:
        """Choose an action.

        Parameters
        ----------
        context : array-like, shape (F,)
            What is known now and shared by all actions; may be left out where F is 0.
        actions : array-like, shape (A, G), or mapping of str to array-like (G,)
            Features of the actions; with named arms, of those whose features are not the ones given
            to :meth:`add_arm`.
        available : array-like of bool, shape (A,), or iterable of str
            Which actions, or named arms, to choose from; all by default.

        Raises
        ------
        DataError
            If anything about the context is wrong. Nothing has then happened.
        DivergedError
            If the agent's expectations are not numbers. Nothing has then happened.
        """
        with self._lock:
            seen = self._context(context, actions, available)
            held = self._pupil.held
            made = self._learner.choose(held, self._log.n_decisions, seen)
            arm = None if self._arms is None else self._arms.name_of(made.action)
            decision_id = self._log.decide(held.version, seen, *made, arm)
        return Decision(decision_id, *made, arm)

    def reward(self, decision_id: str, value: float) -> bool:
        """Hand in the reward of a decision, however late and in whatever order.

        Parameters
        ----------
        decision_id : str
            From :class:`Decision`.
        value : float
            The reward, in the units of the agent's reward model.

        Returns
        -------
        bool
            Whether the reward is news. The same reward again changes nothing and is False.

        Raises
        ------
        DataError
            If the id is unknown, the value is not a reward, or another was handed in before.
        """
        try:
            number = float("nan" if isinstance(value, str) else value)
        except (TypeError, ValueError, OverflowError):
            raise DataError(f"value must be a number, got {value!r}") from None
        if not abs(number) <= _LARGEST:
            raise DataError(f"value must be finite in single precision, got {value!r}")
        if self._setup.binary_rewards and number not in (0.0, 1.0):
            raise DataError(f"value must be 0 or 1 for this reward model, got {value!r}")
        with self._lock:
            return self._log.reward(decision_id, number)

    def update(self, max_rewards: int | None = None) -> int:
        """Learn from the rewards that came since the last update, in the order in which they came.

        Parameters
        ----------
        max_rewards : int, optional
            The most to learn now; all by default.

        Returns
        -------
        int
            How many were learned. If there were any, :attr:`version` has grown by one.

        Raises
        ------
        DivergedError
            If learning leads to NaN. The agent stays as it was, and the rewards stay pending.
        """
        if max_rewards is not None:
            check_count("max_rewards", max_rewards, 1)
        with self._learning:
            held = self._pupil.whole()
            with self._lock:
                last, count = self._log.last_seq, self._log.n_rewards - held.learned
            count = count if max_rewards is None else min(count, int(max_rewards))
            if not count:
                return 0
            new = self._pupil.learn(last, count)
            with self._lock:
                self._log.update(new.version, new.up_to)
                self._pupil.held = new
        return count

    def compile(self) -> Self:
        """Compile what decisions and updates need now, and not while somebody waits for them."""
        self._learner.compile()
        return self

    @property
    def version(self) -> int:
        """How many updates have made the state that decides now."""
        return self._pupil.held.version

    @property
    def pending(self) -> int:
        """How many rewards wait for the next update."""
        with self._lock:
            return self._log.n_rewards - self._pupil.held.learned

    @property
    def log(self) -> DecisionLog:
        """The log, to be read."""
        return self._log

    @property
    def state(self) -> Any:
        """A copy of the state that decides now; an update that runs is waited for."""
        with self._learning:
            return self._pupil.copy().state

    def close(self) -> None:
        """Close the log; another process may then open it."""
        with self._learning, self._lock:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- arms --------------------------------------------------------------------------------

    @property
    def arms(self) -> tuple[str, ...]:
        """The names of the arms that are there now."""
        return self._arms.names if self._arms is not None else ()

    def add_arm(self, name: str, features: Any = None) -> int:
        """Let an arm come, and return its slot.

        Parameters
        ----------
        name : str
            Its name.
        features : array-like, shape (G,), optional
            What describes it, unless that is said at each decision.
        """
        with self._lock:
            slot, row = self._named().place(name, features)
            self._log.change_arm(True, name, slot, row)
            self._named().apply(True, name, slot, row)
        return slot

    def remove_arm(self, name: str) -> None:
        """Let an arm go. Rewards of its decisions are welcome still."""
        with self._lock:
            slot = self._named().slot_of(name)
            self._log.change_arm(False, name, slot)
            self._named().apply(False, name, slot)

    def _named(self) -> Arms:
        if self._arms is None:
            raise DataError("arms have no names here; build the agent with max_arms or named_arms")
        return self._arms

    # -- files and replay --------------------------------------------------------------------

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the state to a directory, atomically, so that it need not be learned again.

        The log holds everything else, and is named in the directory; a log in memory goes into it.

        Raises
        ------
        DataError
            If the settings hold something that cannot be described in JSON.
        """
        settings = self._setup.settings or {}
        foreign = [name for name, described in settings.items() if not is_complete(described)]
        if foreign:
            raise DataError(
                f"{', '.join(foreign)} cannot be described in a file; leave it at its default, or "
                "build the agent by stein_thompson and give it to Live and to Live.load"
            )
        with self._learning:
            held = self._pupil.copy()
        snapshot = snapshots.take(held, self._log, self._about, self._durable)
        snapshots.write(directory, snapshot)

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        agent: Agent | None = None,
        *,
        log: str | os.PathLike[str] | None = None,
        durable: bool | None = None,
    ) -> Self:
        """Go on from a saved state, and from what the log holds since.

        Parameters
        ----------
        directory : path-like
            Written by :meth:`save`.
        agent : Agent, optional
            The same functions as before. `SteinThompson` needs none.
        log : path-like, optional
            Where the log is now, if it was moved.
        durable : bool, optional
            As it was by default.

        Raises
        ------
        ModelFileError
            If the directory or the log is damaged or missing, or they do not belong together.
        """
        snapshot = snapshots.read(directory)
        path = snapshots.find_log(directory, snapshot, log)
        about = snapshot.metadata["about"]
        try:
            setup, seed = cls._setup_of(about, agent), about["seed"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise ModelFileError(f"{directory} describes no valid agent: {error}") from error
        live = cls.__new__(cls)
        is_durable = snapshot.metadata["durable"] if durable is None else durable
        live._start(setup, seed, path, is_durable, snapshot)
        return live

    @classmethod
    def _setup_of(cls, about: Mapping[str, Any], agent: Agent | None) -> Setup:
        """Return what a saved agent is made of."""
        if agent is None:
            raise DataError(
                "agent is needed to load this; only SteinThompson is saved with its own"
            )
        shape = ContextShape(*about["shape"]).check()
        return Setup(agent, shape, about["named_arms"], about["reuse_slots"])

    def replay(self, log: str | os.PathLike[str] | None = None) -> int:
        """Make all decisions of a log again, from an empty state, and compare them bit by bit.

        The agent itself stays as it is. Another processor or version of JAX may round differently;
        on the one that wrote the log, every decision must be the same.

        Parameters
        ----------
        log : path-like, optional
            A log of an agent with these settings; this one's own by default.

        Returns
        -------
        int
            How many decisions were made again.

        Raises
        ------
        DataError
            At the first decision, update or change of arms that differs.
        ModelFileError
            If the log belongs to an agent of other settings.
        """
        source = self._log if log is None else DecisionLog(log, self._about, readonly=True)
        try:
            return self._learner.replay(source, self._new_arms())
        finally:
            if source is not self._log:
                source.close()

    def _context(
        self, context: Any, actions: Any, available: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self._arms is not None:
            actions, available = self._arms.show(actions, available)
        return checked_parts(self._setup.shape, context, actions, available, name="context")
