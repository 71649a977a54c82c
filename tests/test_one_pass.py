"""The step for NVIDIA GPUs is the paper's, interpreted without one, and can be compiled for one."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from s2vgd import _one_pass, svgd
from s2vgd._elementwise import take_apart
from s2vgd.kernels import Radial, imq, layerwise, rbf

ELEMENTWISE = {
    "adam": optax.adam(0.1),
    "adam, cosine": optax.adam(optax.cosine_decay_schedule(0.1, 100)),
    "adamw": optax.adamw(0.1),
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, 0.9),
    "rmsprop": optax.rmsprop(0.1),
    "adagrad": optax.adagrad(0.1),
    "clipped elements": optax.chain(optax.clip(0.5), optax.adam(0.1)),
    "changeable rate": optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
}
OTHERS = {
    "clipped norm": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)),
    "lamb": optax.lamb(0.1),
    "adafactor": optax.adafactor(0.1),
}


def pieces(m: int = 5, widths: tuple[int, ...] = (131, 7), seed: int = 0) -> tuple[jax.Array, ...]:
    """Draw pieces whose widths fill no tile."""
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(3.0, 1.0, (m, width)), jnp.float32) for width in widths)


def paper_step(theta: np.ndarray, slopes: np.ndarray, rate: float) -> np.ndarray:
    """Eq. (svgd_update) with the RBF kernel, written out pair by pair."""
    m = len(theta)
    distances = [np.linalg.norm(a - b) for i, a in enumerate(theta) for b in theta[:i]]
    h = np.median(distances) ** 2 / np.log(m)
    moved = theta.copy()
    for i in range(m):
        for j in range(m):
            kappa = np.exp(-np.sum((theta[j] - theta[i]) ** 2) / h)
            push = -2 / h * (theta[j] - theta[i]) * kappa
            moved[i] += rate / m * (kappa * slopes[j] + push)
    return moved


def test_it_is_the_formula_of_the_paper() -> None:
    theta, slopes = pieces(), pieces(seed=1)
    optimizer = optax.sgd(0.1)
    done = _one_pass.move(rbf(), optimizer, theta, slopes, optimizer.init(theta), interpret=True)
    whole = [np.concatenate(part, axis=1).astype(np.float64) for part in (theta, slopes)]
    expected = paper_step(*whole, 0.1)
    np.testing.assert_allclose(np.concatenate(done.theta, axis=1), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "kernel"), [*((name, rbf()) for name in ELEMENTWISE), ("adam", imq(bandwidth=2.0))]
)
def test_it_does_what_products_and_optax_do(name: str, kernel: Radial) -> None:
    optimizer, theta, slopes = ELEMENTWISE[name], pieces(), pieces(seed=1)
    state = optimizer.init(theta)
    assert _one_pass.suits(kernel, optimizer, theta, state)
    expected, expected_state = theta, state
    for _ in range(2):  # the second step meets a state that is not zero
        at = kernel.of_pieces(expected)
        drive, push = svgd.terms(at, slopes, anneal=0.7, repulsion=1.3)
        downhill = jax.tree.map(lambda a, b: -(a + b), drive, push)
        updates, expected_state = optimizer.update(downhill, expected_state, expected)
        expected = optax.apply_updates(expected, updates)
        done = _one_pass.move(kernel, optimizer, theta, slopes, state, 0.7, 1.3, interpret=True)
        theta, state = done.theta, done.opt_state
    assert jax.tree.structure(state) == jax.tree.structure(expected_state)
    for ours, theirs in zip(
        jax.tree.leaves((theta, state)), jax.tree.leaves((expected, expected_state)), strict=True
    ):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(done.bandwidth, at.bandwidth, rtol=1e-5)
    np.testing.assert_allclose(done.squared_distances, at.squared_distances, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(done.drive_norm, svgd.rms_length(drive), rtol=1e-4)
    np.testing.assert_allclose(done.repulsion_norm, svgd.rms_length(push), rtol=1e-3)


@pytest.mark.parametrize("name", OTHERS)
def test_an_optimiser_that_looks_at_several_elements_is_left_to_optax(name: str) -> None:
    theta = pieces()
    assert not _one_pass.suits(rbf(), OTHERS[name], theta, OTHERS[name].init(theta))


@pytest.mark.parametrize(
    "theta",
    [pieces(m=1), pieces(m=33), tuple(piece.astype(jnp.bfloat16) for piece in pieces())],
    ids=["one particle", "many particles", "another type"],
)
def test_what_it_is_not_made_for_it_does_not_do(theta: tuple[jax.Array, ...]) -> None:
    optimizer = optax.adam(0.1)
    assert not _one_pass.suits(rbf(), optimizer, theta, optimizer.init(theta))
    assert not _one_pass.suits(layerwise(), optimizer, pieces(), optimizer.init(pieces()))


def test_particles_that_coincide_stay_together() -> None:
    theta = tuple(jnp.repeat(piece[:1], 4, axis=0) for piece in pieces())
    optimizer = optax.sgd(0.1)
    done = _one_pass.move(rbf(), optimizer, theta, theta, optimizer.init(theta), interpret=True)
    assert float(done.repulsion_norm) == 0.0
    for before, after in zip(theta, done.theta, strict=True):
        np.testing.assert_allclose(after, 1.1 * before, rtol=1e-6)


def test_runs_side_by_side_are_as_each_alone() -> None:
    optimizer = optax.adam(0.1)
    runs = [pieces(seed=i) for i in range(3)]
    slopes = [pieces(seed=10 + i) for i in range(3)]

    def step(theta: tuple[jax.Array, ...], slopes: tuple[jax.Array, ...]) -> _one_pass.Moved:
        state = optimizer.init(theta)
        return _one_pass.move(rbf(), optimizer, theta, slopes, state, interpret=True)

    def stack(parts: list[tuple[jax.Array, ...]]) -> tuple[jax.Array, ...]:
        return jax.tree.map(lambda *rows: jnp.stack(rows), *parts)

    together = jax.vmap(step)(stack(runs), stack(slopes))
    for i, (theta, slope) in enumerate(zip(runs, slopes, strict=True)):
        alone = step(theta, slope)
        for ours, theirs in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(ours[i], theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*ELEMENTWISE, *OTHERS])
def test_svgd_takes_this_way_on_a_gpu_where_it_suits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is compiled up to the point where the GPU itself would be needed."""
    monkeypatch.setattr(svgd, "_one_pass_here", lambda: _one_pass)
    optimizer = {**ELEMENTWISE, **OTHERS}[name]
    algorithm = svgd.build(lambda particle, _: -jnp.sum(particle**2), optimizer)
    state = algorithm.init(jnp.ones((20, 300)))
    with on_an_imagined_gpu():
        program = algorithm.step.trace(state).lower(lowering_platforms=("cuda",)).as_text()
    assert ("gpu.triton" in program) == (name in ELEMENTWISE)
    # On the CPU of the same machine it is still the other way, and runs.
    moved, _ = algorithm.step(state)
    assert np.isfinite(moved.particles).all()


def on_an_imagined_gpu() -> contextlib.AbstractContextManager[None]:
    """Return what newer versions of JAX ask for where there is no GPU."""
    device = jax.sharding.AbstractDevice("NVIDIA H200", 132, "gpu")
    mesh = jax.sharding.AbstractMesh(
        (1,), ("x",), (jax.sharding.AxisType.Auto,), abstract_device=device
    )
    return jax.sharding.use_abstract_mesh(mesh)


def test_scalars_may_be_anything() -> None:
    """A schedule with branches is computed outside of the kernel."""

    def schedule(count: jax.Array) -> jax.Array:
        return jax.lax.cond(count < 3, lambda: 0.1, lambda: 0.01 * jnp.cos(1.0 * count))

    optimizer = optax.adam(schedule)
    state = optimizer.init((jnp.ones((2, 3)),))
    update = take_apart(optimizer, state)
    assert update is not None
    gradient, leaves = jnp.arange(6.0).reshape(2, 3), jax.tree.leaves(state)
    needed, _ = update.scalars(leaves)
    memory = [leaf for leaf in leaves if leaf.ndim]
    change, _ = update.arrays(needed, gradient, jnp.ones((2, 3)), memory)
    ((expected,), _) = optimizer.update((gradient,), state, (jnp.ones((2, 3)),))
    np.testing.assert_allclose(change, expected, rtol=1e-6)
