"""Two ways for a network to see a context, and the row that is kept of a decision.

``"outputs"``
    One network on the shared features, with outputs for every action side by side. Features of
    actions are not looked at. It suits a few actions that stay what they are.
``"inputs"``
    One network on [shared features, features of the action], applied to each action in turn. It
    suits actions that are described by features, and pools whose arms come and go.

Either is a :class:`~s2vgd.networks.Network` of O outputs, where O is what the reward of one action
needs, so that :class:`~s2vgd.bnn.BNN` can give it structure, prior and likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array

from s2vgd.bandits.contexts import Context, ContextShape, joint_features
from s2vgd.networks import MLP
from s2vgd.priors import check_positive
from s2vgd.structure import apply_transposed

View = Literal["outputs", "inputs"]


class Inputs(NamedTuple):
    """Rows for a head.

    Attributes
    ----------
    features : Array, shape (B, D)
        What the network sees.
    action : Array of int32, shape (B,), or None
        The action of each row. None asks for all actions of one context.
    """

    features: Array
    action: Array | None


class Row(NamedTuple):
    """What a buffer keeps of a decision: features (D,), action and reward, both scalars."""

    features: Array
    action: Array
    reward: Array


@dataclass(frozen=True)
class Head:
    """An MLP that is asked for the reward of an action.

    Parameters
    ----------
    network : MLP
        Of D inputs, and O or A O outputs.
    n_actions : int
        A.
    n_outputs : int
        O, the outputs that describe the reward of one action.
    view : {"outputs", "inputs"}
        How it sees a context, see the module.
    """

    network: MLP
    n_actions: int
    n_outputs: int
    view: View

    def init(self, key: Array) -> Any:
        """Draw weights."""
        return self.network.init(key)

    def apply(self, weights: Any, inputs: Inputs) -> Array:
        """Return the outputs (B, O) of the rows, or (A, O) of all actions of one context."""
        return self.of_actions(self.network.apply(weights, inputs.features), inputs.action)

    def of_actions(self, outputs: Array, action: Array | None) -> Array:
        """Pick from what the network puts out, of rows (B, D), what belongs to the actions."""
        if self.view == "inputs":
            return outputs
        if action is None:
            return outputs.reshape(self.n_actions, self.n_outputs)
        apart = outputs.reshape(-1, self.n_actions, self.n_outputs)
        # A product with zeros and ones: its derivative is another, where that of indexing scatters.
        taken = jax.nn.one_hot(action, self.n_actions, dtype=outputs.dtype)
        return jnp.sum(taken[:, :, None] * apart, axis=1)

    def candidates(self, context: Context) -> Inputs:
        """Return the rows that stand for all actions of a context."""
        if self.view == "inputs":
            return Inputs(joint_features(context), None)
        return Inputs(context.shared[None], None)

    def row(self, context: Context, action: Array, reward: Array) -> Row:
        """Return what is to be kept of a decision."""
        if self.view == "inputs":
            features = jnp.concatenate([context.shared, context.actions[action]])
        else:
            features = context.shared
        return Row(
            features.astype(jnp.float32),
            jnp.asarray(action, jnp.int32),
            jnp.asarray(reward, jnp.float32),
        )

    @property
    def blank_row(self) -> Row:
        """A row of the right shapes."""
        features = jnp.zeros(self.network.n_inputs, jnp.float32)
        return Row(features, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))


@dataclass(frozen=True)
class WithLinearPath(MLP):
    """An MLP whose inputs also reach the outputs directly, ``outputs = mlp(x) + linear * x V``.

    Much of what decides about actions is nearly linear, and learned from few rewards if it can be
    learned as such. With equal priors on all weights, `linear` says how much of a function is
    expected to be.

    Parameters
    ----------
    linear : float
        Weight of the linear path, whose weights V are the last part of the network's.
    """

    linear: float = 1.0

    def init(self, key: Array) -> tuple[dict[str, Array], ...]:
        """Draw weights: those of the layers, and a matrix (D, O) from N(0, 1 / D)."""
        own, straight = jax.random.split(key)
        kernel = jax.random.normal(straight, (self.n_inputs, self.n_outputs))
        return (*super().init(own), {"kernel": kernel / self.n_inputs**0.5})

    def apply(self, weights: tuple[dict[str, Any], ...], x: Array) -> Array:
        """Map x of shape (B, D) to outputs of shape (B, O)."""
        *layers, straight = weights
        return super().apply(tuple(layers), x) + self.linear * (
            apply_transposed(straight["kernel"], x.T).T
        )


def make_head(
    shape: ContextShape,
    hidden: Sequence[int],
    width: int,
    view: View | None = None,
    activation: str = "relu",
    linear: float = 0.0,
) -> Head:
    """Build a head for contexts of a shape.

    Parameters
    ----------
    shape : ContextShape
        Of the contexts.
    hidden : sequence of int
        Widths of the hidden layers.
    width : int
        O, the outputs that the reward of one action needs.
    view : {"outputs", "inputs"}, optional
        By default ``"inputs"`` where actions have features, and ``"outputs"`` where they have none.
    activation : str
        Of the hidden layers.
    linear : float
        Weight of a linear path beside the hidden layers, see :class:`WithLinearPath`; 0 for none.
    """
    shape.check()
    if view is None:
        view = "inputs" if shape.per_action else "outputs"
    if view not in get_args(View):
        raise ValueError(f"view must be 'outputs' or 'inputs', got {view!r}")
    if view == "outputs" and not shape.shared:
        raise ValueError("view='outputs' needs shared features, but the contexts have none")
    if view == "inputs" and not shape.per_action and shape.actions > 1:
        raise ValueError("view='inputs' needs features of the actions, but they have none")
    n_inputs = shape.shared + (shape.per_action if view == "inputs" else 0)
    n_outputs = width * (shape.actions if view == "outputs" else 1)
    network = MLP(n_inputs, hidden, n_outputs, activation)
    if linear:
        check_positive("linear", linear)
        network = WithLinearPath(n_inputs, hidden, n_outputs, activation, float(linear))
    return Head(network, shape.actions, width, view)
