"""Stein Thompson sampling, Algorithm 1, with S²VGD or SVGD; one particle makes it epsilon-greedy.

The posterior is a set of particles that SVGD moves on the log joint of everything seen; a decision
draws one of them and takes the action that it expects most of. This file joins
:mod:`s2vgd.bnn` and :mod:`s2vgd.svgd` to the protocol of agents and nothing more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from s2vgd import svgd
from s2vgd._packed import Packed
from s2vgd.bandits import buffer as replay_buffer
from s2vgd.bandits import coverage
from s2vgd.bandits.agents import Agent, Choice, check_epsilon, choose, warm_up
from s2vgd.bandits.buffer import Buffer
from s2vgd.bandits.contexts import Context, ContextShape
from s2vgd.bandits.heads import Head, Inputs, Row, View, make_head
from s2vgd.bandits.learning import Learning
from s2vgd.bandits.randomised import IgnoringAnchors, RandomisedBNN, hold
from s2vgd.bandits.regression import Ridge
from s2vgd.bandits.rewards import RewardModel, gaussian
from s2vgd.bnn import BNN, Batch, Particle
from s2vgd.kernels import Kernel, rbf
from s2vgd.priors import FixedPrior, Prior, check_count, check_positive
from s2vgd.structure import Structure

PLAIN = Structure(reflections=0, scales=None)
"""No structure: the ordinary network of SVGD."""


class State(NamedTuple):
    """What the agent knows.

    Attributes
    ----------
    learner : Packed
        The particles, side by side, and what the optimiser remembers.
    buffer : Buffer
        The decisions to learn from.
    average : pytree or None
        A running average of the particles, where decisions are left to it.
    covered : Ridge or None
        How much was seen of which contexts, where decisions look at that.
    """

    learner: Packed
    buffer: Buffer
    average: Any = None
    covered: Ridge | None = None


class Model(NamedTuple):
    """A Bayesian network for the reward of an action; hashable."""

    bnn: BNN
    head: Head
    reward: RewardModel

    def expected(self, particle: Particle, context: Context) -> Array:
        """Return the reward that one particle expects of each action, (A,)."""
        candidates: Any = self.head.candidates(context)
        outputs = self.bnn.outputs(particle, candidates)
        return self.reward.expected(particle["likelihood"], outputs)

    def log_joint(self, particle: Particle, rows: Row, n_total: Array) -> Array:
        """Return the log joint of a particle and N observations, from rows (B, ...) of them."""
        return self.bnn.log_joint(particle, self.batch(rows), n_total)

    def batch(self, rows: Row) -> Batch:
        """Return rows of a buffer as the BNN wants them."""
        inputs: Any = Inputs(rows.features, rows.action)
        return Batch(inputs, self.reward.targets(rows.reward))


def make_model(
    shape: ContextShape,
    hidden: Sequence[int],
    reward: RewardModel,
    structure: Structure = PLAIN,
    prior: Prior = FixedPrior(),  # noqa: B008  (frozen, hence safe to share)
    view: View | None = None,
    activation: str = "relu",
    anchor_scale: float = 0.0,
    linear: float = 0.0,
) -> Model:
    """Build a Bayesian network for rewards; see :func:`stein_thompson` for the parameters."""
    head = make_head(shape, hidden, reward.width, view, activation, linear)
    network: Any = head  # its rows are pairs of features and action, which BNN passes on
    bnn = BNN(network, reward.likelihood, structure, prior)
    if anchor_scale:
        check_positive("anchor_scale", anchor_scale)
        parts = (network, reward.likelihood, structure, prior)
        bnn = RandomisedBNN(*parts, anchor_scale=float(anchor_scale))
    return Model(bnn, head, reward)


def stein_thompson(
    shape: ContextShape,
    *,
    hidden: Sequence[int] = (50,),
    particles: int = 20,
    reflections: int = 1,
    scales: Any = "lognormal",
    reward: RewardModel | None = None,
    prior: Prior | None = None,
    learning: Learning | None = None,
    warmup: int = 20,
    epsilon: float = 0.0,
    view: View | None = None,
    activation: str = "relu",
    repulsion: float = 1.0,
    kernel: Kernel | None = None,
    noise: svgd.Noise | None = None,
    optimizer: optax.GradientTransformation | None = None,
    anchor_scale: float = 0.0,
    linear: float = 0.0,
    average: float = 0.0,
    committee: int = 1,
    optimistic: bool = False,
    bound: float = 0.0,
) -> Agent:
    """Stein Thompson sampling, Algorithm 1.

    Parameters
    ----------
    shape : ContextShape
        Of the contexts it will see.
    hidden : sequence of int
        Widths of the hidden layers.
    particles : int
        M.
    reflections, scales : int and {"lognormal", "gaussian"} or None
        The structure of the weights, see :class:`~s2vgd.structure.Structure`; 0 and None for SVGD.
    reward : RewardModel, optional
        One of :mod:`s2vgd.bandits.rewards`; normal noise of standard deviation 10 by default. The
        noise is the setting that matters most: it is what one reward is worth against the prior.
    prior : Prior, optional
        ``FixedPrior()`` by default, N(0, 1) on the weights as in the paper's Table of settings for
        contextual bandits; ``HierarchicalPrior()`` learns the variances.
    learning : Learning, optional
        Batches, cadence, buffer and forgetting.
    warmup : int
        Decisions at the start that go round the actions in turn.
    epsilon : float
        Share of the decisions left to chance, which no propensity then falls below.
    view : {"outputs", "inputs"}, optional
        How the network sees actions, see :mod:`s2vgd.bandits.heads`.
    activation : str
        Of the hidden layers.
    repulsion, kernel, noise
        Of SVGD, see :func:`s2vgd.svgd.build`.
    optimizer : optax.GradientTransformation, optional
        That of `learning`, Adam, by default.
    anchor_scale : float
        Weight of randomised prior functions, :mod:`s2vgd.bandits.randomised`; 0 for none.
    linear : float
        Weight of a linear path from the features to the rewards beside the hidden layers, see
        :class:`~s2vgd.bandits.heads.WithLinearPath`; 0 for none.
    average : float
        With a positive number a, decisions are made by running averages of the particles, in which
        gradient step n enters with the weight ``(a + 1) / (n + a)``: about the last 1 / a of all
        steps count. Steps can then be large without their noise reaching the decisions.
    committee : int
        How many particles make up an opinion, which is the mean of what they expect; it must divide
        M. Opinions are fewer and agree more than single particles do.
    optimistic : bool
        Let no opinion expect less of an action than all opinions do on average (optimistic Bayesian
        sampling, May et al., 2012). Doubt then only ever speaks for an action, which suits choices
        whose reward is seen only if one dares: what was passed by wrongly is never corrected.
    bound : float
        With a positive number, in units of the reward, opinions expect ``bound * sqrt(xᵀ A⁻¹ x)``
        more of an action with the features x, which is the width of LinUCB's confidence bound
        (:mod:`s2vgd.bandits.coverage`). Particles come to agree about what they have hardly seen;
        this does not, and goes to zero for what was seen often. There is no forgetting with it,
        and D features take D² numbers, for each action that is an output of the network.

    Returns
    -------
    Agent
        Equal settings give the same agent, so that what was compiled for it is found again.
    """
    check_count("particles", particles, 1)
    reward = gaussian() if reward is None else reward
    structure = Structure(reflections, scales)
    prior = FixedPrior() if prior is None else prior
    model = make_model(
        shape, hidden, reward, structure, prior, view, activation, anchor_scale, linear
    )
    learning = Learning() if learning is None else learning
    kernel = rbf() if kernel is None else kernel
    descent = Descent(float(repulsion), kernel, noise, optimizer)
    if average:
        check_positive("average", average)
    check_count("committee", committee, 1)
    if particles % committee:
        raise ValueError(f"committee must divide the {particles} particles, got {committee}")
    if not isinstance(optimistic, bool):
        raise ValueError(f"optimistic must be True or False, got {optimistic!r}")
    if bound:
        check_positive("bound", bound)
        if learning.half_life is not None:
            raise ValueError("learning.half_life must be None: the bound does not forget")
    opinions = Opinions(float(average), int(committee), optimistic, float(bound))
    agent = build(model, int(particles), learning, check_epsilon(epsilon), descent, opinions)
    return warm_up(agent, warmup)


def epsilon_greedy(
    shape: ContextShape,
    *,
    epsilon: float = 0.01,
    hidden: Sequence[int] = (50,),
    reward: RewardModel | None = None,
    prior: Prior | None = None,
    learning: Learning | None = None,
    warmup: int = 20,
    view: View | None = None,
    activation: str = "relu",
) -> Agent:
    """Trust one network, and take any action now and then.

    The network climbs to the mode of its posterior, which is SVGD with a single particle and no
    structure. Parameters are those of :func:`stein_thompson`; ``reward=gaussian(None)`` learns the
    noise.
    """
    return stein_thompson(
        shape,
        hidden=hidden,
        particles=1,
        reflections=0,
        scales=None,
        reward=reward,
        prior=prior,
        learning=learning,
        warmup=warmup,
        epsilon=epsilon,
        view=view,
        activation=activation,
    )


class Descent(NamedTuple):
    """How SVGD moves the particles, see :func:`s2vgd.svgd.build`; hashable."""

    repulsion: float = 1.0
    kernel: Kernel = rbf()
    noise: svgd.Noise | None = None
    optimizer: optax.GradientTransformation | None = None


class Opinions(NamedTuple):
    """How decisions come of particles, see :func:`stein_thompson`; hashable."""

    average: float = 0.0
    committee: int = 1
    optimistic: bool = False
    bound: float = 0.0

    def of(self, scores: Array) -> Array:
        """Return the opinions, (M / committee, A), of particles that expect `scores`, (M, A)."""
        if self.committee > 1:
            scores = scores.reshape(-1, self.committee, scores.shape[1]).mean(axis=1)
        return jnp.maximum(scores, scores.mean(axis=0)) if self.optimistic else scores


# Cached, because what is compiled is kept by the identity of an agent's functions.
@functools.lru_cache(maxsize=64)
def build(
    model: Model,
    particles: int,
    learning: Learning,
    epsilon: float = 0.0,
    descent: Descent = Descent(),  # noqa: B008  (immutable, hence safe to share)
    opinions: Opinions = Opinions(),  # noqa: B008  (likewise)
) -> Agent:
    """Join a model, SVGD and the way of learning into an agent without a warm-up."""
    is_randomised = isinstance(model.bnn, RandomisedBNN)
    algorithm = svgd.build(
        lambda particle, batch: model.log_joint(particle, *batch),
        learning.optimizer() if descent.optimizer is None else descent.optimizer,
        IgnoringAnchors(descent.kernel) if is_randomised else descent.kernel,
        repulsion=descent.repulsion,
        noise=descent.noise,
    )

    carried = algorithm.carried
    assert carried is not None

    def init(key: Array) -> State:
        particles_key, noise_key = jax.random.split(key)
        start = model.bnn.init_particles(particles_key, particles)
        learner = carried.pack(algorithm.init(start, None if descent.noise is None else noise_key))
        held = replay_buffer.empty(model.head.blank_row, learning.capacity)
        covered = coverage.empty(model.head) if opinions.bound else None
        return State(learner, held, start if opinions.average else None, covered)

    def act(state: State, key: Array, context: Context) -> Choice:
        asked = state.average if opinions.average else state.learner.particles
        scores = opinions.of(jax.vmap(model.expected, in_axes=(0, None))(asked, context))
        if state.covered is not None:
            scores += opinions.bound * coverage.width(state.covered, model.head, context)
        return choose(key, scores, context.available, epsilon)

    def step(carry: tuple[Packed, Any], rows: Row, n_total: Array, key: Array) -> Any:
        learner, average = carry
        moved, _ = carried.step(learner, (rows, n_total))
        if is_randomised:
            held = hold(moved.particles, learner.particles)
            moved = replace(moved, theta=moved.layout.flatten(held))
        if opinions.average:
            weight = (opinions.average + 1.0) / (moved.step + opinions.average)
            average = jax.tree.map(lambda a, b: a + weight * (b - a), average, moved.particles)
        return moved, average

    def update(state: State, key: Array, context: Context, action: Array, reward: Array) -> State:
        row = model.head.row(context, action, reward)
        held = replay_buffer.add(state.buffer, row)
        learner, average = learning.learn(key, held, step, (state.learner, state.average))
        covered = state.covered
        if covered is not None:
            covered = coverage.add(covered, model.head, row)
        return State(learner, held, average, covered)

    return Agent(init, act, update)
