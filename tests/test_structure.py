"""The structured weight against the paper's formulas, written out in NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd import rotations
from s2vgd.rotations import orthogonal, reflect, wy
from s2vgd.structure import (
    Structure,
    StructuredWeight,
    apply_first,
    apply_transposed,
    materialise,
    n_parameters,
    structure_weights,
)

KEY = jax.random.key(0)
X64 = pytest.mark.parametrize("x64", [False, True], ids=["float32", "float64"])


@pytest.fixture(params=["in turn", "compact"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reflect small matrices once for each vector, as on a CPU, or once for all of them."""
    if request.param == "in turn":
        yield
        return
    monkeypatch.setattr(rotations, "_FEW", 0)
    jax.clear_caches()
    yield
    jax.clear_caches()


FORMS = pytest.mark.usefixtures("form")


def _tolerance(x64: bool) -> float:
    return 1e-12 if x64 else 2e-5


def _householder(v: np.ndarray) -> np.ndarray:
    """Eq. (householder_vec)."""
    return np.eye(len(v)) - 2 * np.outer(v, v) / (v @ v)


def _flow(vs: np.ndarray, n: int) -> np.ndarray:
    """Eq. (Househoder): H_K ... H_1, one matrix at a time."""
    product = np.eye(n)
    for v in vs:
        product = _householder(v) @ product
    return product


def _naive(weight: StructuredWeight) -> np.ndarray:
    """W = P Λ1 C Λ2 Qᵀ with every factor written out, in float64."""
    w = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weight)
    rows, columns = math.prod(w.c.shape[:-1]), w.c.shape[-1]
    c = w.c.reshape(rows, columns)
    left, right = {
        "lognormal": lambda: (np.exp(w.s_left), np.exp(w.s_right)),
        "gaussian": lambda: (w.s_left, w.s_right),
        None: lambda: (np.ones(rows), np.ones(columns)),
    }[weight.scales]()
    p, q = _flow(w.v_left, rows), _flow(w.v_right, columns)
    return (p @ np.diag(left) @ c @ np.diag(right) @ q.T).reshape(w.c.shape)


def _random_weight(
    shape: tuple[int, ...], structure: Structure, seed: int = 0, dtype: Any = np.float32
) -> StructuredWeight:
    """Give every part, the scales too, values that are not special."""
    c = jax.ShapeDtypeStruct(shape, dtype)
    weight = jax.eval_shape(lambda key, c: structure_weights(key, c, structure), KEY, c)
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(dtype), weight)


def _value_and_finite_gradient(weights: Any) -> tuple[float, Any]:
    """Gradient of a function of all materialised weights, checked to be finite."""
    value, gradient = _value_and_grad(weights)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    return value, gradient


@jax.jit
@jax.value_and_grad
def _value_and_grad(weights: Any) -> jax.Array:
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(materialise(weights)))


def _orthogonal_of_degree(rng: np.random.Generator, degree: int, n: int) -> np.ndarray:
    """A random orthogonal matrix that moves a random subspace of this dimension, and only it.

    The part on the subspace has determinant (-1)^degree, as a product of `degree` reflections has.
    """
    basis = np.linalg.qr(rng.normal(size=(n, n)))[0][:, :degree]
    block = np.linalg.qr(rng.normal(size=(degree, degree)))[0]
    if np.linalg.det(block) * (-1) ** degree < 0:
        block[:, 0] *= -1
    return np.eye(n) + basis @ (block - np.eye(degree)) @ basis.T


def _factor(m: np.ndarray, degree: int) -> np.ndarray:
    """Householder vectors v_1 ... v_K with m = H_K ... H_1 (lemma "householder").

    While x is moved, the reflection along v = m x - x takes m x to x and, because that space is
    orthogonal to v, leaves alone whatever m already left alone: the degree falls by one.
    """
    vectors = []
    for _ in range(degree):
        moved = m - np.eye(len(m))
        v = moved[:, np.argmax(np.linalg.norm(moved, axis=0))]
        vectors.append(v)
        m = _householder(v) @ m
    np.testing.assert_allclose(m, np.eye(len(m)), atol=1e-10)
    return np.array(vectors[::-1])


@FORMS
@X64
@pytest.mark.parametrize("k", [0, 1, 2, 5, 8])
def test_rotation_is_orthogonal(k: int, x64: bool) -> None:
    """PᵀP = I, with determinant (-1)^K, for Householder vectors of any length."""
    with jax.enable_x64(x64):
        vs = np.random.default_rng(0).normal(size=(k, 8)) * np.logspace(-2, 2, k)[:, None]
        p = np.asarray(_written_out(jnp.asarray(vs)))
        np.testing.assert_allclose(p.T @ p, np.eye(8), atol=_tolerance(x64))
        assert np.linalg.det(p) == pytest.approx((-1) ** k, abs=1e-4)


@FORMS
@X64
@pytest.mark.parametrize(("degree", "n"), [(1, 6), (3, 6), (6, 6), (12, 12)])
def test_flow_reproduces_any_orthogonal_matrix_of_its_degree(
    degree: int, n: int, x64: bool
) -> None:
    """Factor a random orthogonal matrix of degree K into K reflections and rebuild it."""
    m = _orthogonal_of_degree(np.random.default_rng(degree), degree, n)
    assert np.linalg.matrix_rank(m - np.eye(n), tol=1e-10) == degree
    vs = _factor(m, degree)
    with jax.enable_x64(x64):
        np.testing.assert_allclose(_written_out(jnp.asarray(vs)), m, atol=_tolerance(x64))


@FORMS
@X64
@pytest.mark.parametrize("k", [1, 2, 7, 20])
def test_wy_equals_one_reflection_at_a_time(k: int, x64: bool) -> None:
    """I - Y T Yᵀ is H_K ... H_1 also with more reflections than dimensions and parallel ones."""
    vs = np.random.default_rng(k).normal(size=(k, 9))
    vs[-1], vs[k // 2] = 1.0, 2.0
    with jax.enable_x64(x64):
        y, t = jax.jit(wy)(jnp.asarray(vs))
        assert (y.shape, t.shape) == ((9, k), (k, k))
        np.testing.assert_array_equal(t, np.tril(t))
        one_by_one = jax.jit(_reflect_in_turn)(jnp.asarray(vs))
        tolerance = _tolerance(x64)
        np.testing.assert_allclose(
            np.eye(9) - np.linalg.multi_dot([y, t, y.T]), one_by_one, atol=tolerance
        )
        np.testing.assert_allclose(one_by_one, _flow(vs, 9), atol=tolerance)
        np.testing.assert_allclose(_written_out(jnp.asarray(vs)), one_by_one, atol=tolerance)


def _reflect_in_turn(vs: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda m, v: (reflect(v, m), None), jnp.eye(vs.shape[1]), vs)[0]


@jax.jit
def _written_out(vs: jax.Array) -> jax.Array:
    return orthogonal(vs, vs.shape[1])


def test_reflect_mirrors_vectors() -> None:
    """Hv = -v, HH = I, and vectors orthogonal to v stay: the hyperplane of supplement C."""
    v = jnp.array([1.0, 2.0, -2.0])
    x = jnp.array([2.0, 0.0, 1.0])
    np.testing.assert_allclose(reflect(v, v), -v, atol=1e-6)
    np.testing.assert_allclose(reflect(v, x), x, atol=1e-6)
    y = jnp.array([0.3, -1.0, 0.5])
    np.testing.assert_allclose(reflect(v, y), _householder(np.asarray(v)) @ y, atol=1e-6)
    np.testing.assert_allclose(reflect(v, reflect(v, y)), y, atol=1e-6)


@FORMS
@X64
@pytest.mark.parametrize(
    ("k", "scales"), [(0, "lognormal"), (1, "lognormal"), (3, "lognormal"), (3, "gaussian")]
)
@pytest.mark.parametrize("rows", [2, 40], ids=["factors on few rows", "weight rebuilt for many"])
def test_a_first_layer_learns_what_the_rebuilt_weight_does(
    rows: int, k: int, scales: Any, x64: bool
) -> None:
    """Of particles that share the rows, whether the rows are differentiated by or not."""
    with jax.enable_x64(x64):
        dtype = np.float64 if x64 else np.float32
        weights = [_random_weight((9, 7), Structure(k, scales), i, dtype) for i in range(3)]
        weights = jax.tree.map(lambda *leaves: jnp.stack(leaves), *weights)
        bias, x = (
            jnp.asarray(np.random.default_rng(i).normal(size=shape), dtype)
            for i, shape in enumerate([(3, 7), (rows, 9)])
        )

        def plainly(weight: Any, bias: Any, x: Any) -> jax.Array:
            return materialise(weight).T @ x.T + bias[:, None]

        def everything(layer: Any) -> Any:
            def length(*arguments: Any) -> jax.Array:
                return jnp.sum(jnp.sin(layer(*arguments)))

            def mapped(function: Any) -> Any:
                return jax.vmap(function, (0, 0, None))(weights, bias, x)

            gradients = mapped(jax.grad(length, (0, 1))), mapped(jax.grad(length, (0, 1, 2)))
            first, other = (jax.tree.map(lambda leaf, i=i: leaf[i], weights) for i in range(2))
            second = jax.jvp(lambda w: jax.grad(length)(w, bias[0], x), (first,), (other,))
            return mapped(layer), gradients, second

        ours, theirs = everything(apply_first), everything(plainly)
        tolerance = 100 * _tolerance(x64)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@X64
@pytest.mark.parametrize("scales", ["lognormal", "gaussian", None])
@pytest.mark.parametrize("k", [1, 3])
def test_materialise_is_the_product_of_five_matrices(k: int, scales: Any, x64: bool) -> None:
    """Proposition "reparameterization"; convolution kernels as (h * w * in, out) matrices."""
    shapes = [(7, 5), (5, 1), (1, 6), (2, 3, 2, 6)]
    with jax.enable_x64(x64):
        dtype = np.float64 if x64 else np.float32
        weights = [_random_weight(shape, Structure(k, scales), dtype=dtype) for shape in shapes]
        for shape, weight, w in zip(shapes, weights, jax.jit(materialise)(weights), strict=True):
            assert (w.shape, w.dtype) == (shape, dtype)
            np.testing.assert_allclose(w, _naive(weight), rtol=0, atol=20 * _tolerance(x64))


@FORMS
@X64
@pytest.mark.parametrize(
    ("k", "scales"), [(0, "lognormal"), (1, "lognormal"), (3, "gaussian"), (1, None), (3, None)]
)
@pytest.mark.parametrize("rows", [2, 40], ids=["factors on few rows", "weight rebuilt for many"])
def test_a_layer_gives_the_same_whichever_way_it_is_multiplied(
    rows: int, k: int, scales: Any, x64: bool
) -> None:
    """Values against the paper's product, derivatives against those of the rebuilt weight."""
    with jax.enable_x64(x64):
        dtype = np.float64 if x64 else np.float32
        weight = _random_weight((9, 7), Structure(k, scales), dtype=dtype)
        weight = jax.tree.map(jnp.asarray, weight)
        x = jnp.asarray(np.random.default_rng(1).normal(size=(9, rows)), dtype)
        found = apply_transposed(weight, x)
        tolerance = _tolerance(x64)
        np.testing.assert_allclose(found, _naive(weight).T @ x, rtol=0, atol=20 * tolerance)

        def length(product: Any, weight: Any, x: Any) -> jax.Array:
            return jnp.sum(jnp.sin(product(weight, x)))

        ours = jax.grad(length, (1, 2))(apply_transposed, weight, x)
        rebuilt = jax.grad(length, (1, 2))(lambda w, x: materialise(w).T @ x, weight, x)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(rebuilt), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=100 * tolerance)


@pytest.mark.parametrize("k", [1, 3])
def test_covariance_of_the_weight_is_a_kronecker_product(k: int) -> None:
    """Lemma 1 and proposition 3: cov vec(W) = V ⊗ U, with U = P Λ1² Pᵀ and V = Q Λ2² Qᵀ.

    Monte Carlo over a standard normal C; vec stacks columns. The standard error of each entry is
    sqrt((Σii Σjj + Σij²) / n), and none may be off by more than 5 of them.
    """
    n, rows, columns = 40_000, 5, 4
    weight = _random_weight((rows, columns), Structure(k))
    c = jax.random.normal(jax.random.key(1), (n, rows, columns))
    w = jax.jit(jax.vmap(lambda c: materialise(replace(weight, c=c))))(c)
    vec = np.asarray(w, np.float64).transpose(0, 2, 1).reshape(n, -1)

    p, q = _flow(np.asarray(weight.v_left), rows), _flow(np.asarray(weight.v_right), columns)
    u = p @ np.diag(np.exp(2 * np.asarray(weight.s_left))) @ p.T
    v = q @ np.diag(np.exp(2 * np.asarray(weight.s_right))) @ q.T
    expected = np.kron(v, u)
    variances = np.diag(expected)
    error = np.sqrt((np.outer(variances, variances) + expected**2) / n)
    assert np.abs((vec.T @ vec / n - expected) / error).max() < 5
    wrong = np.abs((vec.T @ vec / n - np.kron(u, v)) / error).max()
    assert wrong > 50  # the test can tell V ⊗ U from U ⊗ V
    assert np.abs(vec.mean(0) / np.sqrt(variances / n)).max() < 5


@pytest.mark.parametrize("k", [0, 1, 2, 5])
@pytest.mark.parametrize(("rows", "columns"), [(6, 9), (13, 50)])
def test_parameter_count(k: int, rows: int, columns: int) -> None:
    """(K + 1)(l1 + l2) + l1 l2, as the paper counts."""
    weight = _random_weight((rows, columns), Structure(k))
    assert n_parameters(weight) == (k + 1) * (rows + columns) + rows * columns
    assert n_parameters((jnp.zeros((2, 3)), jnp.zeros(4), 1.0, None)) == 11


def test_without_reflections_it_is_louizos_and_welling() -> None:
    """K = 0 gives W = Λ1 C Λ2, a matrix Gaussian with diagonal covariances."""
    weight = _random_weight((6, 5), Structure(0))
    assert weight.v_left.shape == (0, 6)
    assert weight.v_right.shape == (0, 5)
    expected = np.exp(weight.s_left)[:, None] * np.asarray(weight.c) * np.exp(weight.s_right)
    np.testing.assert_allclose(materialise(weight), expected, rtol=1e-6)


def test_one_reflection_without_scales_is_sun_chen_and_carin() -> None:
    """K = 1 and Λ = I give W = H_p C H_q."""
    weight = _random_weight((6, 5), Structure(1, scales=None))
    assert weight.s_left.shape == weight.s_right.shape == (0,)
    left, right = _householder(np.asarray(weight.v_left[0])), _householder(weight.v_right[0])
    np.testing.assert_allclose(materialise(weight), left @ weight.c @ right.T, atol=1e-5)


def test_no_structure_leaves_weights_alone() -> None:
    """P = Q = Λ = I: the very same arrays go in and come out, so SVGD is unchanged bit for bit."""
    weights = {"kernel": jax.random.normal(KEY, (6, 5)), "bias": jnp.ones(5)}
    particle = structure_weights(KEY, weights, Structure(0, scales=None))
    assert particle["kernel"] is weights["kernel"]
    assert materialise(particle)["kernel"] is weights["kernel"]
    # Unit scales in a structured weight, and a side without reflections, do nothing either.
    for scales in ("lognormal", "gaussian"):
        identity = structure_weights(KEY, weights, Structure(0, scales=scales))
        np.testing.assert_array_equal(materialise(identity)["kernel"], weights["kernel"])
    tiny = structure_weights(KEY, jnp.ones((3, 2)), Structure(1, scales=None))
    np.testing.assert_array_equal(materialise(tiny), np.ones((3, 2)))


@FORMS
@X64
@pytest.mark.parametrize("k", [1, 3])
def test_zero_vectors_do_not_reflect_and_have_finite_gradients(k: int, x64: bool) -> None:
    """At v = 0, H = I with a gradient of zero; on the way there values and gradients are finite."""
    with jax.enable_x64(x64):
        dtype = np.float64 if x64 else np.float32
        weight = _random_weight((6, 5), Structure(k, scales=None), dtype=dtype)
        for size in (0.0, 1e-30, 1e-12, np.finfo(dtype).eps, 1e-4, 1e10):
            size = dtype(size)
            scaled = replace(weight, v_left=weight.v_left * size, v_right=weight.v_right * size)
            value, gradient = _value_and_finite_gradient(scaled)
            if size == 0:
                assert value == pytest.approx(np.sin(weight.c).sum(), rel=1e-6)
                assert not np.asarray(gradient.v_left).any()


def test_second_derivatives_at_zero_are_finite() -> None:
    """What a Laplace approximation or a Newton step would ask for."""
    hessian = jax.jit(jax.hessian(lambda v: jnp.sum(reflect(v, jnp.arange(4.0)) ** 3)))
    assert np.isfinite(hessian(jnp.zeros(4))).all()


@FORMS
def test_one_zero_vector_among_others_is_skipped() -> None:
    """In the WY form a zero vector is the identity and leaves its neighbours as they are."""
    vs = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    vs[1] = 0
    np.testing.assert_allclose(_written_out(vs), _flow(vs[[0, 2]], 6), atol=1e-6)
    gradient = jax.jit(jax.grad(lambda vs: jnp.sum(_written_out(vs) ** 3)))(vs)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient[0]).max() > 0


@pytest.mark.parametrize("scales", ["lognormal", "gaussian", None])
@pytest.mark.parametrize("k", [1, 3])
def test_tiny_sides_are_finite(scales: Any, k: int) -> None:
    """Sides of size 0 to 3 have no reflection by default; values and gradients are finite."""
    shapes = [(1, 1), (1, 9), (9, 1), (2, 2), (3, 2), (1, 1, 3, 2), (2, 0)]
    weights = [_random_weight(shape, Structure(k, scales)) for shape in shapes]
    for shape, weight in zip(shapes, weights, strict=True):
        for side, vectors in (
            (math.prod(shape[:-1]), weight.v_left),
            (shape[-1], weight.v_right),
        ):
            assert vectors.shape == (k if side >= 4 else 0, side)
    value, _ = _value_and_finite_gradient(weights)
    expected = sum(np.sin(_naive(weight)).sum() for weight in weights)
    assert value == pytest.approx(expected, abs=1e-4)


def test_reflections_are_fewer_than_the_side() -> None:
    """At most size - 1 reflections: sides of 1 never have one, whatever min_side."""
    weight = _random_weight((1, 3), Structure(5, min_side=1))
    assert (weight.v_left.shape, weight.v_right.shape) == ((0, 1), (2, 3))
    np.testing.assert_allclose(materialise(weight), _naive(weight), rtol=1e-4, atol=1e-5)
    assert [Structure(5).reflections_of(side) for side in (0, 3, 4, 5, 6, 7)] == [0, 0, 3, 4, 5, 5]


def test_any_pytree_keeps_its_shape() -> None:
    """Nested dicts, tuples and None survive; only floating matrices and kernels are structured."""
    weights = {
        "conv": ({"kernel": jnp.ones((3, 3, 2, 8)), "bias": jnp.ones(8)}, None),
        "head": [jnp.ones((8, 18)), jnp.float32(2.0), 3.0, np.ones((18, 8), np.float32)],
        "table": jnp.arange(6).reshape(2, 3),
    }
    particle = structure_weights(KEY, weights, Structure(2))
    conv, head = particle["conv"][0]["kernel"], particle["head"]
    assert (conv.v_left.shape, conv.v_right.shape) == ((2, 18), (2, 8))
    assert (conv.s_left.shape, conv.s_right.shape) == ((18,), (8,))
    assert isinstance(head[0], StructuredWeight)
    assert isinstance(head[3], StructuredWeight)
    assert particle["conv"][0]["bias"] is weights["conv"][0]["bias"]
    assert particle["conv"][1] is None
    assert head[1:3] == weights["head"][1:3]
    assert particle["table"] is weights["table"]
    back = jax.jit(materialise)(particle)
    assert jax.tree.structure(back) == jax.tree.structure(weights)
    assert jax.tree.map(jnp.shape, back) == jax.tree.map(jnp.shape, weights)
    assert jax.tree.leaves(materialise({"empty": None})) == []


def test_parts_have_names_in_key_paths() -> None:
    """Priors and files find the parts by path; the kind of scales is not among the leaves."""
    particle = structure_weights(KEY, {"kernel": jnp.ones((5, 6))}, Structure(1))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(particle)]
    parts = ("c", "v_left", "v_right", "s_left", "s_right")
    assert paths == [f"['kernel'].{part}" for part in parts]
    copy = jax.tree.map(lambda leaf: leaf + 1, particle)["kernel"]
    assert copy.scales == "lognormal"


def test_initial_values() -> None:
    """Diagonals start at one, c at the weight, and each weight has vectors of its own."""
    weights = [jax.random.normal(KEY, (40, 40)), jnp.ones((40, 40))]
    for scales, start in (("lognormal", 0.0), ("gaussian", 1.0)):
        first, second = structure_weights(KEY, weights, Structure(2, scales=scales))
        np.testing.assert_array_equal(first.s_left, np.full(40, start))
        np.testing.assert_array_equal(first.s_right, np.full(40, start))
        np.testing.assert_array_equal(first.c, weights[0])
        vectors = np.concatenate([first.v_left.ravel(), second.v_left.ravel()])
        assert np.unique(vectors).size == vectors.size
        assert vectors.std() == pytest.approx(1, abs=0.2)
        rotated = jax.jit(materialise)(first)
        np.testing.assert_allclose(np.linalg.norm(rotated), np.linalg.norm(weights[0]), rtol=1e-5)


@FORMS
@pytest.mark.parametrize("k", [1, 4])
def test_gradients_of_a_batch_are_those_of_finite_differences(k: int) -> None:
    """Jit, vmap and grad compose; the derivative along a random line is that of the formula."""
    with jax.enable_x64(True):
        draws = [_random_weight((5, 6), Structure(k), seed, np.float64) for seed in range(6)]
        weights = jax.tree.map(lambda *leaves: np.stack(leaves), *draws[:3])
        directions = jax.tree.map(lambda *leaves: np.stack(leaves), *draws[3:])
        gradients = jax.jit(jax.vmap(lambda weight: _value_and_grad(weight)[1]))(weights)
        slope = sum(
            np.sum(np.asarray(g * d), axis=tuple(range(1, g.ndim)))
            for g, d in zip(jax.tree.leaves(gradients), jax.tree.leaves(directions), strict=True)
        )
        for i, (weight, direction) in enumerate(zip(draws[:3], draws[3:], strict=True)):

            def along(t: float, weight: Any = weight, direction: Any = direction) -> float:
                moved = jax.tree.map(lambda w, d: w + t * d, weight, direction)
                return float(np.sin(_naive(moved)).sum())

            assert slope[i] == pytest.approx((along(1e-6) - along(-1e-6)) / 2e-6, rel=1e-6)


def test_structure_is_hashable_and_compares_by_value() -> None:
    """Jitted functions are cached per model, of which this is a part."""
    assert hash(Structure(1)) == hash(Structure(np.int64(1)))
    assert Structure(1) == Structure()
    assert Structure(1) != Structure(2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"reflections": -1}, ValueError, "reflections must be at least 0, got -1"),
        ({"reflections": 1.5}, TypeError, "reflections must be an integer, got 1.5"),
        ({"min_side": 0}, ValueError, "min_side must be at least 1, got 0"),
        ({"scales": "exp"}, ValueError, "'lognormal', 'gaussian' or None, got 'exp'"),
    ],
)
def test_impossible_structures_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The message names the argument and what was expected."""
    with pytest.raises(error, match=message):
        Structure(**arguments)


def test_structuring_twice_is_refused() -> None:
    """A structured tree would otherwise get structure inside its structure."""
    particle = structure_weights(KEY, {"kernel": jnp.ones((5, 6))}, Structure())
    with pytest.raises(TypeError, match="structured already"):
        structure_weights(KEY, particle, Structure())
