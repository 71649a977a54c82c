"""SVGD on a mesh against SVGD on one device; run by ``test_parallel.py`` on 8 virtual devices.

They are threads of one CPU that JAX takes for devices, which it must be told before it starts.
"""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from s2vgd import BNN, MLP, Posterior, files, kernels, parallel, pieces, svgd
from s2vgd.likelihoods import Gaussian
from s2vgd.loop import compiled_loop
from s2vgd.parallel import approximate, direction, exchange, meshes
from s2vgd.training import train

N, F = 24, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, F)).astype(np.float32)
ROWS = {"x": X, "y": (X @ np.arange(F)).astype(np.float32)}
OPTIMIZER = optax.adam(0.05)


def log_density(particle, batch):
    """Prior, noise scale and likelihood: each must be counted once, however rows are divided."""
    error = batch["x"] @ particle["layer"]["w"] + particle["layer"]["b"] - batch["y"]
    scale = particle["noise"]
    fit = jnp.sum(-0.5 * error**2 * jnp.exp(-2 * scale) - scale) * N / len(batch["y"])
    prior = sum(-0.5 * jnp.sum(leaf**2) for leaf in jax.tree.leaves(particle))
    return fit + prior


ONE = svgd.build(log_density, OPTIMIZER)


def make_particles(m=8, wide=0):
    """Particles of 7 parameters, and if asked for others that only the prior knows."""
    rng = np.random.default_rng(1)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=(m, *shape)), jnp.float32)

    particles = {"layer": {"w": draw(F), "b": draw()}, "noise": draw(), "none": draw(0, 3)}
    return particles | ({"wide": draw(wide, 3)} if wide else {})


def run(algorithm, particles, batch=ROWS, steps=3, key=None):
    state = algorithm.init(particles) if key is None else algorithm.init(particles, key)
    infos = []
    for _ in range(steps):
        state, info = algorithm.step(state, batch)
        infos.append(jax.tree.map(np.asarray, info))
    return state, infos


def assert_same(ours, theirs, rtol=2e-5):
    (state, infos), (wanted, wanted_infos) = ours, theirs
    for a, b in zip(
        jax.tree.leaves(state.particles), jax.tree.leaves(wanted.particles), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=2e-6)
    for one, other in zip(infos, wanted_infos, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-6)


def sharded(shape, **settings):
    return parallel.build(log_density, OPTIMIZER, mesh=parallel.mesh(*shape), **settings)


SETTINGS = {
    "gather over particles": ((8, 1), {"exchange": "gather"}),
    "gather over both": ((4, 2), {"exchange": "gather"}),
    "ring over particles": ((8, 1), {"exchange": "ring"}),
    "ring over both, in blocks": ((2, 4), {"exchange": "ring", "block": 3}),
    "gather in blocks, one at a time": (
        (4, 2),
        {"exchange": "gather", "block": 4, "particles_at_once": 1},
    ),
    "data only": ((1, 8), {}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_mesh_takes_the_steps_of_one_device(name):
    shape, settings = SETTINGS[name]
    for wide in (0, 101) if "both" in name else (0,):
        particles = make_particles(wide=wide)
        assert_same(run(sharded(shape, **settings), particles), run(ONE, particles))


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.imq(),
        kernels.rbf(2.0, factor=0.5),
        kernels.layerwise(),
        kernels.layerwise(kernels.imq(), groups=2),
    ],
    ids=["imq", "fixed", "layerwise", "layerwise imq"],
)
def test_every_kernel_of_the_library_can_be_divided(kernel):
    settings = {"repulsion": 1.3, "anneal": svgd.linear_annealing(5, start=0.2)}
    particles = make_particles(wide=4)
    one = svgd.build(log_density, OPTIMIZER, kernel, **settings)
    many = sharded((4, 2), kernel=kernel, exchange="ring", **settings)
    assert_same(run(many, particles), run(one, particles))


def test_wide_leaves_that_are_not_joined_give_the_same(monkeypatch):
    monkeypatch.setattr(pieces, "WIDE", 6)
    particles = make_particles(wide=4)
    layout = pieces.Pieces.of(particles, multiple=2)
    assert layout.widths == (8, 12) and layout.layers == (0, 0)
    ours = run(sharded((4, 2)), particles)
    assert_same(ours, run(ONE, particles))


def test_the_median_that_is_counted_together_is_the_median(monkeypatch):
    monkeypatch.setattr(exchange, "FEW", 0)
    particles = make_particles(16)
    ours = run(sharded((8, 1)), particles)
    assert_same(ours, run(ONE, particles))


@pytest.mark.parametrize("name", ["gather", "ring"])
def test_identical_particles_stay_together_and_equal_ones_are_seen(name):
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), make_particles())
    together = run(sharded((4, 2), exchange=name), same)
    assert_same(together, run(ONE, same))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(together[0].particles))
    assert together[1][-1].min_distance == 0
    # Particles 1 and 6 live on different devices.
    pair = jax.tree.map(lambda leaf: leaf.at[6].set(leaf[1]), make_particles())
    ours = run(sharded((4, 2), exchange=name), pair, steps=1)
    assert_same(ours, run(ONE, pair, steps=1))
    assert ours[1][0].min_distance == 0


def test_a_single_particle_climbs_with_its_rows_divided():
    particles = make_particles(1)
    ours = run(sharded((1, 8)), particles)
    assert_same(ours, run(ONE, particles))
    assert np.isinf(ours[1][0].min_distance) and ours[1][0].repulsion_norm == 0


def test_batches_need_not_divide_evenly():
    particles, batch = make_particles(), jax.tree.map(lambda leaf: leaf[:13], ROWS)
    ours = run(sharded((2, 4)), particles, batch)
    assert_same(ours, run(ONE, particles, batch))


def test_each_device_holds_its_part_and_a_ring_never_all_particles():
    mesh = parallel.mesh(4, 2)
    particles, rows = make_particles(wide=100), parallel.shard_rows(ROWS, mesh)
    width = -(-307 // 2)
    for name in ("gather", "ring"):
        algorithm = sharded((4, 2), exchange=name)
        state, _ = algorithm.step(algorithm.init(particles), rows)
        state, _ = algorithm.step(state, rows)
        assert algorithm.step._cache_size() == 1
        assert {s.data.shape for s in state.particles["wide"].addressable_shards} == {(2, 100, 3)}
        moments = state.opt_state[0].mu[0]
        assert {s.data.shape for s in moments.addressable_shards} == {(2, width)}
        text = algorithm.step.lower(state, rows).compile().as_text()
        assert bool(re.search(rf"f32\[8,{width}\]", text)) == (name == "gather")
    assert {s.data.shape for s in rows["x"].addressable_shards} == {(12, F)}


def test_what_is_sent_is_what_the_formula_says():
    """Count the bytes in the program, with so many parameters that scalars do not matter."""
    m, d, mesh = 8, F * 2000, parallel.mesh(4, 2)

    def density(particle, batch):
        return -jnp.sum((batch["x"] @ particle) ** 2)

    for name in ("gather", "ring"):
        algorithm = parallel.build(density, OPTIMIZER, mesh=mesh, exchange=name)
        state = algorithm.init(jnp.ones((m, F, 2000)))
        text = algorithm.step.lower(state, parallel.shard_rows(ROWS, mesh)).compile().as_text()
        # Two vectors of the centre, which the formula leaves out, are summed over 4 devices.
        vectors = 2 * (3 / 4) * 2 * (d / 2) * 4
        expected = parallel.step_cost(m, d, mesh, name).received + vectors
        assert received(text, tours=3) == pytest.approx(expected, rel=0.01)


def received(text, tours):
    """Bytes that a device receives, by the usual algorithms, of a program's collectives.

    A permutation in the body of a ring's loop happens once in each tour.
    """
    total = 0.0
    for line in text.splitlines():
        found = re.search(r"= (.*?) (all-reduce|all-gather|collective-permute)\(", line)
        if not found:
            continue
        sizes = re.findall(r"(?:f|s|u)32\[([\d,]*)\]", found[1])
        size = 4 * sum(np.prod([int(n) for n in s.split(",") if n]) for s in sizes)
        if found[2] == "collective-permute":
            total += tours * size
        elif size > 64:  # scalars may have groups in yet another notation
            group = re.search(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])", line)
            n = len(group[1].split(",")) if group[1] else int(group[2])
            total += (2 if found[2] == "all-reduce" else 1) * size * (n - 1) / n
    return total


def test_training_on_a_mesh_is_training_on_one_device():
    mesh = parallel.mesh(4, 2)
    many = sharded((4, 2))
    settings = {"key": jax.random.key(3), "steps": 30, "batch_size": 8}
    theirs = train(ONE, ONE.init(make_particles()), ROWS, **settings)
    rows = parallel.shard_rows(ROWS, mesh)
    ours = train(many, many.init(make_particles()), rows, **settings)
    host = parallel.to_host(ours.state.particles)
    for a, b in zip(jax.tree.leaves(host), jax.tree.leaves(theirs.state.particles), strict=True):
        assert isinstance(a, np.ndarray)
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        ours.history["log_density"], theirs.history["log_density"], rtol=1e-4
    )
    compiled = compiled_loop(many.step, 8)
    before = compiled._cache_size()
    train(many, many.init(make_particles()), rows, **settings)
    assert compiled._cache_size() == before


def test_a_training_on_a_mesh_that_was_interrupted_goes_on_from_its_checkpoint(tmp_path):
    many = sharded((4, 2))
    rows = parallel.shard_rows(ROWS, parallel.mesh(4, 2))

    def go(steps, folder=None, callbacks=()):
        settings = {"key": jax.random.key(3), "batch_size": 8, "chunk": 10, "callbacks": callbacks}
        if folder is not None:
            settings |= {"checkpoint_dir": folder, "checkpoint_every": 10}
        return train(many, many.init(make_particles()), rows, steps=steps, **settings)

    whole = go(40)
    go(40, tmp_path / "checkpoint", [lambda step, state, info: step >= 20])
    assert files.is_saved(tmp_path / "checkpoint")
    resumed = go(40, tmp_path / "checkpoint")
    for a, b in zip(jax.tree.leaves(resumed.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(resumed.history["log_density"], whole.history["log_density"], 1e-5)
    assert len(resumed.state.particles["noise"].sharding.device_set) == 8


def test_particles_are_drawn_where_they_live_and_saved_from_there(tmp_path):
    bnn = BNN(MLP(F, (4,), 1), Gaussian())
    mesh, key = parallel.mesh(4, 2), jax.random.key(7)
    drawn, plain = parallel.init_particles(bnn.init, key, 8, mesh), bnn.init_particles(key, 8)
    for a, b in zip(jax.tree.leaves(drawn), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
        assert a.size == 0 or a.addressable_shards[0].data.shape[0] == 2
    posterior = Posterior(bnn, drawn, 8)
    posterior.save(tmp_path / "model")
    again = Posterior.load(tmp_path / "model")
    np.testing.assert_allclose(posterior.predict(X).mean, again.predict(X).mean, rtol=1e-5)


def test_a_subset_is_unbiased_over_all_choices():
    rng = np.random.default_rng(3)
    theta, gradients = (jnp.asarray(rng.normal(size=(8, 4)), jnp.float32) for _ in range(2))
    kernel = kernels.rbf(3.0)
    exact = sum(svgd.terms(kernel(theta), gradients))

    def move(theta, gradients, chosen):
        settings = {"kernel": kernel, "layers": [0], "repulsion": 1.0}
        few = exchange.Subset(chosen[0])
        moved, _ = direction.direction([theta], [gradients], jnp.ones(()), exchange=few, **settings)
        return moved[0]

    mesh, both = parallel.mesh(2, 2, jax.devices()[:4]), P(meshes.PARTICLE, meshes.DATA)
    specs = {"in_specs": (both, both, P(meshes.PARTICLE)), "out_specs": both}
    moved = jax.jit(jax.shard_map(move, mesh=mesh, check_vma=False, **specs))
    pairs = list(itertools.combinations(range(4), 2))
    found = [
        np.asarray(moved(theta, gradients, np.array(choice)))
        for choice in itertools.product(pairs, repeat=2)
    ]
    assert np.abs(found[0] - exact).max() > 0.05
    np.testing.assert_allclose(np.mean(found, axis=0), exact, rtol=1e-4, atol=1e-5)


def test_a_subset_of_everybody_is_exact():
    particles, key = make_particles(16), jax.random.key(0)
    ours = run(sharded((4, 2), approximation=parallel.subset(16)), particles, key=key)
    assert_same(ours, run(ONE, particles))


def error(approximation, m, d, pull=1.0):
    """Return the error at standard normal particles of a normal target; flat without ``pull``."""

    def density(particle, batch):
        return -0.5 * pull * jnp.sum(particle**2)

    settings = {"optimizer": optax.sgd(1.0), "mesh": parallel.mesh(4, 2)}
    exact = parallel.build(density, **settings)
    rough = parallel.build(density, **settings, approximation=approximation)
    particles = jax.random.normal(jax.random.key(1), (m, d))
    return parallel.direction_error(exact, rough, particles, key=jax.random.key(2), repeats=16)


def test_the_error_of_a_subset_falls_with_the_root_of_its_size():
    few, more = (error(parallel.subset(n), 128, 200) for n in (8, 32))
    assert few.relative == pytest.approx(1 / np.sqrt(8), rel=0.25)
    assert more.relative == pytest.approx(1 / np.sqrt(32), rel=0.25)


def test_random_features_have_the_mean_and_variance_of_rahimi_and_recht():
    """With gradients I, the driving term of M = D particles is the kernel matrix over M."""
    m, size, repeats = 8, 16, 400
    theta = 0.7 * jax.random.normal(jax.random.key(4), (m, m))
    kernel = kernels.rbf(4.0)
    exact = np.asarray(kernel(theta).matrix)
    both = P(meshes.PARTICLE, meshes.DATA)

    def move(theta, gradients, key):
        settings = {"kernel": kernel, "repulsion": 0.0, "size": size}
        moved, _ = direction.feature_direction([theta], [gradients], jnp.ones(()), key, **settings)
        return m * moved[0]

    mesh = parallel.mesh(4, 2)
    draw = jax.shard_map(
        move, mesh=mesh, in_specs=(both, both, P()), out_specs=both, check_vma=False
    )
    keys = jax.random.split(jax.random.key(5), repeats)
    drawn = np.asarray(
        jax.jit(lambda ks: jax.lax.map(lambda k: draw(theta, jnp.eye(m), k), ks))(keys)
    )
    np.testing.assert_allclose(np.diagonal(drawn, axis1=1, axis2=2), 1, rtol=1e-5)
    variance = (1 - exact**2) ** 2 / (2 * size)
    off = ~np.eye(m, dtype=bool)
    z = (drawn.mean(axis=0) - exact)[off] / np.sqrt(variance[off] / repeats)
    assert np.abs(z).max() < 4
    ratio = drawn.var(axis=0)[off] / variance[off]
    assert np.mean(ratio) == pytest.approx(1, abs=0.1) and np.abs(ratio - 1).max() < 0.4


def test_random_features_do_in_few_dimensions_and_their_repulsion_drowns_in_many():
    few = error(parallel.random_features(1024), 64, 2)
    assert few.relative < 0.4 and few.bias < 0.2
    m, d, size = 64, 500, 1024
    many = error(parallel.random_features(size), m, d, pull=0.0)
    assert many.relative == pytest.approx(np.sqrt(m * d / (size * np.log(m))), rel=0.15)
    assert many.relative > 1


def test_approximations_train_on_a_mesh():
    for approximation in (parallel.subset(16), parallel.random_features(64)):
        algorithm = sharded((4, 2), approximation=approximation, block=4)
        state = algorithm.init(make_particles(16), jax.random.key(0))
        result = train(algorithm, state, ROWS, key=jax.random.key(1), steps=60)
        history = result.history["log_density"]
        assert history[-1] > history[0] + 10


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"exchange": "post"}, "exchange"),
        ({"block": 0}, "block"),
        ({"particles_at_once": -1}, "particles_at_once"),
        ({"repulsion": -1.0}, "repulsion"),
        ({"kernel": lambda particles, blocks: None}, "kernel must be radial"),
        ({"kernel": kernels.imq(), "approximation": parallel.random_features(4)}, "kernel"),
    ],
)
def test_a_bad_argument_of_build_is_named(settings, said):
    with pytest.raises((TypeError, ValueError), match=said):
        sharded((4, 2), **settings)


def test_what_does_not_divide_is_named():
    with pytest.raises(ValueError, match="particles must number a multiple of 4"):
        sharded((4, 2)).init(make_particles(6))
    with pytest.raises(ValueError, match="particles_at_once must divide the 2"):
        sharded((4, 2), particles_at_once=3).init(make_particles(8))
    with pytest.raises(ValueError, match="data must have a multiple of 2 rows"):
        parallel.shard_rows({"x": np.zeros((5, 1))}, parallel.mesh(4, 2))
    with pytest.raises(ValueError, match="particles=3 times data=2"):
        parallel.mesh(3, 2)
    with pytest.raises(ValueError, match="data must be an integer"):
        parallel.mesh(data=0)
    with pytest.raises(TypeError, match="mesh must be made by"):
        parallel.build(log_density, OPTIMIZER, mesh=jax.make_mesh((8,), ("x",)))
    with pytest.raises(ValueError, match="size of the subset must be a multiple of 4"):
        algorithm = sharded((4, 2), approximation=parallel.subset(6))
        algorithm.init(make_particles(8), jax.random.key(0))
    with pytest.raises(ValueError, match="key"):
        sharded((4, 2), approximation=parallel.subset(8)).init(make_particles(8))
    with pytest.raises(ValueError, match="size"):
        approximate.subset(0)


def test_a_small_set_is_gathered_and_a_large_one_sent_round():
    mesh = parallel.mesh(4, 2)
    assert parallel.choose_exchange(20, 10_000, mesh) == "gather"
    assert parallel.choose_exchange(1000, 10_000_000, mesh) == "ring"
