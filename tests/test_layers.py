"""Products of layers in a quicker order: the same values and derivatives as the plain ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd import _layers
from s2vgd.networks import MLP

SHAPES = [(3, 1), (5, 2), (50, 2), (13, 50), (64, 64), (400, 10), (70, 80)]


def close(one, other):
    """In float64; particles side by side, values, and derivatives in both modes."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), one, other)


def draws(*shapes):
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


@pytest.mark.parametrize("l1, l2", SHAPES)
def test_product_is_the_product(l1, l2):
    with jax.enable_x64(True):
        weights, columns = draws((3, l1, l2), (3, l1, 7))

        def loss(product):
            return lambda w, x: jnp.sum(jnp.sin(product(w, x)))

        def everything(product):
            gradient = jax.grad(loss(product), (0, 1))
            forward = jax.jvp(product, (weights[0], columns[0]), (weights[1], columns[1]))
            return (
                jax.vmap(product)(weights, columns),
                jax.vmap(gradient)(weights, columns),
                forward,
            )

        close(everything(_layers.product), everything(lambda w, x: w.T @ x))


@pytest.mark.parametrize("l1", [1, 3, 7, 8, 13, 15, 16, 24, 27])
def test_first_layer_is_a_layer(l1):
    """Data are shared by the particles, or not, or are themselves what is differentiated by."""
    with jax.enable_x64(True):
        weights, biases, x = draws((3, l1, 6), (3, 6), (9, l1))

        def loss(layer):
            return lambda w, b, x: jnp.sum(jnp.sin(layer(w, b, x)))

        def everything(layer):
            some, every = jax.grad(loss(layer), (0, 1)), jax.grad(loss(layer), (0, 1, 2))
            of_bias = jax.grad(loss(layer), 1)(weights[0], biases[0], x)
            of_data = jax.grad(loss(layer), 2)(weights[0], biases[0], x)
            tangents = (weights[1], biases[1], x + 1)
            forward = jax.jvp(layer, (weights[0], biases[0], x), tangents)
            return (
                jax.vmap(layer, (0, 0, None))(weights, biases, x),
                jax.vmap(some, (0, 0, None))(weights, biases, x),
                jax.vmap(every)(weights, biases, jnp.stack([x, x + 1, x + 2])),
                (of_bias, of_data, forward),
            )

        close(everything(_layers.first_layer), everything(lambda w, b, x: w.T @ x.T + b[:, None]))


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_second_derivatives(device, monkeypatch):
    """The Hessian of a network, forward over reverse, is that of the plain formula."""
    monkeypatch.setattr(jax, "default_backend", lambda: device)  # the form of a layer there
    with jax.enable_x64(True):
        network = MLP(3, (4,), 2, "tanh")
        weights = network.init(jax.random.key(0))
        (x,) = draws((5, 3))

        def plainly(weights):
            hidden = jnp.tanh(x @ weights[0]["kernel"] + weights[0]["bias"])
            return jnp.sum((hidden @ weights[1]["kernel"] + weights[1]["bias"]) ** 2)

        found = jax.hessian(lambda w: jnp.sum(network.apply(w, x) ** 2))(weights)
        close(found, jax.hessian(plainly)(weights))


@pytest.mark.parametrize("n", range(1, 70))
def test_columns_are_enough(n):
    assert n <= _layers._columns(n) <= max(16, n + 7)


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 50, 64, 97, 400, 784, 5000])
def test_total_is_the_sum(n):
    with jax.enable_x64(True):
        (values,) = draws((3, 2, n))
        close(_layers.total(values), jnp.sum(values, axis=-1))
        (gradient,) = jax.grad(lambda v: jnp.sum(jnp.sin(_layers.total(v))), (0,))(values)
        plain = jax.grad(lambda v: jnp.sum(jnp.sin(jnp.sum(v, axis=-1))))(values)
        close(gradient, plain)
