"""What the report says of each experiment: one file each, one function ``section(rows)``.

They read lines of result files and nothing else; a sentence that judges is made from the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from matplotlib.figure import Figure

from s2vgd.experiments import report
from s2vgd.experiments.summary import Group, Groups

LABELS = {
    "svgd": "SVGD",
    "s2vgd": "S²VGD",
    "s2vgd_k10": "S²VGD (K=10)",
    "s2vgd_k1": "S²VGD (K=1)",
    "s2vgd_refined": "S²VGD refined",
    "s2vgd_refined_constant": "S²VGD refined, constant noise",
    "s2vgd_refined_input": "S²VGD refined, input noise",
    "s2vgd_peeked": "S²VGD, best test iterate",
    "vmg": "VMG, evidence bound",
    "vmg_dropout": "VMG, variational dropout",
    "pbp": "PBP",
    "pbp_mv": "PBP_MV",
    "bbb_gaussian": "BBB, Gaussian",
    "bbb_scale_mixture": "BBB, scale mixture",
    "sgld": "SGLD",
    "psgld": "pSGLD",
    "sgd": "SGD",
    "rmsprop": "RMSprop",
    "rmsspectral": "RMSspectral",
    "dropout": "SGD, dropout",
    "mc_dropout": "MC dropout",
    "deep_ensemble": "deep ensemble",
    "deep_ensemble_input": "deep ensemble, input noise",
    "hmc": "HMC",
    "nuts": "NUTS",
    "gp": "GP",
    "ngboost": "NGBoost",
    "bde": "bde",
    "s2vgd_linear": "S²VGD, linear path",
    "svgd_linear": "SVGD, linear path",
    "s2vgd_optimistic": "S²VGD, optimistic",
    "svgd_optimistic": "SVGD, optimistic",
    "s2vgd_bounded": "S²VGD, bound",
    "svgd_bounded": "SVGD, bound",
    "s2vgd_paper": "S²VGD, paper's settings",
    "svgd_paper": "SVGD, paper's settings",
    "epsilon_greedy_0": "greedy, learned noise",
    "epsilon_greedy_1": "ε-greedy 1 %, learned noise",
    "epsilon_greedy_3": "ε-greedy 3 %, learned noise",
    "epsilon_greedy_0_paper": "greedy, learned noise, paper's settings",
    "epsilon_greedy_1_paper": "ε-greedy 1 %, learned noise, paper's settings",
    "epsilon_greedy_3_paper": "ε-greedy 3 %, learned noise, paper's settings",
    "greedy_fixed": "greedy, fixed noise",
    "linucb": "LinUCB",
    "lints": "LinTS, known noise",
    "lints_unknown": "LinTS, unknown noise",
    "neural_linear": "NeuralLinear",
    "bootstrap": "bootstrapped ensemble",
    "uniform": "uniform",
    "s2vgd_a2c": "S²VGD, A2C",
    "svgd_a2c": "SVGD, A2C",
    "svgd_star_a2c": "SVGD*, A2C",
    "independent_a2c": "independent, A2C",
    "single_a2c": "one agent, A2C",
    "s2vgd_reinforce": "S²VGD, REINFORCE",
    "svgd_reinforce": "SVGD, REINFORCE",
    "svgd_star_reinforce": "SVGD*, REINFORCE",
    "independent_reinforce": "independent, REINFORCE",
    "single_reinforce": "one agent, REINFORCE",
}


class Table(NamedTuple):
    """A table, to be written in several ways.

    Parameters
    ----------
    name : str
        Of its file.
    title : str
        A few words, which even a narrow screen has room for.
    caption : str
        What it shows.
    header : sequence of str
        Names of the columns.
    rows : sequence of sequence of str
        Cells.
    texts : int
        How many of the first columns are words.
    """

    name: str
    title: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1

    def html(self) -> str:
        """Write it for the page."""
        table = report.table(self.title, self.header, self.rows, self.texts)
        return report.paragraph(self.caption) + table

    def markdown(self) -> str:
        """Write it as Markdown, title above and caption below."""
        rule = [":--" if i < self.texts else "--:" for i in range(len(self.header))]
        lines = (f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.rows))
        return "\n".join([f"### {self.title}", "", *lines, "", self.caption, ""])


class Drawing(NamedTuple):
    """A figure with the name of its files and what it shows."""

    name: str
    figure: Figure
    caption: str


@dataclass
class Section:
    """A part of the page.

    Parameters
    ----------
    title : str
        Its heading.
    about : str
        What was done.
    claims : list of str
        What comes of it, in sentences; those of all sections are the summary of the page.
    tables, drawings
        What it shows.
    """

    title: str
    about: str
    claims: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)


def label(method: str) -> str:
    """Return the name of a method as it is printed."""
    return LABELS.get(method, method)


def in_order(known: Iterable[str], found: Iterable[str]) -> list[str]:
    """Return the known names, and then what else was found."""
    return list(dict.fromkeys([*known, *sorted(found)]))


def caution(groups: Groups) -> list[str]:
    """Say so if some of the figures are those of trials, or if settings were mixed in the file."""
    said = []
    trials = [group for group in groups.values() if group.quick]
    if trials:
        said.append(
            f"{len(trials)} of {len(groups)} cells are trials (--quick): they show that things "
            "run, and no sentence here is drawn from them."
        )
    left_out = sum(group.left_out for group in groups.values())
    if left_out:
        said.append(
            f"{left_out} finished runs with other settings are in the file and not shown: of each "
            "cell the settings with the most runs are."
        )
    return said


def listed(names: Sequence[str]) -> str:
    """Write names in a sentence."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def finished(groups: Groups, key: object) -> Group | None:
    """Return the group of a cell if it has scores that are not those of a trial."""
    group = groups.get(key)
    return group if group is not None and group.finished and not group.quick else None
