"""What a live agent is made of and what it hands out, and which settings a file can hold.

How it decides and learns is in :mod:`s2vgd.bandits.serving`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from s2vgd import likelihoods, priors
from s2vgd._description import Vocabulary
from s2vgd.bandits.agents import Agent
from s2vgd.bandits.contexts import ContextShape
from s2vgd.bandits.learning import Learning
from s2vgd.bandits.rewards import RewardModel

SETTINGS = Vocabulary(
    Learning,
    RewardModel,
    likelihoods.Gaussian,
    likelihoods.HeteroscedasticGaussian,
    likelihoods.StudentT,
    likelihoods.Laplace,
    likelihoods.Categorical,
    likelihoods.Bernoulli,
    priors.FixedPrior,
    priors.HierarchicalPrior,
    advice="build the same agent and pass it to Live.load",
)


class Setup(NamedTuple):
    """What a live agent is made of, and how that is described.

    Attributes
    ----------
    agent : Agent
        The three functions.
    shape : ContextShape
        Of the contexts.
    named_arms, reuse_slots : bool
        See :class:`~s2vgd.bandits.serving.Live`.
    settings : dict or None
        JSON from which the agent can be built again; None if there is no such description.
    binary_rewards : bool
        Whether rewards must be 0 or 1.
    """

    agent: Agent
    shape: ContextShape
    named_arms: bool = False
    reuse_slots: bool = False
    settings: dict[str, Any] | None = None
    binary_rewards: bool = False


class Decision(NamedTuple):
    """What to do now.

    Attributes
    ----------
    id : str
        To be handed back with the reward. It tells the log as well as the decision.
    action : int
        The action, from 0 to A - 1.
    propensity : float
        The probability with which it was taken.
    propensities : array of float32, shape (A,)
        The probabilities of all actions.
    particle : int
        The opinion that decided; -1 if chance or a rule did.
    arm : str or None
        The name of the arm, where arms have names.
    """

    id: str
    action: int
    propensity: float
    propensities: np.ndarray
    particle: int
    arm: str | None = None
