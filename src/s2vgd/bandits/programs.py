"""The compiled programs of an agent in use: it begins, it decides, it learns.

A call of a program costs by the piece that goes in or comes out. Therefore a decision goes in as
one array of words, key and context, and comes out as one; and what the agent makes of its state
alone, such as weights built from their factors, is made once, by whoever makes the state, and not
again at each decision. How :class:`~s2vgd.bandits.learner.Learner` uses them is its affair.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend import core

from s2vgd import _compiled, _one_kernel
from s2vgd.bandits.agents import Agent
from s2vgd.bandits.buffer import Buffer
from s2vgd.bandits.contexts import Context, ContextShape

CHUNK = 32
"""The most rewards that one call of the compiled program learns."""

BLOCK = 1024
"""Keys that are made at a time: one by one, each would cost a part of a decision."""

Arrays = Sequence[np.ndarray]
"""A context as arrays: shared features (F,), features of the actions (A, G), availability (A,)."""


class Programs(NamedTuple):
    """The compiled programs of an agent.

    Attributes
    ----------
    init : callable
        ``init(key) -> state``.
    act : callable
        ``act(shown, words) -> words``: decide by what :attr:`learn` has shown of a state.
    learn : callable
        ``learn(state, rows, count) -> (state, shown, has_nan)``: learn the first `count` of CHUNK
        rows of words. The state that it is given is overwritten.
    """

    init: Callable[..., Any]
    act: Callable[..., Array]
    learn: Callable[..., tuple[Any, list[Array], Array]]


class Answer(NamedTuple):
    """A :class:`~s2vgd.bandits.agents.Choice` in plain numbers."""

    action: int
    propensity: float
    propensities: np.ndarray
    particle: int

    @classmethod
    def of(cls, words: np.ndarray) -> Answer:
        """Read what ``act`` returned."""
        numbers = words[2:].view(np.float32)
        return cls(int(words[0]), float(numbers[0]), numbers[1:], int(words[1]))


def to_words(key: np.ndarray, context: Arrays, action: int = 0, reward: float = 0.0) -> np.ndarray:
    """Return all that one decision, or one reward, takes, as one array of int32."""
    shared, actions, available = context
    floats = np.array((reward,), np.float32), shared, actions.ravel()
    words = (part.view(np.int32) for part in (key, *floats))
    return np.concatenate((*words, available, (action,)), dtype=np.int32, casting="unsafe")


def n_words(shape: ContextShape) -> int:
    """Return how many words :func:`to_words` makes."""
    return 4 + shape.shared + shape.actions * (shape.per_action + 1)


def keys_of(seed: int, use: int) -> Callable[[int], np.ndarray]:
    """Return a function from numbers to the words (2,) of keys folded from ``(seed, use)``."""
    root = root_of(seed, use)

    @functools.lru_cache(maxsize=4)
    def block(index: int) -> np.ndarray:
        return np.asarray(_fold_in(jax.random.key_data(root), np.uint32(index * BLOCK)))

    def key(number: int) -> np.ndarray:
        return block(number // BLOCK)[number % BLOCK]

    return key


def root_of(seed: int, use: int) -> Array:
    """Return the key folded from ``(seed, use)``, of which those of one use are folded."""
    # The implementation is named, because the default is a setting that can be changed.
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), use)


@jax.jit
def _fold_in(root: Array, first: Array) -> Array:
    numbers = first + jnp.arange(BLOCK, dtype=jnp.uint32)
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.random.key_data(fold(jax.random.wrap_key_data(root, impl="threefry2x32"), numbers))


@jax.jit
def copied(state: Any) -> Any:
    """Return a state in memory of its own."""
    return jax.tree.map(jnp.copy, state)


# Cached, so that agents of equal settings share what is compiled.
@functools.lru_cache(maxsize=64)
def programs(agent: Agent, shape: ContextShape) -> Programs:
    """Return the programs of an agent for contexts of a shape."""

    def begin(key: Array) -> Any:
        return jax.tree.map(_of_firm_type, agent.init(key))

    def decide(state: Any, words: Array) -> Array:
        key, context, _, _ = _read(words, shape)
        choice = agent.act(state, key, context)
        whole = jnp.stack([choice.action, choice.particle]).astype(jnp.int32)
        parts = jnp.concatenate([choice.propensity[None], choice.propensities])
        bits = jax.lax.bitcast_convert_type(parts.astype(jnp.float32), jnp.int32)
        return jnp.concatenate([whole, bits])

    state = jax.eval_shape(begin, root_of(0, 0))
    halves = _cut(decide, state, jax.ShapeDtypeStruct((n_words(shape),), jnp.int32))
    show, finish = map(core.jaxpr_as_fun, halves)

    def act(shown: list[Array], words: Array) -> Array:
        return finish(*shown, words)[0]

    def learn(state: Any, rows: Array, count: Array) -> tuple[Any, list[Array], Array]:
        def one(i: Array, state: Any) -> Any:
            key, context, action, reward = _read(rows[i], shape)
            return agent.update(state, key, context, action, reward)

        # The bound is an argument: any number of rewards runs this one program, and none of the
        # rows that fill up the array is ever looked at.
        state = jax.lax.fori_loop(0, count, one, state)
        # Always shown by this program, which is run with no rewards to show a state that was not
        # learned just now: another might round differently, and so decide differently.
        return state, show(*jax.tree.leaves(state)), _has_nan(state)

    options = _compiled.effort("live") or {}
    # One thread: a decision is too small to share out, and must not queue behind what is learned.
    alone = options | {"xla_cpu_multi_thread_eigen": False}
    return Programs(
        jax.jit(begin),
        _one_kernel.jit(act, halves[1], alone),
        jax.jit(learn, compiler_options=options or None, donate_argnums=0),
    )


def _read(words: Array, shape: ContextShape) -> tuple[Array, Context, Array, Array]:
    """Return the key, the context, the action and the reward of :func:`to_words`."""
    n_own = shape.actions * shape.per_action
    ends = np.cumsum([2, 1, shape.shared, n_own, shape.actions])
    key, reward, shared, own, available, action = jnp.split(words, ends)
    key = jax.lax.bitcast_convert_type(key, jnp.uint32)
    reward, shared, own = (
        jax.lax.bitcast_convert_type(part, jnp.float32) for part in (reward, shared, own)
    )
    actions = own.reshape(shape.actions, shape.per_action)
    context = Context(shared, actions, available != 0)
    return jax.random.wrap_key_data(key, impl="threefry2x32"), context, action[0], reward[0]


def _cut(
    function: Callable[..., Any], state: Any, *rest: Any
) -> tuple[core.ClosedJaxpr, core.ClosedJaxpr]:
    """Cut a function of a state and more in two: what the state alone decides, and the remainder.

    Returns
    -------
    shows, finishes
        ``shows(*leaves of the state) -> shown`` and ``finishes(*shown, *rest) -> outputs``, as
        programs; as functions, both return lists.

    Notes
    -----
    Nothing is computed more often for it, as long as there are no more updates than decisions.
    """
    traced = jax.make_jaxpr(function)(state, *rest)
    program = traced.jaxpr
    leaves = program.invars[: len(jax.tree.leaves(state))]
    known = dict.fromkeys(leaves)
    early: list[Any] = []
    late: list[Any] = []
    for equation in program.eqns:
        read = _variables(equation.invars) - {*program.constvars}
        if read and known.keys() >= read and not equation.effects:
            early.append(equation)
            known |= dict.fromkeys(equation.outvars)
        else:
            late.append(equation)
    # To repeat a number takes no time later, and would take room before.
    for equation in reversed(early.copy()):
        used = _variables(atom for one in early for atom in one.invars)
        if equation.primitive.name == "broadcast_in_dim" and equation.outvars[0] not in used:
            early.remove(equation)
            late.insert(0, equation)
            del known[equation.outvars[0]]
    used = _variables([*program.outvars, *(atom for one in late for atom in one.invars)])
    shown = [variable for variable in known if variable in used]
    first = program.replace(invars=leaves, outvars=shown, eqns=early)
    second = program.replace(invars=[*shown, *program.invars[len(leaves) :]], eqns=late)
    return core.ClosedJaxpr(first, traced.consts), core.ClosedJaxpr(second, traced.consts)


def _variables(atoms: Iterable[Any]) -> set[Any]:
    return {atom for atom in atoms if isinstance(atom, core.Var)}


def _has_nan(state: Any) -> Array:
    """Whether there is a NaN in a state, not counting buffers: their rows were checked before."""
    parts = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Buffer))
    found = [
        _count_nan(leaf)
        for leaf in parts
        if not isinstance(leaf, Buffer) and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return jnp.any(jnp.stack(found) > 0) if found else jnp.zeros((), bool)


def _count_nan(leaf: Array) -> Array:
    """Return how many are NaN, counted by a product: a CPU is slower at searching."""
    rows = jnp.where(jnp.isnan(jnp.atleast_1d(leaf)), 1.0, 0.0).astype(jnp.float32)
    return jnp.sum(rows @ jnp.ones(rows.shape[-1], jnp.float32))


def _of_firm_type(leaf: Array) -> Array:
    """Return a leaf without a weak type, which learning would lose and so compile all anew."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf if is_key else jax.lax.convert_element_type(leaf, leaf.dtype)
