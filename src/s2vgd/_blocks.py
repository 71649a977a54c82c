"""Sums over many rows, some rows at a time, with their gradients in the same pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def blocks_of(batch: Any, size: int) -> Any:
    """Return the rows of a :class:`s2vgd.bnn.Batch` in blocks, at most `size` of them in each.

    All blocks have one size: the arrays become (blocks, rows, ...). What is missing to the last one
    is the last row again, with weight 0.
    """
    n = len(batch.y)
    blocks = -(-n // size)
    rows = -(-n // blocks)
    short = blocks * rows - n
    weight = jnp.ones(n, batch.y.dtype) if batch.weight is None and short else batch.weight

    def divided(leaf: jax.Array, last: jax.Array) -> jax.Array:
        filled = jnp.concatenate([leaf, jnp.broadcast_to(last, (short, *leaf.shape[1:]))])
        return filled.reshape(blocks, rows, *leaf.shape[1:])

    x, y = jax.tree.map(lambda leaf: divided(leaf, leaf[-1:]), (batch.x, batch.y))
    if weight is not None:
        weight = divided(weight, jnp.zeros(1, weight.dtype))
    return batch._replace(x=x, y=y, weight=weight)


def summed(function: Callable[[Any, Any], jax.Array], particle: Any, blocks: Any) -> jax.Array:
    """Return the sum of ``function(particle, block) -> scalar`` over blocks, leaves (K, ...).

    One block is dealt with after the other, and so is its gradient with respect to the particle:
    nothing of a block is kept, and nothing is computed twice.
    """

    def loop(of_block: Callable[[Any], Any]) -> Any:
        def add(i: jax.Array, total: Any) -> Any:
            here = of_block(jax.tree.map(lambda leaf: leaf[i], blocks))
            return jax.tree.map(jnp.add, total, here)

        first = jax.tree.map(lambda leaf: leaf[0], blocks)
        nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_block, first))
        return jax.lax.fori_loop(0, len(jax.tree.leaves(blocks)[0]), add, nothing)

    @jax.custom_vjp
    def total(particle: Any) -> jax.Array:
        return loop(lambda block: function(particle, block))

    def forward(particle: Any) -> Any:
        return loop(lambda block: jax.value_and_grad(function)(particle, block))

    def backward(gradient: Any, cotangent: jax.Array) -> tuple[Any]:
        return (jax.tree.map(lambda leaf: cotangent * leaf, gradient),)

    total.defvjp(forward, backward)
    return total(particle)
