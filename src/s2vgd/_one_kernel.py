"""A small program as one piece of machine code, for what is called again and again on a CPU.

XLA runs a program operation by operation, and hands them to threads. That takes a microsecond each,
and tens of microseconds to wake a thread: for a few thousand multiplications, most of the time. It
can make one function of a call instead. Which programs that is good for, and possible, is here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import core

try:
    from jax.experimental.xla_metadata import set_xla_metadata
except ImportError:  # experimental: it may go
    set_xla_metadata = None  # type: ignore[assignment]

# What XLA has its libraries for: it cannot call them from within a function.
_LIBRARY = frozenset(
    {"approx_top_k", "cholesky", "conv_general_dilated", "custom_call", "eig", "eigh", "ffi_call"}
    | {"fft", "geqrf", "hessenberg", "householder_product", "io_callback", "lu", "pure_callback"}
    | {"qr", "ragged_dot_general", "schur", "shard_map", "sort", "svd", "top_k"}
    | {"triangular_solve", "tridiagonal", "tridiagonal_solve"}
)


def jit(
    function: Callable[..., Any], traced: core.ClosedJaxpr, options: dict[str, Any]
) -> Callable[..., Any]:
    """Return ``jax.jit`` of a function, as one piece where that can be made of it.

    Parameters
    ----------
    function : callable
        Of arrays or pytrees of them.
    traced : ClosedJaxpr
        What JAX makes of it.
    options : dict
        ``compiler_options`` of ``jax.jit``.

    Returns
    -------
    callable
        Products of a matrix with several vectors are left to XLA's library, and so is all the
        program that has one.
    """
    plain = jax.jit(function, compiler_options=options)
    possible = set_xla_metadata is not None and jax.default_backend() == "cpu"
    if not possible or not _is_simple(traced.jaxpr):
        return plain
    inner = jax.jit(function)

    def as_one_call(*arguments: Any) -> Any:
        # XLA's names, which it is free to give up: the call then is like any other.
        with set_xla_metadata(xla_cpu_small_call="true", inlineable="false"):
            return inner(*arguments)

    whole = jax.jit(as_one_call, compiler_options=options)
    chosen: list[Callable[..., Any]] = []

    @functools.wraps(whole)
    def run(*arguments: Any) -> Any:
        if not chosen:
            try:
                found = whole(*arguments)
            except jax.errors.JaxRuntimeError:
                chosen.append(plain)
            else:
                chosen.append(whole)
                return found
        return chosen[0](*arguments)

    return run


def _is_simple(program: Any) -> bool:
    """Whether all that is done is done to numbers one by one, or is a matrix times a vector."""
    return all(
        equation.primitive.name not in _LIBRARY
        and (equation.primitive.name != "dot_general" or _is_of_one_vector(equation))
        for equation in _equations(program)
    )


def _is_of_one_vector(product: Any) -> bool:
    contracted, batch = product.params["dimension_numbers"]
    free = [
        np.prod([size for i, size in enumerate(factor.aval.shape) if i not in (*summed, *batched)])
        for factor, summed, batched in zip(product.invars, contracted, batch, strict=True)
    ]
    return min(free) == 1


def _equations(program: Any) -> Iterator[Any]:
    """Yield all operations of a program, and of those that it calls."""
    for equation in program.eqns:
        yield equation
        for parameter in equation.params.values():
            parts = parameter if isinstance(parameter, tuple | list) else (parameter,)
            for part in parts:
                if isinstance(part, core.ClosedJaxpr):
                    yield from _equations(part.jaxpr)
                elif isinstance(part, core.Jaxpr):
                    yield from _equations(part)
