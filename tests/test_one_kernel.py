"""Small programs as one piece of machine code: which, and that they compute what they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd import _one_kernel

NUMBERS = np.random.default_rng(0)
MATRICES = NUMBERS.normal(size=(20, 5, 7)).astype(np.float32)
VECTOR = NUMBERS.normal(size=7).astype(np.float32)


def _networks(matrices: jax.Array, vector: jax.Array) -> jax.Array:
    """A layer of each of many networks, the best of its outputs, and a draw."""
    best = jnp.argmax(jnp.tanh(matrices @ vector), axis=1)
    words = jax.lax.bitcast_convert_type(vector[:2], jnp.uint32)
    draw = jax.random.bits(jax.random.wrap_key_data(words), (), jnp.uint32)
    return jnp.cumsum(best) + (draw % 7).astype(jnp.int32)


def _sorted(matrices: jax.Array, vector: jax.Array) -> jax.Array:
    return jnp.sort(matrices @ vector, axis=1)


def _product(matrices: jax.Array, vector: jax.Array) -> jax.Array:
    return matrices @ jnp.outer(vector, vector)


def _sorted_in_a_loop(matrices: jax.Array, vector: jax.Array) -> jax.Array:
    return jax.lax.map(lambda rows: jnp.sort(rows @ vector), matrices)


def _made(function: Callable[..., Any]) -> Callable[..., Any]:
    return _one_kernel.jit(function, jax.make_jaxpr(function)(MATRICES, VECTOR), {})


def _is_one_piece(made: Callable[..., Any]) -> bool:
    return not hasattr(made, "lower")


@pytest.mark.parametrize(
    ("function", "is_one"),
    [(_networks, True), (_sorted, False), (_product, False), (_sorted_in_a_loop, False)],
)
def test_results_are_the_same_and_libraries_are_left_alone(
    function: Callable[..., Any], is_one: bool
) -> None:
    """XLA cannot call its libraries from one piece of code; with one vector it needs none."""
    made = _made(function)
    assert _is_one_piece(made) == is_one
    for _ in range(2):
        np.testing.assert_allclose(made(MATRICES, VECTOR), function(MATRICES, VECTOR), rtol=1e-5)


def test_xla_makes_one_call_of_it() -> None:
    """If a new XLA ignores our names, decisions are slow again: better to know."""
    whole = _made(_networks).__wrapped__
    text = whole.lower(MATRICES, VECTOR).compile().as_text()
    lines = text[text.index("\nENTRY") :].splitlines()[2:]
    (operation,) = (line for line in lines if " = " in line and " parameter(" not in line)
    assert " call(" in operation


def test_what_xla_refuses_runs_as_it_did_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that looked simple and was not costs a failed compilation, and nothing else."""
    monkeypatch.setattr(_one_kernel, "_is_simple", lambda program: True)
    made = _made(_sorted)
    assert _is_one_piece(made)
    for _ in range(2):
        np.testing.assert_allclose(made(MATRICES, VECTOR), _sorted(MATRICES, VECTOR), rtol=1e-5)
