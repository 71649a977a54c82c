"""Arms that have names and come and go, on the fixed number of slots that a compiled program has.

This is the bookkeeping alone: which name holds which slot, which features go with it, and what an
agent is shown of it. :mod:`s2vgd.bandits.live` logs every change before it is applied here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from s2vgd.bandits.contexts import ContextShape
from s2vgd.errors import DataError


class Arms:
    """Which arm is in which slot.

    Parameters
    ----------
    shape : ContextShape
        Its number of actions is the number of slots.
    reuse_slots : bool
        Whether a slot that an arm has left may be given to another. That is right where a model
        knows arms by their features alone. Where it has outputs, or a regression, for each slot,
        the newcomer would inherit what was learned of another arm: there, a slot is kept for the
        arm that had it, should that come back.
    """

    def __init__(self, shape: ContextShape, reuse_slots: bool) -> None:
        self._shape = shape
        self._reuse = reuse_slots
        self._present: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        self._features = np.zeros((shape.actions, shape.per_action), np.float32)
        self._is_described = np.zeros(shape.actions, bool)

    @property
    def names(self) -> tuple[str, ...]:
        """The arms that are there, in the order of their slots."""
        return tuple(sorted(self._present, key=self._present.__getitem__))

    def name_of(self, slot: int) -> str:
        """Return the name of the arm in a slot."""
        return next(name for name, held in self._present.items() if held == slot)

    def place(self, name: str, features: Any = None) -> tuple[int, np.ndarray | None]:
        """Return the slot and the checked features of an arm that is to be added.

        Raises
        ------
        DataError
            If the name or the features cannot be used, or no slot is left.
        """
        if not isinstance(name, str) or not name:
            raise DataError(f"name must be a string that is not empty, got {name!r}")
        if name in self._present:
            raise DataError(f"arm {name!r} is there already; remove it first to change it")
        checked = None if features is None else self._row(name, features)
        if not self._reuse and name in self._kept:
            return self._kept[name], checked
        taken = set(self._present.values()) | (set() if self._reuse else set(self._kept.values()))
        free = sorted(set(range(self._shape.actions)) - taken)
        if not free:
            raise DataError(self._no_room_for(name))
        return free[0], checked

    def slot_of(self, name: str) -> int:
        """Return the slot of an arm that is there."""
        if not isinstance(name, str) or name not in self._present:
            raise DataError(f"arm {name!r} is unknown; the arms are {self._listed()}")
        return self._present[name]

    def apply(self, added: bool, name: str, slot: int, features: np.ndarray | None = None) -> None:
        """Add an arm to the slot that :meth:`place` gave it, or remove it."""
        if not added:
            del self._present[name]
            return
        self._present[name] = self._kept[name] = slot
        self._is_described[slot] = features is not None or not self._shape.per_action
        self._features[slot] = 0.0 if features is None else features

    def show(
        self, actions: Mapping[str, Any] | None, available: Iterable[str] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what a context says of the arms.

        Parameters
        ----------
        actions : mapping of str to array-like (G,), optional
            Features that hold for this decision, in the place of those given with the arm.
        available : iterable of str, optional
            The arms to choose from; all that are there by default.

        Returns
        -------
        features : array, shape (A, G)
            Zero in the rows of slots that are not available.
        mask : array of bool, shape (A,)
            Which slots hold an arm to choose from.

        Raises
        ------
        DataError
            If an arm is unknown or has no features, or there is none to choose from.
        """
        if isinstance(available, str) or (actions is not None and not isinstance(actions, Mapping)):
            raise DataError(
                "arms have names here: actions must be a mapping from names to features, "
                "and available a list of names"
            )
        wanted = self._present if available is None else available
        slots = [self.slot_of(name) for name in wanted]
        mask = np.zeros(self._shape.actions, bool)
        mask[slots] = True
        features = self._features.copy()
        described = self._is_described.copy()
        for name, row in (actions or {}).items():
            slot = self.slot_of(name)
            features[slot], described[slot] = self._row(name, row), True
        if not mask.any():
            raise DataError("there is no arm to choose from; add_arm adds one")
        if (mask & ~described).any():
            name = self.name_of(int(np.argmax(mask & ~described)))
            raise DataError(f"arm {name!r} has no features; give them to add_arm, or as actions")
        features[~mask] = 0.0
        return features, mask

    def _row(self, name: str, features: Any) -> np.ndarray:
        wanted = (self._shape.per_action,)
        try:
            row = np.asarray(features, np.float32)
        except (TypeError, ValueError):
            raise DataError(f"features of arm {name!r} must be numbers, got {features!r}") from None
        if row.shape != wanted:
            raise DataError(f"features of arm {name!r} must have shape {wanted}, got {row.shape}")
        if not np.isfinite(row).all():
            raise DataError(f"features of arm {name!r} must be finite")
        return row

    def _listed(self) -> str:
        return ", ".join(map(repr, self.names)) or "none yet"

    def _no_room_for(self, name: str) -> str:
        size = self._shape.actions
        if self._reuse:
            return (
                f"no slot is left for arm {name!r}: all {size} are in use. Remove an arm, or start "
                f"anew with a larger max_arms, say {2 * size}, and a new log"
            )
        gone = sorted(set(self._kept) - set(self._present))
        return (
            f"no slot is left for arm {name!r}: each of the {size} is or was that of an arm "
            f"({len(gone)} of them gone), and what was learned of one must not be taken for "
            f"another. Start anew with a larger max_arms, say {2 * size}, and a new log; or "
            "describe arms by features (action_dim), with which slots are used again"
        )
