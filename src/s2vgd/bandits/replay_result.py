"""What a replay counts, and what is estimated from the counts; the replaying is in ``replay``."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from s2vgd.bandits.news.events import Events
from s2vgd.errors import DataError


@dataclass(frozen=True)
class Replay:
    """The result of a replay; arrays have an entry at every ``every`` accepted events, P in all.

    Parameters
    ----------
    events, accepted, clicks : int
        Events of the log, those at which the policy chose what was displayed, and its clicks.
    random_ctr : float
        Click-through rate of the random policy on the whole log.
    every : int
        Accepted events from one point of the curve to the next.
    point_events, point_clicks : (P,) int arrays
        Events of the log that were used up, and clicks of the policy, at each point.
    point_random : (P,) array
        Click-through rate of the random policy on the log so far, at each point.
    window_random : (P,) array
        The same on the stretch of the log since the point before.
    """

    events: int
    accepted: int
    clicks: int
    random_ctr: float
    every: int
    point_events: np.ndarray
    point_clicks: np.ndarray
    point_random: np.ndarray
    window_random: np.ndarray

    @property
    def ctr(self) -> float:
        """Estimated click-through rate of the policy; NaN if no event was accepted."""
        return self.clicks / self.accepted if self.accepted else float("nan")

    @property
    def normalised_ctr(self) -> float:
        """The click-through rate divided by the random policy's."""
        return self.ctr / self.random_ctr if self.random_ctr else float("nan")

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return Wilson's score interval of the click-through rate."""
        if not 0 < level < 1:
            raise DataError(f"level: expected a number between 0 and 1, got {level}")
        return wilson_interval(self.clicks, self.accepted, level)

    def normalised_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the interval divided by the random policy's rate, taken as known.

        That rate has its own noise, but it comes from some twenty times as many events, the
        accepted ones among them: leaving it out makes the interval a little wide, not narrow.
        """
        low, high = self.interval(level)
        if not self.random_ctr:
            return 0.0, float("inf")
        return low / self.random_ctr, high / self.random_ctr

    @property
    def point_accepted(self) -> np.ndarray:
        """Accepted events at each point, (P,)."""
        return self.every * np.arange(1, len(self.point_clicks) + 1)

    @property
    def curve(self) -> np.ndarray:
        """Click-through rate of all accepted events up to each point, (P,)."""
        return self.point_clicks / self.point_accepted

    @property
    def normalised_curve(self) -> np.ndarray:
        """``curve`` divided by the random policy's rate on the same stretch of the log, (P,)."""
        return self.curve / self.point_random

    @property
    def window_curve(self) -> np.ndarray:
        """Click-through rate of the ``every`` accepted events before each point, (P,)."""
        return np.diff(self.point_clicks, prepend=0) / self.every

    @property
    def normalised_window_curve(self) -> np.ndarray:
        """``window_curve`` divided by the random policy's rate on the same stretch, (P,)."""
        return self.window_curve / self.window_random


class ReplayRecord:
    """Counts of a replay, and the points of its curve.

    Parameters
    ----------
    every : int
        Accepted events from one point of the curve to the next.
    """

    def __init__(self, every: int) -> None:
        self._every = at_least_one("every", every)
        self._events = self._accepted = self._clicks = 0
        # Sums over the log, of the clicks weighted by 1/A and of the weights.
        self._random = np.zeros(2)
        self._points: list[tuple[int, int, np.ndarray]] = []

    def add(self, events: Events, accepted: np.ndarray) -> None:
        """Count the next events of the log, of which some (N,) were accepted."""
        weight = 1 / events.pool_sizes
        random = np.cumsum([weight * events.click, weight], axis=1) + self._random[:, None]
        n_accepted = self._accepted + np.cumsum(accepted)
        n_clicks = self._clicks + np.cumsum(accepted & events.click)
        for i in np.flatnonzero(accepted & (n_accepted % self._every == 0)):
            self._points.append((self._events + int(i) + 1, int(n_clicks[i]), random[:, i]))
        if len(events):
            self._accepted, self._clicks = int(n_accepted[-1]), int(n_clicks[-1])
            self._random = random[:, -1]
        self._events += len(events)

    def result(self) -> Replay:
        """Return what was counted."""
        if self._events == 0:
            raise DataError("log: there is no event in it")
        sums = np.array([random for _, _, random in self._points]).reshape(-1, 2)
        window = np.diff(sums, axis=0, prepend=np.zeros((1, 2)))
        return Replay(
            events=self._events,
            accepted=self._accepted,
            clicks=self._clicks,
            random_ctr=float(self._random[0] / self._random[1]),
            every=self._every,
            point_events=np.array([events for events, _, _ in self._points], np.int64),
            point_clicks=np.array([clicks for _, clicks, _ in self._points], np.int64),
            point_random=sums[:, 0] / sums[:, 1],
            window_random=window[:, 0] / window[:, 1],
        )


def wilson_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion (Wilson 1927); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, shrink = successes / trials, 1 + z**2 / trials
    centre = (share + z**2 / (2 * trials)) / shrink
    half = z / shrink * (share * (1 - share) / trials + (z / (2 * trials)) ** 2) ** 0.5
    return max(centre - half, 0.0), min(centre + half, 1.0)


def at_least_one(name: str, value: int) -> int:
    """Return the value of an argument that must be positive."""
    if value < 1:
        raise DataError(f"{name}: expected at least 1, got {value}")
    return value
