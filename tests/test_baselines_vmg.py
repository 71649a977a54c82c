"""VMG: matrix normals and pseudo-data against dense formulas, the bound against the evidence."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from s2vgd import datasets, training
from s2vgd.baselines import methods
from s2vgd.baselines._variational import Bound, build, draw_many
from s2vgd.baselines.vmg import (
    METHODS,
    VMG,
    MatrixGaussian,
    MatrixGaussianDropout,
    VMGDropout,
    condition,
    dropout_kl,
    kl,
    matrix_normal,
    output_moments,
    pseudo_variance,
)
from s2vgd.bnn import Batch
from s2vgd.likelihoods import Gaussian
from s2vgd.networks import MLP

KEY = jax.random.key(3)
N, M, K, B = 4, 3, 2, 5
RNG = np.random.default_rng(1)
MEAN, ROW, COLUMN = RNG.normal(size=(N, M)), RNG.uniform(0.2, 2, N), RNG.uniform(0.2, 2, M)
PSEUDO_X, PSEUDO_Y = RNG.normal(size=(K, N)), RNG.normal(size=(K, M))
INPUTS = RNG.normal(size=(B, N))
PLAIN = matrix_normal(*(jnp.asarray(a, jnp.float32) for a in (MEAN, ROW, COLUMN)))
CONDITIONED = condition(PLAIN, jnp.asarray(PSEUDO_X), jnp.asarray(PSEUDO_Y))
VARIANCE = float(pseudo_variance(PLAIN.row, jnp.asarray(PSEUDO_X)))


def dense_condition():
    """Mean and row covariance given the pseudo-data, by the formulas for any Gaussian."""
    u = np.diag(ROW)
    gain = u @ PSEUDO_X.T @ np.linalg.inv(PSEUDO_X @ u @ PSEUDO_X.T + VARIANCE * np.eye(K))
    return MEAN + gain @ (PSEUDO_Y - PSEUDO_X @ MEAN), u - gain @ PSEUDO_X @ u


def dense_kl(mean, covariance, prior_std):
    """KL(N(mean, covariance), N(0, prior_std^2 I)) of the columns of W, one under the other."""
    size = mean.size
    squares = (np.trace(covariance) + np.sum(mean**2)) / prior_std**2
    log_det = np.linalg.slogdet(covariance)[1]
    return 0.5 * (squares - size - log_det + 2 * size * math.log(prior_std))


# -- the matrix normal ---------------------------------------------------------------------------


@pytest.mark.parametrize("prior_std", [1.0, 0.4])
def test_the_divergence_is_that_of_the_dense_gaussian(prior_std):
    expected = dense_kl(MEAN, np.kron(np.diag(COLUMN), np.diag(ROW)), prior_std)
    np.testing.assert_allclose(kl(PLAIN, prior_std), expected, rtol=1e-5)
    mean, row = dense_condition()
    expected = dense_kl(mean, np.kron(np.diag(COLUMN), row), prior_std)
    np.testing.assert_allclose(kl(CONDITIONED, prior_std), expected, rtol=1e-4)


def test_pseudo_data_act_as_rows_of_a_gaussian_process():
    """Outputs at some inputs given outputs at the pseudo-inputs, from their joint covariance."""
    places = np.vstack([PSEUDO_X, INPUTS])
    joint = places @ np.diag(ROW) @ places.T
    joint[:K, :K] += VARIANCE * np.eye(K)
    gain = joint[K:, :K] @ np.linalg.inv(joint[:K, :K])
    mean = INPUTS @ MEAN + gain @ (PSEUDO_Y - PSEUDO_X @ MEAN)
    variance = np.diag(joint[K:, K:] - gain @ joint[:K, K:])[:, None] * COLUMN
    found = output_moments(CONDITIONED, jnp.asarray(INPUTS))
    np.testing.assert_allclose(found[0], mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], variance, rtol=1e-4)


def test_moments_of_outputs_are_those_of_sampled_matrices():
    noise = RNG.normal(size=(100_000, N, M))
    w = MEAN + np.sqrt(ROW)[:, None] * noise * np.sqrt(COLUMN)
    outputs = INPUTS @ w
    loc, variance = output_moments(PLAIN, jnp.asarray(INPUTS))
    np.testing.assert_allclose(loc, outputs.mean(0), atol=0.04)
    np.testing.assert_allclose(variance, outputs.var(0), rtol=0.03)


def test_large_pseudo_inputs_leave_everything_finite():
    """In single precision the variance that they explain is nearly all there is."""
    w = condition(PLAIN, 1e5 * jnp.asarray(PSEUDO_X), jnp.asarray(PSEUDO_Y))
    _, variance = output_moments(w, jnp.asarray(PSEUDO_X))
    assert np.all(np.isfinite(w.mean)) and np.isfinite(kl(w, 1.0))
    assert np.all(variance > 0)


# -- the families --------------------------------------------------------------------------------


def family_and_params(dropout=False, network=None):
    settings = (network or MLP(N - 1, (), M), K, 1.0, 0.5)
    family = MatrixGaussianDropout(*settings, 0.5) if dropout else MatrixGaussian(*settings)
    params = family.init(KEY)
    for i, layer in enumerate(params):
        for name, key in zip(("x", "y"), jax.random.split(jax.random.key(i)), strict=True):
            layer[name] = jax.random.normal(key, layer[name].shape)
    return family, params


def test_draws_have_the_covariance_of_the_conditioned_matrix():
    family, (layer,) = family_and_params()
    layer |= {
        "mean": PLAIN.mean,
        "log_row": jnp.log(PLAIN.row),
        "log_column": jnp.log(PLAIN.column),
        "x": jnp.asarray(PSEUDO_X),
        "y": jnp.asarray(PSEUDO_Y),
    }
    (draws,) = draw_many(family, (layer,), KEY, 100_000)
    w = np.concatenate([draws["kernel"], draws["bias"][:, None]], axis=1) * math.sqrt(N)
    mean, row = dense_condition()
    np.testing.assert_allclose(w.mean(0), mean, atol=0.02)
    columns = np.swapaxes(w, 1, 2).reshape(len(w), -1)
    expected = np.kron(np.diag(COLUMN), row)
    error = np.linalg.norm(np.cov(columns.T) - expected) / np.linalg.norm(expected)
    assert error < 0.02


def test_a_row_cannot_tell_local_noise_from_drawn_weights():
    """What is trained with and what is predicted with are the same distribution."""
    family, params = family_and_params(dropout=True, network=MLP(3, (5,), 2))
    x = jnp.array([[0.5, -1.0, 2.0]])

    def both(key):
        drawn = family.network.apply(family.draw(params, key), x)
        return family.forward(params, x, key)[0][0], drawn[0]

    # A loop, as thousands of triangular systems in one call can block jaxlib's pool of threads.
    local, drawn = jax.jit(lambda keys: jax.lax.map(both, keys))(jax.random.split(KEY, 40_000))
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]  # tails are heavy where pseudo-data are noisy
    spread = np.quantile(drawn, 0.75, axis=0) - np.quantile(drawn, 0.25, axis=0)
    gaps = np.quantile(local, levels, axis=0) - np.quantile(drawn, levels, axis=0)
    np.testing.assert_allclose(gaps / spread, 0, atol=0.05)


def test_the_cost_is_of_the_conditioned_matrix_and_with_dropout_of_that_before():
    family, params = family_and_params()
    w = matrix_normal(
        params[0]["mean"], *(jnp.exp(params[0][k]) for k in ("log_row", "log_column"))
    )
    cost = jax.jit(family.forward)(params, jnp.ones((1, N - 1)), KEY)[1]
    np.testing.assert_allclose(
        cost, kl(condition(w, params[0]["x"], params[0]["y"]), 1.0), rtol=1e-5
    )
    noisy, params = family_and_params(dropout=True)
    alpha = 0.5 / (1 + math.exp(-2))  # where every factor starts
    extra = K * (N + M) * dropout_kl(jnp.log(alpha))
    cost = jax.jit(noisy.forward)(params, jnp.ones((1, N - 1)), KEY)[1]
    np.testing.assert_allclose(cost, kl(w, 1.0) + extra, rtol=1e-5)


def test_the_divergence_of_dropout_is_that_of_quadrature_up_to_its_constant():
    """-log(alpha)/2 + E log|1 + sqrt(alpha) e|; their polynomial is good to 0.04."""

    def exact(alpha):
        def integrand(e):
            return stats.norm.pdf(e) * math.log(abs(1 + math.sqrt(alpha) * e) + 1e-300)

        pole = -1 / math.sqrt(alpha)
        inside = [pole] if abs(pole) < 12 else None
        return -0.5 * math.log(alpha) + integrate.quad(integrand, -12, 12, points=inside)[0]

    alphas = np.array([1e-4, 0.005, 0.05, 0.3, 1.0])
    expected = np.array([exact(alpha) for alpha in alphas])
    found = np.asarray(dropout_kl(jnp.log(alphas)))
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=0.04)


def test_the_bound_of_a_linear_model_reaches_the_evidence():
    """With three pseudo-rows the family contains the exact posterior of three weights."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    y = x @ [0.5, -1.0] + 0.2 + 0.5 * rng.normal(size=40)
    whole = np.column_stack([x, np.ones(40)])
    evidence = stats.multivariate_normal(np.zeros(40), whole @ whole.T + 0.25 * np.eye(40)).logpdf(
        y
    )
    batch = Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y[:, None], jnp.float32))
    # A prior of sqrt(3) before the division by sqrt(3) makes every weight N(0, 1).
    bound = Bound(MatrixGaussian(MLP(2, (), 1), 3, 3**0.5, 0.1), Gaussian(fixed_std=0.5), 40.0)
    algorithm = build(bound, 0.02, 3000)
    result = training.train(algorithm, algorithm.init(KEY), batch, key=KEY, steps=3000)
    reached = result.history["log_density"][-300:].mean()
    np.testing.assert_allclose(reached, evidence, atol=0.25)
    (draws,) = draw_many(bound.family, result.state.particles["family"], KEY, 20_000)
    weights = np.column_stack([draws["kernel"][..., 0], draws["bias"]])
    precision = np.eye(3) + whole.T @ whole / 0.25
    exact = np.linalg.inv(precision)
    np.testing.assert_allclose(weights.mean(0), exact @ (whole.T @ y) / 0.25, atol=0.02)
    assert np.linalg.norm(np.cov(weights.T) - exact) < 0.1 * np.linalg.norm(exact)


# -- whole fits ----------------------------------------------------------------------------------


def yacht():
    data = datasets.load("yacht")
    train, test = data.splits[0]
    return data.x[train], data.y[train], data.x[test], data.y[test]


@pytest.fixture(scope="module", params=METHODS)
def fitted(request):
    x, y, *_ = yacht()
    return METHODS[request.param](steps=2000).fit(x, y)


def test_regression_beats_the_constant_gaussian(fitted):
    _, y, x_test, y_test = yacht()
    predictive = fitted.predict_dist(x_test)
    assert np.sqrt(np.mean((predictive.mean - y_test) ** 2)) < 0.25 * np.std(y_test)
    constant = stats.norm.logpdf(y_test, y.mean(), y.std()).mean()
    assert predictive.log_prob(y_test).mean() > constant + 1.2


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
def test_classification_beats_the_majority(method):
    rng = np.random.default_rng(5)
    y = np.repeat([2, 5, 7], [60, 40, 40])
    x = rng.normal(size=(140, 2)) + np.column_stack([np.abs(y - 5.0), y - 5.0])
    model = method(steps=400, batch_size=None, hidden=()).fit(x[::2], y[::2])
    predictive = model.predict_dist(x[1::2])
    assert np.mean(predictive.mode == y[1::2]) > 0.85
    shares = np.array([60, 40, 40]) / 140
    assert predictive.log_prob(y[1::2]).mean() > (shares * np.log(shares)).sum() + 0.4


def test_the_methods_are_found_by_name():
    assert METHODS.items() <= methods().items()


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        (VMG, {"pseudo_rows": 0}, "pseudo_rows must be at least 1"),
        (VMG, {"prior_std": 0.0}, "prior_std must be positive"),
        (VMG, {"initial_std": "small"}, "initial_std must be a positive number"),
        (VMG, {"draws": 2.5}, "draws must be an integer"),
        (VMGDropout, {"max_alpha": 0.0}, "max_alpha must be positive"),
        (VMGDropout, {"max_alpha": 1.5}, "max_alpha must be at most 1"),
    ],
)
def test_bad_settings_are_named(method, setting, message):
    with pytest.raises((TypeError, ValueError), match=message):
        method(**setting)
