"""What off-policy evaluation is given: the log, and the policy and predictions that go with it.

Everything that comes from outside is checked here and nowhere else, so that the estimators, the
intervals and the tables can be plain arithmetic. What they compute is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from s2vgd.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SUM_TOLERANCE = 1e-5  # a softmax in float32 over many actions is off by about 1e-6


@dataclass(frozen=True, eq=False)
class LoggedData:
    """Decisions that were made, with what came of them; checked once, then immutable.

    Parameters
    ----------
    actions : array of shape (N,)
        The action taken in each row, an integer from 0 to `n_actions` - 1.
    rewards : array of shape (N,)
        What it brought.
    propensities : array of shape (N,)
        The probability with which the logging policy took that action in that row, in (0, 1]:
        as it was when the decision was made, not a later estimate.
    n_actions : int
        A, the number of actions there are, logged or not.
    contexts : array of shape (N, F), optional
        What was known when deciding; needed to predict rewards.
    positions : array of shape (N,), optional
        The slot in which the action was shown, a non-negative integer. A policy to be evaluated is
        then its distribution for that slot.
    availability : array of shape (N, A) of bool, optional
        Which actions could be taken in each row; all of them if not given.

    Raises
    ------
    DataError
        If anything is wrong; the message names the argument and the first offending row.
    """

    actions: Ints
    rewards: Floats
    propensities: Floats
    n_actions: int
    contexts: Floats | None = None
    positions: Ints | None = None
    availability: Bools | None = None

    def __post_init__(self) -> None:
        if isinstance(self.n_actions, bool) or not isinstance(self.n_actions, int | np.integer):
            raise DataError(f"n_actions must be an integer, got {self.n_actions!r}")
        if self.n_actions < 1:
            raise DataError(f"n_actions must be at least 1, got {self.n_actions}")
        n_actions = int(self.n_actions)

        actions = _integers("actions", self.actions)
        if actions.size == 0:
            raise DataError("actions is empty: there is nothing to evaluate on")
        n = actions.size
        _refuse(
            "actions", actions, (actions < 0) | (actions >= n_actions), f"be in 0..{n_actions - 1}"
        )

        rewards = finite("rewards", self.rewards, (n,))
        propensities = finite("propensities", self.propensities, (n,))
        wrong = (propensities <= 0) | (propensities > 1)
        _refuse("propensities", propensities, wrong, "be in (0, 1]")

        contexts = self.contexts
        if contexts is not None:
            contexts = finite("contexts", contexts, (n, None))
        positions = self.positions
        if positions is not None:
            positions = _integers("positions", positions)
            _expect_shape("positions", positions, (n,))
            _refuse("positions", positions, positions < 0, "not be negative")
        availability = self.availability
        if availability is not None:
            availability = np.array(availability)
            if availability.dtype != np.bool_:
                raise DataError(f"availability must be of bool, got {availability.dtype}")
            _expect_shape("availability", availability, (n, n_actions))
            gone = ~availability[np.arange(n), actions]
            _refuse("availability", actions, gone, "be true for the action taken")

        checked = {
            "actions": actions,
            "rewards": rewards,
            "propensities": propensities,
            "n_actions": n_actions,
            "contexts": contexts,
            "positions": positions,
            "availability": availability,
        }
        for name, value in checked.items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return self.actions.size

    def __repr__(self) -> str:
        extras = [
            name
            for name in ("contexts", "positions", "availability")
            if getattr(self, name) is not None
        ]
        kept = f", {', '.join(extras)}" if extras else ""
        return f"LoggedData({len(self)} rows, {self.n_actions} actions{kept})"

    def rows(self, index: Any) -> LoggedData:
        """Return the rows that an index, slice or mask of NumPy selects."""

        def pick(array: Any) -> Any:
            return None if array is None else array[index]

        return LoggedData(
            actions=pick(self.actions),
            rewards=pick(self.rewards),
            propensities=pick(self.propensities),
            n_actions=self.n_actions,
            contexts=pick(self.contexts),
            positions=pick(self.positions),
            availability=pick(self.availability),
        )

    def of_logged_actions(self, table: Floats) -> Floats:
        """Return, of a table of shape (N, A), the entry of the action taken in each row."""
        return table[np.arange(len(self)), self.actions]


def check_policy(data: LoggedData, policy: ArrayLike) -> Floats:
    """Return a policy as float64, or say what is wrong with it.

    Parameters
    ----------
    data : LoggedData
        The log it is to be evaluated on.
    policy : array of shape (N, A)
        Its probability of each action in each row.
    """
    distribution = finite("policy", policy, (len(data), data.n_actions))
    row, column = np.unravel_index(np.argmin(distribution), distribution.shape)
    if distribution[row, column] < 0:
        raise DataError(
            f"policy has a negative probability, {distribution[row, column]:g}, in row {row}"
        )
    sums = distribution.sum(axis=1)
    _refuse("policy", sums, np.abs(sums - 1) > _SUM_TOLERANCE, "sum to 1 in each row")
    if data.availability is not None:
        outside = np.where(data.availability, 0.0, distribution).sum(axis=1)
        _refuse("policy", outside, outside > _SUM_TOLERANCE, "give no mass to unavailable actions")
    return distribution


def check_predictions(data: LoggedData, predictions: ArrayLike) -> Floats:
    """Return predicted rewards of shape (N, A) as float64, or say what is wrong with them."""
    return finite("predictions", predictions, (len(data), data.n_actions))


def deterministic_policy(actions: ArrayLike, n_actions: int) -> Floats:
    """Return the distribution of a policy that always takes one action.

    Parameters
    ----------
    actions : array of shape (N,)
        The action it takes in each row.
    n_actions : int
        A.

    Returns
    -------
    ndarray of shape (N, A)
        One in the column of that action, zero elsewhere.
    """
    chosen = _integers("actions", actions)
    _refuse("actions", chosen, (chosen < 0) | (chosen >= n_actions), f"be in 0..{n_actions - 1}")
    return (chosen[:, None] == np.arange(n_actions)).astype(np.float64)


def finite(name: str, values: ArrayLike, shape: tuple[int | None, ...]) -> Floats:
    """Return a float64 copy of `shape` (None stands for any length), all of it finite."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be numbers: {error}") from error
    _expect_shape(name, array, shape)
    bad = ~np.isfinite(array)
    _refuse(name, array.reshape(len(array), -1), bad.reshape(len(array), -1), "be finite")
    return array


def _integers(name: str, values: ArrayLike) -> Ints:
    array = np.array(values)
    if array.ndim != 1:
        raise DataError(f"{name} must have one axis, got shape {array.shape}")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"{name} must be integers, got {array.dtype}")
    return array.astype(np.int64)


def _expect_shape(name: str, array: NDArray[Any], shape: tuple[int | None, ...]) -> None:
    fits = array.ndim == len(shape) and all(
        wanted is None or length == wanted
        for length, wanted in zip(array.shape, shape, strict=True)
    )
    if not fits:
        wanted_text = ", ".join("any" if length is None else str(length) for length in shape)
        wanted_text += "," if len(shape) == 1 else ""
        raise DataError(f"{name} must have shape ({wanted_text}), got {array.shape}")


def _refuse(name: str, values: NDArray[Any], wrong: Bools, requirement: str) -> None:
    """Raise if anything is `wrong`, naming the first such row and what is there."""
    if not wrong.any():
        return
    place = np.unravel_index(np.argmax(wrong), wrong.shape)
    count = int(wrong.reshape(len(wrong), -1).any(axis=1).sum())
    rows = "1 row breaks" if count == 1 else f"{count} rows break"
    raise DataError(
        f"{name} must {requirement}: {rows} this, first row {place[0]} with {values[place]:g}"
    )
