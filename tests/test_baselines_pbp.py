"""Probabilistic back-propagation: moments against sampling, updates against exact posteriors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from s2vgd import datasets
from s2vgd.baselines import methods
from s2vgd.baselines._filtering import Gamma, Sites, filter_gamma, filter_gaussian, refine_prior
from s2vgd.baselines._moments import Moments, Rotation, linear, network, relu, rotate_kernel
from s2vgd.baselines.pbp_mv import (
    METHODS,
    PBP,
    PBPMV,
    normal_log_evidence,
    probit_log_evidence,
)

RNG = np.random.default_rng(2)
DRAWS = 200_000


def single(*arrays):
    return [jnp.asarray(a, jnp.float32) for a in arrays]


def to_single(tree):
    return jax.tree.map(jnp.float32, tree)


def layer(n_in, n_out, rng=RNG):
    mean = {"kernel": rng.normal(size=(n_in, n_out)), "bias": rng.normal(size=n_out)}
    var = jax.tree.map(lambda a: rng.uniform(0.1, 1.0, a.shape), mean)
    return mean, var


def householder(vectors, n):
    """H_K ... H_1, written out."""
    whole = np.eye(n)
    for v in vectors:
        whole = (np.eye(n) - 2 * np.outer(v, v) / (v @ v)) @ whole
    return whole


def sample_layer(mean, var, rotation, z):
    """Outputs for one draw of the weights a row of z."""
    c = RNG.normal(mean["kernel"], np.sqrt(var["kernel"]), (len(z), *mean["kernel"].shape))
    bias = RNG.normal(mean["bias"], np.sqrt(var["bias"]), (len(z), len(mean["bias"])))
    n_in, n_out = mean["kernel"].shape
    w = householder(rotation.left, n_in) @ c @ householder(rotation.right, n_out).T
    return (np.einsum("si,sio->so", z, w) + bias) / np.sqrt(n_in + 1)


ROTATIONS = {
    "plain": Rotation(np.zeros((0, 5)), np.zeros((0, 4))),
    "one reflection": Rotation(RNG.normal(size=(1, 5)), RNG.normal(size=(1, 4))),
    "three on one side": Rotation(RNG.normal(size=(3, 5)), np.zeros((0, 4))),
}


# -- moments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotation", ROTATIONS.values(), ids=ROTATIONS)
@pytest.mark.parametrize("input_var", [0.0, 0.7])
def test_moments_of_a_layer_and_its_relu_are_those_of_sampling(rotation, input_var):
    """A sum over five inputs is not quite Gaussian, hence the wider margin after the ReLU."""
    mean, var = layer(5, 4)
    z_mean, z_var = RNG.normal(size=5), np.full(5, input_var)
    z = RNG.normal(z_mean, np.sqrt(z_var), (DRAWS, 5))
    sampled = sample_layer(mean, var, rotation, z)
    found = linear(*map(to_single, (mean, var, rotation)), Moments(*single(z_mean, z_var)))
    np.testing.assert_allclose(found.mean, sampled.mean(0), atol=0.02)
    np.testing.assert_allclose(found.var, sampled.var(0), rtol=0.03)
    rectified, after = relu(found), np.maximum(sampled, 0)
    margin = 0.01 if input_var == 0 else 0.05
    np.testing.assert_allclose(rectified.mean, after.mean(0), atol=margin)
    np.testing.assert_allclose(rectified.var, after.var(0), atol=margin)


@pytest.mark.parametrize("mean", [-30.0, -4.0, -0.5, 0.0, 0.5, 4.0, 300.0])
@pytest.mark.parametrize("std", [0.01, 1.0])
def test_moments_of_a_relu_are_those_of_quadrature_even_far_out(mean, std):
    def moment(power):
        edges = (max(0.0, mean - 12 * std), max(0.0, mean + 12 * std))
        density = stats.norm(mean, std).pdf
        return integrate.quad(lambda z: z**power * density(z), *edges, epsabs=0)[0]

    first = moment(1)
    centred = integrate.quad(
        lambda z: (z - first) ** 2 * stats.norm.pdf(z, mean, std),
        *(max(0.0, mean - 12 * std), max(0.0, mean + 12 * std)),
        epsabs=0,
    )[0]
    variance = centred + first**2 * stats.norm.cdf(-mean / std)
    found = relu(Moments(*single([mean], [std**2])))
    np.testing.assert_allclose(found.mean, first, rtol=1e-4, atol=1e-6 * std)
    np.testing.assert_allclose(found.var, variance, rtol=1e-4, atol=1e-6 * std**2)


def test_gradients_of_moments_are_finite_for_units_that_never_or_always_fire():
    def total(mean):
        return sum(jnp.sum(part) for part in relu(Moments(mean, jnp.full(4, 1e-8))))

    assert np.all(np.isfinite(jax.grad(total)(jnp.array([-1e3, 0.0, 1e-4, 1e3]))))


def test_kernels_are_rotated_as_the_reflections_written_out():
    c, rotation = RNG.normal(size=(5, 4)), ROTATIONS["one reflection"]
    expected = householder(rotation.left, 5) @ c @ householder(rotation.right, 4).T
    found = rotate_kernel(*single(c), Rotation(*single(*rotation)))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_network_without_uncertainty_is_a_network():
    means = [layer(3, 5)[0], layer(5, 1)[0]]
    nothing = jax.tree.map(lambda a: np.full_like(a, 1e-12), means)
    rotations = (
        Rotation(np.zeros((0, 3)), np.zeros((0, 5))),
        Rotation(np.zeros((0, 5)), np.zeros((0, 1))),
    )
    x = RNG.normal(size=3)
    hidden = np.maximum((x @ means[0]["kernel"] + means[0]["bias"]) / 2, 0)
    expected = (hidden @ means[1]["kernel"] + means[1]["bias"]) / np.sqrt(6)
    found = network(*map(to_single, (tuple(means), tuple(nothing), rotations)), *single(x))
    np.testing.assert_allclose(found.mean, expected, rtol=1e-4)
    assert np.all(found.var < 1e-6)


# -- updates -------------------------------------------------------------------------------------


def test_filtering_a_linear_gaussian_weight_is_exact():
    """One weight and known noise: after any number of rows, the posterior of the textbook."""
    x, y, noise_var = RNG.normal(size=30), RNG.normal(size=30), 0.3
    noise = Gamma(*single(1001.0, noise_var * 1000))  # its expected variance is noise_var
    mean, var = single(0.4, 2.0)

    def log_z(mean, var, x, y):
        units = Moments(mean[None] * x, var[None] * x * x)
        return normal_log_evidence(units, noise, y)

    gradient = jax.jit(jax.grad(log_z, (0, 1)))
    for row in zip(x, y, strict=True):
        mean, var = filter_gaussian(mean, var, *gradient(mean, var, *row))
    precision = 1 / 2.0 + np.sum(x * x) / noise_var
    np.testing.assert_allclose(var, 1 / precision, rtol=1e-4)
    np.testing.assert_allclose(mean, (0.4 / 2.0 + x @ y / noise_var) / precision, rtol=1e-4)


@pytest.mark.parametrize("label", [0, 1])
def test_filtering_a_class_gives_the_moments_of_the_exact_posterior(label):
    mean, var, sign = 0.3, 1.7, 2 * label - 1

    def log_z(mean, var):
        return probit_log_evidence(Moments(mean[None], var[None]), None, jnp.array(label))

    def moment(power):
        def integrand(w):
            return w**power * stats.norm.pdf(w, mean, var**0.5) * stats.norm.cdf(sign * w)

        return integrate.quad(integrand, -15, 15)[0]

    z, first, second = map(moment, range(3))
    np.testing.assert_allclose(log_z(*single(mean, var)), np.log(z), rtol=1e-5)
    found = filter_gaussian(*single(mean, var), *jax.grad(log_z, (0, 1))(*single(mean, var)))
    np.testing.assert_allclose(found, (first / z, second / z - (first / z) ** 2), rtol=1e-4)


def test_updates_that_leave_no_distribution_are_refused():
    mean, var = single([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    d_mean, d_var = single([5.0, np.nan, 0.5], [0.0, 0.0, 0.0])
    found_mean, found_var = filter_gaussian(mean, var, d_mean, d_var)
    np.testing.assert_allclose(found_mean, [1.0, 1.0, 2.0])
    np.testing.assert_allclose(found_var, [2.0, 2.0, 1.0])


def naive_gamma(shape, rate, y, mean, var):
    """The ratios of evidences of Hernández-Lobato and Adams (2015), as they stand."""
    z, z1, z2 = (stats.norm.pdf(y, mean, np.sqrt(var + rate / (shape + k - 1))) for k in range(3))
    new_shape = 1 / (z * z2 / z1**2 * (shape + 1) / shape - 1)
    new_rate = 1 / (z2 / z1 * (shape + 1) / rate - z1 / z * shape / rate)
    return new_shape, new_rate


@pytest.mark.parametrize("shape", [2.5, 6.0, 300.0, 30_000.0])
@pytest.mark.parametrize(("y", "var"), [(0.1, 0.05), (-1.5, 0.3), (2.5, 2.0)])
def test_precisions_are_filtered_as_the_formula_says_in_double_precision(shape, y, var):
    rate = 0.4 * shape
    expected = naive_gamma(shape, rate, y, 0.2, var)
    found = filter_gamma(Gamma(*single(shape, rate)), *single(y), Moments(*single(0.2, var)))
    # What matters is the change, which is of order one however large the shape.
    atol = 0.002 + 4e-7 * shape
    np.testing.assert_allclose(found.shape - shape, expected[0] - shape, rtol=0.01, atol=atol)
    np.testing.assert_allclose(found.rate - rate, expected[1] - rate, rtol=0.01, atol=atol)


def test_precisions_whose_inverse_would_have_no_mean_are_refused():
    assert naive_gamma(1.5, 0.6, -1.5, 0.2, 0.3)[0] < 1
    found = filter_gamma(Gamma(*single(1.5, 0.6)), *single(-1.5), Moments(*single(0.2, 0.3)))
    np.testing.assert_allclose(found, (1.5, 0.6), rtol=1e-6)


def test_many_small_residuals_teach_the_size_of_the_noise():
    """In single precision, far beyond the shapes at which naive ratios fail."""
    y = single(0.3 * RNG.normal(size=20_000))[0]
    still = Moments(*single(0.0, 1e-6))
    start = Gamma(*single(6.0, 6.0))
    learned, _ = jax.lax.scan(lambda g, y: (filter_gamma(g, y, still), None), start, y)
    np.testing.assert_allclose(learned.variance, np.mean(y**2), rtol=0.02)
    np.testing.assert_allclose(learned.shape, 10_000, rtol=0.05)


def test_the_sweep_over_the_prior_is_that_of_a_loop_in_double_precision():
    n = 6
    mean, var = RNG.normal(size=n), RNG.uniform(0.1, 0.5, n)
    precision = np.full(n, 5 / 6)
    found = refine_prior(
        *single(mean, var),
        Gamma(*single(6.0, 6.0)),
        Sites(*single(precision, np.zeros(n), np.zeros(n))),
    )
    shape, rate = 6.0, 6.0
    for i in range(n):
        cavity = 1 / var[i] - precision[i]
        others = mean[i] / var[i] / cavity
        new = naive_gamma(shape, rate, 0.0, others, 1 / cavity)
        # The Gaussian moments of N(w; others, 1/cavity) N(w; 0, rate / (shape - 1)).
        total = cavity + (shape - 1) / rate
        mean[i], var[i] = cavity * others / total, 1 / total
        shape, rate = new
    np.testing.assert_allclose(found[0], mean, rtol=1e-4)
    np.testing.assert_allclose(found[1], var, rtol=1e-4)
    np.testing.assert_allclose(found[2], (shape, rate), rtol=1e-3)
    # A factor that was put back can be taken out again: the sums are those of all factors.
    np.testing.assert_allclose(found[2].shape - found[3].shape.sum(), 6.0, rtol=1e-4)
    np.testing.assert_allclose(found[2].rate - found[3].rate.sum(), 6.0, rtol=1e-4)


# -- whole fits ----------------------------------------------------------------------------------


def yacht():
    data = datasets.load("yacht")
    train, test = data.splits[0]
    return data.x[train], data.y[train], data.x[test], data.y[test]


@pytest.fixture(scope="module", params=METHODS)
def fitted(request):
    x, y, *_ = yacht()
    return METHODS[request.param](epochs=20).fit(x, y)


def test_regression_beats_the_constant_gaussian(fitted):
    _, y, x_test, y_test = yacht()
    predictive = fitted.predict_dist(x_test)
    assert np.sqrt(np.mean((predictive.mean - y_test) ** 2)) < 0.2 * np.std(y_test)
    constant = stats.norm.logpdf(y_test, y.mean(), y.std()).mean()
    assert predictive.log_prob(y_test).mean() > constant + 1.5


def test_drawn_networks_agree_with_the_analytic_prediction(fitted):
    """Up to the covariances that the forward pass leaves out, and a hundred draws."""
    _, _, x_test, _ = yacht()
    analytic = fitted.predict_dist(x_test)
    drawn = fitted._posterior.predict(fitted._inputs(x_test), **fitted._presentation)
    gap = np.abs(drawn.mean - analytic.mean) / analytic.std
    assert gap.max() < 1.0 and gap.mean() < 0.2
    assert 0.8 < np.median(drawn.std / analytic.std) < 1.25


def test_the_seed_decides_everything_and_a_second_fit_compiles_nothing(fitted, caplog):
    x, y, x_test, _ = yacht()
    first = fitted.predict_dist(x_test).mean
    with jax.log_compiles():
        again = type(fitted)(epochs=20).fit(x, y).predict_dist(x_test).mean
        assert "Compiling" not in caplog.text
        jax.jit(lambda a: a + 1)(first)
    assert "Compiling" in caplog.text, "otherwise the assertion above could not fail"
    np.testing.assert_array_equal(again, first)
    other = type(fitted)(epochs=20, seed=1).fit(x, y).predict_dist(x_test).mean
    assert not np.any(other == first)


def test_rotations_are_learned_where_there_are_any(fitted):
    start = fitted._model.init(jax.random.split(jax.random.split(jax.random.key(0), 3)[0])[0])
    moved = [
        np.abs(a - b).max() if a.size else 0.0
        for a, b in zip(
            *map(jax.tree.leaves, (start.rotations, fitted._beliefs.rotations)), strict=True
        )
    ]
    # Inputs and hidden units of both layers are long enough to be rotated, the output is not.
    assert [m > 0 for m in moved] == [isinstance(fitted, PBPMV)] * 3 + [False]


@pytest.mark.parametrize("method", METHODS.values())
def test_two_clusters_are_told_apart_with_doubt_between_them(method):
    """The classes of the paper's supplement D."""
    toy = datasets.toy_classification(seed=0)
    x, y = toy.x, toy.y
    model = method(epochs=100, hidden=(30,)).fit(x, y + 3)
    predictive = model.predict_dist(x)
    assert np.all(predictive.mode == y + 3)
    assert predictive.log_prob(y + 3).mean() > np.log(0.5) + 0.3
    between = model.predict_dist(np.outer(np.linspace(-1, 1, 20), [2.0, -2.0]))
    assert between.entropy.mean() > 2 * predictive.entropy.mean()
    drawn = model._posterior.predict(model._inputs(x), **model._presentation)
    np.testing.assert_allclose(drawn.mean, predictive.mean, atol=0.15)


def test_the_methods_are_found_by_name():
    assert METHODS.items() <= methods().items()


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        (PBP, {"epochs": 0}, "epochs must be at least 1"),
        (PBP, {"draws": 0}, "draws must be at least 1"),
        (PBP, {"a": 0.5}, "a must exceed 1"),
        (PBP, {"b": -1.0}, "b must be positive"),
        (PBP, {"activation": "tanh"}, "activation must be 'relu'"),
        (PBPMV, {"reflections": 0}, "reflections must be at least 1"),
        (PBPMV, {"learning_rate": 0.0}, "learning_rate must be positive"),
    ],
)
def test_bad_settings_are_named(method, setting, message):
    with pytest.raises(ValueError, match=message):
        method(**setting)


def test_three_classes_are_refused():
    with pytest.raises(ValueError, match="y has 3 classes"):
        PBP().fit(RNG.normal(size=(9, 2)), np.arange(9) % 3)
