"""On one GPU: an epoch of MNIST, the share of the device's matrix rate, and a thousand particles.

The network is 784-400-400-10. Epochs are what a user waits for: :func:`s2vgd.training.train` with
batches gathered on the device. Needs jax, optax and numpy only. Where MNIST is not on the machine
the images are random numbers of its shape; no time here depends on the values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from s2vgd import svgd, training
from s2vgd.baselines import _descent as descent
from s2vgd.bench.counts import network_products, svgd_products
from s2vgd.bench.records import Row, not_run
from s2vgd.bench.timing import Spread, Timed, in_turns, lasting, ratio, repeated
from s2vgd.bnn import BNN, Batch
from s2vgd.likelihoods import Categorical
from s2vgd.loop import carried_by
from s2vgd.networks import MLP
from s2vgd.posterior import Posterior
from s2vgd.priors import FixedPrior
from s2vgd.structure import Structure

TITLE = "One GPU: an epoch of MNIST 400-400, the share of its matrix rate, 1,000 particles"

PLAIN = Structure(reflections=0, scales=None)
STRUCTURES = {"SVGD": PLAIN, "S²VGD, K = 1": Structure(1), "S²VGD, K = 10": Structure(10)}

# How products of float32 matrices may be rounded: JAX's own choice for the device (TF32 where there
# is such hardware), not at all, and to bfloat16 with sums in float32.
PRECISIONS = {"default": None, "float32": "float32", "bfloat16": "BF16_BF16_F32"}


@dataclass(frozen=True)
class Sizes:
    """How much of it is done.

    Parameters
    ----------
    rows, hidden, particles, batch : int
        Of the epochs.
    large_batch : int
        For the share of the matrix rate.
    many : int
        Particles to fit into the memory of the device.
    side : int
        Of the square matrices whose product gives the rate of the device.
    rounds : int
        Repeats.
    trained : int
        Epochs after which the errors on the test images are counted.
    """

    rows: int = 60_000
    hidden: tuple[int, ...] = (400, 400)
    particles: int = 20
    batch: int = 100
    large_batch: int = 1000
    many: int = 1000
    side: int = 8192
    rounds: int = 7
    trained: int = 10


def ask(quick: bool, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows, or one that says that there is no GPU."""
    if jax.default_backend() != "gpu":
        yield not_run("MNIST 400-400", "", "no GPU")
        return
    yield from answer(Sizes(rows=6000, rounds=3, trained=2) if quick else Sizes(), extra)


def answer(sizes: Sizes, extra: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows on whatever device there is."""
    data, source = images(sizes.rows)
    extra["data"] = source
    extra["sizes"] = {**sizes.__dict__}
    yield from epochs(data, sizes)
    yield from shares(data, sizes, extra)
    yield from crowd(data, sizes, extra)
    yield from errors(sizes)


def images(rows: int) -> tuple[Batch, str]:
    """Return MNIST on the device, or random numbers in its place; and which of the two."""
    try:
        (x, y), source = mnist(slice(rows)), "MNIST"
    except Exception:  # whatever keeps it from being read, the times do not need it
        rng = np.random.default_rng(0)
        x, y = rng.random((rows, 784)), rng.integers(0, 10, rows)
        source = "random numbers in the shape of MNIST; the times do not depend on the values"
    return _on_device(x, y), source


def mnist(rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 784), scaled as in the paper, and their digits (N,)."""
    from s2vgd import datasets

    found = datasets.load("mnist", download=False)
    return found.x[rows] / np.float32(126), found.y[rows]


def _on_device(x: np.ndarray, y: np.ndarray) -> Batch:
    return Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32))


def model(structure: Structure, hidden: tuple[int, ...]) -> BNN:
    """Return the network of Table 2 of the paper."""
    return BNN(MLP(784, hidden, 10), Categorical(10), structure, FixedPrior())


@functools.lru_cache
def algorithm(name: str, rows: int, hidden: tuple[int, ...]) -> tuple[Any, BNN]:
    """Return SVGD, S²VGD, or "independent" networks on shared batches, and the model."""
    optimizer = training.cosine_adam(2e-3, 100_000)
    if name == "independent":
        bnn = model(PLAIN, hidden)
        one = descent.to_the_mode(bnn, float(rows), optimizer)
        keys = functools.partial(jax.random.split, jax.random.key(0))
        return descent.Algorithm(
            init=lambda particles: jax.vmap(one.init)(
                particles, keys(len(jax.tree.leaves(particles)[0]))
            ),
            step=jax.vmap(one.step, in_axes=(0, None)),
        ), bnn
    bnn = model(STRUCTURES[name], hidden)
    return svgd.build(lambda particle, batch: bnn.log_joint(particle, batch, rows), optimizer), bnn


def training_run(name: str, data: Batch, sizes: Sizes, batch_size: int, steps: int) -> Timed:
    """Return a function that trains for some steps and returns the seconds of one epoch."""
    rows = len(data.x)
    chosen, bnn = algorithm(name, rows, sizes.hidden)
    start = chosen.init(bnn.init_particles(jax.random.key(0), sizes.particles))
    per_epoch = rows // batch_size

    def run() -> None:
        result = training.train(
            chosen, start, data, key=jax.random.key(1), steps=steps, batch_size=batch_size
        )
        jax.block_until_ready(result.state.particles)

    run()
    timed = repeated(run)
    return lambda: timed() * per_epoch / steps


def epochs(data: Batch, sizes: Sizes) -> Iterator[Row]:
    """Compare epochs of SVGD and S²VGD with those of as many networks that do not interact."""
    rows = len(data.x)
    for batch_size in (sizes.batch, sizes.large_batch):
        steps = max(1, rows // batch_size) * max(1, batch_size // sizes.batch)
        runs = {
            name: training_run(name, data, sizes, batch_size, steps)
            for name in ("independent", *STRUCTURES)
        }
        seconds = in_turns(runs, sizes.rounds)
        of_all = seconds["independent"]
        case = f"epoch, M = {sizes.particles}, batch {batch_size}"
        target = {("S²VGD, K = 1", 100): 0.35}
        for name in STRUCTURES:
            yield Row(
                f"{case}, {name}",
                "independent networks",
                ratio(seconds[name], of_all),
                "lower",
                Spread.of(seconds[name]),
                Spread.of(of_all),
                "s an epoch",
            )
            goal = target.get((name, batch_size)) if rows == 60_000 else None
            if goal is not None:
                yield Row(
                    f"{case}, {name}: seconds",
                    better="lower",
                    ours=Spread.of(seconds[name]),
                    unit="s an epoch",
                    target=goal,
                )


def shares(data: Batch, sizes: Sizes, extra: dict[str, Any]) -> Iterator[Row]:
    """Compare the matrix products of a step in a second with those of one large product."""
    batch = jax.tree.map(lambda leaf: leaf[: sizes.large_batch], data)
    widths = (784, *sizes.hidden, 10)
    for label, precision in PRECISIONS.items():
        with jax.default_matmul_precision(precision):
            contenders = {"product": square_product(sizes.side)}
            for name in STRUCTURES:
                contenders[name] = single_step(name, batch, len(data.x), sizes)
            seconds = in_turns(contenders, 2 * sizes.rounds)
        rate = 2 * sizes.side**3 / seconds["product"]
        extra.setdefault("matrix_rate_tflops", {})[label] = float(np.median(rate)) / 1e12
        for name, structure in STRUCTURES.items():
            _, bnn = algorithm(name, len(data.x), sizes.hidden)
            shapes = jax.eval_shape(bnn.init, jax.random.key(0))
            size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
            work = network_products(widths, sizes.particles, sizes.large_batch)
            work += svgd_products(sizes.particles, size)
            achieved = work / seconds[name]
            yield Row(
                f"share of the matrix rate, batch {sizes.large_batch}, M = {sizes.particles}, "
                f"{name}, products in {label}",
                f"a product of {sizes.side}² matrices",
                ratio(achieved, rate),
                "higher",
                Spread.of(achieved / 1e12),
                Spread.of(rate / 1e12),
                "Tflop/s",
                0.25 if structure == Structure(1) and label == "default" else None,
                "operations of the networks' and of the kernel's products; those of the "
                "structure are not counted",
            )


def square_product(side: int) -> Timed:
    """Return a function that times the product of two square matrices of float32."""
    a, b = (jax.random.normal(jax.random.key(i), (side, side)) for i in range(2))
    product: Callable[..., Any] = jax.jit(jnp.matmul)
    return lasting(lambda: jax.block_until_ready(product(a, b)), 0.2)


def single_step(name: str, batch: Batch, rows: int, sizes: Sizes, steps: int = 50) -> Timed:
    """Return a function that times a step, many of them in one program, on one batch."""
    chosen, bnn = algorithm(name, rows, sizes.hidden)
    start = chosen.init(bnn.init_particles(jax.random.key(0), sizes.particles))
    run: Callable[..., Any] = jax.jit(lambda state, batch: advanced(chosen, state, batch, steps))
    timed = lasting(lambda: jax.block_until_ready(run(start, batch)), 0.2)
    return lambda: timed() / steps


def advanced(chosen: svgd.Algorithm, state: svgd.State, batch: Batch, steps: int) -> svgd.State:
    """Return the state after some steps on one batch, as :mod:`s2vgd.training` makes them."""
    carried = carried_by(chosen.step, chosen.carried)
    packed = carried.pack(state)
    packed = jax.lax.fori_loop(0, steps, lambda _, held: carried.step(held, batch)[0], packed)
    return carried.unpack(packed)


def crowd(data: Batch, sizes: Sizes, extra: dict[str, Any]) -> Iterator[Row]:
    """Train many particles, and say what memory it took."""
    name, steps = "S²VGD, K = 1", 5
    chosen, bnn = algorithm(name, len(data.x), sizes.hidden)
    state = chosen.init(bnn.init_particles(jax.random.key(0), sizes.many))
    size = sum(leaf.size for leaf in jax.tree.leaves(state.particles))
    batch = jax.tree.map(lambda leaf: leaf[: sizes.batch], data)

    advance = jax.jit(functools.partial(advanced, chosen, steps=steps), donate_argnums=0)
    compiled = advance.lower(state, batch).compile()
    planned = compiled.memory_analysis()
    seconds = []
    for _ in range(sizes.rounds):
        box = [state]

        def run(box: list[Any] = box) -> None:
            box[0] = jax.block_until_ready(compiled(box[0], batch))

        seconds.append(repeated(run)() / steps)
        state = box.pop()
    finite = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.particles))
    stats = jax.devices()[0].memory_stats() or {}
    extra["many_particles"] = {
        "parameters": int(size),
        "planned_bytes": {
            part: int(getattr(planned, f"{part}_size_in_bytes", 0))
            for part in ("argument", "output", "alias", "temp")
        },
        "peak_bytes_in_use": stats.get("peak_bytes_in_use"),
        "device_bytes": stats.get("bytes_limit"),
    }
    case = f"{sizes.many} particles of {name}, batch {sizes.batch} ({size / 1e6:.0f} M parameters)"
    yield Row(
        f"{case}: a step",
        better="lower",
        ours=Spread.of(seconds[1:]),
        unit="s a step",
        note="all particles finite" if finite else "some particles are not finite",
    )
    peak = stats.get("peak_bytes_in_use")
    if peak:
        yield Row(
            f"{case}: peak memory",
            "one copy of the particles",
            Spread.of([peak / (4 * size)]),
            "lower",
            Spread.of([peak / 1e9]),
            Spread.of([4 * size / 1e9]),
            "GB",
            note=f"of {stats.get('bytes_limit', 0) / 1e9:.0f} GB that the process may use",
        )


def errors(sizes: Sizes) -> Iterator[Row]:
    """Compare errors on the test images after training with products of each precision."""
    name = "S²VGD, K = 1"
    case = f"errors on MNIST, {name}, {sizes.trained} epochs, products in"
    try:
        train, test = _on_device(*mnist(slice(sizes.rows))), mnist(slice(60_000, 70_000))
    except Exception as error:
        yield not_run(f"{case} bfloat16", "float32", f"MNIST cannot be read ({error})")
        return
    found: dict[str, list[float]] = {label: [] for label in PRECISIONS}
    for label, precision in PRECISIONS.items():
        with jax.default_matmul_precision(precision):
            found[label] = [errors_of_one(name, train, test, sizes, seed) for seed in range(3)]
    exact = np.array(found["float32"])
    for label in PRECISIONS:
        if label != "float32":
            yield Row(
                f"{case} {label}",
                "products in float32",
                ratio(np.array(found[label]), exact),
                "lower",
                Spread.of(100 * np.array(found[label])),
                Spread.of(100 * exact),
                "% of the test images",
                note="the same three seeds",
            )


def errors_of_one(
    name: str, train: Batch, test: tuple[np.ndarray, np.ndarray], sizes: Sizes, seed: int
) -> float:
    """Return the share of the test images to which a trained posterior gives another digit."""
    steps = sizes.trained * (len(train.x) // sizes.batch)
    bnn = model(STRUCTURES[name], sizes.hidden)
    chosen = svgd.build(
        lambda particle, batch: bnn.log_joint(particle, batch, len(train.x)),
        training.cosine_adam(2e-3, steps),
    )
    start, order = jax.random.split(jax.random.key(seed))
    result = training.train(
        chosen,
        chosen.init(bnn.init_particles(start, sizes.particles)),
        train,
        key=order,
        steps=steps,
        batch_size=sizes.batch,
    )
    posterior = Posterior(bnn, result.state.particles, sizes.particles)
    digits = posterior.map_rows(lambda predicted: predicted.mean.argmax(axis=-1), test[0])
    return float(np.mean(digits != test[1]))
