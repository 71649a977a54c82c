"""The priors of eq. (fullmode) against scipy's densities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from s2vgd.priors import FixedPrior, HierarchicalPrior, gamma_log_prob
from s2vgd.structure import Structure, StructuredWeight, structure_weights

PARTS = {"lambda": ("c",), "phi": ("v_left", "v_right"), "psi": ("s_left", "s_right")}


def structured_weights(structure: Structure, seed: int = 0, dtype: type = np.float32) -> tuple:
    """Two layers of an MLP (6-5-2) in structured form, every entry random."""
    plain = tuple(
        {"kernel": np.zeros((i, o), dtype), "bias": np.zeros(o, dtype)} for i, o in [(6, 5), (5, 2)]
    )
    shapes = jax.eval_shape(lambda key: structure_weights(key, plain, structure), jax.random.key(0))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), shapes)


def entries(layer: dict, kind: str) -> np.ndarray:
    """All numbers of a layer that share the variance `kind`, written naively."""
    kernel = layer["kernel"]
    if isinstance(kernel, StructuredWeight):
        found = [np.ravel(getattr(kernel, part)) for part in PARTS[kind]]
    else:
        found = [np.ravel(kernel)] if kind == "lambda" else []
    if kind == "lambda":
        found.append(np.ravel(layer["bias"]))
    return np.concatenate(found) if found else np.zeros(0)


STRUCTURES = [
    Structure(),
    Structure(reflections=3, scales="gaussian"),
    Structure(reflections=2, scales=None),
    Structure(reflections=0),
    Structure(reflections=0, scales=None),
]


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_fixed_prior_is_scipy_normal(structure):
    """Each part is N(0, its variance) with its normalising constant."""
    prior = FixedPrior(variance=0.7, reflection_variance=2.0, scale_variance=0.05)
    weights = structured_weights(structure)
    variances = {"lambda": 0.7, "phi": 2.0, "psi": 0.05}
    expected = sum(
        stats.norm.logpdf(entries(layer, kind), scale=np.sqrt(variance)).sum()
        for layer in weights
        for kind, variance in variances.items()
    )
    hyper = prior.init(jax.random.key(0), weights)
    assert hyper == {}
    np.testing.assert_allclose(prior.log_prob(weights, hyper), expected, rtol=1e-5)


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_hierarchical_prior_is_scipy_normal_and_gamma(structure):
    """Normal given the precision, Gamma on the precision, Jacobian of the logarithm."""
    prior = HierarchicalPrior(a=1.5, b=0.3)
    weights = structured_weights(structure)
    hyper = prior.init(jax.random.key(0), weights)
    rng = np.random.default_rng(5)
    hyper = jax.tree.map(lambda eta: eta + rng.normal(), hyper)
    expected = 0.0
    for name, kinds in hyper.items():
        for kind, eta in kinds.items():
            precision = np.exp(float(eta))
            values = entries(weights[int(name)], kind)
            expected += stats.norm.logpdf(values, scale=precision**-0.5).sum()
            expected += stats.gamma.logpdf(precision, 1.5, scale=1 / 0.3) + float(eta)
    np.testing.assert_allclose(prior.log_prob(weights, hyper), expected, rtol=1e-5)


def test_a_layer_has_only_the_precisions_it_needs():
    """No phi without reflections (a side under min_side), no psi without scales."""
    kinds = {
        str(structure): {
            name: set(layer)
            for name, layer in HierarchicalPrior()
            .init(jax.random.key(0), structured_weights(structure))
            .items()
        }
        for structure in STRUCTURES
    }
    everything = {"lambda", "phi", "psi"}
    expected = [everything, everything, {"lambda", "phi"}, {"lambda", "psi"}, {"lambda"}]
    for structure, names in zip(STRUCTURES, expected, strict=True):
        assert kinds[str(structure)] == {"0": names, "1": names}
    short = Structure(min_side=100)
    assert set(HierarchicalPrior().init(jax.random.key(0), structured_weights(short))["0"]) == {
        "lambda",
        "psi",
    }


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.1), (2.5, 3.0), (0.5, 0.01)])
def test_gamma_log_prob_is_the_density_of_the_log_precision(a, b):
    """Gamma on precisions, Inv-Gamma on variances and scipy's loggamma all agree with it."""
    eta = np.linspace(-4.0, 3.0, 15)
    ours = gamma_log_prob(jnp.asarray(eta), a, b)
    of_gamma = stats.gamma.logpdf(np.exp(eta), a, scale=1 / b) + eta
    of_inverse_gamma = stats.invgamma.logpdf(np.exp(-eta), a, scale=b) - eta
    of_loggamma = stats.loggamma.logpdf(eta, a, loc=-np.log(b))
    np.testing.assert_allclose(ours, of_gamma, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(ours, of_inverse_gamma, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(ours, of_loggamma, rtol=2e-5, atol=1e-5)


def test_gamma_log_prob_integrates_to_one():
    """The Jacobian has the right sign: without it the integral is not even finite."""

    def density(eta: float) -> float:
        return float(np.exp(gamma_log_prob(np.float64(eta), 1.0, 0.1)))

    total, _ = integrate.quad(density, -25.0, 8.0, epsabs=1e-6)
    assert total == pytest.approx(1.0, abs=1e-4)


def test_log_scales_make_lognormal_scales():
    """s ~ N(0, psi) on the log scale says the same as scipy's lognorm of Lambda = exp(s)."""
    prior = FixedPrior(scale_variance=0.2)
    empty = jnp.zeros((0, 3))
    s = jnp.asarray([-0.5, 0.2, 1.1])
    weight = StructuredWeight(jnp.zeros((0, 3)), empty, empty, jnp.zeros(0), s, "lognormal")
    lambdas = np.exp(np.asarray(s))
    expected = (stats.lognorm.logpdf(lambdas, np.sqrt(0.2)) + np.log(lambdas)).sum()
    np.testing.assert_allclose(prior.log_prob({"kernel": weight}, {}), expected, rtol=1e-5)


def test_precisions_start_at_one():
    """A tight start costs accuracy, see the docstring of `HierarchicalPrior.init`."""
    hyper = HierarchicalPrior().init(jax.random.key(0), structured_weights(Structure()))
    leaves = jax.tree.leaves(hyper)
    assert len(leaves) == 6
    assert all(leaf.shape == () and leaf == 0.0 for leaf in leaves)


def test_precisions_are_pulled_to_their_exact_conditional():
    """Given the weights, a precision is Gamma(a + n/2, b + sum of squares / 2): check its slope."""
    prior = HierarchicalPrior(a=1.5, b=0.3)
    weights = structured_weights(Structure(reflections=2))
    hyper = prior.init(jax.random.key(0), weights)
    gradient = jax.grad(prior.log_prob, argnums=1)(weights, hyper)
    for name, kinds in gradient.items():
        for kind, slope in kinds.items():
            values = entries(weights[int(name)], kind)
            expected = (1.5 + 0.5 * values.size) - (0.3 + 0.5 * np.sum(values**2))
            assert float(slope) == pytest.approx(expected, rel=1e-4, abs=1e-3)


def test_kernel_and_bias_of_a_module_share_their_precision():
    """A layer is a parent path, whatever the depth and the kind of container."""
    leaf = jnp.ones(3)
    tree = {"encoder": [{"kernel": leaf, "bias": leaf}, {"kernel": leaf}], "top": leaf}
    hyper = HierarchicalPrior().init(jax.random.key(0), tree)
    assert set(hyper) == {"encoder/0", "encoder/1", "root"}


def test_integer_leaves_have_no_density():
    """A step counter among the weights changes nothing."""
    prior, leaf = FixedPrior(), jnp.ones(3)
    with_counter = prior.log_prob({"kernel": leaf, "count": jnp.asarray(7)}, {})
    assert with_counter == prior.log_prob({"kernel": leaf}, {})


@pytest.mark.parametrize("prior", [HierarchicalPrior(), FixedPrior()], ids=str)
def test_vmap_over_particles_equals_a_loop(prior):
    """Particles are scored independently of each other."""
    singles = [structured_weights(Structure(), seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles)
    hyper = jax.vmap(prior.init, in_axes=(None, 0))(jax.random.key(0), stacked)
    together = jax.jit(jax.vmap(prior.log_prob))(stacked, hyper)
    alone = [prior.log_prob(w, prior.init(jax.random.key(0), w)) for w in singles]
    assert len(np.unique(together)) == 3
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_dtype_follows_the_weights():
    """float32 weights stay float32 with x64 enabled, float64 ones are scored in float64."""
    with jax.enable_x64(True):
        for dtype in (np.float32, np.float64):
            weights = structured_weights(Structure(), dtype=dtype)
            for prior in (HierarchicalPrior(), FixedPrior()):
                hyper = jax.eval_shape(prior.init, jax.random.key(0), weights)
                assert jax.eval_shape(prior.log_prob, weights, hyper).dtype == dtype


@pytest.mark.parametrize(
    ("make", "error", "name"),
    [
        (lambda: HierarchicalPrior(a=0.0), ValueError, "a must"),
        (lambda: HierarchicalPrior(b=float("nan")), ValueError, "b must"),
        (lambda: HierarchicalPrior(b=jnp.ones(2)), TypeError, "b must"),
        (lambda: FixedPrior(variance=-1.0), ValueError, "variance must"),
        (lambda: FixedPrior(reflection_variance=float("inf")), ValueError, "reflection_variance"),
        (lambda: FixedPrior(scale_variance="0.1"), TypeError, "scale_variance"),
    ],
)
def test_bad_settings_are_named(make, error, name):
    """The message says which argument is wrong."""
    with pytest.raises(error, match=name):
        make()
