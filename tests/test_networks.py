"""Networks: the MLP against NumPy, and the adapters against the models that they adapt."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import ndtr

from s2vgd.networks import MLP, Network, from_equinox, from_flax
from s2vgd.structure import Structure, StructuredWeight, materialise, structure_weights

KEY = jax.random.key(0)
IMAGES = jax.random.normal(jax.random.key(1), (5, 8, 8, 2))


class LinenCNN(nn.Module):
    """A small CNN, with a dropout that can be switched on to see it refused."""

    dropout: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(6, (3, 3), strides=2)(x))
        x = nn.Dropout(0.5, deterministic=not self.dropout)(x.reshape(len(x), -1))
        return nn.Dense(3)(x)


class NnxCNN(nnx.Module):
    """The same CNN in nnx, where evaluation mode is what switches dropout off."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(2, 6, (3, 3), strides=2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.dense = nnx.Linear(96, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.conv(x))
        return self.dense(self.dropout(x.reshape(len(x), -1)))


class EquinoxCNN(eqx.Module):
    """The same CNN in Equinox: one example at a time, channels first."""

    layers: tuple[eqx.nn.Conv2d, eqx.nn.Dropout, eqx.nn.Linear]

    def __init__(self, key: jax.Array) -> None:
        conv_key, dense_key = jax.random.split(key)
        self.layers = (
            eqx.nn.Conv2d(2, 6, 3, stride=2, padding=1, key=conv_key),
            eqx.nn.Dropout(0.5),
            eqx.nn.Linear(96, 3, key=dense_key),
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        conv, dropout, dense = self.layers
        return dense(dropout(jax.nn.relu(conv(jnp.moveaxis(x, -1, 0))).ravel()))


ADAPTED: dict[str, Callable[[], Network]] = {
    "linen": lambda: from_flax(LinenCNN(), IMAGES),
    "nnx": lambda: from_flax(lambda rngs: NnxCNN(rngs=rngs), IMAGES),
    "equinox": lambda: from_equinox(EquinoxCNN),
}


def _numpy_activation(name: str, x: np.ndarray) -> np.ndarray:
    return {
        "relu": lambda: np.maximum(x, 0),
        "tanh": lambda: np.tanh(x),
        "gelu": lambda: x * ndtr(x),
        "silu": lambda: x / (1 + np.exp(-x)),
    }[name]()


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "silu"])
@pytest.mark.parametrize("hidden", [(), (5,), (7, 6, 5)])
def test_mlp_is_the_composition_of_its_layers(activation: str, hidden: tuple[int, ...]) -> None:
    """Eq. (nn) in NumPy; without hidden layers the model is linear."""
    network = MLP(4, hidden, 2, activation)
    rng = np.random.default_rng(0)
    weights = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 2,
        jax.eval_shape(network.init, KEY),
    )
    x = rng.normal(size=(9, 4)).astype(np.float32)
    expected = x
    for i, layer in enumerate(weights):
        expected = expected @ layer["kernel"] + layer["bias"]
        if i < len(hidden):
            expected = _numpy_activation(activation, expected)
    # The usual tanh form of gelu is within 1e-3 of the exact one.
    tolerance = 1e-2 if activation == "gelu" else 1e-5
    np.testing.assert_allclose(network.apply(weights, x), expected, rtol=0, atol=tolerance)


def test_mlp_weights_have_the_documented_shapes_and_scale() -> None:
    """Kernels are N(0, 1 / fan-in), biases zero; particles differ."""
    weights = MLP(400, [300], 1).init(KEY)
    shapes = jax.tree.map(jnp.shape, weights)
    assert shapes == (
        {"kernel": (400, 300), "bias": (300,)},
        {"kernel": (300, 1), "bias": (1,)},
    )
    kernel = np.asarray(weights[0]["kernel"])
    assert kernel.mean() == pytest.approx(0, abs=5 / 400**0.5 / kernel.size**0.5)
    assert kernel.std() == pytest.approx(1 / 400**0.5, rel=0.01)
    assert not np.asarray(weights[0]["bias"]).any()
    assert not np.allclose(kernel, MLP(400, [300], 1).init(jax.random.key(1))[0]["kernel"])


def test_mlp_follows_the_dtype_of_the_session() -> None:
    """Under 64 bits weights and outputs are float64."""
    with jax.enable_x64(True):
        network = MLP(3, (4,), 2)
        weights = network.init(jax.random.key(0))
        assert {leaf.dtype for leaf in jax.tree.leaves(weights)} == {np.dtype("float64")}
        assert network.apply(weights, jnp.ones((2, 3))).dtype == np.float64


def test_mlps_of_equal_shape_are_equal_and_hashable() -> None:
    """Jitted functions are cached per network, so equal networks must hash alike."""
    assert hash(MLP(3, [4], 1)) == hash(MLP(3, (4,), 1))
    assert MLP(3, [4], 1) == MLP(3, (np.int64(4),), 1)
    assert MLP(3, (4,), 1) != MLP(3, (4,), 1, "tanh")
    assert isinstance(MLP(3, (4,), 1), Network)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, (4,), 1, "sigmoid"), ValueError, "'relu', 'tanh', 'gelu', 'silu', got 'sigmoid'"),
        ((0, (4,), 1), ValueError, "n_inputs must be at least 1, got 0"),
        ((3, (4,), 1.5), TypeError, "n_outputs must be an integer, got 1.5"),
        ((3, (4, 0), 1), ValueError, r"hidden\[1\] must be at least 1"),
        ((3, 50, 1), TypeError, "hidden must be a sequence of layer widths, got 50"),
    ],
)
def test_mlp_says_which_argument_is_wrong(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    """Bad shapes are refused when the network is described, by name."""
    with pytest.raises(error, match=message):
        MLP(*arguments)


@pytest.mark.parametrize("kind", ADAPTED)
def test_adapter_has_the_shapes_of_the_library(kind: str) -> None:
    """All three give (h, w, in, out) kernels, (in, out) matrices and flat biases."""
    weights = jax.eval_shape(ADAPTED[kind]().init, KEY)
    shapes = sorted(leaf.shape for leaf in jax.tree.leaves(weights))
    assert shapes == [(3,), (3, 3, 2, 6), (6,), (96, 3)]


def test_linen_adapter_is_the_module() -> None:
    """Same draw, same outputs as Flax's own init and apply."""
    network, module = from_flax(LinenCNN(), IMAGES), LinenCNN()
    variables = module.init(KEY, IMAGES)
    weights = network.init(KEY)
    jax.tree.map(np.testing.assert_array_equal, weights, variables["params"])
    np.testing.assert_array_equal(network.apply(weights, IMAGES), module.apply(variables, IMAGES))


def test_nnx_adapter_is_the_module_in_evaluation_mode() -> None:
    """Same draw, same outputs as the nnx module with dropout off."""
    network, module = from_flax(_nnx_cnn, IMAGES), NnxCNN(rngs=nnx.Rngs(KEY))
    module.eval()
    weights = network.init(KEY)
    np.testing.assert_array_equal(weights["conv"]["kernel"], module.conv.kernel[...])
    np.testing.assert_array_equal(network.apply(weights, IMAGES), module(IMAGES))


def test_nnx_adapter_leaves_no_weights_behind() -> None:
    """Weights given to apply are used, not those of the template; and apply has no memory."""
    network = from_flax(_nnx_cnn, IMAGES)
    first, second = (network.init(jax.random.key(seed)) for seed in (1, 2))
    outputs = network.apply(first, IMAGES)
    assert not np.allclose(outputs, network.apply(second, IMAGES))
    np.testing.assert_array_equal(outputs, network.apply(first, IMAGES))


def test_equinox_adapter_is_the_model_over_the_batch() -> None:
    """Transposing in and back changes nothing: outputs equal the model's, example by example."""
    network, model = from_equinox(EquinoxCNN), eqx.nn.inference_mode(EquinoxCNN(KEY))
    weights = network.init(KEY)
    expected = jnp.stack([model(image) for image in IMAGES])
    np.testing.assert_allclose(network.apply(weights, IMAGES), expected, rtol=1e-5, atol=1e-6)
    kernel = model.layers[0].weight  # (out, in, h, w)
    np.testing.assert_array_equal(weights["layers.0"]["weight"], np.transpose(kernel, (2, 3, 1, 0)))
    np.testing.assert_array_equal(weights["layers.2"]["weight"], model.layers[2].weight.T)


@pytest.mark.parametrize("kind", ADAPTED)
def test_adapted_networks_can_be_structured(kind: str) -> None:
    """Four particles with K = 2: kernels are structured, and values and gradients are finite."""
    network = ADAPTED[kind]()
    structure = Structure(reflections=2)

    def init(key: jax.Array) -> Any:
        weight_key, structure_key = jax.random.split(key)
        return structure_weights(structure_key, network.init(weight_key), structure)

    def loss(particle: Any) -> jax.Array:
        return jnp.sum(network.apply(materialise(particle), IMAGES) ** 2)

    particles = jax.jit(lambda keys: jax.lax.map(init, keys))(jax.random.split(KEY, 4))
    nodes = jax.tree.leaves(particles, is_leaf=lambda node: isinstance(node, StructuredWeight))
    structured = [node for node in nodes if isinstance(node, StructuredWeight)]
    assert sorted(node.v_left.shape for node in structured) == [(4, 2, 18), (4, 2, 96)]
    assert sorted(node.v_right.shape for node in structured) == [(4, 0, 3), (4, 2, 6)]
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(loss)))(particles)
    assert np.isfinite(values).all()
    assert np.unique(values).size == 4
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    v_gradients = [g for path, g in jax.tree.leaves_with_path(gradients) if "v_left" in str(path)]
    assert all(np.abs(g).max() > 0 for g in v_gradients)


@pytest.mark.parametrize("kind", ADAPTED)
def test_adapters_are_hashable_by_identity(kind: str) -> None:
    """An adapter can key a cache of jitted functions."""
    first, second = ADAPTED[kind](), ADAPTED[kind]()
    assert isinstance(first, Network)
    assert len({first, first, second}) == 2


class LinenBatchNorm(nn.Module):
    """Keeps running statistics."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.BatchNorm(use_running_average=True)(nn.Dense(3)(x.reshape(len(x), -1)))


class NnxBatchNorm(nnx.Module):
    """Keeps running statistics."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(x).mean((1, 2))


class NoPooling(nn.Module):
    """Gives one output a pixel."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(3)(x)


def _nnx_cnn(rngs: nnx.Rngs) -> NnxCNN:
    return NnxCNN(rngs=rngs)


def _equinox_batch_norm(key: jax.Array) -> Any:
    return eqx.nn.BatchNorm(2, axis_name="batch", mode="batch")


@pytest.mark.parametrize(
    ("adapt", "error", "message"),
    [
        (lambda: from_flax(LinenBatchNorm(), IMAGES), ValueError, r"LinenBatchNorm.*batch_stats"),
        (
            lambda: from_flax(lambda rngs: NnxBatchNorm(rngs=rngs), IMAGES),
            ValueError,
            r"state besides its parameters \(BatchStat\)",
        ),
        (lambda: from_equinox(_equinox_batch_norm), ValueError, "model with state"),
        (
            lambda: from_equinox(eqx.nn.make_with_state(_equinox_batch_norm)),
            ValueError,
            "model with state",
        ),
        (
            lambda: from_flax(LinenCNN(dropout=True), IMAGES),
            ValueError,
            "draws random numbers when it is applied",
        ),
        (lambda: from_flax(NoPooling(), IMAGES), ValueError, r"this module gives \(5, 8, 8, 3\)"),
        (
            lambda: from_flax(NnxCNN(rngs=nnx.Rngs(0)), IMAGES),
            TypeError,
            "pass what builds it",
        ),
        (lambda: from_flax(lambda rngs: 3, IMAGES), TypeError, "must return a flax.nnx.Module"),
        (lambda: from_flax("cnn", IMAGES), TypeError, "module must be a flax.linen.Module"),
    ],
)
def test_unusable_models_are_refused_with_a_reason(
    adapt: Callable[[], Network], error: type[Exception], message: str
) -> None:
    """State, randomness, wrong output shapes and wrong types each have their own message."""
    with pytest.raises(error, match=message):
        adapt()


@pytest.mark.parametrize(
    ("package", "adapt", "extra"),
    [
        ("flax", lambda: from_flax(LinenCNN(), IMAGES), r"s2vgd\[flax\]"),
        ("equinox", lambda: from_equinox(EquinoxCNN), r"s2vgd\[equinox\]"),
    ],
)
def test_a_missing_package_names_the_extra(
    package: str, adapt: Callable[[], Network], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the optional package the error says what to install."""
    real_import = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {name!r}")
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=extra):
        adapt()
