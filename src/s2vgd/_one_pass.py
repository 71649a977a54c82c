"""A step of SVGD in two passes over the particles, for NVIDIA GPUs: one for distances, one to move.

At a few dozen particles a step is bound by memory, not by arithmetic. XLA writes down the centred
particles, the driving term, the repulsion and the update, and reads them again; here two kernels,
written in Pallas and compiled by Triton, keep all of that in registers: the first reads the
particles, the second reads particles, gradients and what the optimiser remembers, and writes what
they become. The optimiser is any of optax whose update is elementwise: its own code runs inside the
kernel. :mod:`s2vgd.svgd` has the formulas, and takes this way wherever :func:`suits` says so. JAX
means to give up Triton in Pallas; without it the products of :mod:`s2vgd.kernels` do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from s2vgd._elementwise import take_apart
from s2vgd.kernels import Radial, distances_of_gram

MAX_PARTICLES = 32
"""More of them, and a tile no longer fits into registers: products are the better way then."""
LEAST_CAPABILITY = 8.0
"""Of an NVIDIA GPU, from which on it has TF32."""

# Columns of a tile and warps of a program, the fastest on an H200 of those tried (32 to 256 columns
# and 1 to 8 warps). The columns of a piece are shared out among programs that each sum up inner
# products of their own.
_MOVE_COLUMNS, _MOVE_WARPS = 64, 2
_GRAM_COLUMNS, _GRAM_WARPS, _GRAM_PROGRAMS = 32, 1, 1056


class Moved(NamedTuple):
    """What :func:`move` returns.

    Attributes
    ----------
    theta : tuple of Array, shapes (M, D_i)
        The particles after the step.
    opt_state : optax.OptState
        Of the optimiser.
    bandwidth : Array
        Of the kernel.
    squared_distances : Array, shape (M, M)
        Between the particles before the step.
    drive_norm, repulsion_norm : Array
        Lengths of the two terms of eq. (svgd_update), root mean square over the particles.
    """

    theta: tuple[Array, ...]
    opt_state: optax.OptState
    bandwidth: Array
    squared_distances: Array
    drive_norm: Array
    repulsion_norm: Array


def suits(
    kernel: Any,
    optimizer: optax.GradientTransformation,
    theta: Sequence[Array],
    opt_state: optax.OptState,
) -> bool:
    """Whether these particles can be moved so with this kernel and this optimiser.

    Parameters
    ----------
    kernel : Kernel
        Must be radial.
    optimizer : optax.GradientTransformation
        Must update elements one by one, as Adam does and clipping by a norm does not.
    theta : sequence of Array, shapes (M, D_i)
        Two to `MAX_PARTICLES` of them, in float32.
    opt_state : optax.OptState
        Holds matrices like `theta` and scalars only.
    """
    if not (isinstance(kernel, Radial) and 2 <= len(theta[0]) <= MAX_PARTICLES):
        return False
    if jnp.zeros(()).dtype != jnp.float32:  # numbers without a type would be of another there
        return False
    if any(piece.dtype != jnp.float32 or piece.size >= 2**31 for piece in theta):
        return False
    parts, treedef = _parts(opt_state, theta)
    for part in parts:
        if not isinstance(part, tuple) and jnp.ndim(part):
            return False
        if isinstance(part, tuple) and any(piece.dtype != jnp.float32 for piece in part):
            return False
    own = [part[:1] if isinstance(part, tuple) else part for part in parts]
    return take_apart(optimizer, treedef.unflatten(own)) is not None


def move(
    kernel: Radial,
    optimizer: optax.GradientTransformation,
    theta: Sequence[Array],
    slopes: Sequence[Array],
    opt_state: optax.OptState,
    anneal: float | Array = 1.0,
    repulsion: float | Array = 1.0,
    *,
    interpret: bool = False,
) -> Moved:
    """Make a step of eq. (svgd_update).

    Parameters
    ----------
    kernel, optimizer, theta, opt_state
        As :func:`suits` wants them.
    slopes : sequence of Array, shapes (M, D_i)
        Gradients of the log density.
    anneal, repulsion : float
        Weights of the two terms.
    interpret : bool
        Run the kernels without a GPU, slowly, to test them.
    """
    m = len(theta[0])
    gram = sum((_gram(piece, interpret) for piece in theta), jnp.zeros((m, m)))
    squared = distances_of_gram(gram)
    matrix, laplacian, h = kernel.at_distances(squared)
    weights = (anneal / m * matrix, repulsion / m * laplacian)
    parts, treedef = _parts(opt_state, theta)
    done = []
    for i, (piece, slope) in enumerate(zip(theta, slopes, strict=True)):
        own = [(part[i],) if isinstance(part, tuple) else part for part in parts]
        done.append(
            _move_piece(optimizer, weights, slope, piece, treedef.unflatten(own), interpret)
        )
    after = [_parts(state, (piece,))[0] for piece, state, _ in done]
    joined = [
        tuple(own[i][0] for own in after) if isinstance(part, tuple) else part
        for i, part in enumerate(after[0])
    ]
    lengths = jnp.sqrt(sum((squares for *_, squares in done), jnp.zeros(2)) / m)
    return Moved(
        tuple(piece for piece, *_ in done),
        treedef.unflatten(joined),
        h,
        squared,
        lengths[0],
        lengths[1],
    )


def _gram(piece: Array, interpret: bool) -> Array:
    """Return the inner products (M, M) of particles (M, D) around their mean."""
    (m, d), rows = piece.shape, _padded(len(piece))
    tiles = pl.cdiv(d, _GRAM_COLUMNS)
    programs = min(_GRAM_PROGRAMS, tiles)

    def kernel(theta: Any, out: Any) -> None:
        me, row = pl.program_id(0), jnp.arange(rows)

        def add_tile(i: Array, total: Array) -> Array:
            tile = _Tile(row, (me + i * programs) * _GRAM_COLUMNS + jnp.arange(_GRAM_COLUMNS), m, d)
            centred = tile.centre(theta, tile.load(theta))
            return total + _product(centred, centred, interpret, transposed=True)

        nothing = jnp.zeros((rows, rows), jnp.float32)
        total = lax.fori_loop(0, pl.cdiv(tiles, programs), add_tile, nothing)
        triton.store(out.at[me, row[:, None], row[None, :]], total)

    partial = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((programs, rows, rows), jnp.float32),
        grid=(programs,),
        compiler_params=triton.CompilerParams(num_warps=_GRAM_WARPS),
        interpret=interpret,
        name="svgd_gram",
    )(piece)
    return jnp.sum(partial, axis=0)[:m, :m]


def _move_piece(
    optimizer: optax.GradientTransformation,
    weights: tuple[Array, Array],
    slope: Array,
    piece: Array,
    state: optax.OptState,
    interpret: bool,
) -> tuple[Array, optax.OptState, Array]:
    """Return particles (M, D) moved, the state of their optimiser, and the squares of the terms."""
    (m, d), rows = piece.shape, _padded(len(piece))
    programs = pl.cdiv(d, _MOVE_COLUMNS)
    leaves, treedef = jax.tree.flatten(state)
    update = take_apart(optimizer, state)
    assert update is not None, "suits() has said that it can be"
    memory = [leaf for leaf, is_array in zip(leaves, update.is_array, strict=True) if is_array]
    needed, counted = update.scalars(leaves)
    first = 4 + len(memory)

    def kernel(*refs: Any) -> None:
        refs_in, refs_out = refs[: first + len(needed)], refs[first + len(needed) :]
        drive_by, push_by, gradient, theta = refs_in[:4]
        me, row = pl.program_id(0), jnp.arange(rows)
        tile = _Tile(row, me * _MOVE_COLUMNS + jnp.arange(_MOVE_COLUMNS), m, d)
        square = (row[:, None], row[None, :])
        now = tile.load(theta)
        drive = _product(triton.load(drive_by.at[square]), tile.load(gradient), interpret)
        push = _product(triton.load(push_by.at[square]), tile.centre(theta, now), interpret)
        numbers = [ref[0] for ref in refs_in[first:]]
        held = [tile.load(ref) for ref in refs_in[4:first]]
        change, after = update.arrays(numbers, -(drive + push), now, held)
        for out, value in zip(refs_out[:-2], (now + change, *after), strict=True):
            tile.store(out, value)
        for out, term in zip(refs_out[-2:], (drive, push), strict=True):
            triton.store(out.at[me], jnp.sum(term * term))

    like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (piece, *memory)]
    padded = [jnp.pad(x, ((0, rows - m), (0, rows - m))) for x in weights]
    moved, *rest = pl.pallas_call(
        kernel,
        out_shape=[*like, *2 * [jax.ShapeDtypeStruct((programs,), jnp.float32)]],
        grid=(programs,),
        # In place: each program reads what it will overwrite, and nobody else does.
        input_output_aliases={3 + i: i for i in range(len(like))},
        compiler_params=triton.CompilerParams(num_warps=_MOVE_WARPS),
        interpret=interpret,
        name="svgd_move",
    )(*padded, slope, piece, *memory, *(jnp.reshape(x, 1) for x in needed))
    squares = jnp.stack([jnp.sum(x) for x in rest[-2:]])
    arrays, scalars = iter(rest), iter(counted)
    after = [next(arrays) if is_array else next(scalars) for is_array in update.is_array]
    return moved, jax.tree.unflatten(treedef, after), squares


class _Tile(NamedTuple):
    """Columns of particles (M, D), with rows filled up to a power of two."""

    row: Array
    column: Array
    m: int
    d: int

    @property
    def inside(self) -> Array:
        return (self.row[:, None] < self.m) & (self.column[None, :] < self.d)

    def load(self, ref: Any) -> Array:
        at = ref.at[self.row[:, None], self.column[None, :]]
        return triton.load(at, mask=self.inside, other=0.0)

    def store(self, ref: Any, value: Array) -> None:
        triton.store(ref.at[self.row[:, None], self.column[None, :]], value, mask=self.inside)

    def centre(self, ref: Any, tile: Array) -> Array:
        """Subtract the mean, relative to the first particle so that equal ones become zero."""
        first = triton.load(
            ref.at[jnp.zeros_like(self.column), self.column], mask=self.column < self.d, other=0.0
        )
        shifted = jnp.where(self.inside, tile - first[None, :], 0.0)
        return jnp.where(self.inside, shifted - jnp.sum(shifted, axis=0)[None, :] / self.m, 0.0)


def _product(a: Array, b: Array, interpret: bool, transposed: bool = False) -> Array:
    """Return a @ b, or a @ b.T, nearly to float32, as three products of factors in TF32."""
    rounded = lax.DotAlgorithmPreset.TF32_TF32_F32_X3
    return lax.dot_general(
        a,
        b,
        (((1,), (1 if transposed else 0,)), ((), ())),
        precision=lax.Precision.HIGHEST if interpret else rounded,
        preferred_element_type=jnp.float32,
    )


def _padded(m: int) -> int:
    """Rows of a tile: a power of two, and no fewer than the hardware multiplies at once."""
    return max(16, 1 << (m - 1).bit_length())


def _parts(opt_state: optax.OptState, theta: Sequence[Array]) -> tuple[list[Any], Any]:
    """Take a state apart into tuples of matrices like `theta`, and other leaves."""
    shapes = [piece.shape for piece in theta]

    def is_like_theta(node: Any) -> bool:
        return type(node) is tuple and [getattr(x, "shape", None) for x in node] == shapes

    return jax.tree.flatten(opt_state, is_leaf=is_like_theta)
