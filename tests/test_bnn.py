"""The log joint density against exact answers: a conjugate model, naive NumPy, its own algebra."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from s2vgd._blocks import blocks_of
from s2vgd.bnn import BNN, Batch
from s2vgd.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    StudentT,
)
from s2vgd.networks import MLP
from s2vgd.priors import FixedPrior, HierarchicalPrior
from s2vgd.structure import Structure, StructuredWeight

PLAIN = Structure(reflections=0, scales=None)
KEY = jax.random.key(0)


def regression_batch(n_rows: int = 12, n_inputs: int = 5, n_targets: int = 1) -> Batch:
    """Random inputs and targets."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_rows, n_inputs)).astype(np.float32)
    y = rng.normal(size=(n_rows, n_targets)).astype(np.float32)
    return Batch(jnp.asarray(x), jnp.asarray(y))


def small_bnn(**changes) -> BNN:
    """One hidden layer of 6 on five inputs, everything else at its default."""
    return BNN(**{"network": MLP(5, (6,), 1, "tanh"), "likelihood": Gaussian(), **changes})


def random_particles(bnn: BNN, m: int) -> dict:
    """`m` particles of which every number is random, also those that start at a constant."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda key: bnn.init_particles(key, m), KEY)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), shapes)


@pytest.fixture(scope="module")
def particle():
    """One particle of `small_bnn`."""
    return jax.tree.map(lambda leaf: leaf[0], random_particles(small_bnn(), 1))


def test_linear_network_has_the_conjugate_posterior():
    """Zero gradient at the posterior mean, minus its precision as Hessian, exact evidence."""
    n, sigma, tau = 20, 0.4, 1.7
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(n, 3)), rng.normal(size=(n, 2))
    design = np.hstack([np.ones((n, 1)), x])
    precision = design.T @ design / sigma**2 + np.eye(4) / tau**2
    mean = np.linalg.solve(precision, design.T @ y / sigma**2)
    evidence = stats.multivariate_normal(cov=sigma**2 * np.eye(n) + tau**2 * design @ design.T)

    with jax.enable_x64(True):
        prior = FixedPrior(variance=tau**2)
        bnn = BNN(MLP(3, (), 2), Gaussian(fixed_std=sigma), PLAIN, prior, n_targets=2)

        def log_joint(flat):
            bias, kernel = flat[:2], flat[2:].reshape(3, 2)
            particle = {
                "weights": ({"kernel": kernel, "bias": bias},),
                "prior": {},
                "likelihood": {},
            }
            return bnn.log_joint(particle, Batch(jnp.asarray(x), jnp.asarray(y)), n)

        def expand(flat):
            return log_joint(flat), jax.grad(log_joint)(flat), jax.hessian(log_joint)(flat)

        value, gradient, hessian = map(np.asarray, jax.jit(expand)(jnp.asarray(mean.ravel())))

    full_precision = np.kron(precision, np.eye(2))
    np.testing.assert_allclose(gradient, 0.0, atol=1e-9)
    np.testing.assert_allclose(hessian, -full_precision, atol=1e-9)
    # A Gaussian integral of the joint density over the weights is the density of the targets.
    integral = value + 0.5 * (8 * np.log(2 * np.pi) - np.linalg.slogdet(full_precision)[1])
    assert integral == pytest.approx(evidence.logpdf(y.T).sum(), rel=1e-9)


def naive_log_joint(particle, batch: Batch) -> float:
    """Eq. (fullmode) and (regression) for `small_bnn`, with every factor written out."""

    def reflection(v):
        v = np.asarray(v, np.float64)
        return np.eye(v.size) - 2 * np.outer(v, v) / (v @ v)

    def product(vs, size):
        matrix = np.eye(size)
        for v in vs:
            matrix = reflection(v) @ matrix
        return matrix

    total, hidden = 0.0, np.asarray(batch.x, np.float64)
    for index, layer in enumerate(particle["weights"]):
        w, b = layer["kernel"], np.asarray(layer["bias"], np.float64)
        precision = {k: np.exp(float(v)) for k, v in particle["prior"][str(index)].items()}
        gaussian = {"lambda": [w.c, b], "phi": [w.v_left, w.v_right], "psi": [w.s_left, w.s_right]}
        for kind, tau in precision.items():
            entries = np.concatenate([np.ravel(part) for part in gaussian[kind]])
            total += stats.norm.logpdf(entries, scale=tau**-0.5).sum()
            total += stats.gamma.logpdf(tau, 1.0, scale=10.0) + np.log(tau)
        rows, columns = w.c.shape
        middle = np.diag(np.exp(w.s_left)) @ np.asarray(w.c) @ np.diag(np.exp(w.s_right))
        matrix = product(w.v_left, rows) @ middle @ product(w.v_right, columns).T
        hidden = (np.tanh(hidden) if index else hidden) @ matrix + b
    noise = np.exp(float(particle["likelihood"]["log_precision"][0]))
    total += stats.gamma.logpdf(noise, 1.0, scale=10.0) + np.log(noise)
    return total + stats.norm.logpdf(batch.y, hidden, noise**-0.5).sum()


def test_log_joint_is_the_paper_model_written_naively(particle):
    """Structure, prior, noise prior and likelihood all at once."""
    batch = regression_batch()
    assert isinstance(particle["weights"][0]["kernel"], StructuredWeight)
    actual = small_bnn().log_joint(particle, batch, len(batch.x))
    assert float(actual) == pytest.approx(naive_log_joint(particle, batch), rel=1e-5)


def test_minibatches_of_a_partition_average_to_the_full_batch(particle):
    """The scaling N / B makes the estimate unbiased, in value and in gradient."""
    bnn, batch = small_bnn(), regression_batch(12)
    evaluate = jax.jit(jax.value_and_grad(bnn.log_joint))
    full = evaluate(particle, batch, 12)
    rows = np.random.default_rng(2).permutation(12).reshape(4, 3)
    parts = [evaluate(particle, Batch(batch.x[i], batch.y[i]), 12) for i in rows]
    assert len({float(value) for value, _ in parts}) == 4
    average = jax.tree.map(lambda *leaves: sum(leaves) / 4, *parts)
    for ours, exact in zip(jax.tree.leaves(average), jax.tree.leaves(full), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows_at_once", [1, 5, 6, 12, 13, 100])
def test_rows_some_at_a_time_are_all_rows(particle, weighted, rows_at_once):
    """Value and gradient, side by side and alone, also where the last block is not full."""
    bnn, batch = small_bnn(), regression_batch(13)
    if weighted:
        batch = batch._replace(weight=jnp.linspace(0.0, 2.0, 13))
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), (particle, batch))

        def found(rows_at_once):
            alone, batch = exact
            log_joint = partial(bnn.log_joint, batch=batch, n_total=30, rows_at_once=rows_at_once)
            particles = jax.tree.map(lambda leaf: jnp.stack([leaf, 1.1 * leaf]), alone)
            return jax.jit(jax.vmap(jax.value_and_grad(log_joint)))(particles), log_joint(alone)

        for some, every in zip(
            *map(jax.tree.leaves, map(found, (rows_at_once, None))), strict=True
        ):
            np.testing.assert_allclose(some, every, rtol=1e-11, atol=1e-10)


def test_batches_are_divided_where_activations_outweigh_weights():
    """On the CPU of the tests; a wide network would read its weights once more for each block."""

    def rows(*layers, particles=20):
        first, *hidden, last = layers
        network = MLP(first, hidden, last)
        return BNN(network, Gaussian(), n_targets=last).rows_at_once(particles)

    assert rows(13, 50, 1) == 2**20 // (20 * 50)
    assert rows(13, 50, 1, particles=2000) == 128
    assert rows(784, 400, 400, 10) > 2000
    with pytest.raises(ValueError, match="rows_at_once must be"):
        small_bnn().log_joint({}, regression_batch(6), 6, 0)


def test_blocks_hold_rows_of_several_arrays():
    """Inputs need not be one array: those of a bandit are features and actions."""
    x = {"features": jnp.arange(10.0).reshape(5, 2), "action": jnp.arange(5)}
    blocks = blocks_of(Batch(x, jnp.arange(5.0)), 3)
    np.testing.assert_array_equal(blocks.x["action"], [[0, 1, 2], [3, 4, 4]])
    np.testing.assert_array_equal(blocks.x["features"][1], [[6, 7], [8, 9], [8, 9]])
    np.testing.assert_array_equal(blocks.weight, [[1, 1, 1], [1, 1, 0]])


def test_integer_weights_equal_repeated_rows(particle):
    """A weight of 0 removes its row, a weight of 3 repeats it."""
    bnn, batch = small_bnn(), regression_batch(6)
    weight = np.asarray([0, 3, 1, 2, 0, 1])
    repeated = Batch(batch.x.repeat(weight, axis=0), batch.y.repeat(weight, axis=0))
    log_joint = jax.jit(bnn.log_joint)
    weighted = log_joint(particle, batch._replace(weight=jnp.asarray(weight)), 7)
    assert float(weighted) == pytest.approx(float(log_joint(particle, repeated, 7)), rel=1e-5)


def test_weights_of_one_change_nothing(particle):
    """Also where the batch is part of the data only."""
    bnn, batch = small_bnn(), regression_batch(6)
    ones = bnn.log_joint(particle, batch._replace(weight=jnp.ones(6)), 30)
    assert float(ones) == pytest.approx(float(bnn.log_joint(particle, batch, 30)), rel=1e-6)


def test_a_batch_without_weight_leaves_the_prior(particle):
    """0 / 0 must not become NaN, in value or gradient."""
    bnn, batch = small_bnn(), regression_batch(6)._replace(weight=jnp.zeros(6))
    value, gradient = jax.jit(jax.value_and_grad(bnn.log_joint))(particle, batch, 30)
    prior = bnn.prior.log_prob(particle["weights"], particle["prior"])
    prior += bnn.likelihood.log_prior(particle["likelihood"])
    assert float(value) == pytest.approx(float(prior), rel=1e-6)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("likelihood", "n_targets", "structure"),
    [
        (Gaussian(), 2, PLAIN),
        (HeteroscedasticGaussian(), 2, Structure(1, "gaussian")),
        (StudentT(), 1, PLAIN),
        (Laplace(), 1, PLAIN),
        (Categorical(3), 1, Structure(2, None)),
        (Bernoulli(), 1, PLAIN),
    ],
    ids=str,
)
def test_every_model_has_finite_values_and_gradients(likelihood, n_targets, structure):
    """All likelihoods, in plain and in structured form, for several particles at once."""
    network = MLP(5, (6,), likelihood.n_outputs(n_targets))
    bnn = BNN(network, likelihood, structure, n_targets=n_targets)
    batch = regression_batch(n_targets=n_targets)
    if isinstance(likelihood, Categorical | Bernoulli):
        batch = batch._replace(y=jnp.arange(12) % 2)

    score = jax.vmap(jax.value_and_grad(bnn.log_joint), in_axes=(0, None, None))
    values, gradients = jax.jit(score)(random_particles(bnn, 2), batch, 12)
    assert values.shape == (2,)
    assert np.isfinite(values).all()
    for leaf in jax.tree.leaves(gradients):
        assert np.isfinite(leaf).all()


def test_particles_differ_in_everything_that_is_drawn():
    """Equal particles would never part. Where they start, gradients are finite."""
    bnn = small_bnn()
    particles = bnn.init_particles(KEY, 3)
    for layer in particles["weights"]:
        for part in (layer["kernel"].c, layer["kernel"].v_left):
            assert len(np.unique(part)) == part.size
    score = jax.vmap(jax.grad(bnn.log_joint), in_axes=(0, None, None))
    for leaf in jax.tree.leaves(jax.jit(score)(particles, regression_batch(), 12)):
        assert np.isfinite(leaf).all()


@pytest.mark.optimised
def test_structure_does_not_change_the_network_drawn():
    """SVGD and S2VGD with one key start from the same C: comparisons are paired."""
    models = small_bnn(), small_bnn(structure=PLAIN)
    structured, plain = jax.jit(lambda key: [model.init(key)["weights"] for model in models])(KEY)
    for with_structure, without in zip(structured, plain, strict=True):
        np.testing.assert_array_equal(with_structure["kernel"].c, without["kernel"])


def test_log_likelihood_and_components_describe_the_same_rows(particle):
    """What is predicted is what was fitted."""
    bnn, batch = small_bnn(), regression_batch()
    parts = bnn.components(particle, batch.x)
    expected = stats.norm.logpdf(batch.y, parts["loc"], parts["scale"])[:, 0]
    np.testing.assert_allclose(bnn.log_likelihood(particle, batch), expected, rtol=1e-4, atol=1e-5)


def test_equal_models_share_one_compilation(particle):
    """Built twice from the same settings, a model is traced once."""
    traces = []

    def score(bnn, particle, batch):
        traces.append(bnn)
        return bnn.log_joint(particle, batch, 12)

    jitted = jax.jit(score, static_argnums=0)
    first, second = small_bnn(), small_bnn()
    batch = regression_batch()
    assert first is not second
    assert jitted(first, particle, batch) == jitted(second, particle, batch)
    assert len(traces) == 1
    jitted(small_bnn(prior=HierarchicalPrior(b=0.2)), particle, batch)
    assert len(traces) == 2


@dataclass(frozen=True)
class UnknownWidth:
    """A network that does not say how many outputs it has."""

    def init(self, key):
        """Return one matrix."""
        return {"kernel": jax.random.normal(key, (5, 3))}

    def apply(self, weights, x):
        """Return three outputs."""
        return x @ weights["kernel"]


def test_outputs_that_do_not_fit_the_likelihood_are_refused():
    """At construction where the network says its width, else when it is first applied."""
    with pytest.raises(ValueError, match=r"1 outputs but HeteroscedasticGaussian.* needs 2"):
        small_bnn(likelihood=HeteroscedasticGaussian())
    with pytest.raises(ValueError, match=r"1 outputs but Gaussian.* needs 2 for n_targets=2"):
        small_bnn(n_targets=2)
    bnn = small_bnn(network=UnknownWidth())
    with pytest.raises(ValueError, match=r"3 outputs but Gaussian.* needs 1"):
        jax.eval_shape(lambda key: bnn.outputs(bnn.init(key), jnp.zeros((4, 5))), KEY)


@pytest.mark.parametrize(
    ("make", "error", "name"),
    [
        (lambda: small_bnn(n_targets=0), ValueError, "n_targets"),
        (lambda: small_bnn(n_targets=1.0), TypeError, "n_targets"),
        (lambda: small_bnn(network=MLP(5, (), 3), likelihood=Categorical(3), n_targets=2),
         ValueError, "n_targets"),
        (lambda: small_bnn().init_particles(KEY, 0), ValueError, "m must"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(make, error, name):
    """The message says which argument is wrong."""
    with pytest.raises(error, match=name):
        make()
