"""Off-policy evaluation: formulas, exact expectations, coverage, warnings and refusals.

Estimators are compared with the formulas written out row by row, with expectations over every log
that a small world can produce, and with Monte Carlo in the same world at stated tolerances.
"""

from __future__ import annotations

import itertools
import math
import tracemalloc
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from s2vgd.bandits.evaluation import (
    ALL_ESTIMATORS,
    IPS,
    Bootstrap,
    ClippedIPS,
    DegenerateWeightsWarning,
    DirectMethod,
    DoublyRobust,
    EmpiricalBernstein,
    Estimate,
    LoggedData,
    Normal,
    Replay,
    SelfNormalisedDR,
    SelfNormalisedIPS,
    SwitchDR,
    WeightLimits,
    compare,
    cross_fit,
    deterministic_policy,
    effective_sample_size,
    intervals,
    logged_value,
)
from s2vgd.bandits.evaluation.base import gather
from s2vgd.bandits.evaluation.intervals import Terms
from s2vgd.errors import DataError

LENIENT = WeightLimits(
    ess=0, ess_share=0, weight_share=1, propensity=0, unsupported=1, mean_errors=math.inf
)
Z95 = 1.959963984540054


# ------------------------------------------------------------------------------- a small world


class World:
    """Two contexts, three actions, clicks: everything about it can be written down."""

    contexts = np.array([0.3, 0.7])
    clicks = np.array([[0.2, 0.5, 0.9], [0.6, 0.1, 0.3]])  # P(click | context, action)
    logging = np.array([[0.5, 0.3, 0.2], [0.2, 0.4, 0.4]])
    target = np.array([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])
    model = np.array([[0.3, 0.4, 0.7], [0.4, 0.2, 0.2]])  # wrong on purpose
    value = float(contexts @ (target * clicks).sum(axis=1))

    @classmethod
    def log(cls, contexts, actions, rewards) -> LoggedData:
        contexts, actions = np.asarray(contexts), np.asarray(actions)
        return LoggedData(
            actions=actions,
            rewards=rewards,
            propensities=cls.logging[contexts, actions],
            n_actions=3,
            contexts=contexts[:, None].astype(float),
        )

    @classmethod
    def draw(cls, rng: np.random.Generator, n: int) -> tuple[LoggedData, np.ndarray, np.ndarray]:
        """Return a log of n rows, the target policy and the model's predictions for it."""
        contexts = (rng.random(n) > cls.contexts[0]).astype(int)
        actions = (rng.random((n, 1)) > cls.logging.cumsum(axis=1)[contexts, :2]).sum(axis=1)
        rewards = rng.random(n) < cls.clicks[contexts, actions]
        return cls.log(contexts, actions, rewards), cls.target[contexts], cls.model[contexts]


def sample(seed: int = 0, n: int = 500) -> tuple[LoggedData, np.ndarray, np.ndarray]:
    return World.draw(np.random.default_rng(seed), n)


def quietly(estimator, log, policy, model=None, *, interval=None, level=0.95) -> Estimate:
    """Estimate without warnings, which small logs are full of."""
    return estimator.evaluate(gather(log, policy, model), interval or Normal(), level, LENIENT)


# ------------------------------------------------------------------------------ the formulas

TINY = LoggedData(
    actions=[0, 2, 1, 0],
    rewards=[1.0, -2.0, 0.5, 3.0],
    propensities=[0.5, 0.25, 0.2, 0.8],
    n_actions=3,
)
TINY_POLICY = np.array([[0.25, 0.5, 0.25], [0, 0, 1], [0.5, 0.5, 0], [0.4, 0, 0.6]])
TINY_MODEL = np.array([[2.0, 0, 1], [1, 1, -1], [0, 1, 2], [2, -1, 1]])
# The weights are 1/2, 4, 5/2, 1/2; the model predicts for the policy 0.75, -1, 0.5, 1.4 and, for
# what was done, 2, -1, 1, 2; the errors are -1, -1, -0.5, 1. All below is worked out by hand.
BY_HAND = [
    (IPS(), (0.5 - 8 + 1.25 + 1.5) / 4),
    (SelfNormalisedIPS(), (0.5 - 8 + 1.25 + 1.5) / 7.5),
    (ClippedIPS(clip=1.5), (0.5 - 3 + 0.75 + 1.5) / 4),
    (ClippedIPS(), (0.5 - 4 + 1 + 1.5) / 4),  # clipped at √4
    (DirectMethod(), 1.65 / 4),
    (DoublyRobust(), (1.65 - 0.5 - 4 - 1.25 + 0.5) / 4),
    (SelfNormalisedDR(), 1.65 / 4 + (-0.5 - 4 - 1.25 + 0.5) / 7.5),
    (SwitchDR(tau=2.5), (1.65 - 0.5 - 1.25 + 0.5) / 4),
    (SwitchDR(), (1.65 - 0.5 + 0.5) / 4),  # at √4
]


@pytest.mark.parametrize(("estimator", "expected"), BY_HAND, ids=lambda x: str(x))
def test_estimate_is_the_one_worked_out_by_hand(estimator, expected: float) -> None:
    made = quietly(estimator, TINY, TINY_POLICY, TINY_MODEL)
    assert made.value == pytest.approx(expected, rel=1e-14)
    assert made.n == 4


def test_replay_of_a_deterministic_policy_on_a_uniform_log_is_the_mean_of_the_matches() -> None:
    log = LoggedData([0, 1, 2, 1, 1], [1.0, 2, 3, 5, 8], [1 / 3] * 5, 3)
    policy = deterministic_policy([0, 1, 1, 0, 1], 3)
    made = quietly(Replay(), log, policy)
    assert made.value == pytest.approx((1 + 2 + 8) / 3, rel=1e-14)
    assert made.effective_sample_size == pytest.approx(3, rel=1e-14)


def test_replay_keeps_a_row_with_probability_weight_over_bound() -> None:
    """200,000 rows: the share kept among those of each weight, within 5 standard errors."""
    n = 200_000
    log = LoggedData(np.arange(n) % 2, np.arange(n) % 2, np.full(n, 0.5), 2)
    policy = np.tile([0.2, 0.8], (n, 1))  # weights 0.4 and 1.6
    made = quietly(Replay(bound=2.0, seed=3), log, policy)
    assert made.effective_sample_size == pytest.approx(n * 0.5, abs=5 * math.sqrt(n) * 0.5)
    assert made.value == pytest.approx(0.8, abs=5 * math.sqrt(0.16 / (n / 2)))
    assert quietly(Replay(bound=2.0, seed=3), log, policy) == made
    assert quietly(Replay(bound=2.0, seed=4), log, policy) != made


@pytest.mark.parametrize("estimator", ALL_ESTIMATORS, ids=lambda e: e.name)
def test_standard_error_is_that_of_the_linearised_estimate(estimator) -> None:
    """The derivative of the estimate in each row's frequency, by finite differences."""
    log, policy, model = sample(n=60)
    made = quietly(estimator, log, policy, model)
    terms = estimator.terms(gather(log, policy, model))

    def value(frequencies: np.ndarray) -> float:
        normaliser = frequencies @ terms.weights if terms.self_normalised else 1.0
        return frequencies @ terms.base + frequencies @ terms.corrections / normaliser

    n, step = len(log), 1e-6
    uniform = np.full(n, 1 / n)
    toward = [(1 - step) * uniform + step * np.eye(n)[i] for i in range(n)]
    away = [(1 + step) * uniform - step * np.eye(n)[i] for i in range(n)]
    pairs = zip(toward, away, strict=True)
    influence = np.array([(value(up) - value(down)) / (2 * step) for up, down in pairs])
    expected = math.sqrt((influence**2).sum() / (n - 1) / n)
    assert made.standard_error == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert made.upper - made.value == pytest.approx(Z95 * made.standard_error, rel=1e-9)
    assert made.value - made.lower == pytest.approx(Z95 * made.standard_error, rel=1e-9)


# ---------------------------------------------------------------------------- equality of limits


@pytest.mark.parametrize(
    ("one", "other", "model"),
    [
        (ClippedIPS(clip=math.inf), IPS(), "none"),
        (DoublyRobust(), IPS(), "zero"),
        (SelfNormalisedDR(), SelfNormalisedIPS(), "zero"),
        (SwitchDR(tau=0.0), DirectMethod(), "real"),
        (SwitchDR(tau=math.inf), DoublyRobust(), "real"),
    ],
    ids=lambda x: str(x),
)
def test_limit_of_one_estimator_is_another(one, other, model: str) -> None:
    log, policy, predictions = sample()
    if model != "real":
        predictions = np.zeros_like(predictions)
    left, right = (quietly(each, log, policy, predictions) for each in (one, other))
    for field in ("value", "lower", "upper", "standard_error"):
        assert getattr(left, field) == pytest.approx(getattr(right, field), rel=1e-12)


def test_logging_policy_itself_is_worth_the_mean_reward() -> None:
    log, _, _ = sample()
    contexts = log.contexts[:, 0].astype(int)
    for estimator in (Replay(), IPS(), SelfNormalisedIPS(), ClippedIPS()):
        made = quietly(estimator, log, World.logging[contexts])
        assert made.value == pytest.approx(log.rewards.mean(), rel=1e-12)
        assert made.effective_sample_size == pytest.approx(len(log), rel=1e-12)
    mean = logged_value(log)
    assert mean.value == pytest.approx(log.rewards.mean(), rel=1e-14)
    error = log.rewards.std(ddof=1) / math.sqrt(len(log))
    assert mean.standard_error == pytest.approx(error, rel=1e-12)


def test_constant_added_to_rewards_is_added_to_self_normalised_estimates() -> None:
    log, policy, model = sample()
    shifted = LoggedData(log.actions, log.rewards + 7, log.propensities, 3)
    for estimator, predictions in ((SelfNormalisedIPS(), None), (SelfNormalisedDR(), model)):
        before = quietly(estimator, log, policy, predictions)
        after = quietly(estimator, shifted, policy, predictions)
        assert after.value == pytest.approx(before.value + 7, rel=1e-12)
        assert after.standard_error == pytest.approx(before.standard_error, rel=1e-9)


# ------------------------------------------------------------------------ exact expectations


def every_log(n: int):
    """Yield (probability, log, policy, model) of every log of n rows that the world can give."""
    rows = []
    for x, a, r in itertools.product(range(2), range(3), range(2)):
        click = World.clicks[x, a]
        chance = World.contexts[x] * World.logging[x, a] * (click if r else 1 - click)
        rows.append((chance, x, a, r))
    for drawn in itertools.product(rows, repeat=n):
        chances, x, a, r = zip(*drawn, strict=True)
        x = np.array(x)
        yield math.prod(chances), World.log(x, a, r), World.target[x], World.model[x]


@pytest.mark.parametrize("estimator", [IPS(), DoublyRobust()], ids=lambda e: e.name)
def test_unbiased_estimators_are_exactly_so_over_every_log_of_two_rows(estimator) -> None:
    expected = sum(p * quietly(estimator, *given).value for p, *given in every_log(2))
    assert expected == pytest.approx(World.value, rel=1e-12)


def test_biased_estimators_have_the_expectation_their_formula_says() -> None:
    weights = World.target / World.logging
    joint = World.contexts[:, None] * World.logging
    clipped = (joint * np.minimum(weights, 1.2) * World.clicks).sum()
    direct = World.contexts @ (World.target * World.model).sum(axis=1)
    kept = joint * weights * (weights <= 1.2)
    switched = direct + (kept * (World.clicks - World.model)).sum()
    for estimator, exact in (
        (ClippedIPS(clip=1.2), clipped),
        (DirectMethod(), direct),
        (SwitchDR(tau=1.2), switched),
    ):
        expected = sum(p * quietly(estimator, *given).value for p, *given in every_log(2))
        assert expected == pytest.approx(exact, rel=1e-12)
        assert exact != pytest.approx(World.value, rel=1e-3)


def test_replay_is_exactly_unbiased_given_that_a_row_matches() -> None:
    """Uniform logging of a world with one context, three rows, and the policy "always 2"."""
    clicks = [0.2, 0.5, 0.9]
    total = chance_of_any = 0.0
    for actions in itertools.product(range(3), repeat=3):
        for rewards in itertools.product(range(2), repeat=3):
            pairs = zip(actions, rewards, strict=True)
            chance = math.prod((clicks[a] if r else 1 - clicks[a]) / 3 for a, r in pairs)
            if 2 not in actions:
                continue
            log = LoggedData(actions, rewards, [1 / 3] * 3, 3)
            total += chance * quietly(Replay(), log, [[0, 0, 1]] * 3).value
            chance_of_any += chance
    assert total / chance_of_any == pytest.approx(0.9, rel=1e-12)


# ------------------------------------------------------------------------------- Monte Carlo

REPLICATIONS, ROWS = 2000, 300


@pytest.fixture(scope="module")
def replications() -> dict[str, np.ndarray]:
    """(value, lower, upper) of 2,000 logs of 300 rows, an array for each estimator."""
    rng = np.random.default_rng(20)
    found: dict[str, list] = {each.name: [] for each in ALL_ESTIMATORS}
    for seed in range(REPLICATIONS):
        given = gather(*World.draw(rng, ROWS))
        for each in (Replay(seed=seed), *ALL_ESTIMATORS[1:]):
            made = each.evaluate(given, Normal(), 0.95, LENIENT)
            found[each.name].append((made.value, made.lower, made.upper))
    return {name: np.array(rows) for name, rows in found.items()}


@pytest.mark.parametrize("name", ["replay", "ips", "snips", "clipped-ips", "dr", "sndr"])
def test_mean_over_logs_is_the_value_of_the_policy(replications, name: str) -> None:
    """Within 4 standard errors, and 0.001 for what is unbiased only in the limit."""
    values = replications[name][:, 0]
    tolerance = 4 * values.std() / math.sqrt(REPLICATIONS)
    tolerance += 0.0 if name in ("ips", "dr") else 0.001
    assert values.mean() == pytest.approx(World.value, abs=tolerance)


@pytest.mark.parametrize("name", ["replay", "ips", "snips", "clipped-ips", "dr", "sndr"])
def test_normal_interval_covers_at_its_level(replications, name: str) -> None:
    """95 %, within 0.02: four standard errors of a share of 2,000."""
    _, lower, upper = replications[name].T
    covered = np.mean((lower <= World.value) & (World.value <= upper))
    assert covered == pytest.approx(0.95, abs=0.02)


def test_doubly_robust_varies_less_than_ips_and_direct_method_misses(replications) -> None:
    assert replications["dr"][:, 0].std() < 0.8 * replications["ips"][:, 0].std()
    _, lower, upper = replications["dm"].T
    assert np.mean((lower <= World.value) & (World.value <= upper)) < 0.05


@pytest.mark.parametrize("estimator", [SelfNormalisedIPS(), DoublyRobust()], ids=lambda e: e.name)
def test_bootstrap_interval_covers_at_its_level(estimator) -> None:
    """90 % over 600 logs, within 0.05: four standard errors of such a share."""
    rng = np.random.default_rng(21)
    covered = []
    for seed in range(600):
        given = gather(*World.draw(rng, 200))
        made = estimator.evaluate(given, Bootstrap(200, seed), 0.9, LENIENT)
        covered.append(made.lower <= World.value <= made.upper)
    assert np.mean(covered) == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("estimator", [Replay(), IPS(), SelfNormalisedIPS(), DoublyRobust()])
def test_bernstein_interval_covers_at_least_at_its_level_on_short_logs(estimator) -> None:
    rng = np.random.default_rng(22)
    weights = World.target / World.logging
    interval = EmpiricalBernstein(0, 1, max_weight=weights.max())
    covered, wider = [], []
    for _ in range(500):
        given = gather(*World.draw(rng, 60))
        made = estimator.evaluate(given, interval, 0.8, LENIENT)
        normal = estimator.evaluate(given, Normal(), 0.8, LENIENT)
        covered.append(made.lower <= World.value <= made.upper)
        wider.append(made.upper - made.lower > normal.upper - normal.lower)
    assert np.mean(covered) >= 0.8
    assert all(wider)


# -------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize("estimator", [DoublyRobust(), SelfNormalisedDR()], ids=lambda e: e.name)
def test_bootstrap_is_the_resampling_written_naively(estimator) -> None:
    log, policy, model = sample(n=40)
    made = quietly(estimator, log, policy, model, interval=Bootstrap(draws=30, seed=5), level=0.8)
    rng = np.random.default_rng(5)
    values = []
    for _ in range(30):
        rows = rng.integers(40, size=40)
        values.append(quietly(estimator, log.rows(rows), policy[rows], model[rows]).value)
    assert made.lower == pytest.approx(np.quantile(values, 0.1), rel=1e-12)
    assert made.upper == pytest.approx(np.quantile(values, 0.9), rel=1e-12)
    assert made.standard_error == pytest.approx(np.std(values, ddof=1), rel=1e-12)


def test_bootstrap_does_not_depend_on_how_much_it_holds_at_once(monkeypatch) -> None:
    log, policy, _ = sample(n=101)
    whole = quietly(SelfNormalisedIPS(), log, policy, interval=Bootstrap(57, 1))
    monkeypatch.setattr(intervals, "_INDICES_AT_ONCE", 1000)
    assert quietly(SelfNormalisedIPS(), log, policy, interval=Bootstrap(57, 1)) == whole
    assert quietly(SelfNormalisedIPS(), log, policy, interval=Bootstrap(57, 2)) != whole


def test_bootstrap_memory_is_bounded() -> None:
    """All indices at once would take 160 MB, in addition to what they select."""
    n = 100_000
    terms = Terms(np.zeros(n), np.ones(n), np.ones(n), True, (0, 0), 1.0, 1.0)
    tracemalloc.start()
    try:
        Bootstrap(draws=200).bounds(terms, 0.95)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60e6


def test_bootstrap_leaves_out_draws_without_a_row_that_counts() -> None:
    """One match in five rows: a third of the draws have none, and the rest all say 3."""
    log = LoggedData([0, 1, 1, 1, 1], [3.0, 0, 0, 0, 0], [0.5] * 5, 2)
    made = quietly(Replay(), log, [[1, 0]] * 5, interval=Bootstrap())
    assert (made.lower, made.upper) == pytest.approx((3, 3), rel=1e-12)
    with pytest.raises(DataError, match="draws must be more"):
        quietly(Replay(), log, [[1, 0]] * 5, interval=Bootstrap(draws=2, seed=6))


def test_bernstein_half_width_is_maurer_and_pontils() -> None:
    log, policy, model = sample(n=80)
    weights = policy[np.arange(80), log.actions] / log.propensities
    level, w_max = 0.9, 4.0
    log_term = math.log(4 / (1 - level))
    predicted = model[np.arange(80), log.actions]
    doubly = (policy * model).sum(axis=1) + weights * (log.rewards - predicted)
    spread = model.max() - model.min()
    for estimator, values, width in (
        (IPS(), weights * log.rewards, w_max * 1),
        (ClippedIPS(clip=1.5), np.minimum(weights, 1.5) * log.rewards, 1.5),
        (DoublyRobust(), doubly, spread + w_max * (1 + spread)),
    ):
        interval = EmpiricalBernstein(0, 1, max_weight=w_max)
        made = quietly(estimator, log, policy, model, interval=interval, level=level)
        half = math.sqrt(2 * values.var(ddof=1) * log_term / 80) + 7 * width * log_term / (3 * 79)
        assert made.upper - made.value == pytest.approx(half, rel=1e-12)
        assert made.value - made.lower == pytest.approx(half, rel=1e-12)


def test_bernstein_interval_of_a_ratio_is_what_the_bound_does_not_exclude() -> None:
    """On a grid of 20,001 values, with the bound written out for each."""
    log, policy, _ = sample(n=2000)
    made = quietly(SelfNormalisedIPS(), log, policy, interval=EmpiricalBernstein(0, 1))
    weights = policy[np.arange(2000), log.actions] / log.propensities
    w_max, log_term = policy.max() / log.propensities.min(), math.log(4 / 0.05)
    left = []
    for v in np.linspace(0, 1, 20_001):
        x = weights * (log.rewards - v)
        bound = math.sqrt(2 * x.var(ddof=1) * log_term / 2000) + 7 * w_max * log_term / (3 * 1999)
        if abs(x.mean()) <= bound:
            left.append(v)
    assert made.lower == pytest.approx(min(left), abs=1e-4)
    assert made.upper == pytest.approx(max(left), abs=1e-4)
    assert 0 < made.lower < made.value < made.upper < 1


def test_bernstein_refuses_what_breaks_its_assumptions() -> None:
    log, policy, _ = sample()
    with pytest.raises(DataError, match=r"rewards lie outside low=0 and high=0\.5"):
        quietly(IPS(), log, policy, interval=EmpiricalBernstein(0, 0.5))
    with pytest.raises(DataError, match=r"max_weight is 2 but there is a weight of 3\.5"):
        quietly(IPS(), log, policy, interval=EmpiricalBernstein(0, 1, max_weight=2))
    with pytest.raises(DataError, match="low and high"):
        EmpiricalBernstein(1, 0)
    with pytest.raises(DataError, match="draws"):
        Bootstrap(draws=1)


@pytest.mark.parametrize("interval", [Normal(), Bootstrap(), EmpiricalBernstein()])
def test_single_row_has_an_infinite_standard_error_and_no_nan(interval) -> None:
    log = LoggedData([0], [1.0], [0.5], 2)
    for estimator in (IPS(), SelfNormalisedIPS()):
        made = quietly(estimator, log, [[1.0, 0.0]], interval=interval)
        assert made.standard_error == math.inf
        assert not math.isnan(made.lower) and not math.isnan(made.upper)


# ----------------------------------------------------------------------- weights and warnings


def test_effective_sample_size_has_its_closed_forms() -> None:
    assert effective_sample_size(np.full(7, 0.3)) == pytest.approx(7, rel=1e-14)
    assert effective_sample_size(np.array([0, 5.0, 0])) == pytest.approx(1, rel=1e-14)
    assert effective_sample_size(np.array([1.0, 2, 3])) == pytest.approx(36 / 14, rel=1e-14)
    assert effective_sample_size(np.array([1e200, 1e200])) == pytest.approx(2, rel=1e-14)
    assert effective_sample_size(np.zeros(4)) == 0


def test_healthy_weights_give_no_warning() -> None:
    log, policy, model = sample(n=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for estimator in ALL_ESTIMATORS:
            assert estimator.estimate(log, policy, model).warnings == ()


def one_rare(n: int = 1000, propensity: float = 1e-4) -> tuple[LoggedData, np.ndarray]:
    """A log in which one row alone is what the policy would mostly do."""
    actions = np.zeros(n, dtype=int)
    actions[0] = 1
    propensities = np.where(actions == 1, propensity, 1 - propensity)
    rewards = np.arange(n) % 2
    return LoggedData(actions, rewards, propensities, 2), np.tile([0.5, 0.5], (n, 1))


def test_weights_that_one_row_dominates_are_reported_in_words_and_as_a_warning() -> None:
    log, policy = one_rare()
    with pytest.warns(DegenerateWeightsWarning, match=r"^ips: .*effective sample size") as issued:
        made = IPS().estimate(log, policy)
    text = " ".join(made.warnings)
    assert "effective sample size is 1.2 of 1000 rows (0.12%)" in text
    assert "one row carries 90.9% of the total weight" in text
    assert "propensities below 0.001 (rows: 1, least 0.0001)" in text
    assert all(each in str(issued[0].message) for each in made.warnings)
    assert issued[0].filename == __file__


def test_limits_decide_what_is_degenerate() -> None:
    log, policy = one_rare()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert IPS().estimate(log, policy, limits=LENIENT).warnings == ()


def test_clipping_mends_the_weights_but_not_the_propensities() -> None:
    log, policy = one_rare()
    with pytest.warns(DegenerateWeightsWarning):
        made = ClippedIPS(clip=1).estimate(log, policy)
    assert [text.split(" were ")[0] for text in made.warnings] == ["actions of the policy"]
    assert made.effective_sample_size > 900


def test_rare_action_that_the_policy_takes_no_more_often_is_no_reason_to_warn() -> None:
    log, _ = one_rare()
    policy = np.tile([1 - 1e-4, 1e-4], (len(log), 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert IPS().estimate(log, policy).warnings == ()


@pytest.mark.parametrize("estimator", [IPS(), DirectMethod()], ids=lambda e: e.name)
def test_mass_on_actions_never_logged_is_reported_even_where_a_model_fills_in(estimator) -> None:
    log, policy, model = sample(n=1000)
    wider = LoggedData(log.actions, log.rewards, log.propensities, 4)
    policy = np.hstack([0.75 * policy, np.full((1000, 1), 0.25)])
    model = np.hstack([model, np.zeros((1000, 1))])
    with pytest.warns(DegenerateWeightsWarning, match=r"25\.0% .* never logged"):
        estimator.estimate(wider, policy, model)


def test_propensities_that_are_wrong_show_in_the_mean_weight() -> None:
    log, policy, _ = sample(n=2000)
    halved = LoggedData(log.actions, log.rewards, log.propensities / 2, 3)
    with pytest.warns(DegenerateWeightsWarning, match="weights average .* where 1 is expected"):
        IPS().estimate(halved, policy)


def test_log_without_a_single_reward_is_not_taken_for_certainty() -> None:
    log, policy, _ = sample(n=2000)
    silent = LoggedData(log.actions, np.zeros(2000), log.propensities, 3)
    with pytest.warns(DegenerateWeightsWarning, match="no width"):
        made = IPS().estimate(silent, policy)
    assert (made.lower, made.upper) == (0, 0)


def test_direct_method_has_no_weights_to_warn_about() -> None:
    log, policy = one_rare()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = DirectMethod().estimate(
            log, policy, np.full((1000, 2), 0.5), limits=WeightLimits(propensity=0)
        )
    assert made.effective_sample_size == 1000


# -------------------------------------------------------------------- thresholds from the data


@pytest.mark.parametrize("seed", range(5))
def test_chosen_threshold_is_that_of_the_rule_written_naively(seed: int) -> None:
    n = 400
    log, policy = heavy_log(np.random.default_rng(seed), n)
    model = np.tile([0.3, 0.6], (n, 1))
    weights = policy[np.arange(n), log.actions] / log.propensities
    quantiles = np.quantile(weights, [1, 0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5], method="lower")
    grid = [math.inf, *np.unique(quantiles)[::-1]]
    errors = log.rewards - model[np.arange(n), log.actions]

    def least(parts: list[np.ndarray]) -> int:
        scores = []
        for part in parts:
            d = parts[0] - part
            bias = max(0, d.mean() ** 2 - d.var(ddof=1) / n)
            scores.append(part.var(ddof=1) / n + bias)
        return int(np.argmin(scores))

    clip = grid[least([np.minimum(weights, c) * log.rewards for c in grid])]
    assert quietly(ClippedIPS(clip="mse"), log, policy).threshold == clip
    # The model predicts the same in all rows, so that its mean adds no variance.
    taus = [*grid, 0.0]
    tau = taus[least([np.where(weights <= t, weights, 0) * errors for t in taus])]
    made = quietly(SwitchDR(tau="mse"), log, policy, model)
    assert made.threshold == tau
    assert made.value == quietly(SwitchDR(tau), log, policy, model).value


HEAVY_VALUE = 0.5 * 0.2 + 0.5 * 0.8


def heavy_log(rng: np.random.Generator, n: int) -> tuple[LoggedData, np.ndarray]:
    """Two actions, the second logged with a probability between 0.005 and 0.5."""
    propensity = np.exp(rng.uniform(np.log(0.005), np.log(0.5), n))
    actions = (rng.random(n) < propensity).astype(int)
    rewards = rng.random(n) < np.where(actions == 1, 0.8, 0.2)
    logged = np.where(actions == 1, propensity, 1 - propensity)
    return LoggedData(actions, rewards, logged, 2), np.full((n, 2), 0.5)


def test_chosen_switch_uses_a_good_model_and_distrusts_a_bad_one() -> None:
    """Mean squared errors over 400 logs of 1,000 rows with heavy weights."""
    rng = np.random.default_rng(7)
    good, bad = np.tile([0.2, 0.8], (1000, 1)), np.tile([1.5, 0.1], (1000, 1))
    errors: dict[str, list[float]] = {}
    for _ in range(400):
        log, policy = heavy_log(rng, 1000)
        for label, model in (("good", good), ("bad", bad)):
            for each in (DirectMethod(), DoublyRobust(), SwitchDR("mse")):
                value = quietly(each, log, policy, model).value
                errors.setdefault(f"{label} {each.name}", []).append((value - HEAVY_VALUE) ** 2)
    mse = {name: np.mean(squares) for name, squares in errors.items()}
    assert mse["good switch-dr"] < 0.6 * mse["good dr"]
    assert mse["bad switch-dr"] < 1.6 * mse["bad dr"] < 0.3 * mse["bad dm"]


def test_threshold_is_reported_and_checked() -> None:
    log, policy, model = sample(n=400)
    assert quietly(ClippedIPS(), log, policy).threshold == 20
    assert quietly(SwitchDR(tau=3), log, policy, model).threshold == 3
    assert quietly(IPS(), log, policy).threshold is None
    with pytest.raises(DataError, match="clip must be positive"):
        ClippedIPS(clip=0)
    with pytest.raises(DataError, match="tau must not be negative"):
        SwitchDR(tau=-1)
    for nonsense in (math.nan, "auto"):
        with pytest.raises(DataError, match="tau must"):
            SwitchDR(tau=nonsense)
        with pytest.raises(DataError, match="clip must"):
            ClippedIPS(clip=nonsense)


# --------------------------------------------------------------------------------- bad input

GOOD = dict(actions=[0, 1, 2], rewards=[0.0, 1, 2], propensities=[0.5, 0.3, 1.0], n_actions=3)
BAD_LOGS = [
    (dict(actions=[], rewards=[], propensities=[]), "actions is empty"),
    (dict(actions=[0, 1, 3]), r"actions must be in 0\.\.2: 1 row breaks this, first row 2 with 3"),
    (dict(actions=[0, -1, -2]), r"actions must be in 0\.\.2: 2 rows break this, first row 1"),
    (dict(actions=[0.0, 1.0, 2.0]), "actions must be integers, got float64"),
    (dict(actions=[[0, 1, 2]]), "actions must have one axis"),
    (dict(rewards=[0.0, math.nan, 2]), "rewards must be finite: 1 row breaks this, first row 1"),
    (dict(rewards=[0.0, 1]), r"rewards must have shape \(3,\), got \(2,\)"),
    (dict(rewards=["a", "b", "c"]), "rewards must be numbers"),
    (dict(propensities=[0.5, 0.0, 1]), r"propensities must be in \(0, 1\]: .* row 1 with 0"),
    (dict(propensities=[0.5, 0.5, 1.1]), r"propensities must be in \(0, 1\]"),
    (dict(propensities=[0.5, math.inf, 1]), "propensities must be finite"),
    (dict(n_actions=0), "n_actions must be at least 1"),
    (dict(n_actions=2.5), "n_actions must be an integer"),
    (dict(contexts=[1.0, 2, 3]), r"contexts must have shape \(3, any\)"),
    (dict(contexts=[[1.0], [math.nan], [2]]), "contexts must be finite: .* first row 1"),
    (dict(positions=[1, 2]), "positions must have shape"),
    (dict(positions=[1, 2, -1]), "positions must not be negative"),
    (dict(availability=np.ones((3, 3))), "availability must be of bool"),
    (dict(availability=np.ones((3, 2), bool)), r"availability must have shape \(3, 3\)"),
    (dict(availability=~np.eye(3, dtype=bool)), "availability must be true for the action taken"),
]


@pytest.mark.parametrize(("change", "message"), BAD_LOGS, ids=lambda x: str(x)[:40])
def test_bad_log_is_refused_by_name(change: dict, message: str) -> None:
    LoggedData(**GOOD)
    with pytest.raises(DataError, match=message):
        LoggedData(**{**GOOD, **change})


BAD_POLICIES = [
    ([[0.5, 0.5]] * 3, r"policy must have shape \(3, 3\), got \(3, 2\)"),
    ([0.5, 0.25, 0.25], "policy must have shape"),
    ([[0.5, 0.3, 0.1]] * 3, "policy must sum to 1 in each row: 3 rows break this"),
    ([[1.5, -0.5, 0.0]] * 3, "policy has a negative probability, -0.5, in row 0"),
    ([[math.nan, 0.5, 0.5]] * 3, "policy must be finite"),
]


@pytest.mark.parametrize(("policy", "message"), BAD_POLICIES, ids=lambda x: str(x)[:30])
def test_bad_policy_is_refused_by_every_estimator(policy, message: str) -> None:
    for estimator in ALL_ESTIMATORS:
        with pytest.raises(DataError, match=message):
            estimator.estimate(LoggedData(**GOOD), policy, np.zeros((3, 3)))


def test_policy_must_not_take_unavailable_actions() -> None:
    available = np.array([[True, True, False]] * 2)
    log = LoggedData([0, 1], [1.0, 0.0], [0.5, 0.5], 3, availability=available)
    quietly(IPS(), log, [[0.4, 0.6, 0.0]] * 2)
    with pytest.raises(DataError, match=r"no mass to unavailable actions: .* row 1 with 0\.2"):
        IPS().estimate(log, [[0.4, 0.6, 0.0], [0.4, 0.4, 0.2]])


def test_bad_predictions_levels_and_bounds_are_refused() -> None:
    log, policy, model = sample(n=50)
    with pytest.raises(DataError, match="predictions must be given: dr needs them"):
        DoublyRobust().estimate(log, policy)
    with pytest.raises(DataError, match=r"predictions must have shape \(50, 3\)"):
        DoublyRobust().estimate(log, policy, model[:, :2])
    with pytest.raises(DataError, match="predictions must be finite"):
        DirectMethod().estimate(log, policy, np.full((50, 3), np.nan))
    for level in (0, 1, 95, math.nan):
        with pytest.raises(DataError, match="level must be between 0 and 1"):
            IPS().estimate(log, policy, level=level)
        with pytest.raises(DataError, match="level must be between 0 and 1"):
            logged_value(log, level=level)
    with pytest.raises(DataError, match="bound is 1 but there is a weight of"):
        Replay(bound=1).estimate(log, policy)


@pytest.mark.parametrize("estimator", [Replay(), SelfNormalisedIPS(), SelfNormalisedDR()])
def test_policy_that_shares_nothing_with_the_log_gives_an_error_and_not_nan(estimator) -> None:
    log = LoggedData([0, 0], [1.0, 2.0], [0.5, 0.5], 2)
    with pytest.raises(DataError, match="shares no action with the log"):
        estimator.estimate(log, [[0, 1]] * 2, np.zeros((2, 2)))


def test_log_cannot_be_changed_afterwards() -> None:
    rewards = np.array([0.0, 1, 2])
    log = LoggedData(**{**GOOD, "rewards": rewards})
    rewards[0] = 99
    assert log.rewards[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        log.rewards[0] = 99
    with pytest.raises(AttributeError):
        log.rewards = rewards  # type: ignore[misc]


def test_rows_of_a_log_keep_all_that_belongs_to_them() -> None:
    log = LoggedData(
        **GOOD,
        contexts=[[1.0], [2], [3]],
        positions=[3, 2, 1],
        availability=np.array([[1, 1, 1], [0, 1, 0], [1, 0, 1]], bool),
    )
    part = log.rows([2, 0])
    assert len(part) == 2 and part.n_actions == 3
    np.testing.assert_array_equal(part.actions, [2, 0])
    np.testing.assert_array_equal(part.contexts, [[3], [1]])
    np.testing.assert_array_equal(part.positions, [1, 3])
    np.testing.assert_array_equal(part.availability, [[1, 0, 1], [1, 1, 1]])
    assert "3 rows, 3 actions, contexts, positions, availability" in repr(log)


def test_arrays_of_jax_in_float32_are_taken() -> None:
    log, policy, _ = sample(n=100)
    as_jax = LoggedData(
        jnp.asarray(log.actions), jnp.asarray(log.rewards), jnp.asarray(log.propensities), 3
    )
    ours, theirs = quietly(IPS(), log, policy), quietly(IPS(), as_jax, jnp.asarray(policy))
    assert theirs.value == pytest.approx(ours.value, rel=1e-6)


def test_deterministic_policy_is_one_hot_and_refuses_unknown_actions() -> None:
    np.testing.assert_array_equal(deterministic_policy([1, 0], 3), [[0, 1, 0], [1, 0, 0]])
    with pytest.raises(DataError, match="actions must be in"):
        deterministic_policy([3], 3)


# ------------------------------------------------------------------------------- cross-fitting


class Witness(RegressorMixin, BaseEstimator):
    """Predicts one for a row it was trained on, known by its first input, and zero otherwise."""

    def fit(self, x, y):
        self.seen_ = x[:, 0]
        return self

    def predict(self, x):
        return np.isin(x[:, 0], self.seen_).astype(float)


class ClassifyingWitness(ClassifierMixin, Witness):
    def fit(self, x, y):
        self.classes_ = np.unique(y)
        return super().fit(x, y)

    def predict_proba(self, x):
        seen = self.predict(x)
        return np.stack([1 - seen, seen], axis=1)


@pytest.mark.parametrize("model", [Witness(), ClassifyingWitness()])
@pytest.mark.parametrize("folds", [2, 5, 37])
def test_no_row_is_predicted_by_a_model_that_saw_it(model, folds: int) -> None:
    n = 37
    log = LoggedData(
        np.arange(n) % 3, np.arange(n) % 2, np.full(n, 1 / 3), 3, contexts=np.arange(n)[:, None]
    )
    np.testing.assert_array_equal(cross_fit(model, log, folds=folds), np.zeros((n, 3)))
    assert not hasattr(model, "seen_")


def test_cross_fit_is_the_loop_written_naively() -> None:
    rng = np.random.default_rng(0)
    n, n_actions = 40, 3
    actions, positions = rng.integers(n_actions, size=n), rng.integers(1, 3, size=n)
    contexts, rewards = rng.normal(size=(n, 2)), rng.normal(size=n)
    items = rng.normal(size=(n_actions, 2))
    log = LoggedData(actions, rewards, np.full(n, 1 / 3), n_actions, contexts, positions)
    got = cross_fit(LinearRegression(), log, folds=4, seed=9, action_features=items)

    parts = np.array_split(np.random.default_rng(9).permutation(n), 4)
    slots = np.stack([positions == 1, positions == 2], axis=1)
    for part in parts:
        seen = [i for i in range(n) if i not in part]
        train = [[*contexts[i], *slots[i], *items[actions[i]]] for i in seen]
        model = LinearRegression().fit(train, rewards[seen])
        for i in part:
            for a in range(n_actions):
                (expected,) = model.predict([[*contexts[i], *slots[i], *items[a]]])
                assert got[i, a] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_classifier_predicts_the_mean_of_rewards_that_are_not_whole_numbers() -> None:
    """A tree on the action alone gives each action's mean reward outside the fold."""
    rng = np.random.default_rng(1)
    actions = rng.integers(3, size=90)
    rewards = rng.choice([-1.5, 0.25, 2.0], size=90)
    log = LoggedData(actions, rewards, np.full(90, 1 / 3), 3)
    got = cross_fit(DecisionTreeClassifier(), log, folds=3, seed=2)
    for part in np.array_split(np.random.default_rng(2).permutation(90), 3):
        out = np.setdiff1d(np.arange(90), part)
        means = [rewards[out][actions[out] == a].mean() for a in range(3)]
        np.testing.assert_allclose(got[part], np.tile(means, (len(part), 1)), rtol=1e-12)


def test_fold_without_any_click_predicts_none() -> None:
    """The one click is held out once: classifiers refuse what is left, we do not."""
    log = LoggedData([0, 1] * 10, [1.0] + [0.0] * 19, [0.5] * 20, 2, contexts=np.ones((20, 1)))
    predictions = cross_fit(LogisticRegression(), log, folds=20)
    np.testing.assert_array_equal(predictions[0], [0, 0])
    assert (predictions[1:] > 0).all()


def test_cross_fitted_predictions_make_doubly_robust_better_than_ips() -> None:
    """Mean squared errors over 40 logs of 400 rows."""
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(40):
        log, policy, _ = World.draw(rng, 400)
        model = cross_fit(DecisionTreeClassifier(min_samples_leaf=10), log, folds=3)
        values = [quietly(each, log, policy, model).value for each in (IPS(), DoublyRobust())]
        errors.append((np.array(values) - World.value) ** 2)
    ips, doubly = np.mean(errors, axis=0)
    assert doubly < 0.8 * ips


def test_cross_fit_refuses_bad_arguments() -> None:
    log, _, _ = sample(n=10)
    for folds in (1, 11):
        with pytest.raises(DataError, match="folds must be from 2 to the number of rows, 10"):
            cross_fit(LinearRegression(), log, folds=folds)
    with pytest.raises(DataError, match=r"action_features must have shape \(3, any\)"):
        cross_fit(LinearRegression(), log, action_features=np.eye(4))


# -------------------------------------------------------------------------------- comparison


def test_comparison_has_a_row_for_each_policy_and_estimator_in_order() -> None:
    log, policy, model = sample(n=2000)
    uniform = np.full((2000, 3), 1 / 3)
    table = compare(log, {"new": policy, "uniform": uniform}, predictions=model)
    names = [(row["policy"], row["estimator"]) for row in table.rows]
    every = [each.name for each in ALL_ESTIMATORS]
    assert names == [*(("new", e) for e in every), *(("uniform", e) for e in every)]
    for row, estimator in zip(table.rows, ALL_ESTIMATORS, strict=False):
        alone = vars(estimator.estimate(log, policy, model))
        assert {key: row[key] for key in alone} == alone
    frame = table.to_pandas()
    assert list(frame.columns[:5]) == ["policy", "estimator", "value", "lower", "upper"]
    assert frame["value"].tolist() == [row["value"] for row in table.rows]
    without = compare(log, {"new": policy})
    assert [r["estimator"] for r in without.rows] == ["replay", "ips", "snips", "clipped-ips"]


def test_comparison_prints_as_an_aligned_table() -> None:
    log, policy, model = sample(n=2000)
    given = {"new": policy, "a longer name": policy}
    lines = str(compare(log, given, [IPS(), DoublyRobust()], model, level=0.9)).splitlines()
    assert len(lines) == 6
    assert "90% interval" in lines[0]
    start = lines[0].index("estimator")
    assert [line[start:].split()[0] for line in lines[2:]] == ["ips", "dr", "ips", "dr"]
    value = IPS().estimate(log, policy).value
    assert lines[2].split()[2] == f"{value:.5g}"


def test_comparison_says_once_what_several_estimators_have_to_warn_of() -> None:
    log, policy = one_rare()
    with pytest.warns(DegenerateWeightsWarning) as issued:
        table = compare(log, {"new": policy}, [IPS(), SelfNormalisedIPS(), ClippedIPS(clip=1)])
    notes = [str(each.message) for each in issued]
    assert len(notes) == len(set(notes)) == 3
    assert sum(note.startswith("new: actions of the policy") for note in notes) == 1
    assert sum(note.startswith("new, ips, snips: ") for note in notes) == 2
    assert all(f"! {note}" in str(table) for note in notes)


def test_comparison_names_the_policy_that_is_wrong() -> None:
    log, policy, _ = sample(n=10)
    with pytest.raises(DataError, match="second: policy must sum to 1"):
        compare(log, {"first": policy, "second": policy * 2})
    with pytest.raises(DataError, match="policies is empty"):
        compare(log, {})
    with pytest.raises(DataError, match="estimators is empty"):
        compare(log, {"first": policy}, [])


def test_estimate_reads_as_a_sentence() -> None:
    made = Estimate(0.12345, 0.1, 0.2, 0.95, 0.03, 512.3, 1000)
    assert str(made) == ("0.1235 [0.1, 0.2] (95%), effective sample size 512 of 1000, no warnings")
