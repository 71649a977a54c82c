"""Predictive distributions against scipy: mixtures of components, and class probabilities."""

from __future__ import annotations

import pickle
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import integrate, optimize, stats
from scipy.special import entr, log_softmax, logsumexp, softmax, stdtr

from s2vgd import predictive
from s2vgd.predictive import (
    CategoricalPredictive,
    MixturePredictive,
    Predictive,
    _base,
    _families,
    _mixture,
    _numerics,
    from_components,
)

SCIPY = {"normal": stats.norm, "student_t": stats.t(4.0), "laplace": stats.laplace}
FAMILIES = sorted(SCIPY)
DRAWS, ROWS = 5, 8


def make(family: str, loc, scale, *, unit=None, **options) -> MixturePredictive:
    components = {"loc": loc, "scale": scale}
    if family == "student_t":
        components["df"] = 4.0
    result = from_components(family, components, scale=unit, **options)
    assert isinstance(result, MixturePredictive)
    return result


@pytest.fixture(scope="module")
def parts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Locations and scales, (S, N), the scales differing tenfold within a row, and outcomes."""
    rng = np.random.default_rng(0)
    loc = rng.normal(size=(DRAWS, ROWS))
    scale = 0.4 * np.exp(0.7 * rng.normal(size=(DRAWS, ROWS)))
    return loc, scale, 1.5 * rng.normal(size=ROWS)


def copies(family: str) -> int:
    """How often to repeat a draw, which changes nothing: once, or as is compiled anyway."""
    return 1 if family == "normal" else DRAWS


class Reference:
    """One row of a mixture, naively, in double precision."""

    def __init__(self, family: str, loc: np.ndarray, scale: np.ndarray) -> None:
        self.z, self.loc, self.scale = SCIPY[family], loc, scale

    def _standard(self, x: ArrayLike) -> np.ndarray:
        return (np.asarray(x)[..., None] - self.loc) / self.scale

    def pdf(self, x: ArrayLike) -> np.ndarray:
        return np.mean(self.z.pdf(self._standard(x)) / self.scale, axis=-1)

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return np.mean(self.z.cdf(self._standard(x)), axis=-1)

    def sf(self, x: ArrayLike) -> np.ndarray:
        return np.mean(self.z.sf(self._standard(x)), axis=-1)

    @property
    def spread(self) -> float:
        return float(np.sqrt(np.var(self.loc) + np.mean(self.scale**2)))

    def quantile(self, q: float) -> float:
        ends = self.loc + self.scale * self.z.ppf(q)
        lower, upper = ends.min() - 1e-6, ends.max() + 1e-6
        if q <= 0.5:
            return optimize.brentq(lambda x: self.cdf(x) - q, lower, upper, xtol=1e-14)
        return optimize.brentq(lambda x: (1.0 - q) - self.sf(x), lower, upper, xtol=1e-14)

    def integral(self, function, *kinks: float) -> float:
        """Integrate by 40 Gauss nodes between each two of many points of every component."""
        reach = np.array([0, 1, 2, 4, 8, 16, 40, 200, 1e3, 1e4, 1e5])
        points = self.loc + self.scale * np.concatenate([-reach, reach])[:, None]
        cuts = np.unique(np.concatenate([points.ravel(), kinks]))
        return sum(integrate.fixed_quad(function, a, b, n=40)[0] for a, b in pairwise(cuts))

    def crps(self, y: float) -> float:
        return self.integral(lambda x: np.where(x < y, self.cdf(x), self.sf(x)) ** 2, y)

    def entropy(self) -> float:
        return self.integral(lambda x: entr(self.pdf(x)))


# ---- mixtures: moments, densities, quantiles
# --------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_moments_are_those_of_the_mixture(family, parts):
    loc, scale, _ = parts
    p = make(family, loc, scale)
    variances = scale**2 * SCIPY[family].var()
    second_moment = np.mean(loc**2 + variances, axis=0)
    np.testing.assert_allclose(p.mean, loc.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(p.var, second_moment - loc.mean(axis=0) ** 2, rtol=1e-10)
    np.testing.assert_allclose(p.std**2, p.var, rtol=1e-12)
    np.testing.assert_allclose(p.epistemic, loc.var(axis=0), rtol=1e-10)
    np.testing.assert_allclose(p.aleatoric, variances.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(p.epistemic + p.aleatoric, p.var, rtol=1e-12)


def test_student_variance_is_infinite_up_to_two_degrees_of_freedom():
    components = {"loc": np.zeros((1, 3)), "scale": 1.0, "df": np.array([[1.5, 2.0, 3.0]])}
    p = from_components("student_t", components)
    np.testing.assert_array_equal(p.aleatoric, [np.inf, np.inf, 3.0])
    np.testing.assert_array_equal(p.std, [np.inf, np.inf, np.sqrt(3.0)])


@pytest.mark.parametrize("family", FAMILIES)
def test_log_prob_and_cdf_agree_with_scipy(family, parts):
    loc, scale, y = parts
    p = make(family, loc, scale)
    z = (y - loc) / scale
    expected = logsumexp(SCIPY[family].logpdf(z) - np.log(scale), axis=0) - np.log(DRAWS)
    np.testing.assert_allclose(p.log_prob(y), expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(p.cdf(y), SCIPY[family].cdf(z).mean(axis=0), atol=5e-7)


def test_log_prob_is_finite_far_out_in_the_tail():
    p = make("normal", [[0.0, 0.0]], 1.0)
    expected = stats.norm.logpdf([60.0, -1e6])
    np.testing.assert_allclose(p.log_prob([60.0, -1e6]), expected, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_absurd_outcomes_have_finite_scores(family):
    p = make(family, np.zeros((DRAWS, 2)), 1.0)
    y = [-1e300, 1e40]
    np.testing.assert_allclose(p.cdf(y), [0.0, 1.0], atol=1e-6)
    assert np.all(p.log_prob(y) < -100) and np.all(np.isfinite(p.log_prob(y)))
    assert np.all(p.crps(y) > 1e11) and np.all(np.isfinite(p.crps(y)))


@pytest.mark.parametrize("family", FAMILIES)
def test_quantiles_agree_with_brentq(family, parts):
    loc, scale, _ = parts
    q = np.array([0.001, 0.05, 0.5, 0.77, 0.999])
    found = make(family, loc, scale).quantile(q)
    assert found.shape == (5, ROWS)
    for i in range(ROWS):
        row = Reference(family, loc[:, i], scale[:, i])
        expected = [row.quantile(level) for level in q]
        np.testing.assert_allclose(found[:, i], expected, atol=3e-6 * row.spread)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("q", [1e-9, 1e-5, 0.5, 1 - 1e-5])
def test_quantile_of_one_component_is_its_own(family, q):
    """Deep tails included: the upper one is found through the lower, where float32 has digits."""
    p = make(family, [[3.0, -2.0]] * copies(family), [[0.5, 1e-4]])
    expected = np.array([3.0, -2.0]) + np.array([0.5, 1e-4]) * SCIPY[family].ppf(q)
    error = np.abs(p.quantile(q) - expected) / (expected - [3.0, -2.0] + [0.5, 1e-4])
    assert np.abs(error).max() < 5e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_quantiles_of_components_far_apart(family):
    """A moment-matched normal would be off by hundreds here; so would unguarded Newton steps."""
    loc = np.array([-1000.0, -200.0, 0.0, 1.0, 700.0])[:, None]
    scale = np.array([1e-2, 1.0, 1.0, 10.0, 1e-1])[:, None]
    row = Reference(family, loc[:, 0], scale[:, 0])
    q = [0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999]
    expected = [row.quantile(level) for level in q]
    np.testing.assert_allclose(make(family, loc, scale).quantile(q)[:, 0], expected, atol=1e-4)


def test_quantile_between_two_separate_components_lies_between_them():
    """Where the cdf is flat any point will do; it must be one of them, and no NaN."""
    p = make("normal", [[-1e4], [-1e4], [1e4], [1e4], [1e4]], 1.0)
    between = p.quantile(0.4)
    assert -9995 < between[0] < 9995
    np.testing.assert_allclose(p.cdf(between), 0.4, atol=1e-6)


def test_one_stray_draw_does_not_cost_the_others_their_digits():
    loc = np.array([-1.0, -0.2, 0.4, 1.0, 1e6])[:, None]
    p = make("normal", loc, 0.1)
    expected = Reference("normal", loc[:, 0], np.full(DRAWS, 0.1)).quantile(0.3)
    np.testing.assert_allclose(p.quantile(0.3), expected, atol=1e-5)


def test_interval_and_median_are_quantiles(parts):
    loc, scale, _ = parts
    p = make("normal", loc, scale)
    lower, upper = p.interval(0.8)
    np.testing.assert_array_equal(lower, p.quantile(0.1))
    np.testing.assert_array_equal(upper, p.quantile(0.9))
    np.testing.assert_allclose(p.cdf(upper) - p.cdf(lower), 0.8, atol=1e-6)
    np.testing.assert_array_equal(p.median, p.quantile(0.5))


# ---- mixtures: CRPS and entropy
# ---------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_crps_and_entropy_agree_with_adaptive_quadrature(family, parts):
    loc, scale, y = parts
    p = make(family, loc, scale)
    for i in range(3):
        row = Reference(family, loc[:, i], scale[:, i])
        np.testing.assert_allclose(p.crps(y)[i], row.crps(y[i]), atol=1e-5 * row.spread)
        np.testing.assert_allclose(p.entropy[i], row.entropy(), atol=2e-5)


@pytest.mark.parametrize("y", [-4.0, 0.0, 1.3, 9.0])
def test_crps_of_one_normal_is_the_textbook_formula(y):
    z = (y - 0.5) / 2.0
    density, below = stats.norm.pdf(z), stats.norm.cdf(z)
    expected = 2.0 * (z * (2.0 * below - 1.0) + 2.0 * density - 1.0 / np.sqrt(np.pi))
    np.testing.assert_allclose(make("normal", [[0.5]], 2.0).crps([y]), expected, rtol=1e-6)


def test_crps_of_one_laplace_is_the_textbook_formula():
    y = np.array([-1.0, 0.0, 0.2, 5.0])
    expected = np.abs(y) + np.exp(-np.abs(y)) - 0.75
    np.testing.assert_allclose(
        make("laplace", np.zeros((DRAWS, 4)), 1.0).crps(y), expected, rtol=1e-6
    )


def test_crps_by_quadrature_equals_crps_by_pairs(parts, monkeypatch):
    loc, scale, y = parts
    by_pairs = make("normal", loc, scale).crps(y)
    monkeypatch.setattr(_mixture, "_PAIRWISE_DRAWS", 0)
    np.testing.assert_allclose(make("normal", loc, scale).crps(y), by_pairs, atol=2e-6)


def test_crps_of_many_draws_is_the_mean_absolute_error_less_half_the_spread():
    """E|X - y| - E|X - X'|/2 by Monte Carlo, for more draws than the pairwise form is used for."""
    rng = np.random.default_rng(1)
    loc, scale = rng.normal(size=(300, 1)), 0.3 + rng.random((300, 1))
    pick = rng.integers(300, size=400_000)
    x = loc[pick, 0] + scale[pick, 0] * rng.normal(size=400_000)
    expected = np.abs(x - 0.7).mean() - 0.5 * np.abs(x[::2] - x[1::2]).mean()
    np.testing.assert_allclose(make("normal", loc, scale).crps([0.7]), expected, atol=0.005)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_entropy_of_one_component_has_a_closed_form(family, scale):
    expected = SCIPY[family].entropy() + np.log(scale)
    p = make(family, [[7.0]] * copies(family), scale)
    np.testing.assert_allclose(p.entropy, expected, atol=2e-6)
    if family == "normal":
        np.testing.assert_allclose(expected, 0.5 * np.log(2 * np.pi * np.e * scale**2))


def test_entropy_of_separate_components_gains_the_log_of_their_number():
    loc = 1000.0 * np.arange(DRAWS)[:, None]
    expected = stats.norm.entropy() + np.log(DRAWS)
    np.testing.assert_allclose(make("normal", loc, 1.0).entropy, expected, atol=2e-5)


def test_a_component_too_narrow_for_the_nodes_is_not_lost():
    """Its mass counts in the CRPS even when hundreds of others share the panels with it."""
    rng = np.random.default_rng(2)
    loc, scale = rng.normal(size=300), 10.0 ** rng.uniform(-3, 1, size=300)
    sd = np.hypot(scale, scale[:, None])
    z = (loc - loc[:, None]) / sd
    pairs = sd * (2 * stats.norm.pdf(z) + z * (2 * stats.norm.cdf(z) - 1))
    a = scale * (
        2 * stats.norm.pdf(loc / scale) + loc / scale * (2 * stats.norm.cdf(loc / scale) - 1)
    )
    expected = a.mean() - 0.5 * pairs.mean()
    found = make("normal", loc[:, None], scale[:, None]).crps([0.0])
    np.testing.assert_allclose(found, expected, atol=1e-3)


# ---- the Student-t distribution function, which is our own
# ------------------------------------------


@pytest.mark.parametrize("df", [1.05, 2.5, 4.0, 10.0, 37.0, 500.0, 1e6])
def test_student_functions_agree_with_scipy(df):
    family = _families.FAMILIES["student_t"]
    z = np.concatenate([-np.geomspace(1e-4, 40, 60), np.geomspace(1e-4, 40, 60)]).astype(np.float32)
    z64, exact = z.astype(float), stats.t(df)
    df32 = jnp.float32(df)
    keep = exact.cdf(z64) > 1e-9
    cdf, log_pdf, lower_quantile, shortfall = map(
        jax.jit, (family.cdf, family.log_pdf, family.lower_quantile, family.shortfall)
    )
    np.testing.assert_allclose(cdf(z, df32)[keep], exact.cdf(z64)[keep], rtol=5e-6)
    np.testing.assert_allclose(log_pdf(z, df32), exact.logpdf(z64), rtol=5e-6, atol=2e-6)
    p = np.array([1e-7, 1e-3, 0.2], np.float32)
    np.testing.assert_allclose(lower_quantile(p, df32), exact.ppf(p.astype(float)), rtol=1e-4)
    z = np.array([-3.0, 0.5], np.float32)
    tails = [integrate.quad(lambda x: stdtr(df, x), -np.inf, x, limit=500)[0] for x in z]
    np.testing.assert_allclose(shortfall(z, df32), tails, rtol=2e-5)


def test_degrees_of_freedom_may_differ_between_draws():
    df = np.array([1.5, 4.0, 50.0])[:, None]
    p = from_components("student_t", {"loc": np.zeros((3, 2)), "scale": 1.0, "df": df})
    expected = stats.t(df).cdf(np.array([-1.0, 2.0])).mean(axis=0)
    np.testing.assert_allclose(p.cdf([-1.0, 2.0]), expected, atol=1e-6)
    np.testing.assert_allclose(p.cdf(p.quantile(0.01)), 0.01, rtol=1e-5)
    pieces = ((0, 10), (10, 1e3), (1e3, np.inf))
    below = lambda x: stdtr(df[:, 0], -x)  # noqa: E731
    half_spread, distance = (
        2 * sum(integrate.quad(f, a, b, limit=500)[0] for a, b in pieces)
        for f in (lambda x: below(x).mean() * (1 - below(x).mean()), lambda x: below(x).mean())
    )
    np.testing.assert_allclose(p.crps([0.0, 0.0]), distance - half_spread, rtol=1e-4)


# ---- units, shapes, rows
# ----------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_affine_map_changes_units_and_nothing_else(family, parts):
    loc, scale, y = parts
    p = make(family, loc, scale)
    q = make(family, loc, scale, shift=[-3.0], unit=[20.0])
    there = 20.0 * y - 3.0
    np.testing.assert_allclose(q.mean, 20.0 * p.mean - 3.0)
    np.testing.assert_allclose(q.std, 20.0 * p.std)
    np.testing.assert_allclose(q.quantile(0.2), 20.0 * p.quantile(0.2) - 3.0)
    np.testing.assert_allclose(q.cdf(there), p.cdf(y), atol=1e-6)
    np.testing.assert_allclose(q.log_prob(there), p.log_prob(y) - np.log(20.0), atol=1e-5)
    np.testing.assert_allclose(q.crps(there), 20.0 * p.crps(y), rtol=1e-5)
    np.testing.assert_allclose(q.entropy, p.entropy + np.log(20.0), rtol=1e-6)
    np.testing.assert_allclose(q.epistemic, 400.0 * p.epistemic)
    key = jax.random.key(0)
    np.testing.assert_allclose(q.sample(key, 3), 20.0 * p.sample(key, 3) - 3.0)


@pytest.mark.parametrize("standardised", [True, False])
def test_a_million_plus_small_noise_is_not_rounded(standardised):
    """Also when double-precision components arrive in the user's units, as a rival's may."""
    offset, unit = 1e6, 1e-3
    loc, y = np.array([[-1.0], [-0.5], [0.0], [0.8], [1.0]]), np.array([0.3])
    plain = make("normal", loc, 0.5)
    if standardised:
        p = make("normal", loc.astype(np.float32), 0.5, shift=offset, unit=unit)
    else:
        p = make("normal", offset + unit * loc, 0.5 * unit)
    np.testing.assert_allclose((p.quantile(0.9) - offset) / unit, plain.quantile(0.9), atol=1e-5)
    np.testing.assert_allclose((p.mean - offset) / unit, plain.mean, atol=1e-6)
    np.testing.assert_allclose(p.std / unit, plain.std, rtol=1e-6)
    there = offset + unit * y
    np.testing.assert_allclose(p.log_prob(there), plain.log_prob(y) - np.log(unit), atol=1e-5)
    np.testing.assert_allclose(p.crps(there) / unit, plain.crps(y), atol=1e-5)
    assert np.ptp(p.sample(jax.random.key(0), 50)) < 10 * unit


def test_order_of_draws_does_not_matter(parts):
    loc, scale, y = parts
    p, q = make("normal", loc, scale), make("normal", loc[::-1], scale[::-1])
    np.testing.assert_allclose(p.quantile([0.1, 0.9]), q.quantile([0.1, 0.9]), atol=2e-6)
    np.testing.assert_allclose(p.log_prob(y), q.log_prob(y), atol=1e-6)
    np.testing.assert_allclose(p.crps(y), q.crps(y), atol=1e-6)
    np.testing.assert_allclose(p.entropy, q.entropy, atol=2e-6)


def test_several_targets_are_columns_with_a_joint_density():
    rng = np.random.default_rng(3)
    loc, scale = rng.normal(size=(DRAWS, 4, 2)), np.array([0.5, 2.0])
    y = rng.normal(size=(4, 2)) * 10 + 1
    p = make("normal", loc, scale, shift=[1.0, 2.0], unit=[10.0, 3.0])
    alone = [
        make("normal", loc[..., t], scale[t], shift=p._shift[t], unit=p._unit[t]) for t in (0, 1)
    ]
    for t, one in enumerate(alone):
        np.testing.assert_allclose(p.mean[:, t], one.mean)
        np.testing.assert_allclose(p.var[:, t], one.var)
        np.testing.assert_allclose(
            p.quantile([0.1, 0.7])[..., t], one.quantile([0.1, 0.7]), rtol=1e-6
        )
        np.testing.assert_allclose(p.cdf(y)[:, t], one.cdf(y[:, t]), atol=1e-6)
        np.testing.assert_allclose(p.crps(y)[:, t], one.crps(y[:, t]), rtol=1e-5)
        np.testing.assert_allclose(p.entropy[:, t], one.entropy, rtol=1e-5)
    sd = scale * [10.0, 3.0]
    joint = stats.norm.logpdf(y, [1.0, 2.0] + loc * [10.0, 3.0], sd).sum(axis=-1)
    np.testing.assert_allclose(p.log_prob(y), logsumexp(joint, axis=0) - np.log(DRAWS), rtol=1e-5)
    assert p.sample(jax.random.key(0), 6).shape == (6, 4, 2)
    assert p.n_targets == 2


def test_one_target_drops_its_axis_unless_told_otherwise(parts):
    loc, scale, y = parts
    squeezed = make("normal", loc[..., None], scale[..., None])
    kept = make("normal", loc[..., None], scale[..., None], squeeze=False)
    for name in ("mean", "std", "var", "epistemic", "aleatoric", "entropy", "median"):
        assert getattr(squeezed, name).shape == (ROWS,)
        assert getattr(kept, name).shape == (ROWS, 1)
        assert getattr(kept, name).dtype == np.float64
    assert kept.quantile([0.1, 0.2]).shape == (2, ROWS, 1)
    assert kept.crps(y).shape == kept.cdf(y[:, None]).shape == (ROWS, 1)
    assert kept.log_prob(y).shape == (ROWS,)
    np.testing.assert_array_equal(kept.crps(y)[:, 0], squeezed.crps(y[:, None]))


@pytest.mark.parametrize(
    "rows", [slice(2, 6), slice(None, None, -1), [5, 0, 0], np.arange(8) % 2 == 0, -1, slice(0, 0)]
)
@pytest.mark.parametrize("constant_noise", [True, False])
def test_rows_of_a_predictive_are_the_predictive_of_those_rows(rows, constant_noise, parts):
    loc, scale, y = parts
    scale = scale[:, :1] if constant_noise else scale
    p = make("student_t", loc, scale, shift=2.0, unit=3.0)
    part = p[rows]
    kept = np.atleast_1d(np.arange(ROWS)[rows])
    assert len(part) == len(kept) and part.n_draws == DRAWS
    np.testing.assert_array_equal(part.mean, p.mean[kept])
    np.testing.assert_array_equal(part.var, p.var[kept])
    np.testing.assert_allclose(part.log_prob(y[kept]), p.log_prob(y)[kept], rtol=1e-6)
    np.testing.assert_allclose(part.quantile(0.3), p.quantile(0.3)[kept], rtol=1e-5)


def test_indexing_beyond_the_rows_fails(parts):
    p = make("normal", *parts[:2])
    with pytest.raises(IndexError):
        p[ROWS]
    with pytest.raises(IndexError):
        p[np.zeros((2, 2), int)]


@pytest.mark.parametrize("constant_noise", [True, False])
def test_concatenate_undoes_slicing(constant_noise, parts):
    loc, scale, y = parts
    scale = scale[:, :1] if constant_noise else scale
    p = make("student_t", loc, scale, shift=2.0, unit=3.0)
    joined = predictive.concatenate([p[:3], p[3:4], p[4:]])
    assert len(joined) == ROWS
    np.testing.assert_array_equal(joined.mean, p.mean)
    np.testing.assert_array_equal(joined.var, p.var)
    np.testing.assert_array_equal(joined.log_prob(y), p.log_prob(y))


def test_concatenate_refuses_what_does_not_belong_together(parts):
    p = make("normal", *parts[:2])
    classes = CategoricalPredictive(np.zeros((DRAWS, 2, 3)))
    for other in (make("laplace", *parts[:2]), make("normal", *parts[:2], shift=1.0), classes):
        with pytest.raises(ValueError):
            predictive.concatenate([p, other])
    with pytest.raises(ValueError, match="differ"):
        predictive.concatenate([classes, CategoricalPredictive(np.zeros((1, 2, 3)))])
    with pytest.raises(ValueError, match="parts"):
        predictive.concatenate([])


def test_constant_parameters_are_stored_once():
    """Constant noise must not double the memory of a large predictive."""
    p = from_components(
        "student_t",
        {
            "loc": np.zeros((4, 100, 1)),
            "scale": np.ones((4, 100, 1)),
            "df": np.full((4, 100, 1), 3.0),
        },
    )
    assert p._scale.size == p._df.size == 1
    noise = np.broadcast_to(np.arange(1.0, 5.0)[:, None], (4, 100))
    assert make("normal", np.zeros((4, 100)), noise)._scale.shape == (4, 1, 1)


def test_results_do_not_depend_on_the_chunks(parts, monkeypatch):
    loc, scale, y = (a[..., :7] for a in parts)

    def everything() -> list[np.ndarray]:
        p = make("normal", loc, scale)
        c = CategoricalPredictive(np.stack([loc, scale], axis=-1))
        labels = (y > 0).astype(int)
        numbers = [p.log_prob(y), p.cdf(y), p.crps(y), p.quantile([0.1, 0.6]), p.entropy, p.var]
        return [*numbers, c.mean, c.entropy, c.log_prob(labels), c.quantile(0.3)]

    whole = everything()
    monkeypatch.setattr(_base, "CHUNK_CELLS", 21)
    for expected, found in zip(whole, everything(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("n_rows", "cells"), [(0, 5), (1, 5), (7, 1), (1000, 3000), (5, 2**30)])
def test_chunks_cover_each_row_once_within_bounds(n_rows, cells):
    covered = []
    for rows, index in _base.row_chunks(n_rows, cells):
        size = len(index)
        assert size & (size - 1) == 0
        assert size == 1 or size * cells <= _base.CHUNK_CELLS
        covered += list(range(n_rows))[rows]
        np.testing.assert_array_equal(index[: rows.stop - rows.start], np.arange(n_rows)[rows])
        assert index.max() < n_rows
    assert covered == list(range(n_rows))


# ---- samples
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_follow_the_mixture(family, parts):
    loc, scale, _ = parts
    p = make(family, loc, scale)
    x = p.sample(jax.random.key(4), 4000)
    assert x.shape == (4000, ROWS) and x.dtype == np.float64
    np.testing.assert_array_equal(x, p.sample(jax.random.key(4), 4000))
    assert not np.array_equal(x, p.sample(jax.random.key(5), 4000))
    row = Reference(family, loc[:, 2], scale[:, 2])
    assert stats.kstest(x[:, 2], row.cdf).pvalue > 0.01


def test_a_sample_uses_one_draw_for_all_rows():
    """Rows that move together over the posterior move together in the samples."""
    loc = np.array([-5.0, 5.0])[:, None] * np.ones((1, 4))
    signs = np.sign(make("normal", loc, 0.1).sample(jax.random.key(0), 200))
    assert np.all(signs == signs[:, :1])
    assert 60 < (signs[:, 0] > 0).sum() < 140


# ---- compilation, precision, pickling
# ---------------------------------------------------------------


@pytest.fixture
def compilations():
    """Count programs compiled while ``counter["on"]`` is true."""
    counter = {"on": False, "count": 0}

    def listen(event: str, duration: float, **kwargs: object) -> None:
        if counter["on"] and event == "/jax/core/compile/backend_compile_duration":
            counter["count"] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield counter
    counter["on"] = False


def test_a_second_call_compiles_nothing(compilations):
    rng = np.random.default_rng(6)

    def use_everything(n_rows: int) -> None:
        loc, y = rng.normal(size=(6, n_rows)), rng.normal(size=n_rows)
        p = make("normal", loc, 0.5 + rng.random((6, n_rows)))
        p.log_prob(y), p.cdf(y), p.crps(y), p.entropy, p.interval(0.5 + 0.4 * rng.random())
        c = CategoricalPredictive(rng.normal(size=(6, n_rows, 3)))
        c.mean, c.entropy, c.log_prob(np.zeros(n_rows, int)), c.quantile(0.1)

    compilations["on"] = True
    use_everything(11)
    assert compilations["count"] > 0  # the listener works
    compilations["count"] = 0
    use_everything(11)
    use_everything(13)  # rows are padded to 16
    assert compilations["count"] == 0


def test_double_precision_reaches_double_accuracy(parts):
    loc, scale, y = parts
    with jax.enable_x64(True):
        for family in ("normal", "student_t"):
            p = make(family, loc[:, :1], scale[:, :1])
            row = Reference(family, loc[:, 0], scale[:, 0])
            np.testing.assert_allclose(p.quantile(0.999)[0], row.quantile(0.999), rtol=1e-8)
            np.testing.assert_allclose(p.cdf(y[:1])[0], row.cdf(y[0]), rtol=1e-8)
            np.testing.assert_allclose(p.log_prob(y[:1])[0], np.log(row.pdf(y[0])), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16, int])
def test_any_real_input_type_gives_float64_results(dtype):
    loc = np.arange(2 * DRAWS).reshape(DRAWS, 2).astype(dtype)
    p = make("normal", loc, np.ones((DRAWS, 2), np.float32))
    for value in (p.mean, p.std, p.quantile(0.3), p.log_prob([1, 1]), p.crps([1, 1]), p.entropy):
        assert isinstance(value, np.ndarray) and value.dtype == np.float64
    np.testing.assert_array_equal(p.mean, [4.0, 5.0])


def test_predictives_can_be_pickled(parts):
    for p in (make("normal", *parts[:2]), CategoricalPredictive(np.zeros((2, 3, 2)))):
        copy = pickle.loads(pickle.dumps(p))
        assert repr(copy) == repr(p)
        np.testing.assert_array_equal(copy.mean, p.mean)


def test_repr_tells_sizes(parts):
    text = repr(make("laplace", *parts[:2]))
    assert text == "MixturePredictive(family='laplace', rows=8, draws=5, targets=1)"
    text = repr(CategoricalPredictive(np.zeros((2, 3, 4))))
    assert text == "CategoricalPredictive(rows=3, draws=2, classes=4)"


def test_no_rows_give_empty_results():
    p = make("normal", np.zeros((3, 0)), 1.0)
    assert p.mean.shape == p.std.shape == p.entropy.shape == p.crps([]).shape == (0,)
    assert p.quantile([0.1, 0.9]).shape == (2, 0)
    c = CategoricalPredictive(np.zeros((3, 0, 2)))
    assert c.mean.shape == (0, 2) and c.log_prob([]).shape == c.mode.shape == (0,)


# ---- bad input
# --------------------------------------------------------------------------------------

GOOD = {"loc": np.zeros((2, 3)), "scale": 1.0}


@pytest.mark.parametrize(
    ("family", "components", "options", "message"),
    [
        ("cauchy", GOOD, {}, "family must be one of"),
        ("normal", {"loc": np.zeros((2, 3))}, {}, r"keys \['loc', 'scale'\]"),
        ("normal", {**GOOD, "df": 3.0}, {}, "keys"),
        ("student_t", GOOD, {}, "'df'"),
        ("normal", {**GOOD, "loc": np.zeros(3)}, {}, r"components\['loc'\] must have shape"),
        ("normal", {**GOOD, "loc": np.zeros((0, 3))}, {}, "at least one draw"),
        ("normal", {**GOOD, "loc": np.full((2, 3), np.nan)}, {}, "'loc'.*NaN"),
        ("normal", {**GOOD, "loc": [["a", "b"]]}, {}, "'loc'.*numbers"),
        ("normal", {**GOOD, "scale": 0.0}, {}, "'scale'.*greater than 0"),
        ("normal", {**GOOD, "scale": np.inf}, {}, "'scale'.*infinite"),
        ("normal", {**GOOD, "scale": np.ones((2, 4))}, {}, "'scale'.*broadcast"),
        ("normal", {**GOOD, "scale": np.ones((5, 2, 3, 1))}, {}, "'scale'.*broadcast"),
        ("student_t", {**GOOD, "df": 1.0}, {}, "'df'.*greater than 1"),
        ("normal", GOOD, {"shift": [1.0, 2.0]}, "shift must be finite"),
        ("normal", GOOD, {"scale": -1.0}, "scale must be positive"),
        ("normal", GOOD, {"scale": np.nan}, "scale must be finite"),
        ("normal", GOOD, {"classes": [0, 1]}, "classes has no meaning"),
        ("categorical", {"logits": np.zeros((2, 3, 2))}, {"shift": 1.0}, "no meaning"),
        ("categorical", {"loc": np.zeros((2, 3, 2))}, {}, "key 'logits'"),
        ("categorical", {"logits": np.zeros((2, 3))}, {}, "shape"),
        ("categorical", {"logits": np.zeros((2, 3, 1))}, {}, "two classes"),
        ("categorical", {"logits": np.full((2, 3, 2), np.nan)}, {}, "NaN"),
        ("categorical", {"logits": np.full((2, 3, 2), -np.inf)}, {}, "row of -inf"),
        ("categorical", {"logits": np.zeros((2, 3, 2))}, {"classes": [0, 1, 2]}, "classes"),
        ("categorical", {"logits": np.zeros((2, 3, 2))}, {"classes": ["a", "a"]}, "different"),
        ("bernoulli", {"logits": np.zeros((2, 3, 2))}, {}, "bernoulli"),
    ],
)
def test_bad_components_are_refused_by_name(family, components, options, message):
    with pytest.raises(ValueError, match=message):
        from_components(family, components, **options)


@pytest.mark.parametrize("method", ["log_prob", "cdf", "crps"])
def test_bad_outcomes_are_refused_by_name(method):
    score = getattr(make("normal", np.zeros((2, 3)), 1.0), method)
    for y in (
        [0.0, np.nan, 1.0],
        [0.0, np.inf, 1.0],
        [0.0, 1.0],
        [[0.0, 1.0, 2.0]],
        ["a", "b", "c"],
        1.0,
    ):
        with pytest.raises(ValueError, match=r"^y "):
            score(y)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.1, np.nan, [0.5, 2.0], [[0.5]], "half", 1e-13])
def test_bad_quantile_levels_are_refused(q):
    for p in (make("normal", np.zeros((2, 3)), 1.0), CategoricalPredictive(np.zeros((2, 3, 2)))):
        with pytest.raises(ValueError, match=r"^q must"):
            p.quantile(q)


@pytest.mark.parametrize("level", [0.0, 1.0, 90, np.nan, [0.5], "most"])
def test_bad_interval_levels_are_refused(level):
    with pytest.raises(ValueError, match=r"^level must"):
        make("normal", np.zeros((2, 3)), 1.0).interval(level)


@pytest.mark.parametrize("n", [0, -1, 2.5, True])
def test_bad_sample_counts_are_refused(n):
    for p in (make("normal", np.zeros((2, 3)), 1.0), CategoricalPredictive(np.zeros((2, 3, 2)))):
        with pytest.raises(ValueError, match=r"^n must"):
            p.sample(jax.random.key(0), n)


# ---- classes
# ----------------------------------------------------------------------------------------

LABELS = np.array(["cat", "ant", "bee"])


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    return 2.0 * np.random.default_rng(7).normal(size=(6, 10, 3))


def test_class_probabilities_and_uncertainties_follow_their_definitions(logits):
    p = from_components("categorical", {"logits": logits}, classes=LABELS)
    assert isinstance(p, CategoricalPredictive) and isinstance(p, Predictive)
    probabilities = softmax(logits, axis=-1)
    mean = probabilities.mean(axis=0)
    np.testing.assert_allclose(p.proba, mean, atol=1e-6)
    np.testing.assert_allclose(p.proba.sum(axis=1), 1.0, atol=1e-14)
    np.testing.assert_array_equal(p.mean, p.proba)
    np.testing.assert_array_equal(p.mode, LABELS[mean.argmax(axis=1)])
    np.testing.assert_allclose(p.std, probabilities.std(axis=0), atol=1e-6)
    np.testing.assert_allclose(p.var, probabilities.var(axis=0), atol=1e-6)
    total, expected = entr(mean).sum(axis=1), entr(probabilities).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(p.entropy, total, atol=2e-6)
    np.testing.assert_allclose(p.aleatoric, expected, atol=2e-6)
    np.testing.assert_allclose(p.epistemic, total - expected, atol=3e-6)
    np.testing.assert_allclose(p.median, np.median(probabilities, axis=0), atol=1e-6)
    lower, upper = p.interval(0.5)
    expected = np.quantile(probabilities, [0.25, 0.75], axis=0)
    np.testing.assert_allclose([lower, upper], expected, atol=1e-6)


def test_label_log_prob_and_brier_score(logits):
    p = CategoricalPredictive(logits, classes=LABELS)
    codes = np.arange(10) % 3
    chosen = log_softmax(logits, axis=-1)[:, np.arange(10), codes]
    expected = logsumexp(chosen, axis=0) - np.log(6)
    np.testing.assert_allclose(p.log_prob(LABELS[codes]), expected, atol=2e-6)
    np.testing.assert_allclose(p.log_prob(list(LABELS[codes])), expected, atol=2e-6)
    expected = np.square(p.proba - np.eye(3)[codes]).sum(axis=1)
    np.testing.assert_allclose(p.brier(LABELS[codes]), expected, rtol=1e-12)


def test_one_draw_has_no_epistemic_uncertainty(logits):
    p = CategoricalPredictive(logits[:1])
    np.testing.assert_allclose(p.epistemic, 0.0, atol=1e-6)
    assert np.all(p.epistemic >= 0.0)
    np.testing.assert_allclose(p.std, 0.0, atol=1e-7)


def test_certain_draws_that_disagree_are_all_epistemic():
    p = CategoricalPredictive(np.array([[[50.0, -50.0]], [[-50.0, 50.0]]]))
    np.testing.assert_allclose(p.epistemic, np.log(2.0), rtol=1e-6)
    np.testing.assert_allclose(p.aleatoric, 0.0, atol=1e-6)


def test_zero_probabilities_stay_finite():
    with np.errstate(divide="ignore"):
        p = CategoricalPredictive(np.log([[[1.0, 0.0]], [[0.5, 0.5]]]))
    np.testing.assert_allclose(p.mean, [[0.75, 0.25]], rtol=1e-6)
    np.testing.assert_allclose(p.aleatoric, 0.5 * np.log(2), rtol=1e-6)
    np.testing.assert_allclose(p.log_prob([1]), np.log(0.25), rtol=1e-6)


def test_a_common_offset_of_the_logits_costs_no_digits(logits):
    np.testing.assert_allclose(
        CategoricalPredictive(logits + 1e8).entropy,
        CategoricalPredictive(logits).entropy,
        atol=1e-6,
    )


@pytest.mark.parametrize("trailing_axis", [True, False])
def test_bernoulli_is_the_two_class_case(trailing_axis):
    odds = np.random.default_rng(8).normal(size=(4, 5))
    components = {"logits": odds[..., None] if trailing_axis else odds}
    p = from_components("bernoulli", components, classes=["no", "yes"])
    probability = (1.0 / (1.0 + np.exp(-odds))).mean(axis=0)
    np.testing.assert_allclose(p.proba, np.stack([1 - probability, probability], 1), atol=1e-6)
    np.testing.assert_allclose(p.log_prob(["yes"] * 5), np.log(probability), atol=1e-6)
    np.testing.assert_array_equal(p.mode, np.where(probability > 0.5, "yes", "no"))


def test_label_samples_follow_the_probabilities_and_share_the_draw(logits):
    p = CategoricalPredictive(logits, classes=LABELS)
    x = p.sample(jax.random.key(9), 4000)
    assert x.shape == (4000, 10)
    frequency = (x[..., None] == LABELS).mean(axis=0)
    np.testing.assert_allclose(frequency, p.proba, atol=0.04)
    np.testing.assert_array_equal(x, p.sample(jax.random.key(9), 4000))
    certain = CategoricalPredictive(np.tile([[[50.0, -50.0]], [[-50.0, 50.0]]], (1, 4, 1)))
    labels = certain.sample(jax.random.key(0), 200)
    assert np.all(labels == labels[:, :1]) and 60 < labels[:, 0].sum() < 140


def test_rows_of_classes_can_be_sliced_and_joined(logits):
    p = CategoricalPredictive(logits, classes=LABELS)
    np.testing.assert_allclose(p[3:7].proba, p.proba[3:7], rtol=1e-6)
    joined = predictive.concatenate([p[:3], p[3:]])
    np.testing.assert_array_equal(joined.proba, p.proba)
    np.testing.assert_array_equal(joined.mode, p.mode)


def test_labels_have_no_crps_and_must_be_known(logits):
    p = CategoricalPredictive(logits, classes=LABELS)
    with pytest.raises(TypeError, match="brier"):
        p.crps(["cat"] * 10)
    for y in (["dog"] * 10, ["cat"] * 9, [0] * 10, [["cat"] * 10], [np.nan] * 10):
        with pytest.raises(ValueError, match=r"^y "):
            p.log_prob(y)
    with pytest.raises(ValueError, match=r"^y "):
        CategoricalPredictive(logits).log_prob([np.nan] * 10)


def test_nodes_bound_the_size_of_the_quadrature():
    """Chunks are sized by this number: more nodes than it promises would break the memory bound."""
    for draws in (1, 2, 5, 6, 40):
        loc, scale = jnp.zeros((draws, 1, 1)), jnp.ones((draws, 1, 1))
        breaks = _numerics.breakpoints(_families.FAMILIES["normal"], loc, scale, None)
        assert (breaks.shape[0] - 1) * _numerics._ORDER <= _numerics.NODES
