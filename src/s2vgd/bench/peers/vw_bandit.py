"""A contextual bandit of Vowpal Wabbit: actions with features, exploration by bagging."""

from __future__ import annotations

import numpy as np
from vowpalwabbit import pyvw


class VowpalBandit:
    """An agent that is handed contexts as arrays, as an application has them.

    Parameters
    ----------
    arms : int
        Number of actions.
    bags : int
        Models, each of which learns from the rewards a random number of times.
    seed : int
        Of what it draws.

    Notes
    -----
    A model is linear in the products of each feature of the context with each action (``-q sa``).
    """

    def __init__(self, arms: int, bags: int, seed: int = 0) -> None:
        self._arms = arms
        self._rng = np.random.default_rng(seed)
        self._model = pyvw.Workspace(
            f"--cb_explore_adf --bag {bags} -q sa --quiet --random_seed {seed + 1}"
        )

    def decide(self, context: np.ndarray) -> tuple[int, float]:
        """Return an action and its probability."""
        chances = np.asarray(self._model.predict(self._example(context)))
        action = int(np.searchsorted(np.cumsum(chances), self._rng.random() * chances.sum()))
        action = min(action, self._arms - 1)
        return action, float(chances[action])

    def learn(self, context: np.ndarray, action: int, chance: float, reward: float) -> None:
        """Learn from a reward."""
        self._model.learn(self._example(context, action, chance, -reward))

    def close(self) -> None:
        """Give the memory back."""
        self._model.finish()

    def _example(
        self, context: np.ndarray, taken: int = -1, chance: float = 1.0, cost: float = 0.0
    ) -> list[str]:
        shared = " ".join(f"{i}:{value:.6g}" for i, value in enumerate(context.tolist()))
        label = f"0:{cost}:{chance} "
        return [
            f"shared |s {shared}",
            *(f"{label if arm == taken else ''}|a a{arm}" for arm in range(self._arms)),
        ]
