"""Networks as pairs of pure functions: draw weights, apply weights.

Here are the multilayer perceptron that the estimators use and adapters that make a network of a
Flax or an Equinox model.  Weights are pytrees of arrays, plain but for the perceptron, which also
takes them in factors; what is a prior on them, and how they are structured, is decided elsewhere.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd._layers import relu, shifted
from s2vgd._random import normals
from s2vgd.structure import apply_first, apply_transposed

PyTree: TypeAlias = Any

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": relu,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}


@runtime_checkable
class Network(Protocol):
    """What the rest of the library asks of a network. Networks are hashable."""

    def init(self, key: Array) -> PyTree:
        """Draw one set of weights."""
        ...

    def apply(self, weights: PyTree, x: Array) -> Array:
        """Map inputs of shape (B, ...) to outputs of shape (B, O).

        Weights are plain, unless the network has an attribute ``takes_structured`` that is true.
        """
        ...


@dataclass(frozen=True)
class MLP:
    """A fully connected network, eq. (nn).

    Parameters
    ----------
    n_inputs : int
        Number of features.
    hidden : sequence of int
        Widths of the hidden layers; an empty sequence gives a linear model.
    n_outputs : int
        Number of outputs.
    activation : {"relu", "tanh", "gelu", "silu"}, default="relu"
        Applied after every hidden layer.
    """

    n_inputs: int
    hidden: Sequence[int]
    n_outputs: int
    activation: str = "relu"

    takes_structured: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject impossible shapes, and make ``hidden`` a tuple so that networks are hashable."""
        if self.activation not in ACTIVATIONS:
            known = ", ".join(map(repr, ACTIVATIONS))
            raise ValueError(f"activation must be one of {known}, got {self.activation!r}")
        object.__setattr__(self, "n_inputs", _size("n_inputs", self.n_inputs))
        object.__setattr__(self, "n_outputs", _size("n_outputs", self.n_outputs))
        if isinstance(self.hidden, str) or not isinstance(self.hidden, Sequence):
            raise TypeError(f"hidden must be a sequence of layer widths, got {self.hidden!r}")
        widths = tuple(_size(f"hidden[{i}]", width) for i, width in enumerate(self.hidden))
        object.__setattr__(self, "hidden", widths)

    def init(self, key: Array) -> tuple[dict[str, Array], ...]:
        """Draw weights: kernels from N(0, 1 / fan-in), biases zero.

        Returns
        -------
        tuple of dict
            One ``{"kernel": (in, out), "bias": (out,)}`` a layer.
        """
        shapes = list(pairwise((self.n_inputs, *self.hidden, self.n_outputs)))
        return tuple(
            {"kernel": kernel / len(kernel) ** 0.5, "bias": jnp.zeros(kernel.shape[1])}
            for kernel in normals(key, shapes)
        )

    def apply(self, weights: tuple[dict[str, Any], ...], x: Array) -> Array:
        """Map x of shape (B, n_inputs) to outputs of shape (B, n_outputs).

        Kernels may be structured: with few rows it is cheaper not to rebuild them.
        """
        activate = ACTIVATIONS[self.activation]
        # Rows run along the last axis: a vmap over the weights of small networks is then a few
        # products of long rows, which a CPU is much quicker at than at many of short ones.
        columns = apply_first(weights[0]["kernel"], weights[0]["bias"], x)
        for layer in weights[1:]:
            columns = shifted(apply_transposed(layer["kernel"], activate(columns)), layer["bias"])
        return columns.T


def from_flax(module: Any, example: Array) -> Network:
    """Make a network of a Flax model.

    Parameters
    ----------
    module : flax.linen.Module, or callable of flax.nnx.Rngs that returns a flax.nnx.Module
        The model. An nnx class whose only argument is ``rngs`` is such a callable; others take a
        lambda: ``lambda rngs: CNN(width=16, rngs=rngs)``.
    example : Array, shape (B, ...)
        Inputs of the shape and dtype that the model will see, with their batch axis.

    Returns
    -------
    Network
        Its weights are the model's parameters as nested dicts, in Flax's own layout. Equal only to
        itself: adapt a model once, and use that object.

    Raises
    ------
    ValueError
        If the model keeps state besides its parameters (batch statistics) or draws random numbers
        when it is applied. Particles share one pure function, so neither could mean anything; nnx
        models are put into evaluation mode, linen models must be built ``deterministic``.
    """
    try:
        from flax import linen, nnx
    except ImportError as error:
        raise ImportError("from_flax needs Flax: pip install s2vgd[flax]") from error
    if isinstance(module, nnx.Module):
        raise TypeError(
            "an nnx module has its weights drawn already; pass what builds it, "
            "for example from_flax(lambda rngs: CNN(rngs=rngs), example)"
        )
    if not isinstance(module, linen.Module) and not callable(module):
        raise TypeError(
            "module must be a flax.linen.Module or a function of flax.nnx.Rngs, "
            f"got {type(module).__name__}"
        )
    network = (
        _linen_network(module, example)
        if isinstance(module, linen.Module)
        else _nnx_network(module)
    )
    outputs = jax.eval_shape(lambda key: network.apply(network.init(key), example), _any_key())
    if outputs.shape[:-1] != (len(example),):
        raise ValueError(
            f"a network must map inputs of shape {jnp.shape(example)} to ({len(example)}, O); "
            f"this module gives {outputs.shape}"
        )
    return network


def from_equinox(make_model: Callable[[Array], Any]) -> Network:
    """Make a network of an Equinox model.

    Parameters
    ----------
    make_model : callable
        Draws a model from a key, ``lambda key: eqx.nn.MLP(4, 1, 50, 1, key=key)``. As is usual in
        Equinox the model takes one example; the network maps it over the batch.

    Returns
    -------
    Network
        Its weights are the model's floating-point arrays as ``{"layers.0": {"weight": ...}}``.
        Equinox stores (out, in, ...) where the rest of this library, like Flax, has (..., in, out),
        so weights are transposed on the way in and back on the way out, and biases are flat
        whatever their shape in the model. Without that the structure of a convolution would mix up
        its axes, and the (out, 1, 1) bias of one would count as a matrix. Everything else in the
        model (activations, integer arrays) is taken from one draw. Equal only to itself.

    Raises
    ------
    ValueError
        If the model keeps state (``eqx.nn.BatchNorm``). Dropout is switched off.
    """
    try:
        import equinox as eqx
    except ImportError as error:
        raise ImportError("from_equinox needs Equinox: pip install s2vgd[equinox]") from error

    def draw(key: Array) -> tuple[Any, Any]:
        model = make_model(key)
        if isinstance(model, tuple) or _contains(model, eqx.nn.StateIndex):
            raise ValueError(
                "make_model returns a model with state (eqx.nn.BatchNorm and the like); only "
                "models that are pure functions of their weights can be used"
            )
        return eqx.partition(eqx.nn.inference_mode(model), eqx.is_inexact_array)

    def init(key: Array) -> dict[str, dict[str, Array]]:
        weights: dict[str, dict[str, Array]] = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(draw(key)[0]):
            layer, name = _names(path)
            weights.setdefault(layer, {})[name] = _from_equinox_layout(name, leaf)
        return weights

    arrays, rest = draw(_any_key())
    shapes = jax.eval_shape(lambda tree: tree, arrays)

    def apply(weights: dict[str, dict[str, Array]], x: Array) -> Array:
        def restore(path: Any, leaf: jax.ShapeDtypeStruct) -> Array:
            layer, name = _names(path)
            return _to_equinox_layout(name, weights[layer][name], leaf.shape)

        model = eqx.combine(jax.tree_util.tree_map_with_path(restore, shapes), rest)
        return jax.vmap(model)(x)

    return _Adapter(init, apply)


@dataclass(frozen=True, eq=False)
class _Adapter:
    """Two functions that make a network; hashed by identity because models often cannot be."""

    init: Callable[[Array], PyTree]
    apply: Callable[[PyTree, Array], Array]


def _linen_network(module: Any, example: Array) -> _Adapter:
    from flax.errors import InvalidRngError

    variables = jax.eval_shape(module.init, _any_key(), example)
    if extra := sorted(set(variables) - {"params"}):
        raise _stateful(module, extra)
    try:
        jax.eval_shape(module.apply, variables, example)
    except InvalidRngError as error:
        raise ValueError(
            f"{type(module).__name__} draws random numbers when it is applied; "
            "build it deterministic (nn.Dropout(rate, deterministic=True))"
        ) from error
    return _Adapter(
        init=lambda key: module.init(key, example).get("params", {}),
        apply=lambda weights, x: module.apply({"params": weights}, x),
    )


def _nnx_network(build: Callable[[Any], Any]) -> _Adapter:
    from flax import nnx

    def draw(key: Array) -> Any:
        model = build(nnx.Rngs(key))
        if not isinstance(model, nnx.Module):
            raise TypeError(f"module(rngs) must return a flax.nnx.Module, got {type(model)}")
        model.eval()
        return model

    # Dropout keeps its random state in the model even in evaluation mode, where nothing reads it.
    graph, *states = nnx.split(draw(_any_key()), nnx.Param, nnx.RngState, ...)
    template, unread, other = states
    if extra := sorted({type(v).__name__ for v in jax.tree.leaves(other, is_leaf=_is_variable)}):
        raise _stateful(build, extra)

    def apply(weights: PyTree, x: Array) -> Array:
        state = jax.tree.map(lambda value: value, template)
        nnx.replace_by_pure_dict(state, weights)
        return nnx.merge(graph, state, unread)(x)

    return _Adapter(lambda key: nnx.to_pure_dict(nnx.state(draw(key), nnx.Param)), apply)


def _is_variable(node: object) -> bool:
    from flax import nnx

    return isinstance(node, nnx.Variable)


def _stateful(module: Any, kinds: list[str]) -> ValueError:
    name = getattr(module, "__name__", type(module).__name__)
    return ValueError(
        f"{name} keeps state besides its parameters ({', '.join(kinds)}); only modules that are "
        "pure functions of their parameters can be used (a layer norm instead of a batch norm)"
    )


def _contains(tree: PyTree, kind: type) -> bool:
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return any(isinstance(leaf, kind) for leaf in leaves)


def _from_equinox_layout(name: str, value: Array) -> Array:
    if name == "bias":
        return value.ravel()
    return jnp.moveaxis(value, (0, 1), (-1, -2)) if value.ndim >= 2 else value


def _to_equinox_layout(name: str, value: Array, shape: tuple[int, ...]) -> Array:
    if name == "bias":
        return value.reshape(shape)
    return jnp.moveaxis(value, (-1, -2), (0, 1)) if value.ndim >= 2 else value


def _names(path: Any) -> tuple[str, str]:
    layer = jax.tree_util.keystr(path[:-1], simple=True, separator=".")
    return layer, jax.tree_util.keystr(path[-1:], simple=True)


def _size(name: str, value: Any) -> int:
    try:
        size = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if size < 1:
        raise ValueError(f"{name} must be at least 1, got {size}")
    return size


def _any_key() -> Array:
    """Return a key for building a template, the values of which nobody sees."""
    return jax.random.key(0)
