"""What a live agent is made of, and its settings as JSON and back, for logs and saved agents.

Only numbers, texts, sequences of them and the frozen dataclasses listed here can be described, and
only those can come of a description, whatever a file says.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from s2vgd import likelihoods, priors
from s2vgd.bandits.agents import Agent
from s2vgd.bandits.contexts import ContextShape
from s2vgd.bandits.learning import Learning
from s2vgd.bandits.rewards import RewardModel
from s2vgd.errors import ModelFileError

_CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
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
    )
}


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


def describe(value: Any) -> Any:
    """Write a setting as JSON: dataclasses by name and fields, anything of yours by its type."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _CLASSES.values():
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"class": None, "was": type(value).__name__}


def is_complete(described: Any) -> bool:
    """Whether :func:`rebuild` can undo a description."""
    if isinstance(described, list):
        return all(map(is_complete, described))
    if isinstance(described, dict):
        return described.get("class", "") is not None and all(map(is_complete, described.values()))
    return True


def rebuild(described: Any) -> Any:
    """Undo :func:`describe`.

    Raises
    ------
    ModelFileError
        If the description is of nothing that this version knows.
    """
    if isinstance(described, list):
        return tuple(rebuild(item) for item in described)
    if not isinstance(described, dict):
        return described
    name = described.get("class")
    if not isinstance(name, str) or name not in _CLASSES:
        raise ModelFileError(f"the settings hold {name!r}, which this version does not know")
    try:
        return _CLASSES[name](**{k: rebuild(v) for k, v in described.items() if k != "class"})
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"the settings describe no valid {name}: {error}") from None
