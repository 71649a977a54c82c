"""Many devices, many hosts: SVGD with particles and data divided over a mesh.

The steps are those of :mod:`s2vgd.svgd` up to rounding, and :func:`s2vgd.training.train` drives
them as it drives those::

    mesh = parallel.mesh(particles=4, data=2)
    algorithm = parallel.build(log_density, optimizer, mesh=mesh)
    state = algorithm.init(particles)
    result = train(algorithm, state, parallel.shard_rows(data, mesh), key=key, steps=1000)
    particles = parallel.to_host(result.state.particles)

Grids of independent runs need none of this; they are in :mod:`s2vgd.experiments.engines`.
"""

from __future__ import annotations

from s2vgd.parallel.algorithm import build
from s2vgd.parallel.approximate import DirectionError, direction_error, random_features, subset
from s2vgd.parallel.costs import Cost, choose_exchange, step_cost
from s2vgd.parallel.meshes import (
    init_particles,
    initialise,
    mesh,
    shard_particles,
    shard_rows,
    to_host,
)

__all__ = [
    "Cost",
    "DirectionError",
    "build",
    "choose_exchange",
    "direction_error",
    "init_particles",
    "initialise",
    "mesh",
    "random_features",
    "shard_particles",
    "shard_rows",
    "step_cost",
    "subset",
    "to_host",
]
