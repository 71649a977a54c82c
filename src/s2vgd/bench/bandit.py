"""Decisions and updates of a contextual bandit: one call at a time, and many agents on a machine.

20 actions, 10 features. Ours is Stein Thompson sampling with 20 networks of 50 hidden units, as an
application calls it, every decision with its log entry and the probabilities of all actions;
PyTorch's a bootstrapped ensemble of the same networks, which asks only the one it drew; Vowpal
Wabbit's 20 bagged linear models, each reward learned once. An update of a network is one gradient
step on 64 rewards. Rewards are drawn from a fixed truth; what is measured is time, not regret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from s2vgd._threads import n_cores
from s2vgd.bandits import simulation, worlds
from s2vgd.bandits.learning import Learning
from s2vgd.bandits.live import SteinThompson
from s2vgd.bandits.stein import stein_thompson
from s2vgd.bench.records import Row, missing, not_run
from s2vgd.bench.timing import Spread, Timed, in_turns, ratio, repeated

TITLE = "Decisions and updates of a bandit"

PEERS = {"Vowpal Wabbit": "vowpalwabbit", "PyTorch ensemble": "torch"}


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    arms, features, hidden, particles : int
        Of the bandit and its networks.
    decisions : int
        In one timing.
    agents : int
        Side by side.
    rounds : int
        Repeats.
    """

    arms: int = 20
    features: int = 10
    hidden: int = 50
    particles: int = 20
    decisions: int = 300
    agents: int = 100
    rounds: int = 21


QUICK = Sizes(decisions=30, agents=10, rounds=3)


def prepare() -> None:
    """Let decisions be made in the thread that asks for them, as the guide recommends."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def ask(quick: bool, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield rows of decisions, of decisions with updates, and of many agents."""
    sizes = QUICK if quick else Sizes()
    extra["sizes"] = {**sizes.__dict__}
    yield from answer(sizes, extra)


def answer(sizes: Sizes, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of these sizes."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(sizes.decisions, sizes.features)).astype(np.float32)
    truth = rng.normal(size=(sizes.features, sizes.arms)).astype(np.float32)
    rewards = (contexts @ truth + rng.normal(size=(sizes.decisions, sizes.arms)) > 0).astype(float)
    reasons = {name: missing(package) for name, package in PEERS.items()}
    lives: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {"ours": _ours(sizes)}
    if not reasons["Vowpal Wabbit"]:
        lives["Vowpal Wabbit"] = _vowpal(sizes)
    if not reasons["PyTorch ensemble"]:
        lives["PyTorch ensemble"] = _torch(sizes)

    def deciding(decide: Callable[..., Any]) -> Timed:
        def block() -> None:
            for context in contexts:
                decide(context)

        return repeated(block)

    def learning(decide: Callable[..., Any], learn: Callable[..., Any]) -> Timed:
        def block() -> None:
            for context, row in zip(contexts, rewards, strict=True):
                learn(context, decide(context), row)

        block()
        return repeated(block)

    both = {name: learning(*life) for name, life in lives.items()}
    alone = {name: deciding(decide) for name, (decide, _) in lives.items()}
    crowd = side_by_side(sizes, extra)
    for case, timed in (("decisions", alone), ("decisions, each with an update", both)):
        taken = in_turns(timed, sizes.rounds, budget=60)
        rates = {name: sizes.decisions / seconds for name, seconds in taken.items()}
        yield from _rows(f"{case}, one agent", rates, reasons)
    taken = in_turns({"ours": crowd, **{n: t for n, t in both.items() if n != "ours"}}, 5)
    rates = {name: sizes.decisions / seconds for name, seconds in taken.items()}
    rates["ours"] = 1 / taken["ours"]
    yield from _rows(
        f"decisions, each with an update, {sizes.agents} agents on the machine",
        rates,
        reasons,
        f"peers: one agent after another on one of {n_cores()} cores; also the number of agents "
        "that decide and learn once a second for which there is time",
    )


def _rows(
    case: str, rates: dict[str, np.ndarray], reasons: dict[str, str | None], note: str = ""
) -> Iterator[Row]:
    for name, reason in reasons.items():
        if reason:
            yield not_run(case, name, reason)
            continue
        yield Row(
            case,
            name,
            ratio(rates["ours"], rates[name]),
            "higher",
            Spread.of(rates["ours"]),
            Spread.of(rates[name]),
            "a second",
            note=note,
        )
    if all(reasons.values()):
        yield Row(case, ours=Spread.of(rates["ours"]), unit="a second", note=note)


def side_by_side(sizes: Sizes, extra: dict[str, Any], steps: int = 100) -> Timed:
    """Return what times a decision with its update, of one of many agents in one program."""
    world = worlds.nonlinear(sizes.arms, sizes.features)
    # Small agents keep few rewards: the ring of the default would hold 50,000 of them each.
    agent = stein_thompson(
        world.shape,
        hidden=(sizes.hidden,),
        particles=sizes.particles,
        learning=Learning(capacity=1000),
    )

    def run() -> None:
        simulation.simulate(agent, world, steps, seeds=sizes.agents)

    state = jax.eval_shape(agent.init, jax.random.key(0))
    extra["bytes_an_agent"] = sum(
        leaf.size * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(state)
        if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    )
    run()
    timed = repeated(run)
    return lambda: timed() / (steps * sizes.agents)


def _ours(sizes: Sizes) -> tuple[Callable[..., Any], Callable[..., Any]]:
    agent = SteinThompson(
        n_actions=sizes.arms,
        context_dim=sizes.features,
        hidden=(sizes.hidden,),
        particles=sizes.particles,
    ).compile()

    def learn(context: np.ndarray, decision: Any, rewards: np.ndarray) -> None:
        agent.reward(decision.id, rewards[decision.action])
        agent.update()

    return agent.decide, learn


def _vowpal(sizes: Sizes) -> tuple[Callable[..., Any], Callable[..., Any]]:
    from s2vgd.bench.peers.vw_bandit import VowpalBandit

    agent = VowpalBandit(sizes.arms, sizes.particles)

    def learn(context: np.ndarray, decision: tuple[int, float], rewards: np.ndarray) -> None:
        agent.learn(context, *decision, rewards[decision[0]])

    return agent.decide, learn


def _torch(sizes: Sizes) -> tuple[Callable[..., Any], Callable[..., Any]]:
    from s2vgd.bench.peers.torch_bandit import TorchBandit

    agent = TorchBandit(sizes.arms, sizes.features, sizes.hidden, sizes.particles)

    def learn(context: np.ndarray, action: int, rewards: np.ndarray) -> None:
        agent.learn(context, action, rewards[action])

    return agent.decide, learn
