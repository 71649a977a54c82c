"""Sentences that say what results mean, made from the numbers and from nothing else.

A sentence claims no more than its numbers carry: coverage is judged against what chance allows for
so many rows, a lead in log-likelihood against its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from s2vgd.refine import FEWEST_DRAWS, LARGEST_R_HAT, Diagnostics


def coverage(held: Mapping[str, int], n: int, level: float = 0.9) -> str:
    """Say whether as many outcomes lie inside the intervals as should.

    Parameters
    ----------
    held : mapping of str to int
        Outcomes inside, by method.
    n : int
        Outcomes in all.
    level : float
        Probability of the intervals.
    """
    least, most = binomial_range(n, level)
    parts = []
    for method, count in held.items():
        verdict = "too sure" if count < least else "too cautious" if count > most else "in order"
        parts.append(f"{method} {count} ({verdict})")
    return (
        f"A {100 * level:g} % interval should hold about {round(level * n)} of the {n} outcomes, "
        f"and {least} to {most} is what chance allows. Held: {', '.join(parts)}."
    )


def lead(log_prob: Mapping[str, np.ndarray]) -> str:
    """Say whose predictions are best by log-likelihood, and whether that could be chance.

    Parameters
    ----------
    log_prob : mapping of str to array, shape (N,)
        Log density of the same N > 1 outcomes, by method.
    """
    first, *others = sorted(log_prob, key=lambda method: -log_prob[method].mean())
    parts = []
    for method in others:
        gain = log_prob[first] - log_prob[method]
        error = gain.std(ddof=1) / math.sqrt(len(gain))
        doubt = "" if gain.mean() > 2 * error else " (which could be chance)"
        parts.append(f"{gain.mean():.2f} ± {error:.2f} over {method}{doubt}")
    return (
        f"{first} has the highest log-likelihood. Its lead a row, with the standard error over "
        f"these rows: {', '.join(parts)}."
    )


def spread(disagreement: Mapping[str, float]) -> str:
    """Say how far the draws of each method disagree, and what that means for the particles.

    Parameters
    ----------
    disagreement : mapping of str to float
        Epistemic standard deviation by method, the refined one last.
    """
    *pure, refined = disagreement
    listed = ", ".join(f"{method} {value:.3g}" for method, value in disagreement.items())
    text = (
        f"Disagreement between draws about the mean (the epistemic standard deviation): {listed}."
    )
    closer = [method for method in pure if disagreement[method] < disagreement[refined]]
    if not closer:
        return f"{text} No particles here lie closer together than the draws of {refined}."
    return (
        f"{text} The particles of {' and '.join(closer)} lie closer together than the draws of "
        f"{refined}: on their own they understate the doubt about the mean."
    )


def gap(ratio: Mapping[str, float]) -> str:
    """Say how much error bars grow where there are no data.

    Parameters
    ----------
    ratio : mapping of str to float
        Mean standard deviation away from the data relative to that among them, by method.
    """
    parts = (f"{method} {value:.1f}" for method, value in ratio.items())
    return (
        "Error bars should grow where there are no data. Standard deviation in the gap relative to "
        f"that among the data: {', '.join(parts)}."
    )


def cost(seconds: Mapping[str, float]) -> str:
    """Say what the dearest method costs relative to the cheapest."""
    slowest, quickest = (
        choose(seconds, key=lambda method: seconds[method]) for choose in (max, min)
    )
    ratio = seconds[slowest] / seconds[quickest]
    return f"{slowest} took {ratio:.1f} times as long as {quickest}, compilation included."


def chains(method: str, diagnostics: Diagnostics) -> str:
    """Say what the chains of a refinement report about themselves."""
    if problems := diagnostics.problems():
        return f"The chains of {method} complain: {'; '.join(problems)}."
    r_hat, draws = np.median(diagnostics.r_hat), np.median(diagnostics.effective_draws)
    return (
        f"The chains of {method} raise no alarm: the median R-hat of the predictions, of which 1 "
        f"is perfect and more than {LARGEST_R_HAT:g} too much, is {r_hat:.2f}, and the draws are "
        f"worth {draws:.0f} independent ones, where fewer than {FEWEST_DRAWS} are too few."
    )


def binomial_range(n: int, p: float, chance: float = 0.05) -> tuple[int, int]:
    """Return the central range of successes in n trials of probability p, both ends included.

    Fewer, and more, occur with a probability of at most ``chance / 2`` each.
    """
    weights = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    cumulative = np.cumsum(weights)
    least, most = np.searchsorted(cumulative, [chance / 2, 1 - chance / 2], side="left")
    return int(least), min(int(most), n)
