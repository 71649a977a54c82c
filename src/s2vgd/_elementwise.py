"""An optimiser taken apart: what it does to scalars, and what it does to each element alone.

Most optimisers of optax update every parameter by itself, from its own gradient and memory and from
a few numbers that all share, such as a learning rate. That part can run anywhere, on any piece of
the arrays: :mod:`s2vgd._one_pass` runs it inside a kernel. Here it is found, in the program that
JAX traces. Nothing is computed here that optax does not say.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.extend import core

# What may happen to arrays; to scalars anything may.
_ELEMENTWISE = frozenset(
    {"abs", "add", "and", "clamp", "convert_element_type", "copy", "div", "eq", "exp", "ge", "gt"}
    | {"integer_pow", "le", "log", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow"}
    | {"rsqrt", "select_n", "sign", "sqrt", "square", "sub"}
)
_CALLS = frozenset(("closed_call", "custom_jvp_call", "jit", "pjit"))


class _Kind(enum.Enum):
    SCALAR = enum.auto()
    ARRAY = enum.auto()
    OTHER = enum.auto()


class _Line(NamedTuple):
    """One operation; inputs and outputs are numbers of values, or constants."""

    primitive: Any
    params: dict[str, Any]
    inputs: list[Any]
    outputs: list[int]

    def run(self, values: dict[int, Any]) -> None:
        """Compute the outputs and put them among the values."""
        inputs = [x.value if isinstance(x, _Constant) else values[x] for x in self.inputs]
        found = self.primitive.bind(*inputs, **self.params)
        found = found if self.primitive.multiple_results else [found]
        values.update(zip(self.outputs, found, strict=True))


class _Constant(NamedTuple):
    value: Any


class Elementwise(NamedTuple):
    """The update of an optimiser in two parts; made by :func:`take_apart`.

    Values are numbered: the gradient is 0, the parameter 1, then come the leaves of the state.

    Attributes
    ----------
    is_array : tuple of bool
        Which leaves of the state are arrays; the others are scalars.
    scalar_lines, array_lines : tuple
        The two parts.
    outputs : tuple
        The update and the leaves of the state after it.
    """

    is_array: tuple[bool, ...]
    scalar_lines: tuple[_Line, ...]
    array_lines: tuple[_Line, ...]
    outputs: tuple[Any, ...]

    def scalars(self, leaves: Sequence[Any]) -> tuple[list[Array], list[Array]]:
        """Do what is done to scalars.

        Parameters
        ----------
        leaves : sequence
            Of the state; arrays are not looked at.

        Returns
        -------
        needed, after : list of scalar Array
            Those that :meth:`arrays` wants, and those of the state after the update, in order.
        """
        values: dict[int, Any] = {
            2 + i: leaf
            for i, (leaf, is_array) in enumerate(zip(leaves, self.is_array, strict=True))
            if not is_array
        }
        for line in self.scalar_lines:
            line.run(values)
        after = [
            out.value if isinstance(out, _Constant) else values[out]
            for out, is_array in zip(self.outputs[1:], self.is_array, strict=True)
            if not is_array
        ]
        return [values[i] for i in self._needed()], [jnp.asarray(x) for x in after]

    def arrays(
        self, needed: Sequence[Array], gradient: Array, parameter: Array, memory: Sequence[Array]
    ) -> tuple[Array, list[Array]]:
        """Update elements: return the update, and what is remembered.

        Parameters
        ----------
        needed : sequence of scalar Array
            From :meth:`scalars`.
        gradient, parameter : Array
            Of one shape.
        memory : sequence of Array
            The arrays of the state, of that shape too.
        """
        slots = [2 + i for i, is_array in enumerate(self.is_array) if is_array]
        values: dict[int, Any] = {
            0: gradient,
            1: parameter,
            **dict(zip(slots, memory, strict=True)),
            **dict(zip(self._needed(), needed, strict=True)),
        }
        for line in self.array_lines:
            if line.primitive.name == "broadcast_in_dim":
                (scalar,) = line.inputs
                value = scalar.value if isinstance(scalar, _Constant) else values[scalar]
                values[line.outputs[0]] = lax.broadcast(jnp.asarray(value), gradient.shape)
            elif line.primitive.name == "copy":
                values[line.outputs[0]] = values[line.inputs[0]]
            else:
                line.run(values)
        update, *after = (
            values[out]
            for out, is_array in zip(self.outputs, (True, *self.is_array), strict=True)
            if is_array
        )
        return update, after

    def _needed(self) -> list[int]:
        """Return the numbers of the scalars that array lines read."""
        read = {x for line in self.array_lines for x in line.inputs if not isinstance(x, _Constant)}
        made = {x for line in self.array_lines for x in line.outputs}
        arrays = {0, 1, *(2 + i for i, is_array in enumerate(self.is_array) if is_array)}
        return sorted(read - made - arrays)


def take_apart(
    optimizer: optax.GradientTransformation, state: optax.OptState
) -> Elementwise | None:
    """Take an update apart, or return None if it is not elementwise.

    Parameters
    ----------
    optimizer : optax.GradientTransformation
        For a tuple of one array.
    state : optax.OptState
        Its leaves: arrays like that one, and scalars.
    """
    leaves, treedef = jax.tree.flatten(state)
    is_array = tuple(bool(jnp.ndim(leaf)) for leaf in leaves)
    # An odd shape that nobody would choose: any will do, since none may matter.
    one = jax.ShapeDtypeStruct((3, 7), jnp.float32)
    abstract = [
        one if array else jax.ShapeDtypeStruct((), jnp.result_type(leaf))
        for leaf, array in zip(leaves, is_array, strict=True)
    ]

    def update(gradient: Array, parameter: Array, *leaves: Array) -> list[Array]:
        (change,), after = optimizer.update(
            (gradient,), jax.tree.unflatten(treedef, leaves), (parameter,)
        )
        return [change, *jax.tree.leaves(after)]

    try:
        traced = jax.make_jaxpr(update)(one, one, *abstract)
    except Exception:  # it wants to be called otherwise, and whoever calls it so will be told
        return None
    if traced.consts:
        return None
    numbers = itertools.count()
    inputs = [next(numbers) for _ in traced.jaxpr.invars]
    lines, outputs = _listing(traced.jaxpr, inputs, numbers)
    shapes = [variable.aval.shape for variable in traced.jaxpr.outvars]
    if [bool(shape) for shape in shapes] != [True, *is_array]:
        return None
    if any(kind is _Kind.OTHER for kind, _ in lines):
        return None
    scalar, array = (
        tuple(line for kind, line in lines if kind is wanted)
        for wanted in (_Kind.SCALAR, _Kind.ARRAY)
    )
    return Elementwise(is_array, scalar, array, tuple(outputs))


def _listing(
    jaxpr: Any, inputs: Sequence[Any], numbers: Iterator[int]
) -> tuple[list[tuple[_Kind, _Line]], list[Any]]:
    """Return the operations of a program, calls written out, and its outputs."""
    where: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))

    def at(atom: Any) -> Any:
        return _Constant(atom.val) if isinstance(atom, core.Literal) else where[atom]

    lines: list[tuple[_Kind, _Line]] = []
    for equation in jaxpr.eqns:
        given = [at(atom) for atom in equation.invars]
        called = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if equation.primitive.name in _CALLS and called is not None and not called.consts:
            more, outputs = _listing(called.jaxpr, given, numbers)
            lines += more
        else:
            outputs = [next(numbers) for _ in equation.outvars]
            line = _Line(equation.primitive, equation.params, given, outputs)
            lines.append((_kind(equation), line))
        where.update(zip(equation.outvars, outputs, strict=True))
    return lines, [at(atom) for atom in jaxpr.outvars]


def _kind(equation: Any) -> _Kind:
    name = equation.primitive.name
    reads_array, makes_array = (
        any(atom.aval.shape for atom in atoms) for atoms in (equation.invars, equation.outvars)
    )
    if name in _CALLS:
        return _Kind.OTHER  # with constants of its own, or it would have been written out
    if not reads_array and not makes_array:
        return _Kind.SCALAR
    is_spread = name == "broadcast_in_dim" and not reads_array
    return _Kind.ARRAY if makes_array and (name in _ELEMENTWISE or is_spread) else _Kind.OTHER
