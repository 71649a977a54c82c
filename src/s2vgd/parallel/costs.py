"""What a step on a mesh sends and holds, on paper, and the choice between gathering and a ring.

The formulas leave out scalars and vectors of length D. ``benchmarks/scaling.py`` sets them beside
what the compiler reports.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from jax.sharding import Mesh

from s2vgd.parallel.meshes import DATA, PARTICLE

UNKNOWN_MEMORY = 4 * 2**30
"""Bytes that a device is taken to have when it does not say, such as a CPU."""


class Cost(NamedTuple):
    """Bytes of one step, on each device.

    Attributes
    ----------
    received : int
        From other devices.
    held : int
        At most at a time for the exchange of particles and the matrices between them, beside the
        particles, gradients and state of the optimizer themselves.
    """

    received: int
    held: int


def step_cost(
    m: int, d: int, mesh: Mesh, exchange: Literal["gather", "ring"], itemsize: int = 4
) -> Cost:
    r"""Return what a step with all pairs of M particles of D parameters costs each device.

    On a mesh of P by R devices, a device holds M/P particles and works on D/R of their parameters.

    - Gathering receives parameters and gradients of the others once,
      :math:`2 \frac{P-1}{P} \frac{MD}{R}`, and holds all of both, :math:`2 MD/R`.
    - A ring receives the parameters twice, :math:`3 \frac{P-1}{P} \frac{MD}{R}`, and holds one
      block on its way in and one on its way out, :math:`2 MD/PR`.
    - Both add :math:`2 \frac{R-1}{R} \frac{MD + M^2}{P}` for sums of gradients and distances
      over ``"data"`` and :math:`\frac{R-1}{R} \frac{MD}{P}` for the updates, and hold four
      matrices of :math:`M^2/P`.

    Parameters
    ----------
    m, d : int
        M and D.
    mesh : Mesh
        From :func:`s2vgd.parallel.mesh`.
    exchange : {"gather", "ring"}
        How particles are exchanged.
    itemsize : int
        Bytes of a number.
    """
    p, r = mesh.shape[PARTICLE], mesh.shape[DATA]
    part = m * d / r
    received = (2 if exchange == "gather" else 3) * (p - 1) / p * part
    received += (r - 1) / r * (3 * m * d + 2 * m * m) / p
    held = 2 * part if exchange == "gather" else 2 * part / p
    return Cost(round(itemsize * received), round(itemsize * (held + 4 * m * m / p)))


def choose_exchange(m: int, d: int, mesh: Mesh, itemsize: int = 4) -> Literal["gather", "ring"]:
    """Return "gather" if what it holds fits in a quarter of a device's memory, else "ring".

    Gathering sends a third less and multiplies fewer, larger matrices, so it wins wherever there is
    room for it. The memory is that of the first device; one that does not tell is taken to have
    4 GiB.
    """
    stats = mesh.local_devices[0].memory_stats() or {}
    memory = stats.get("bytes_limit", UNKNOWN_MEMORY)
    return "gather" if step_cost(m, d, mesh, "gather", itemsize).held <= memory / 4 else "ring"
