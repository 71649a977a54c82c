"""Kernels against their definitions written naively in NumPy, and where rounding could bite."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd import kernels
from s2vgd.kernels import (
    Block,
    Radial,
    imq,
    layerwise,
    median_bandwidth,
    rbf,
    squared_distances,
)

# Rounding decides: distances of close particles, and exact zeros and ones.
pytestmark = pytest.mark.optimised

BLOCKS = (Block("a/w", 0, 3), Block("a/b", 3, 4), Block("c/w", 4, 9))


def evaluate(kernel, particles, blocks=BLOCKS):
    return jax.jit(lambda x: kernel(x, blocks))(particles)


def naive_median_bandwidth(x: np.ndarray) -> float:
    """The paper's h = med^2 / log M over pairs of different particles."""
    m = len(x)
    distances = [np.linalg.norm(x[i] - x[j]) for i in range(m) for j in range(i)]
    return np.median(distances) ** 2 / np.log(m)


def naive_rbf(x, y, h):
    difference = x - y
    k = np.exp(-(difference @ difference) / h)
    return k, -2 / h * k * difference


def naive_imq(x, y, h, beta=-0.5):
    difference = x - y
    base = 1 + difference @ difference / h
    return base**beta, 2 * beta / h * base ** (beta - 1) * difference


def naive(kernel, particles, bandwidth):
    """Kernel matrix and sum_j grad_{theta_j} k(theta_j, theta_i), one pair at a time."""
    h = naive_median_bandwidth(particles) if bandwidth == "median" else bandwidth
    m = len(particles)
    matrix, repulsion = np.zeros((m, m)), np.zeros_like(particles)
    for i in range(m):
        for j in range(m):
            matrix[i, j], gradient = kernel(particles[j], particles[i], h)
            repulsion[i] += gradient
    return matrix, repulsion, h


def naive_layerwise(kernel, particles, bandwidth, columns):
    parts = [naive(kernel, particles[:, c], bandwidth) for c in columns]
    repulsion = np.zeros_like(particles)
    for c, part in zip(columns, parts, strict=True):
        repulsion[:, c] = part[1] / len(parts)
    return sum(p[0] for p in parts) / len(parts), repulsion, np.mean([p[2] for p in parts])


LAYERS = [np.arange(0, 4), np.arange(4, 9)]
LEAVES = [np.arange(0, 3), np.arange(3, 4), np.arange(4, 9)]
SCATTERED = [np.array([0, 1, 2, 4, 5, 6, 7, 8]), np.array([3])]
CASES = {
    "rbf": (rbf(), lambda x: naive(naive_rbf, x, "median")),
    "rbf-fixed": (rbf(2.5), lambda x: naive(naive_rbf, x, 2.5)),
    "imq": (imq(), lambda x: naive(naive_imq, x, "median")),
    "imq-fixed": (
        imq(1.5, beta=-0.3),
        lambda x: naive(lambda a, b, h: naive_imq(a, b, h, -0.3), x, 1.5),
    ),
    "layerwise": (layerwise(), lambda x: naive_layerwise(naive_rbf, x, "median", LAYERS)),
    "layerwise-leaves": (
        layerwise(imq(0.7), groups=2),
        lambda x: naive_layerwise(naive_imq, x, 0.7, LEAVES),
    ),
    "layerwise-scattered": (
        layerwise(rbf(), groups=lambda path: path.split("/")[1]),
        lambda x: naive_layerwise(naive_rbf, x, "median", SCATTERED),
    ),
}


@pytest.mark.parametrize("x64", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("m", [2, 7])
@pytest.mark.parametrize("name", CASES)
def test_kernel_equals_its_definition(name, m, x64):
    """Matrix, summed gradients and bandwidth are those of the double sum over pairs."""
    kernel, reference = CASES[name]
    particles = np.random.default_rng(m).normal(size=(m, 9))
    matrix, repulsion, h = reference(particles)
    with jax.enable_x64(x64):
        result = evaluate(kernel, jnp.asarray(particles))
        assert result.matrix.dtype == (jnp.float64 if x64 else jnp.float32)
        tolerance = dict(rtol=1e-10, atol=1e-12) if x64 else dict(rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(result.matrix, matrix, **tolerance)
        np.testing.assert_allclose(result.repulsion, repulsion, **tolerance)
        np.testing.assert_allclose(result.bandwidth, h, **tolerance)
        squared = ((particles[:, None] - particles[None]) ** 2).sum(-1)
        np.testing.assert_allclose(result.squared_distances, squared, **tolerance)


@pytest.mark.parametrize("x64", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("m", [2, 3, 4, 101, 300])
def test_median_is_numpys(m, x64):
    """Selection bit by bit finds exactly the median of the off-diagonal distances."""
    dtype = np.float64 if x64 else np.float32
    upper = np.triu(np.random.default_rng(m).gamma(2.0, size=(m, m)), 1).astype(dtype)
    expected = np.median(np.sqrt(upper[np.triu_indices(m, 1)])) ** 2 / np.log(m)
    with jax.enable_x64(x64):
        found = jax.jit(median_bandwidth)(jnp.asarray(upper + upper.T))
        np.testing.assert_allclose(found, expected, rtol=4 * np.finfo(dtype).eps)


def test_median_with_ties():
    """Equal distances on both sides of the middle, and zeros among the pairs."""
    upper = np.zeros((4, 4), np.float32)
    upper[np.triu_indices(4, 1)] = [0.0, 0.0, 4.0, 4.0, 4.0, 9.0]
    np.testing.assert_allclose(
        jax.jit(median_bandwidth)(jnp.asarray(upper + upper.T)), 4.0 / np.log(4), rtol=1e-6
    )


@pytest.mark.parametrize("find", [kernels._middle_by_sort, kernels.middle_by_bits])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 18, 19, 20])
def test_both_ways_to_the_middle_agree_with_a_sort(find, count):
    """That for accelerators does not run on a CPU of its own accord; ties, zeros and infinity."""
    values = np.array([[0, 0, 1, 1, 1], [np.inf, 3, 3, 5, 8], [2, 2, 2, 2, 2], [4, 9, 6, 7, 0]])
    ordered = np.sort(values, axis=None).astype(np.float32)
    found = jax.jit(lambda x: find(x, count))(jnp.asarray(values, jnp.float32))
    assert [float(value) for value in found] == [ordered[(count - 1) // 2], ordered[count // 2]]


def test_distances_of_close_particles_far_from_the_origin():
    """Centring keeps a spread of 0.1 visible at an offset of 1000 in float32."""
    offset = 1000 + np.random.default_rng(0).normal(size=(1, 50))
    particles = (offset + 0.1 * np.random.default_rng(1).normal(size=(8, 50))).astype(np.float32)
    exact = ((particles[:, None].astype(float) - particles[None]) ** 2).sum(-1)
    np.testing.assert_allclose(
        evaluate(rbf(), jnp.asarray(particles), ()).squared_distances, exact, rtol=1e-5, atol=1e-6
    )


def test_squared_distances_are_never_negative():
    """Rounding in the Gram matrix must not reach the square root."""
    row = np.random.default_rng(0).normal(size=100).astype(np.float32) * 100
    squared = jax.jit(squared_distances)(jnp.stack([row, row, row * (1 + 1e-7)]))
    assert (np.asarray(squared) >= 0).all()
    assert (np.diagonal(squared) == 0).all()


@pytest.mark.parametrize("kernel", [rbf(), imq(), layerwise()], ids=["rbf", "imq", "layerwise"])
def test_identical_particles_have_kernel_one_and_no_repulsion(kernel):
    """No 0/0 when all particles coincide, wherever they are."""
    particles = jnp.full((5, 9), 0.1) + jnp.arange(9.0) / 3
    result = evaluate(kernel, particles)
    np.testing.assert_array_equal(result.matrix, 1.0)
    np.testing.assert_array_equal(result.repulsion, 0.0)
    assert 0 < result.bandwidth < np.inf


def test_mostly_identical_particles_stay_tame():
    """With a median distance of zero the rounding errors are not blown up by a tiny bandwidth."""
    particles = np.random.default_rng(0).normal(size=(10, 9)).astype(np.float32)
    particles[:8] = particles[0]
    result = evaluate(rbf(), jnp.asarray(particles))
    assert np.isfinite(result.repulsion).all()
    assert np.abs(result.repulsion).max() < 100


@pytest.mark.parametrize("kernel", [rbf(), rbf(3.0), imq(), layerwise()])
def test_single_particle(kernel):
    """M = 1: the kernel is exactly 1 and nothing repels."""
    result = evaluate(kernel, jnp.arange(9.0)[None])
    assert result.matrix.tolist() == [[1.0]]
    assert (np.asarray(result.repulsion) == 0).all()
    assert result.bandwidth > 0


def test_a_new_radial_kernel_is_one_function():
    """The extension point: a profile with its derivative is a whole kernel."""

    def cauchy(squared, h):
        value = 1 / (1 + squared / h)
        return value, -(value**2) / h

    particles = np.random.default_rng(3).normal(size=(5, 4))
    result = evaluate(Radial(cauchy, 2.0), jnp.asarray(particles))
    matrix, repulsion, _ = naive(lambda a, b, h: naive_imq(a, b, h, -1.0), particles, 2.0)
    np.testing.assert_allclose(result.matrix, matrix, rtol=1e-5)
    np.testing.assert_allclose(result.repulsion, repulsion, rtol=1e-4, atol=1e-6)


def test_kernels_are_values():
    """Equal settings give equal, hashable kernels, so that compiled functions can be kept."""
    assert len({rbf(), rbf(), rbf(1.0), imq(), imq(), imq(beta=-0.3)}) == 4
    assert layerwise(imq()) == layerwise(imq())


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, np.inf, np.nan, "mean"])
def test_bad_bandwidth(bandwidth):
    with pytest.raises(ValueError, match="bandwidth"):
        rbf(bandwidth)


@pytest.mark.parametrize("beta", [0.0, 0.5, -1.0])
def test_bad_beta(beta):
    with pytest.raises(ValueError, match="beta"):
        imq(beta=beta)


@pytest.mark.parametrize("groups", [0, -1, True])
def test_bad_groups(groups):
    with pytest.raises(ValueError, match="groups"):
        layerwise(groups=groups)


def test_a_factor_multiplies_the_median_bandwidth_and_nothing_else():
    particles = jax.random.normal(jax.random.key(0), (5, 3))
    whole, half = rbf()(particles), rbf(factor=0.5)(particles)
    np.testing.assert_allclose(half.bandwidth, whole.bandwidth / 2, rtol=1e-6)
    same = rbf(float(half.bandwidth))(particles)
    np.testing.assert_allclose(half.matrix, same.matrix, rtol=1e-4)
    np.testing.assert_allclose(half.repulsion, same.repulsion, rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match="factor"):
        rbf(factor=0.0)
