"""Bayes by Backprop: divergences, moments and the bound against exact answers, then whole fits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import logsumexp

from s2vgd import datasets, training
from s2vgd.baselines import methods
from s2vgd.baselines._variational import Bound, build
from s2vgd.baselines.bbb import (
    METHODS,
    BBBGaussian,
    BBBScaleMixture,
    WithGaussianPrior,
    WithScaleMixture,
    gaussian_kl,
    layer_moments,
)
from s2vgd.bnn import Batch
from s2vgd.likelihoods import Gaussian
from s2vgd.networks import MLP

KEY = jax.random.key(7)
RNG = np.random.default_rng(0)
GAUSSIANS = [(0.0, 1.0), (0.7, 0.2), (-1.3, 2.5), (0.02, 1e-3)]


def divergence(mean, std, log_prior):
    """KL from N(mean, std^2), by quadrature."""
    q = stats.norm(mean, std)
    edges = [mean - 12 * std, mean + 12 * std]
    value, _ = integrate.quad(lambda w: q.pdf(w) * (q.logpdf(w) - log_prior(w)), *edges, limit=200)
    return value


def mixture_log_prob(w, share=0.25, wide=1.0, narrow=0.1):
    parts = stats.norm.logpdf(np.asarray(w)[..., None], 0, [wide, narrow])
    return logsumexp(parts + np.log([share, 1 - share]), axis=-1)


def many(function, keys):
    return np.asarray(jax.jit(jax.vmap(function))(keys))


# -- divergences ---------------------------------------------------------------------------------


@pytest.mark.parametrize("prior_std", [1.0, 0.3])
def test_the_gaussian_divergence_is_that_of_quadrature(prior_std):
    mean, std = np.array(GAUSSIANS, np.float32).T
    prior = stats.norm(0, prior_std)
    expected = sum(divergence(m, s, prior.logpdf) for m, s in GAUSSIANS)
    np.testing.assert_allclose(gaussian_kl(mean, std, prior_std), expected, rtol=1e-5)


def test_the_gaussian_divergence_is_that_of_monte_carlo():
    mean, std, prior_std = 0.7, 0.2, 0.5
    w = RNG.normal(mean, std, 200_000)
    terms = stats.norm.logpdf(w, mean, std) - stats.norm.logpdf(w, 0, prior_std)
    error = terms.std() / len(terms) ** 0.5
    found = gaussian_kl(jnp.array(mean), jnp.array(std), prior_std)
    np.testing.assert_allclose(found, terms.mean(), atol=4 * error)


def test_the_mixture_prior_is_that_of_scipy():
    family = WithScaleMixture(MLP(1, (), 1), 0.1, 0.25, 1.0, 0.1)
    w = np.linspace(-3, 3, 41)
    np.testing.assert_allclose(family.log_prior(w), mixture_log_prob(w), rtol=1e-5, atol=1e-5)


def test_the_sampled_divergence_from_the_mixture_has_the_right_mean():
    family = WithScaleMixture(MLP(1, (), 1), 0.1, 0.25, 1.0, 0.1)
    params = family.init(KEY)
    params["mean"] = ({"kernel": jnp.full((1, 1), 0.4), "bias": jnp.full(1, -0.05)},)
    expected = sum(divergence(m, 0.1, mixture_log_prob) for m in (0.4, -0.05))
    keys = jax.random.split(KEY, 4000)
    costs = many(lambda key: family.forward(params, jnp.zeros((1, 1)), key)[1], keys)
    error = costs.std() / len(costs) ** 0.5
    assert error < 0.05 * expected
    np.testing.assert_allclose(costs.mean(), expected, atol=4 * error)


# -- layers --------------------------------------------------------------------------------------


def test_moments_of_a_layer_are_those_of_sampled_weights():
    mean = {"kernel": RNG.normal(size=(4, 3)), "bias": RNG.normal(size=3)}
    std = {"kernel": RNG.uniform(0.1, 1, (4, 3)), "bias": RNG.uniform(0.1, 1, 3)}
    x = RNG.normal(size=(2, 4))
    kernel = RNG.normal(mean["kernel"], std["kernel"], (200_000, 4, 3))
    bias = RNG.normal(mean["bias"], std["bias"], (200_000, 3))
    outputs = x @ kernel + bias[:, None]
    loc, variance = layer_moments(mean, std, x)
    np.testing.assert_allclose(loc, outputs.mean(0), atol=0.03)
    np.testing.assert_allclose(variance, outputs.var(0), rtol=0.03)


def test_a_row_cannot_tell_local_noise_from_drawn_weights():
    """What is trained with and what is predicted with are the same distribution."""
    family = WithGaussianPrior(MLP(3, (5,), 2), 0.3, 1.0)
    params = family.init(KEY)
    x = jnp.array([[0.5, -1.0, 2.0]])
    keys = jax.random.split(jax.random.key(1), 40_000)
    local = many(lambda key: family.forward(params, x, key)[0], keys)
    drawn = many(lambda key: family.network.apply(family.draw(params, key), x), keys)
    error = drawn.std(0) / 200  # of the mean of 40,000
    assert np.all(np.abs(local.mean(0) - drawn.mean(0)) < 6 * error)
    np.testing.assert_allclose(local.std(0), drawn.std(0), rtol=0.03)


# -- the bound -----------------------------------------------------------------------------------


def linear_problem():
    """Rows of a linear model with known noise, and the exact posterior under N(0, 1)."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    y = x @ [0.5, -1.0] + 0.2 + 0.5 * rng.normal(size=40)
    whole = np.column_stack([x, np.ones(40)])
    precision = np.eye(3) + whole.T @ whole / 0.25
    mean = np.linalg.solve(precision, whole.T @ y / 0.25)
    evidence = stats.multivariate_normal(np.zeros(40), whole @ whole.T + 0.25 * np.eye(40))
    batch = Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y[:, None], jnp.float32))
    return batch, mean, precision, evidence.logpdf(y)


def test_the_bound_finds_the_best_independent_gaussians_of_a_linear_model():
    """Their means are exact, their variances the inverse diagonal of the exact precision."""
    batch, mean, precision, evidence = linear_problem()
    bound = Bound(WithGaussianPrior(MLP(2, (), 1), 0.05, 1.0), Gaussian(fixed_std=0.5), 40.0)
    algorithm = build(bound, 0.02, 1500)
    result = training.train(algorithm, algorithm.init(KEY), batch, key=KEY, steps=1500)
    learned = result.state.particles["family"]
    flat = {name: np.append(tree[0]["kernel"], tree[0]["bias"]) for name, tree in learned.items()}
    np.testing.assert_allclose(flat["mean"], mean, atol=0.02)
    std = np.log1p(np.exp(flat["rho"]))
    np.testing.assert_allclose(std, np.diag(precision) ** -0.5, rtol=0.05)
    reached = result.history["log_density"][-300:].mean()
    loss = 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])
    np.testing.assert_allclose(reached, evidence - loss, atol=0.3)


def test_batches_estimate_the_bound_of_all_rows():
    batch, *_ = linear_problem()
    bound = Bound(WithGaussianPrior(MLP(2, (), 1), 1e-4, 1.0), Gaussian(), 40.0)
    params = bound.init(KEY)
    estimate = jax.jit(lambda rows: bound(params, rows, KEY))
    parts = [estimate(Batch(batch.x[i::4], batch.y[i::4])) for i in range(4)]
    np.testing.assert_allclose(np.mean(parts), estimate(batch), rtol=1e-3)


# -- whole fits ----------------------------------------------------------------------------------


def yacht():
    data = datasets.load("yacht")
    train, test = data.splits[0]
    return data.x[train], data.y[train], data.x[test], data.y[test]


def clusters():
    """Three classes of unequal size on a line and to both sides of it."""
    rng = np.random.default_rng(5)
    y = np.repeat([2, 5, 7], [60, 40, 40])
    x = rng.normal(size=(140, 2)) + np.column_stack([np.abs(y - 5.0), y - 5.0])
    return x, y


def scores(predictive, y):
    rmse = np.sqrt(np.mean((predictive.mean - y) ** 2))
    return rmse, predictive.log_prob(y).mean()


@pytest.fixture(scope="module", params=METHODS)
def fitted(request):
    x, y, *_ = yacht()
    return METHODS[request.param](steps=2000).fit(x, y)


def test_regression_beats_the_constant_gaussian(fitted):
    _, y, x_test, y_test = yacht()
    rmse, log_density = scores(fitted.predict_dist(x_test), y_test)
    assert rmse < 0.2 * np.std(y_test)
    assert log_density > stats.norm.logpdf(y_test, y.mean(), y.std()).mean() + 1.5


def test_the_seed_decides_everything_and_a_second_fit_compiles_nothing(fitted, caplog):
    x, y, x_test, _ = yacht()
    first = fitted.predict_dist(x_test).mean
    with jax.log_compiles():
        again = type(fitted)(steps=2000).fit(x, y).predict_dist(x_test).mean
        assert "Compiling" not in caplog.text
        jax.jit(lambda a: a + 1)(first)
    assert "Compiling" in caplog.text, "otherwise the assertion above could not fail"
    np.testing.assert_array_equal(again, first)
    other = type(fitted)(steps=2000, seed=1).fit(x, y).predict_dist(x_test).mean
    assert not np.any(other == first)


@pytest.mark.parametrize("method", METHODS.values())
def test_classification_beats_the_majority_and_keeps_labels(method):
    x, y = clusters()
    predictive = (
        method(steps=400, batch_size=None, hidden=(10,)).fit(x[::2], y[::2]).predict_dist(x[1::2])
    )
    assert np.mean(predictive.mode == y[1::2]) > 0.85
    shares = np.bincount(y[::2])[[2, 5, 7]] / 70
    assert predictive.log_prob(y[1::2]).mean() > (shares * np.log(shares)).sum() + 0.4


def test_the_methods_are_found_by_name():
    assert METHODS.items() <= methods().items()


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        (BBBGaussian, {"draws": 0}, "draws must be at least 1"),
        (BBBGaussian, {"steps": 1.5}, "steps must be an integer"),
        (BBBGaussian, {"learning_rate": -1.0}, "learning_rate must be positive"),
        (BBBGaussian, {"initial_std": 0.0}, "initial_std must be positive"),
        (BBBGaussian, {"prior_std": float("nan")}, "prior_std must be positive"),
        (BBBScaleMixture, {"wide_share": 1.0}, "wide_share must be between 0 and 1"),
        (BBBScaleMixture, {"narrow_std": -0.1}, "narrow_std must be positive"),
        (BBBScaleMixture, {"narrow_std": 2.0}, "must not exceed wide_std"),
    ],
)
def test_bad_settings_are_named(method, setting, message):
    with pytest.raises((TypeError, ValueError), match=message):
        method(**setting)
