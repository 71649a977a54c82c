"""The likelihoods against scipy's densities, at ordinary and at extreme outputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from s2vgd.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    StudentT,
)

KEY = jax.random.key(0)
LEARNED_NOISE = [Gaussian(), StudentT(), StudentT(df=7.5), Laplace()]
REGRESSION = [
    *LEARNED_NOISE,
    Gaussian(fixed_std=0.2),
    HeteroscedasticGaussian(),
]
CLASSES = [Categorical(4), Bernoulli()]


def scipy_log_density(likelihood, y, loc, scale):
    """The density named by the likelihood's family, as scipy has it."""
    if likelihood.family == "normal":
        return stats.norm.logpdf(y, loc, scale)
    if likelihood.family == "student_t":
        return stats.t.logpdf(y, likelihood.df, loc, scale)
    return stats.laplace.logpdf(y, loc, scale)


def data(n_rows=9, n_targets=3, seed=0):
    """Outputs and targets of the same shape."""
    rng = np.random.default_rng(seed)
    outputs, y = rng.normal(size=(2, n_rows, n_targets)).astype(np.float32)
    return jnp.asarray(outputs), jnp.asarray(y)


@pytest.mark.parametrize("likelihood", LEARNED_NOISE, ids=str)
@pytest.mark.parametrize("n_targets", [1, 3])
def test_constant_noise_is_the_scipy_density_summed_over_targets(likelihood, n_targets):
    """Each target has a noise of its own, precision = scale^-2."""
    outputs, y = data(n_targets=n_targets)
    log_precision = jnp.linspace(-1.0, 2.0, n_targets)
    params = {"log_precision": log_precision}
    scale = np.exp(-0.5 * np.asarray(log_precision))
    expected = scipy_log_density(likelihood, y, outputs, scale).sum(axis=1)
    actual = likelihood.log_prob(params, outputs, y)
    assert actual.shape == (9,)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_fixed_std_is_a_normal_without_parameters():
    """A known noise is neither learned nor scored."""
    likelihood = Gaussian(fixed_std=0.2)
    outputs, y = data()
    params = likelihood.init(KEY, 3)
    assert params == {}
    assert likelihood.log_prior(params) == 0.0
    expected = stats.norm.logpdf(y, outputs, 0.2).sum(axis=1)
    np.testing.assert_allclose(likelihood.log_prob(params, outputs, y), expected, rtol=1e-5)


def test_heteroscedastic_outputs_are_means_then_what_moves_the_scales():
    """2T outputs; scale = softplus(level + gain * output) + floor."""
    likelihood = HeteroscedasticGaussian(floor=0.05, gain=0.5)
    loc, y = data()
    moved = jnp.linspace(-4.0, 4.0, loc.size).reshape(loc.shape)
    outputs = jnp.concatenate([loc, moved], axis=1)
    params = {"level": jnp.array([-2.0, 0.0, 1.0])}
    raw = np.asarray(params["level"] + 0.5 * moved, np.float64)
    scale = np.log1p(np.exp(raw)) + 0.05
    assert likelihood.n_outputs(3) == 6
    expected = stats.norm.logpdf(y, loc, scale).sum(axis=1)
    np.testing.assert_allclose(likelihood.log_prob(params, outputs, y), expected, rtol=1e-4)
    parts = likelihood.components(params, outputs)
    np.testing.assert_allclose(parts["loc"], loc)
    np.testing.assert_allclose(parts["scale"], scale, rtol=1e-5)
    prior = stats.norm.logpdf(params["level"], 0.0, 3.0).sum()
    np.testing.assert_allclose(likelihood.log_prior(params), prior, rtol=1e-6)
    # It starts where constant noise does.
    start = likelihood.components(likelihood.init(KEY, 3), 0.0 * outputs)["scale"]
    np.testing.assert_allclose(start - 0.05, 0.313, atol=0.001)


def test_categorical_is_the_scipy_multinomial():
    """One trial of a multinomial with softmax probabilities."""
    likelihood = Categorical(4)
    outputs, _ = data(n_targets=4)
    y = jnp.asarray(np.arange(9) % 4)
    exponentials = np.exp(np.asarray(outputs, np.float64))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    expected = stats.multinomial.logpmf(np.eye(4)[np.asarray(y)], 1, probabilities)
    assert likelihood.n_outputs(1) == 4
    np.testing.assert_allclose(likelihood.log_prob({}, outputs, y), expected, rtol=1e-5)
    np.testing.assert_array_equal(likelihood.components({}, outputs)["logits"], outputs)


def test_categorical_scores_an_impossible_label_as_nan():
    """A label past the last class must not pass for a legal one."""
    outputs = jnp.zeros((2, 3))
    scores = Categorical(3).log_prob({}, outputs, jnp.asarray([2, 3]))
    assert np.isfinite(scores[0])
    assert np.isnan(scores[1])


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.float32, jnp.uint8, jnp.bool_])
def test_bernoulli_is_the_scipy_bernoulli(dtype):
    """Labels of any dtype; unsigned ones must not wrap around and booleans must be allowed."""
    likelihood = Bernoulli()
    outputs, _ = data(n_targets=1)
    y = (np.arange(9) % 2).astype(int)
    probability = 1.0 / (1.0 + np.exp(-np.asarray(outputs[:, 0], np.float64)))
    expected = stats.bernoulli.logpmf(y, probability)
    assert likelihood.n_outputs(1) == 1
    actual = likelihood.log_prob({}, outputs, jnp.asarray(y).astype(dtype))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("likelihood", LEARNED_NOISE, ids=str)
def test_noise_prior_is_scipy_gamma_with_jacobian(likelihood):
    """Gamma(1, rate 0.1) on each precision, as a density of its logarithm."""
    eta = np.asarray([-1.0, 0.5, 3.0])
    expected = (stats.gamma.logpdf(np.exp(eta), 1.0, scale=10.0) + eta).sum()
    actual = likelihood.log_prior({"log_precision": jnp.asarray(eta)})
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("likelihood", LEARNED_NOISE, ids=str)
def test_noise_starts_at_the_prior_mean_precision(likelihood):
    """One precision a target, a / b = 10: a noise of 0.32 on standardised targets."""
    params = likelihood.init(KEY, 3)
    np.testing.assert_allclose(np.exp(params["log_precision"]), [10.0] * 3, rtol=1e-5)


@pytest.mark.parametrize("likelihood", REGRESSION, ids=str)
def test_components_describe_the_density_that_was_scored(likelihood):
    """What the predictive builds from the components is the likelihood itself."""
    _, y = data(n_targets=2)
    outputs, _ = data(n_targets=likelihood.n_outputs(2), seed=1)
    params = likelihood.init(KEY, 2)
    parts = likelihood.components(params, outputs)
    assert all(value.shape == (9, 2) for value in parts.values())
    expected = scipy_log_density(likelihood, y, parts["loc"], parts["scale"]).sum(axis=1)
    actual = likelihood.log_prob(params, outputs, y)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_student_t_components_carry_the_degrees_of_freedom():
    """Without them the predictive could not be built."""
    likelihood = StudentT(df=5.0)
    parts = likelihood.components(likelihood.init(KEY, 2), jnp.zeros((3, 2)))
    np.testing.assert_array_equal(parts["df"], np.full((3, 2), 5.0))


@pytest.mark.parametrize("likelihood", [*REGRESSION, *CLASSES], ids=str)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e4, -1e4, 1e8, -1e8])
def test_extreme_outputs_have_finite_values_and_gradients(likelihood, size):
    """Tiny, huge and exactly right outputs; a NaN here would destroy a particle."""
    params = likelihood.init(KEY, 1)
    outputs = jnp.full((2, likelihood.n_outputs(1)), size).at[0, 0].set(-size)
    y = jnp.asarray([0, 1]) if likelihood in CLASSES else jnp.zeros((2, 1))

    def total(params, outputs):
        return jnp.sum(likelihood.log_prob(params, outputs, y))

    value, gradients = jax.value_and_grad(total, argnums=(0, 1))(params, outputs)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("likelihood", [*REGRESSION, *CLASSES], ids=str)
def test_targets_that_would_broadcast_are_refused(likelihood):
    """(B,) against (B, 1) would silently become (B, B), and (B, 1) labels likewise."""
    outputs = jnp.zeros((5, likelihood.n_outputs(1)))
    y = jnp.zeros((5, 1), int) if likelihood in CLASSES else jnp.zeros(5)
    with pytest.raises(ValueError, match="y must have shape"):
        likelihood.log_prob(likelihood.init(KEY, 1), outputs, y)


@pytest.mark.parametrize("likelihood", [*REGRESSION, *CLASSES], ids=str)
def test_equal_likelihoods_hash_alike(likelihood):
    """They are part of the key under which compiled functions are found again."""
    twin = type(likelihood)(**vars(likelihood))
    assert twin == likelihood
    assert hash(twin) == hash(likelihood)


@pytest.mark.parametrize(
    ("make", "error", "name"),
    [
        (lambda: Gaussian(a=-1.0), ValueError, "a must"),
        (lambda: Gaussian(fixed_std=0.0), ValueError, "fixed_std"),
        (lambda: Gaussian(fixed_std=jnp.ones(2)), TypeError, "fixed_std"),
        (lambda: StudentT(df=0.0), ValueError, "df"),
        (lambda: Laplace(b=0.0), ValueError, "b must"),
        (lambda: HeteroscedasticGaussian(floor=0.0), ValueError, "floor"),
        (lambda: HeteroscedasticGaussian(gain=-1.0), ValueError, "gain"),
        (lambda: Categorical(1), ValueError, "n_classes"),
        (lambda: Categorical(2.5), TypeError, "n_classes"),
        (lambda: Categorical(3).n_outputs(2), ValueError, "n_targets=1"),
        (lambda: Bernoulli().n_outputs(2), ValueError, "n_targets=1"),
    ],
)
def test_bad_settings_are_named(make, error, name):
    """The message says which argument is wrong."""
    with pytest.raises(error, match=name):
        make()
