"""Many devices and many processes, as far as one machine has them: virtual devices, two processes.

What is compared on 8 virtual devices is in ``on_eight_devices.py``.
"""

import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from s2vgd import Posterior, parallel, svgd
from s2vgd.experiments import many_hosts
from s2vgd.loop import compiled_loop
from s2vgd.pieces import Pieces

SOURCE = Path(parallel.__file__).parents[2]
TESTS = Path(__file__).parent
TIMEOUT = 600  # seconds; for machines that do much else at the time


def environment(**variables):
    return {**os.environ, "PYTHONPATH": str(SOURCE), **variables}


def test_eight_virtual_devices_find_what_one_finds():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, str(TESTS / "on_eight_devices.py")],
        env=environment(XLA_FLAGS=flags, JAX_PLATFORMS="cpu"),
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 30


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def start_both(arguments):
    """Run the same program as two processes that exchange arrays, and return what they say."""
    address = f"localhost:{free_port()}"
    processes = []
    try:
        for index in range(2):
            variables = environment(
                S2VGD_COORDINATOR=address,
                S2VGD_PROCESSES="2",
                S2VGD_INDEX=str(index),
                JAX_PLATFORMS="cpu",
            )
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            processes.append(subprocess.Popen(arguments, env=variables, **pipes))
        said = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()  # JAX survives a mere request to end
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return said


@pytest.mark.parametrize("data", [1, 2], ids=["particles divided", "rows divided"])
def test_two_processes_fit_what_one_fits(tmp_path, data):
    options = ["--dataset=yacht", "--rows=240", "--particles=6", "--steps=15", "--exchange=ring"]
    options += [f"--data={data}", f"--out={tmp_path / 'two'}"]
    module = [sys.executable, "-m", "s2vgd.experiments.many_hosts", "--several"]
    first, second = start_both([*module, *options])
    shape = {"particle": 2 // data, "data": data}
    assert f"2 processes, {shape}, 6 particles" in first and "rmse" not in second
    # One process has one device here, hence one part.
    options[-2:] = [f"--out={tmp_path / 'one'}"]
    found = many_hosts.main(options)
    rmse = float(re.search(r"rmse ([\d.]+)", first)[1])
    assert rmse == pytest.approx(found["rmse"], rel=1e-3)
    one, two = Posterior.load(tmp_path / "one"), Posterior.load(tmp_path / "two")
    for a, b in zip(jax.tree.leaves(one.particles), jax.tree.leaves(two.particles), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3)


RESUMED = """
    import sys
    import jax, jax.numpy as jnp, numpy as np, optax
    from s2vgd import parallel
    from s2vgd.errors import DivergedError
    from s2vgd.loop import compiled_loop
    from s2vgd.training import train

    parallel.initialise()
    mesh = parallel.mesh(2)
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    rows = parallel.shard_rows((x, x @ np.ones(3, np.float32)), mesh)

    def log_density(particle, batch):
        return -jnp.sum((batch[0] @ particle - batch[1]) ** 2)

    def go(rate, **settings):
        algorithm = parallel.build(log_density, optax.adam(rate), mesh=mesh)
        state = algorithm.init(jax.random.normal(jax.random.key(0), (4, 3)))
        key = jax.random.key(1)
        result = train(algorithm, state, rows, key=key, steps=30, batch_size=8, chunk=5, **settings)
        assert compiled_loop(algorithm.step, 8)._cache_size() == 1
        return parallel.to_host(result.state.particles)

    whole = go(0.1)
    there = {"checkpoint_dir": sys.argv[1], "checkpoint_every": 10}
    go(0.1, callbacks=[lambda step, state, info: step >= 20], **there)
    np.testing.assert_array_equal(go(0.1, **there), whole)
    try:
        go(1e30)
    except DivergedError as error:
        print("diverged:", error.quantity)
"""


def test_two_processes_share_a_checkpoint_and_notice_divergence(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(RESUMED), str(tmp_path / "checkpoint")]
    assert all("diverged: " in said for said in start_both(command))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"coordinator": "localhost:1"}, "processes, index must be given"),
        ({"coordinator": "localhost:1", "processes": 0, "index": 0}, "processes must be"),
        ({"coordinator": "localhost:1", "processes": 2, "index": "x"}, "index must be"),
        ({"coordinator": "localhost:1", "processes": 2, "index": 2}, "index must be below"),
    ],
)
def test_a_bad_place_among_the_processes_is_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        parallel.initialise(**arguments)


def test_pieces_hold_every_parameter_once_and_give_it_back():
    rng = np.random.default_rng(0)
    shapes = {"a": (3, 2), "b": (), "none": (0, 4), "wide": (2**15, 2), "z": (5,)}
    tree = {name: jnp.asarray(rng.normal(size=(4, *shape))) for name, shape in shapes.items()}
    layout = Pieces.of(tree, lambda path: path[0], multiple=4)
    assert layout.layers == (0, 1, 2, 3) and layout.widths == (8, 4, 2**16, 8)
    flat = Pieces.of(tree, multiple=4)
    assert flat.layers == (0, 0) and flat.widths == (12, 2**16)
    for each in (layout, flat):
        pieces = each.flatten(tree)
        assert [piece.shape for piece in pieces] == [(4, width) for width in each.widths]
        total = sum(float(jnp.sum(piece**2)) for piece in pieces)
        assert total == pytest.approx(sum(float(jnp.sum(leaf**2)) for leaf in tree.values()))
        again = each.unflatten(pieces)
        assert all(bool((again[name] == tree[name]).all()) for name in tree)


def test_a_step_costs_what_is_counted_by_hand():
    """M = 8, D = 100 on one device: nothing is sent, all particles are there, twice."""
    mesh = parallel.mesh(1, 1, jax.devices()[:1])
    cost = parallel.step_cost(8, 100, mesh, "gather")
    assert cost == (0, 4 * (2 * 8 * 100 + 4 * 64))
    assert parallel.step_cost(8, 100, mesh, "ring") == cost


def temporary_bytes(step, state, batch):
    scalar = jax.ShapeDtypeStruct((), np.int32)
    key, flag = jax.eval_shape(jax.random.key, 0), jax.ShapeDtypeStruct((), bool)
    order = jax.ShapeDtypeStruct((0,), np.int32)
    loop = compiled_loop(step, None)
    program = loop.lower(state, order, batch, key, scalar, scalar, flag).compile()
    return program.memory_analysis().temp_size_in_bytes


def test_in_blocks_a_step_holds_little_besides_particles_gradients_and_moments():
    """The gradients are the one matrix (M, D) that a step of a training must add to its state."""
    m, rows, columns = 32, 256, 1024

    def log_density(particle, batch):
        return -jnp.sum(jnp.tanh(batch @ particle) ** 2) - jnp.sum(particle**2)

    optimizer, batch = optax.adam(1e-2), jax.ShapeDtypeStruct((8, rows), np.float32)
    particles = jax.ShapeDtypeStruct((m, rows, columns), np.float32)
    plain = svgd.build(log_density, optimizer)
    before = temporary_bytes(plain.step, jax.eval_shape(plain.init, particles), batch)
    mesh = parallel.mesh(1, 1, jax.devices()[:1])
    blocked = parallel.build(log_density, optimizer, mesh=mesh, block=4096, particles_at_once=4)
    theta = jax.eval_shape(Pieces.of(particles).flatten, particles)
    moments = jax.eval_shape(optimizer.init, theta)
    state = svgd.State(particles, moments, jax.ShapeDtypeStruct((), np.int32), None)
    after = temporary_bytes(blocked.step, state, batch)
    everything = 4 * m * rows * columns
    assert after < 1.6 * everything < 3 * everything < before
