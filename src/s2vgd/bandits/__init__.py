"""Contextual bandits: agents, worlds to try them in, and simulations of the one in the other.

An agent is three pure functions (:mod:`~s2vgd.bandits.agents`), built by one of the functions below
for contexts of a given shape; a world is functions that know the truth
(:mod:`~s2vgd.bandits.worlds`). Behind an application, :class:`SteinThompson` keeps state and log.

>>> from s2vgd import bandits
>>> world = bandits.wheel(0.5)
>>> agent = bandits.stein_thompson(world.shape, reward=bandits.gaussian(1.0))
>>> result = bandits.simulate(agent, world, steps=10, seeds=2)
>>> result.record.regret.shape
(2, 10)
"""

from __future__ import annotations

from s2vgd.bandits.agents import Agent, Choice, choose, uniform, warm_up
from s2vgd.bandits.contexts import Context, ContextShape, make_context
from s2vgd.bandits.ensemble import bootstrap_thompson
from s2vgd.bandits.learning import Learning
from s2vgd.bandits.linear import lin_ts, lin_ucb
from s2vgd.bandits.live import Decision, Live, SteinThompson
from s2vgd.bandits.neural_linear import neural_linear
from s2vgd.bandits.rewards import RewardModel, bernoulli, categorical, gaussian, heteroscedastic
from s2vgd.bandits.simulation import Record, Simulation, simulate
from s2vgd.bandits.stein import epsilon_greedy, stein_thompson
from s2vgd.bandits.variational import vmg_thompson
from s2vgd.bandits.worlds import World, classification, clicks, mushroom, nonlinear, wheel

__all__ = [
    "Agent",
    "Choice",
    "Context",
    "ContextShape",
    "Decision",
    "Learning",
    "Live",
    "Record",
    "RewardModel",
    "Simulation",
    "SteinThompson",
    "World",
    "bernoulli",
    "bootstrap_thompson",
    "categorical",
    "choose",
    "classification",
    "clicks",
    "epsilon_greedy",
    "gaussian",
    "heteroscedastic",
    "lin_ts",
    "lin_ucb",
    "make_context",
    "mushroom",
    "neural_linear",
    "nonlinear",
    "simulate",
    "stein_thompson",
    "uniform",
    "vmg_thompson",
    "warm_up",
    "wheel",
]
