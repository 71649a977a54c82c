"""Off-policy evaluation: what a policy would have earned, from the log of another one.

The log (`LoggedData`), the estimators, the intervals, `cross_fit` for predicted rewards, and
`compare`, which puts policies and estimators into one table. One file each.

>>> from s2vgd.bandits.evaluation import IPS, LoggedData
>>> log = LoggedData(actions=[0, 1, 1], rewards=[1, 0, 1], propensities=[0.5] * 3, n_actions=2)
>>> always_second = [[0, 1]] * 3
>>> IPS().estimate(log, always_second).value
0.6666666666666666
"""

from __future__ import annotations

from s2vgd.bandits.evaluation.base import Estimate, Estimator
from s2vgd.bandits.evaluation.comparison import Comparison, compare, logged_value
from s2vgd.bandits.evaluation.data import LoggedData, deterministic_policy
from s2vgd.bandits.evaluation.estimators import (
    ALL_ESTIMATORS,
    IPS,
    ClippedIPS,
    DirectMethod,
    DoublyRobust,
    Replay,
    SelfNormalisedDR,
    SelfNormalisedIPS,
    SwitchDR,
)
from s2vgd.bandits.evaluation.intervals import Bootstrap, EmpiricalBernstein, Interval, Normal
from s2vgd.bandits.evaluation.models import cross_fit
from s2vgd.bandits.evaluation.weights import (
    DegenerateWeightsWarning,
    WeightLimits,
    effective_sample_size,
)

__all__ = [
    "ALL_ESTIMATORS",
    "IPS",
    "Bootstrap",
    "ClippedIPS",
    "Comparison",
    "DegenerateWeightsWarning",
    "DirectMethod",
    "DoublyRobust",
    "EmpiricalBernstein",
    "Estimate",
    "Estimator",
    "Interval",
    "LoggedData",
    "Normal",
    "Replay",
    "SelfNormalisedDR",
    "SelfNormalisedIPS",
    "SwitchDR",
    "WeightLimits",
    "compare",
    "cross_fit",
    "deterministic_policy",
    "effective_sample_size",
    "logged_value",
]
