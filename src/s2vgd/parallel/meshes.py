"""Devices as a mesh of particles by rows of data, several hosts as one, and arrays laid over it.

The axis ``"particle"`` of a mesh divides the particles and the axis ``"data"`` the rows of the
data. What is computed on a mesh is in :mod:`s2vgd.parallel.algorithm`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from s2vgd import files
from s2vgd.loop import count_rows

PARTICLE, DATA = "particle", "data"


def initialise(
    coordinator: str | None = None, processes: int | None = None, index: int | None = None
) -> None:
    """Join this process to the others; to be called once, before anything else of JAX.

    Every process runs the same program. Afterwards ``jax.devices()`` lists the devices of all of
    them, and :func:`mesh` covers them all. On CPUs and GPUs alike the processes find one another
    through the coordinator, which is process 0, and exchange arrays directly.

    Parameters
    ----------
    coordinator : str, optional
        ``"host:port"`` of process 0; ``$S2VGD_COORDINATOR`` by default.
    processes, index : int, optional
        How many there are, and the number of this one, from 0; ``$S2VGD_PROCESSES`` and
        ``$S2VGD_INDEX`` by default.

    Raises
    ------
    ValueError
        If only some of the three are known. With none of them, JAX asks the cluster (Slurm, Open
        MPI, TPU pods, Kubernetes), and says so if there is none.
    """
    given = {"coordinator": coordinator, "processes": processes, "index": index}
    known = {
        name: os.environ.get(f"S2VGD_{name.upper()}") if value is None else value
        for name, value in given.items()
    }
    missing = [name for name, value in known.items() if value is None]
    if len(missing) == len(known):
        return jax.distributed.initialize()
    if missing:
        raise ValueError(f"{', '.join(missing)} must be given along with the others")
    processes, index = (
        _count("processes", known["processes"], 1),
        _count("index", known["index"], 0),
    )
    if index >= processes:
        raise ValueError(f"index must be below processes={processes}, got {index}")
    return jax.distributed.initialize(str(known["coordinator"]), processes, index)


def mesh(
    particles: int | None = None, data: int = 1, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Arrange devices as ``particles`` by ``data``.

    Parameters
    ----------
    particles : int, optional
        Into how many parts to divide the particles; by default as many as the devices allow.
    data : int
        Into how many parts to divide the rows of the data, and in the update the parameters.
    devices : sequence of jax.Device, optional
        All devices of all hosts by default. They must be exactly ``particles * data``.
    """
    available = list(jax.devices() if devices is None else devices)
    data = _count("data", data, 1)
    if particles is None:
        particles = max(len(available) // data, 1)
    particles = _count("particles", particles, 1)
    if particles * data != len(available):
        raise ValueError(
            f"particles={particles} times data={data} must be the number of devices, which is "
            f"{len(available)}"
        )
    return jax.make_mesh(
        (particles, data), (PARTICLE, DATA), axis_types=(AxisType.Auto,) * 2, devices=available
    )


def shard_particles(particles: Any, mesh: Mesh) -> Any:
    """Lay particles, a pytree of arrays (M, ...), over the mesh by their leading axis.

    In a program of several processes each must give the same values.
    """
    for leaf in jax.tree.leaves(particles):
        check_particles(leaf.shape[0], mesh)
    divided, everywhere = NamedSharding(mesh, P(PARTICLE)), NamedSharding(mesh, P())
    # Programs return empty leaves undivided, and given divided ones would be compiled once more.
    return jax.tree.map(lambda leaf: _put(leaf, divided if leaf.size else everywhere), particles)


def shard_rows(data: Any, mesh: Mesh) -> Any:
    """Lay rows, a pytree of arrays (N, ...), over the mesh: each device holds ``N / data`` of them.

    N must be a multiple of the mesh's ``data``. Leave out the few rows that are too many, or fill
    up with rows of weight 0 where the density knows weights, as :class:`s2vgd.bnn.Batch` does.
    """
    n_rows, parts = count_rows(data), mesh.shape[DATA]
    if n_rows % parts:
        raise ValueError(
            f"data must have a multiple of {parts} rows, one part for each device along 'data', "
            f"got {n_rows}"
        )
    return jax.tree.map(lambda leaf: _put(leaf, NamedSharding(mesh, P(DATA))), data)


def init_particles(init: Callable[[jax.Array], Any], key: jax.Array, m: int, mesh: Mesh) -> Any:
    """Draw ``m`` particles where they will live, so that no device ever holds all of them.

    Parameters
    ----------
    init : callable
        ``init(key) -> particle``, such as :meth:`s2vgd.bnn.BNN.init`.
    key : key
        The particles are those of ``BNN.init_particles(key, m)``, whatever the mesh is.
    m : int
        How many, a multiple of the mesh's ``particles``.
    mesh : Mesh
        Of :func:`mesh`.
    """
    check_particles(m, mesh)
    draw = jax.shard_map(
        lambda keys: jax.lax.map(init, keys),
        mesh=mesh,
        in_specs=P(PARTICLE),
        out_specs=P(PARTICLE),
        check_vma=False,
    )
    return jax.jit(lambda key: draw(jax.random.split(key, m)))(key)


def to_host(tree: Any) -> Any:
    """Return a tree of NumPy arrays, whole in every process; all processes must call it."""
    return jax.tree.map(files.to_host, tree)


def check_particles(m: int, mesh: Mesh) -> None:
    """Raise ValueError unless ``m`` particles can be divided over the mesh."""
    if m % mesh.shape[PARTICLE]:
        raise ValueError(
            f"particles must number a multiple of {mesh.shape[PARTICLE]}, the size of the mesh's "
            f"axis {PARTICLE!r}, got {m}"
        )


def check_mesh(mesh: Any) -> None:
    """Raise TypeError unless the mesh has the two axes of :func:`mesh`."""
    if not isinstance(mesh, Mesh) or mesh.axis_names != (PARTICLE, DATA):
        raise TypeError(f"mesh must be made by s2vgd.parallel.mesh, got {mesh!r}")


def _put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    # An array on a device of this process cannot be moved to devices of another, but host memory
    # can, and what is spread over processes already may stay so.
    is_local = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
    if jax.process_count() > 1 and is_local:
        leaf = np.asarray(leaf)
    return jax.device_put(leaf, sharding)


def _count(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(int(value) if isinstance(value, str) else value)
    except (TypeError, ValueError):
        number = -1
    if number < least or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, at least {least}, got {value!r}")
    return number
