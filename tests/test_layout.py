"""Particles as vectors and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from s2vgd.layout import Layout
from s2vgd.structure import Structure, structure_weights

SHAPES = {"kernel": (3, 2), "bias": (2,), "scale": (), "none": (0,)}


def tree(*leading: int) -> dict:
    rng = np.random.default_rng(0)
    return {
        "a": {name: jnp.asarray(rng.normal(size=(*leading, *s))) for name, s in SHAPES.items()},
        "b": [jnp.asarray(rng.normal(size=(*leading, 4)))],
    }


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_unflatten_undoes_flatten_whatever_the_leading_axes():
    for leading in [(), (5,), (5, 7)]:
        particles = tree(*leading)
        layout = Layout.of(particles, leading=len(leading))
        assert layout.size == 3 * 2 + 2 + 1 + 0 + 4
        flat = layout.flatten(particles)
        assert flat.shape == (*leading, layout.size)
        same(layout.unflatten(flat), particles)


def test_one_layout_serves_one_particle_and_many():
    """The samplers read the layout off all particles, and use it for each alone."""
    particles = tree(5)
    layout = Layout.of(particles)
    one = jax.tree.map(lambda leaf: leaf[3], particles)
    np.testing.assert_array_equal(layout.flatten(one), layout.flatten(particles)[3])
    same(layout.unflatten(layout.flatten(particles)[3]), one)


def test_the_order_is_that_of_jax():
    one = tree()
    np.testing.assert_array_equal(Layout.of(one, leading=0).flatten(one), ravel_pytree(one)[0])


def test_structured_weights_keep_their_static_part():
    weights = structure_weights(jax.random.key(0), {"w": jnp.ones((5, 6))}, Structure())
    layout = Layout.of(weights, leading=0)
    back = layout.unflatten(layout.flatten(weights))
    same(back, weights)
    assert back["w"].scales == "lognormal"


def test_equal_layouts_are_one_key():
    """What is compiled is kept by layout, so equal ones must be found again and others not."""
    assert hash(Layout.of(tree(5))) == hash(Layout.of(tree(8)))
    assert Layout.of(tree(5)) == Layout.of(tree(8))
    assert Layout.of(tree(5)) != Layout.of({"a": jnp.ones((5, 13))})


def test_it_works_inside_compiled_functions():
    layout = Layout.of(tree(5))
    particles = tree(5)
    same(
        jax.jit(lambda t: layout.unflatten(2 * layout.flatten(t)))(particles),
        jax.tree.map(lambda leaf: 2 * leaf, particles),
    )
