"""Steps of environments a second with learning included: compiled, and through Gymnasium.

16 policies, 10 environments each, 500 steps, then an update of all of them by the Stein policy
gradient. The learner is the same; what differs is who steps the cart and pole: our compiled
environment, Gymnasium's copies in a row, or Gymnasium's own version of it vectorised in NumPy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from s2vgd.bench.records import Row, missing, not_run
from s2vgd.bench.timing import Spread, Timed, in_turns, ratio, repeated
from s2vgd.control import SteinPolicyGradient
from s2vgd.control.tasks import GymTask, Task

TITLE = "Environment steps a second, learning included"

TARGET = 1e6
OURS, OTHER = "cartpole-v1", "cartpole"
WAYS = ("Gymnasium, copies in a row", "Gymnasium, vectorised in NumPy")


@dataclass(frozen=True)
class Sizes:
    """Particles, environments a particle, steps of each, and iterations in one timing."""

    particles: int = 16
    environments: int = 10
    horizon: int = 500
    iterations: int = 10
    rounds: int = 11


QUICK = Sizes(horizon=100, iterations=2, rounds=3)


def ask(quick: bool, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each way to step the environment, and one for each of our environments."""
    sizes = QUICK if quick else Sizes()
    extra["sizes"] = {**sizes.__dict__}
    yield from answer(sizes)


def answer(sizes: Sizes) -> Iterator[Row]:
    """Yield the rows of these sizes."""
    ours = {name: training(name, sizes, sizes.iterations) for name in (OURS, OTHER)}
    absent = missing("gymnasium")
    theirs: dict[str, Timed] = {}
    if not absent:
        theirs = {name: training(task, sizes, 1) for name, task in zip(WAYS, tasks(), strict=True)}
    seconds = in_turns({**ours, **theirs}, sizes.rounds, budget=120)
    rates = {name: 1 / taken for name, taken in seconds.items()}
    case = f"{sizes.particles} × {sizes.environments} × {sizes.horizon}"
    unit = "steps a second"
    for name in ours:
        goal = TARGET if sizes == Sizes() else None
        yield Row(f"{name}, {case}", ours=Spread.of(rates[name]), unit=unit, target=goal)
    for name in WAYS:
        if absent:
            yield not_run(f"{OURS}, {case}", name, absent)
            continue
        yield Row(
            f"{OURS}, {case}",
            name,
            ratio(rates[OURS], rates[name]),
            "higher",
            Spread.of(rates[OURS]),
            Spread.of(rates[name]),
            unit,
        )


def training(task: str | Task, sizes: Sizes, iterations: int) -> Timed:
    """Return a function that goes on training and returns the seconds of one environment step."""
    # The scales of the observations are those of our task; Gymnasium has none.
    agents = SteinPolicyGradient(
        task,  # type: ignore[arg-type]
        particles=sizes.particles,
        environments=sizes.environments,
        horizon=sizes.horizon,
        seed=0,
    )

    def train() -> None:
        agents.train(agents.iterations + iterations, progress=False)

    train()
    timed = repeated(train)
    return lambda: timed() / (iterations * agents.steps_per_iteration)


def tasks() -> tuple[GymTask, GymTask]:
    """Return CartPole-v1 as copies in a row, and as Gymnasium's own vector environment."""
    return GymTask("CartPole-v1"), _Vectorised("CartPole-v1")


class _Vectorised(GymTask):
    """A task of which Gymnasium has a version that steps all copies at once."""

    def vector(self, num_envs: int) -> Any:
        return _vectorised(self.name, num_envs)


@functools.lru_cache(maxsize=4)
def _vectorised(name: str, num_envs: int) -> Any:
    import gymnasium

    from s2vgd.control.gym import GymVector

    made = gymnasium.make_vec(name, num_envs=num_envs, vectorization_mode="vector_entry_point")
    return GymVector(made)
