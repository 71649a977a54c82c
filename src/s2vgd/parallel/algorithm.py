"""SVGD on a mesh of devices: the same ``init`` and ``step`` as :func:`s2vgd.svgd.build`.

The gradients are computed where the particles are, each device for its own particles and its own
part of the batch. For the update each device takes its particles and a part of their parameters, so
that all devices of the mesh share that work too. The update itself is in
:mod:`s2vgd.parallel.direction`, what it costs in :mod:`s2vgd.parallel.costs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from s2vgd import svgd
from s2vgd.kernels import Kernel, Layerwise, Radial, rbf
from s2vgd.parallel import costs
from s2vgd.parallel.approximate import Approximation, RandomFeatures
from s2vgd.parallel.direction import Seen, direction, feature_direction
from s2vgd.parallel.exchange import MOST_PARTICLES, Exchange, Gather, Ring, Subset, gathered
from s2vgd.parallel.meshes import DATA, PARTICLE, check_mesh, check_particles, shard_particles
from s2vgd.pieces import Pieces
from s2vgd.svgd import Algorithm, Info, LogDensity, Schedule, State

ExchangeName = Literal["auto", "gather", "ring"]


def build(
    log_density: LogDensity,
    optimizer: optax.GradientTransformation,
    kernel: Kernel | None = None,
    *,
    mesh: Mesh,
    exchange: ExchangeName = "auto",
    approximation: Approximation | None = None,
    block: int | None = None,
    particles_at_once: int | None = None,
    repulsion: float = 1.0,
    anneal: Schedule | None = None,
) -> Algorithm:
    """SVGD for a log density, eq. (svgd_update), with particles and batches divided over devices.

    The steps are those of :func:`s2vgd.svgd.build` up to rounding, whatever the mesh. A mesh of one
    device is allowed, and with ``block`` and ``particles_at_once`` is the way to more particles
    or parameters than the one-device algorithm has memory for.

    Parameters
    ----------
    log_density : callable
        ``log_density(particle, batch) -> scalar``, written for the whole batch as always: sums over
        rows are completed across the devices by the compiler.
    optimizer : optax.GradientTransformation
        Acts on the particles as a tuple of matrices (M, C), in which narrow leaves are joined and
        a few columns of zeros may fill up. Elementwise ones (all the usual) and those that look at
        the norm of everything give the same as on one device.
    kernel : Radial or Layerwise, optional
        ``rbf()`` by default, or ``imq()``, or ``layerwise`` of these.
    mesh : Mesh
        From :func:`s2vgd.parallel.mesh`. The number of particles must be a multiple of its
        ``particles``; batches are divided as well as their rows allow.
    exchange : {"auto", "gather", "ring"}
        How devices get at one another's particles: all at once, or block by block in a ring, which
        sends half as much again and holds far less. "auto" gathers where that fits in a quarter
        of the memory of a device, see :func:`s2vgd.parallel.choose_exchange`.
    approximation : Approximation, optional
        :func:`s2vgd.parallel.subset` or :func:`s2vgd.parallel.random_features` instead of all
        pairs of particles; ``init`` then needs a key.
    block : int, optional
        Parameters of a particle that each device exchanges and works on at a time, for little
        memory. By default all of them.
    particles_at_once : int, optional
        How many particles of a device are differentiated at a time; a divisor of their number. By
        default all of them.
    repulsion, anneal
        As in :func:`s2vgd.svgd.build`.

    Returns
    -------
    Algorithm
        ``init(particles, key=None) -> State`` and ``step(state, batch=None) -> (State, Info)``. In
        the state the particles are divided over ``"particle"``, that of the optimizer over both
        axes, and ``key`` is for the approximation.
    """
    check_mesh(mesh)
    # The one-device algorithm says what is wrong with the arguments that it shares with this one.
    svgd.build(log_density, optimizer, kernel, repulsion=repulsion, anneal=anneal)
    kernel = rbf() if kernel is None else kernel
    radial = _radial(kernel, approximation)
    if exchange not in ("auto", "gather", "ring"):
        raise ValueError(f"exchange must be 'auto', 'gather' or 'ring', got {exchange!r}")
    for name, value in (("block", block), ("particles_at_once", particles_at_once)):
        if value is not None and (isinstance(value, bool) or value < 1):
            raise ValueError(f"{name} must be a positive integer or None, got {value!r}")

    over_all, everywhere = NamedSharding(mesh, P(PARTICLE, DATA)), NamedSharding(mesh, P())

    def layout_of(particles: Any) -> Pieces:
        label = kernel.label if isinstance(kernel, Layerwise) else None
        return Pieces.of(particles, label, multiple=mesh.shape[DATA])

    def placed(opt_state: Any, theta: tuple[Array, ...]) -> Any:
        shapes = {piece.shape for piece in theta}
        return jax.tree.map(
            lambda leaf: _placed(leaf, over_all if leaf.shape in shapes else everywhere), opt_state
        )

    # Where the compiler is free to choose, it divides leaves that are about to be cut into columns
    # in odd ways, and sends everything several times. In the following three nothing is left to it
    # but the sums over rows.

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(PARTICLE), P()),
        out_specs=P(PARTICLE),
        axis_names={PARTICLE},
    )
    def values_and_gradients(particles: Any, batch: Any) -> tuple[Array, Any]:
        batch = jax.tree.map(lambda leaf: _placed(leaf, P(DATA)), batch)
        found = _in_parts(
            jax.vmap(jax.value_and_grad(lambda particle: log_density(particle, batch))),
            particles,
            particles_at_once,
        )
        return jax.tree.map(lambda leaf: _placed(leaf, P()), found)

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=P(PARTICLE),
        out_specs=P(PARTICLE, DATA),
        check_vma=False,
    )
    def to_pieces(tree: Any) -> tuple[Array, ...]:
        return tuple(map(_own_columns, layout_of(tree).flatten(tree)))

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(PARTICLE), P(PARTICLE, DATA)),
        out_specs=P(PARTICLE),
        check_vma=False,
    )
    def moved(particles: Any, updates: tuple[Array, ...]) -> Any:
        whole = [gathered(piece, DATA, axis=1) for piece in updates]
        return optax.apply_updates(particles, layout_of(particles).unflatten(whole))

    # Laid out as a step leaves it, lest the second step be compiled again.
    @jax.jit
    def first_state(particles: Any, key: Array | None) -> State:
        theta = to_pieces(particles)
        scalars = jax.tree.map(lambda a: _placed(a, everywhere), (jnp.zeros((), jnp.int32), key))
        return State(None, placed(optimizer.init(theta), theta), *scalars)

    def init(particles: Any, key: Array | None = None) -> State:
        if approximation is not None and key is None:
            raise ValueError("key must be a jax.random.key with an approximation, got None")
        particles = svgd.checked(particles)
        m = jax.tree.leaves(particles)[0].shape[0]
        check_particles(m, mesh)
        m_here = m // mesh.shape[PARTICLE]
        if approximation is not None:
            approximation.check(m, mesh.shape[PARTICLE])
        elif m > MOST_PARTICLES:
            raise ValueError(
                f"particles must number at most {MOST_PARTICLES} without approximation, got {m}"
            )
        if particles_at_once is not None and m_here % particles_at_once:
            raise ValueError(
                f"particles_at_once must divide the {m_here} particles of each device, got "
                f"{particles_at_once}"
            )
        particles = shard_particles(particles, mesh)
        return first_state(particles, key)._replace(particles=particles)

    def move(
        layout: Pieces, chosen: Exchange, theta: Any, gradients: Any, factor: Array, key: Any
    ) -> tuple[Any, Seen]:
        settings: dict[str, Any] = {"kernel": radial, "repulsion": repulsion, "block": block}
        if isinstance(approximation, RandomFeatures):
            return feature_direction(
                theta, gradients, factor, key, size=approximation.size, **settings
            )
        if approximation is not None:
            chosen = Subset.draw(key, len(theta[0]), approximation.size)
        return direction(
            theta, gradients, factor, layers=layout.layers, exchange=chosen, **settings
        )

    @jax.jit
    def step(state: State, batch: Any = None) -> tuple[State, Info]:
        particles, opt_state, count, key = state
        layout = layout_of(particles)
        m = jax.tree.leaves(particles)[0].shape[0]
        values, gradients = values_and_gradients(particles, batch)
        theta, pieces = to_pieces(particles), to_pieces(gradients)
        name = exchange
        if name == "auto":
            name = costs.choose_exchange(m, sum(layout.widths), mesh, theta[0].dtype.itemsize)
        subkey = None
        if key is not None:
            key, subkey = jax.random.split(key)
        pieces, seen = jax.shard_map(
            partial(move, layout, Gather() if name == "gather" else Ring()),
            mesh=mesh,
            in_specs=(P(PARTICLE, DATA), P(PARTICLE, DATA), P(), P()),
            out_specs=(P(PARTICLE, DATA), P()),
            check_vma=False,
        )(theta, pieces, jnp.asarray(1.0 if anneal is None else anneal(count)), subkey)
        uphill = jax.tree.map(jnp.negative, pieces)
        updates, opt_state = optimizer.update(uphill, opt_state, theta)
        info = Info(
            bandwidth=seen.bandwidth,
            log_density=jnp.mean(values),
            drive_norm=jnp.sqrt(seen.drive),
            repulsion_norm=jnp.sqrt(seen.push),
            min_distance=jnp.sqrt(seen.min_squared_distance),
        )
        count, key, info = jax.tree.map(lambda a: _placed(a, everywhere), (count + 1, key, info))
        return State(moved(particles, updates), placed(opt_state, theta), count, key), info

    return Algorithm(init, step)


def _radial(kernel: Kernel, approximation: Approximation | None) -> Radial:
    """Return the radial kernel that a kernel is made of, or say that it cannot be divided."""
    radial = kernel.kernel if isinstance(kernel, Layerwise) else kernel
    if not isinstance(radial, Radial):
        raise TypeError(
            "kernel must be radial (rbf, imq) or layerwise of such to be divided over devices, "
            f"got {kernel!r}"
        )
    if isinstance(approximation, RandomFeatures) and (
        isinstance(kernel, Layerwise) or radial.profile != rbf().profile
    ):
        raise TypeError(f"kernel must be rbf with random features, got {kernel!r}")
    return radial


def _placed(leaf: Array, sharding: NamedSharding | P) -> Array:
    return jax.lax.with_sharding_constraint(leaf, sharding)


def _own_columns(piece: Array) -> Array:
    """Return this device's part of the columns."""
    parts = jax.lax.axis_size(DATA)
    if parts == 1:
        return piece
    width = piece.shape[1] // parts
    start = width * jax.lax.axis_index(DATA)
    return jax.lax.dynamic_slice_in_dim(piece, start, width, axis=1)


def _in_parts(
    function: Callable[[Any], tuple[Array, Any]], particles: Any, size: int | None
) -> tuple[Array, Any]:
    """Apply a function of several particles to so many at a time, one part after the other."""
    if size is None:
        return function(particles)
    parts = jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] // size, size, *leaf.shape[1:]), particles
    )
    return jax.tree.map(
        lambda leaf: leaf.reshape(math.prod(leaf.shape[:2]), *leaf.shape[2:]),
        jax.lax.map(function, parts),
    )
