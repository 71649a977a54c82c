"""The bandit of the demonstration: mushrooms to eat or to leave, and four ways of deciding.

A short version of the paper's Figure 3(a), with its rewards; the long one is
:mod:`s2vgd.experiments.mushroom`. To save time agents learn after every fourth
reward, with a larger step size. Sentences are made from the numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rich.table import Table

from s2vgd import bandits
from s2vgd.experiments import bandit_agents, figures, mushroom, plots, report
from s2vgd.experiments.sections import label

DECISIONS = 3000
SEEDS = 2
HEADER = ["agent", "regret by seed", "worst", "wrong at the end", "seconds"]
_LEARNING = {"batch_size": 64, "learning_rate": 3e-3, "every": 4}
AGENTS: dict[str, dict[str, Any]] = {
    "s2vgd": {
        **{"hidden": [50], "particles": 20, "reflections": 1, "scales": "lognormal"},
        **{"reward": ["gaussian", 10.0], "learning": _LEARNING},
    },
    "epsilon_greedy_1": {
        **{"hidden": [50], "epsilon": 0.01},
        **{"reward": ["gaussian", None], "learning": _LEARNING},
    },
    "linucb": {"alpha": 5.0},
    "uniform": {},
}


def play(
    seed: int, decisions: int, progress: bool, announce: Callable[[str], None]
) -> dict[str, Any]:
    """Let all agents decide about the same mushrooms, for two seeds side by side.

    Parameters
    ----------
    seed : int
        The first of the two seeds.
    decisions : int
        How many.
    progress : bool
        Show a progress bar for each agent.
    announce : callable
        Called with the name of each agent before it starts.

    Returns
    -------
    dict
        What ``results.json`` holds of it.
    """
    world = mushroom.world("mushroom")
    late = max(1, decisions // 10)
    agents: dict[str, dict[str, Any]] = {}
    for method, settings in AGENTS.items():
        name = label(method)
        announce(name)
        start = time.perf_counter()
        simulation = bandits.simulate(
            bandit_agents.build(method, world.shape, settings),
            world,
            decisions,
            seeds=[seed + i for i in range(SEEDS)],
            progress=progress,
        )
        steps, regret = simulation.curve(100)
        agents[name] = {
            "regret": regret[:, -1].tolist(),
            "wrong": float(np.mean(simulation.record.regret[:, -late:] > 0)),
            "seconds": time.perf_counter() - start,
            "settings": settings,
            "curves": [{"steps": steps.tolist(), "regret": row.tolist()} for row in regret],
        }
    return {
        "about": f"mushrooms to eat or to leave, {decisions:,} decisions: 0 for leaving one, 5 for "
        "eating an edible one, and for a poisonous one -10 or, half of the time, 5",
        "decisions": decisions,
        "late": late,
        "agents": agents,
        "reading": _read(agents),
    }


def rows_of(found: Mapping[str, Any]) -> list[list[str]]:
    """Return the table that is printed and put on the page, as text."""
    return [
        [
            name,
            ", ".join(f"{value:,.0f}" for value in agent["regret"]),
            f"{max(agent['regret']):,.0f}",
            f"{100 * agent['wrong']:.1f} %",
            f"{agent['seconds']:.1f}",
        ]
        for name, agent in found["agents"].items()
    ]


def table(found: Mapping[str, Any]) -> Table:
    """Return the table that is printed."""
    shown = Table(title="mushroom bandit", title_justify="left")
    for i, name in enumerate(HEADER):
        shown.add_column(name, justify="left" if i < 1 else "right", no_wrap=True)
    for row in rows_of(found):
        shown.add_row(*row)
    return shown


def page(found: Mapping[str, Any]) -> list[str]:
    """Return the part of the page, as pieces of HTML."""
    curves = {name: agent["curves"] for name, agent in found["agents"].items()}
    drawn = plots.regret({f"{found['decisions']:,} decisions": curves})
    settings = (
        (name, ", ".join(f"{k}={v!r}" for k, v in agent["settings"].items()) or "none")
        for name, agent in found["agents"].items()
    )
    return [
        report.heading("Choosing actions"),
        report.paragraph(f"A bandit: {found['about']}. Only what was tried is learned from."),
        report.table(
            "Regret is what the decisions have cost against the best ones, in expected reward. "
            f"Wrong at the end: among the last {found['late']:,} decisions. Seconds are for all "
            "seeds, compilation included.",
            HEADER,
            rows_of(found),
        ),
        report.figure(
            figures.to_svg(drawn, "bandit", inline=True),
            "Cumulative regret on a logarithmic scale: a thin line for each seed, a bold one for "
            "their mean. All agents with the same seed meet the same mushrooms and the same luck.",
        ),
        report.bullets(found["reading"]),
        report.facts(settings),
    ]


def _read(agents: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say how the agents compare with chance and with one another, seed by seed."""
    mean = {name: float(np.mean(agent["regret"])) for name, agent in agents.items()}
    ours, chance = label("s2vgd"), label("uniform")
    rest = [name for name in agents if name != chance]
    shares = ", ".join(f"{name} {100 * mean[name] / mean[chance]:.0f} %" for name in rest)
    sentences = [f"Of the regret of taking any action there remain: {shares}."]
    for name in rest:
        if name != ours:
            pairs = list(zip(agents[ours]["regret"], agents[name]["regret"], strict=True))
            fewer = sum(a < b for a, b in pairs)
            sentences.append(
                f"{ours} has less regret than {name} with {fewer} of {len(pairs)} seeds."
            )
    sentences.append(f"{len(agents[ours]['regret'])} seeds settle nothing: luck weighs more here.")
    return sentences
