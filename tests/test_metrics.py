"""Scores against their definitions written naively, and against answers known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from s2vgd import metrics
from s2vgd.predictive import CategoricalPredictive, from_components

ROWS = 2000


@pytest.fixture(scope="module")
def calibrated():
    """Outcomes drawn from the predictive itself: a normal of its own mean and scale in each row."""
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=ROWS), 0.5 + rng.random(ROWS)
    y = mean + std * rng.normal(size=ROWS)
    return from_components("normal", {"loc": mean[None], "scale": std[None]}), y, mean, std


@pytest.fixture(scope="module")
def classifier():
    rng = np.random.default_rng(1)
    predictive = CategoricalPredictive(rng.normal(size=(3, 200, 4)), classes=list("abcd"))
    return predictive, rng.choice(list("abcd"), size=200)


def test_regression_scores_follow_their_definitions(calibrated):
    predictive, y, mean, std = calibrated
    z = (y - mean) / std
    crps = std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    expected = {
        "rmse": np.sqrt(np.mean((y - mean) ** 2)),
        "log_likelihood": stats.norm.logpdf(y, mean, std).mean(),
        "crps": crps.mean(),
        "coverage_90": np.mean(np.abs(z) <= stats.norm.ppf(0.95)),
        "width_90": np.mean(2 * std * stats.norm.ppf(0.95)),
    }
    found = metrics.summary(predictive, y)
    assert set(found) == {*expected, "calibration_error"}
    assert all(type(value) is float for value in found.values())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


def test_coverage_by_probability_transform_equals_coverage_by_intervals(calibrated):
    """The table never computes a quantile, so it has to be checked against the intervals."""
    predictive, y, *_ = calibrated
    table = metrics.coverage_table(predictive, y, [0.3, 0.9, 0.999])
    assert list(table) == [0.3, 0.9, 0.999]
    for level, observed in table.items():
        interval = predictive.interval(level)
        assert observed == metrics.coverage(interval, y) == metrics.coverage(predictive, y, level)
        assert abs(observed - level) < 0.03
        width = metrics.interval_width(predictive, level)
        np.testing.assert_allclose(width, metrics.interval_width(interval))
    assert list(metrics.coverage_table(predictive, y)) == [0.5, 0.8, 0.9, 0.95, 0.99]


def test_rmse_of_plain_arrays_and_of_one_target_with_its_axis():
    assert metrics.rmse([1.0, 2.0], [1.0, 4.0]) == np.sqrt(2.0)
    assert metrics.rmse([1.0, 2.0], [[1.0], [4.0]]) == np.sqrt(2.0)
    assert metrics.rmse(np.zeros((2, 2)), [[1.0, 2.0], [3.0, 4.0]]) == np.sqrt(7.5)


def test_scores_of_several_targets_pool_them():
    y = np.random.default_rng(2).normal(size=(50, 2))
    predictive = from_components("normal", {"loc": np.zeros((1, 50, 2)), "scale": 1.0})
    found = metrics.summary(predictive, y)
    np.testing.assert_allclose(found["rmse"], np.sqrt(np.mean(y**2)))
    expected = stats.norm.logpdf(y).sum(axis=1).mean()
    np.testing.assert_allclose(found["log_likelihood"], expected, rtol=1e-6)
    np.testing.assert_allclose(found["coverage_90"], np.mean(np.abs(y) < stats.norm.ppf(0.95)))


def test_calibration_curve_of_a_calibrated_predictive_is_the_diagonal(calibrated):
    predictive, y, mean, std = calibrated
    nominal, observed = metrics.calibration_curve(predictive, y, points=9)
    np.testing.assert_allclose(nominal, np.arange(1, 10) / 10)
    below = [np.mean(y <= mean + std * stats.norm.ppf(level)) for level in nominal]
    np.testing.assert_allclose(observed, below, atol=1e-3)
    assert np.abs(observed - nominal).max() < 0.04
    assert metrics.calibration_error(predictive, y) < 0.02


def test_calibration_error_sees_overconfidence_and_bias(calibrated):
    _, y, mean, std = calibrated
    narrow = from_components("normal", {"loc": mean[None], "scale": 0.2 * std[None]})
    nominal, observed = metrics.calibration_curve(narrow, y, points=9)
    assert observed[0] > nominal[0] and observed[-1] < nominal[-1]
    assert metrics.calibration_error(narrow, y) > 0.1
    biased = from_components("normal", {"loc": mean[None] + 100.0, "scale": std[None]})
    np.testing.assert_allclose(metrics.calibration_error(biased, y), 0.5)


def test_classification_scores_follow_their_definitions(classifier):
    predictive, y = classifier
    probabilities, codes = predictive.proba, np.searchsorted(list("abcd"), y)
    right = probabilities[np.arange(200), codes]
    found = metrics.summary(predictive, y)
    assert set(found) == {"accuracy", "log_likelihood", "brier", "ece"}
    np.testing.assert_allclose(found["accuracy"], np.mean(probabilities.argmax(1) == codes))
    np.testing.assert_allclose(found["log_likelihood"], np.log(right).mean(), rtol=1e-5)
    expected = np.mean(np.sum((probabilities - np.eye(4)[codes]) ** 2, axis=1))
    np.testing.assert_allclose(found["brier"], expected)
    np.testing.assert_allclose(found["brier"], predictive.brier(y).mean())
    assert metrics.brier(probabilities, codes) == found["brier"]
    assert metrics.accuracy(predictive.mode, y) == found["accuracy"]


def test_expected_calibration_error_is_the_binned_gap(classifier):
    predictive, y = classifier
    confidence, hit = predictive.proba.max(axis=1), predictive.mode == y
    expected = 0.0
    for k in range(10):
        inside = (confidence > k / 10) & (confidence <= (k + 1) / 10)
        if inside.any():
            expected += inside.mean() * abs(hit[inside].mean() - confidence[inside].mean())
    found = metrics.expected_calibration_error(predictive, y, bins=10)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    codes = np.searchsorted(list("abcd"), y)
    assert metrics.expected_calibration_error(predictive.proba, codes, bins=10) == found


def test_expected_calibration_error_of_known_cases():
    sure = np.array([[1.0, 0.0]] * 4)
    assert metrics.expected_calibration_error(sure, [0, 0, 0, 0]) == 0.0
    assert metrics.expected_calibration_error(sure, [0, 0, 0, 1]) == 0.25
    half = np.array([[0.5, 0.5]] * 4)
    assert metrics.expected_calibration_error(half, [0, 1, 0, 1]) == 0.0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p, c: metrics.rmse(p, [0.0]), ValueError, "^y must have the shape"),
        (lambda p, c: metrics.rmse(p, [0.0, np.nan]), ValueError, "^y contains NaN"),
        (lambda p, c: metrics.rmse([0.0, np.inf], [0.0, 1.0]), ValueError, "^predicted contains"),
        (lambda p, c: metrics.rmse(["a"], [0.0]), ValueError, "^predicted must be an array"),
        (lambda p, c: metrics.rmse(np.zeros(2), np.zeros((2, 2))), ValueError, "^y must"),
        (lambda p, c: metrics.rmse([], []), ValueError, "no rows"),
        (lambda p, c: metrics.rmse(c, ["a", "b"]), TypeError, "regression"),
        (lambda p, c: metrics.crps(c, ["a", "b"]), TypeError, "regression"),
        (lambda p, c: metrics.crps(p[:0], []), ValueError, "no rows"),
        (lambda p, c: metrics.log_likelihood([0.0], [0.0]), TypeError, "predictive must"),
        (lambda p, c: metrics.log_likelihood(p, [0.0]), ValueError, "^y must"),
        (lambda p, c: metrics.coverage(p, [0.0, 1.0], 90), ValueError, "strictly between"),
        (lambda p, c: metrics.coverage(([0.0, 0.0], [1.0, -1.0]), [0.0, 0.0]), ValueError, "lower"),
        (lambda p, c: metrics.coverage(([0.0], [1.0], [2.0]), [0.0]), ValueError, "pair"),
        (lambda p, c: metrics.coverage(c, ["a", "b"]), TypeError, "regression"),
        (lambda p, c: metrics.interval_width(p, 1.0), ValueError, "^level"),
        (lambda p, c: metrics.calibration_curve(p, [0.0, 0.0], 0), ValueError, "^points"),
        (lambda p, c: metrics.calibration_error(p[:0], []), ValueError, "no rows"),
        (lambda p, c: metrics.accuracy(c, ["a"]), ValueError, "^y must"),
        (lambda p, c: metrics.accuracy(p, [0.0, 0.0]), TypeError, "classifier"),
        (lambda p, c: metrics.accuracy([], []), ValueError, "no rows"),
        (lambda p, c: metrics.brier(c, ["a", "z"]), ValueError, "^y must hold labels"),
        (lambda p, c: metrics.brier([0.5, 0.5], [0, 1]), ValueError, "^predicted must be prob"),
        (lambda p, c: metrics.brier([[0.5, 0.6]], [0]), ValueError, "sum to one"),
        (lambda p, c: metrics.brier([[1.5, -0.5]], [0]), ValueError, "sum to one"),
        (lambda p, c: metrics.expected_calibration_error(c, ["a", "b"], 0), ValueError, "^bins"),
        (lambda p, c: metrics.summary([0.0], [0.0]), TypeError, "regression"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, message):
    mixture = from_components("normal", {"loc": np.zeros((1, 2)), "scale": 1.0})
    classes = CategoricalPredictive(np.zeros((1, 2, 2)), classes=["a", "b"])
    with pytest.raises(error, match=message):
        call(mixture, classes)
