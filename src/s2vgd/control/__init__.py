"""Control: environments that compile, and sets of policies that learn in them."""

from s2vgd.control.agents import SteinPolicyGradient
from s2vgd.control.critics import LinearCritic, NetworkCritic
from s2vgd.control.environments import (
    Box,
    Discrete,
    Environment,
    Step,
    auto_reset,
    make,
    names,
)
from s2vgd.control.gradients import A2C, Reinforce
from s2vgd.control.policies import Policy
from s2vgd.control.policy_set import Evaluation, PolicySet
from s2vgd.control.temperature import Adapted
from s2vgd.control.together import train_together

__all__ = [
    "A2C",
    "Adapted",
    "Box",
    "Discrete",
    "Environment",
    "Evaluation",
    "LinearCritic",
    "NetworkCritic",
    "Policy",
    "PolicySet",
    "Reinforce",
    "SteinPolicyGradient",
    "Step",
    "auto_reset",
    "make",
    "names",
    "train_together",
]
