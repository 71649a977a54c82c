"""Whom the bandit experiments compare: every agent by name, built from settings as JSON has them.

An agent is added by a line in :data:`BUILDERS`, and its settings by one in
:func:`s2vgd.experiments.mushroom.settings`. There is no hybrid LinUCB: it shares weights between
actions by the features of the actions, and actions of these worlds have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from s2vgd import bandits
from s2vgd.bandits import Agent, ContextShape
from s2vgd.experiments.harness import NotRun
from s2vgd.priors import FixedPrior


def _uniform(shape: ContextShape) -> Agent:
    return bandits.uniform()


BUILDERS: dict[str, Callable[..., Agent]] = {
    "s2vgd": bandits.stein_thompson,
    "svgd": bandits.stein_thompson,
    "s2vgd_linear": bandits.stein_thompson,
    "svgd_linear": bandits.stein_thompson,
    "s2vgd_optimistic": bandits.stein_thompson,
    "svgd_optimistic": bandits.stein_thompson,
    "s2vgd_bounded": bandits.stein_thompson,
    "svgd_bounded": bandits.stein_thompson,
    "s2vgd_paper": bandits.stein_thompson,
    "svgd_paper": bandits.stein_thompson,
    "vmg": bandits.vmg_thompson,
    "epsilon_greedy_0": bandits.epsilon_greedy,
    "epsilon_greedy_1": bandits.epsilon_greedy,
    "epsilon_greedy_3": bandits.epsilon_greedy,
    "epsilon_greedy_0_paper": bandits.epsilon_greedy,
    "epsilon_greedy_1_paper": bandits.epsilon_greedy,
    "epsilon_greedy_3_paper": bandits.epsilon_greedy,
    "greedy_fixed": bandits.epsilon_greedy,
    "linucb": bandits.lin_ucb,
    "lints": bandits.lin_ts,
    "lints_unknown": bandits.lin_ts,
    "neural_linear": bandits.neural_linear,
    "bootstrap": bandits.bootstrap_thompson,
    "uniform": _uniform,
}

REWARDS: dict[str, Callable[..., bandits.RewardModel]] = {
    "gaussian": bandits.gaussian,
    "heteroscedastic": bandits.heteroscedastic,
    "bernoulli": bandits.bernoulli,
    "categorical": bandits.categorical,
}


def build(method: str, shape: ContextShape, settings: Mapping[str, Any]) -> Agent:
    """Return an agent for contexts of a shape.

    Parameters
    ----------
    method : str
        One of :data:`BUILDERS`.
    shape : ContextShape
        Of the world's contexts.
    settings : mapping
        Arguments of the builder, as JSON has them: ``reward`` is the name of a reward model and its
        arguments, ``["gaussian", 10.0]``; ``learning`` and ``prior`` are those of
        :class:`~s2vgd.bandits.Learning` and :class:`~s2vgd.priors.FixedPrior` by name.

    Raises
    ------
    NotRun
        If nothing here has that name.
    """
    if method not in BUILDERS:
        raise NotRun(f"method missing: no bandit agent is named {method}")
    chosen = dict(settings)
    if "hidden" in chosen:
        chosen["hidden"] = tuple(chosen["hidden"])
    if "reward" in chosen:
        kind, *arguments = chosen["reward"]
        chosen["reward"] = REWARDS[kind](*arguments)
    if "learning" in chosen:
        chosen["learning"] = bandits.Learning(**chosen["learning"])
    if "prior" in chosen:
        chosen["prior"] = FixedPrior(**chosen["prior"])
    return BUILDERS[method](shape, **chosen)
