"""Agents with networks: each does what its formulas say, and all of them learn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from s2vgd import svgd
from s2vgd.bandits import regression, rewards, worlds
from s2vgd.bandits.agents import uniform
from s2vgd.bandits.contexts import ContextShape, make_context
from s2vgd.bandits.ensemble import bootstrap_thompson
from s2vgd.bandits.heads import Inputs, make_head
from s2vgd.bandits.lanes import Lanes
from s2vgd.bandits.learning import Learning
from s2vgd.bandits.linear import lin_ts, lin_ucb
from s2vgd.bandits.neural_linear import last_features, neural_linear
from s2vgd.bandits.randomised import ANCHOR, IgnoringAnchors
from s2vgd.bandits.simulation import compiled, simulate
from s2vgd.bandits.stein import epsilon_greedy, make_model, stein_thompson
from s2vgd.bandits.variational import _OfActions, vmg_thompson
from s2vgd.baselines.vmg import MatrixGaussian
from s2vgd.kernels import Block, rbf
from s2vgd.priors import HierarchicalPrior
from s2vgd.structure import Structure, StructuredWeight, materialise

SHAPE = ContextShape(3, shared=4)
POOL = ContextShape(3, shared=2, per_action=2)
# A buffer of one row makes every batch that row, so that the naive formulas need no batches.
NEWEST = Learning(batch_size=4, learning_rate=0.01, capacity=1)


def decisions(n, shape=SHAPE, seed=0):
    rng = np.random.default_rng(seed)
    for t in range(n):
        context = make_context(
            shape,
            rng.normal(size=shape.shared),
            rng.normal(size=(shape.actions, shape.per_action)),
        )
        action = jnp.int32(rng.integers(shape.actions))
        yield jax.random.key(t), context, action, jnp.float32(rng.normal())


def updated(agent, state, stream):
    update = jax.jit(agent.update)
    for decision in stream:
        state = update(state, *decision)
    return state


def close(one, other, **tolerance):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), one, other)


@pytest.mark.parametrize("count", ["seen", "held"])
def test_without_structure_it_is_svgd_on_an_ordinary_network(count):
    """The particles of Algorithm 1 against SVGD on a log joint that is written out here."""
    learning = Learning(batch_size=4, learning_rate=0.01, capacity=1, count=count)
    agent = stein_thompson(
        *(SHAPE,), hidden=(5,), particles=4, reflections=0, scales=None, learning=learning, warmup=0
    )
    state = agent.init(jax.random.key(0))
    start = state.learner.particles
    assert not any(isinstance(w, StructuredWeight) for w in jax.tree.leaves(start))

    def log_joint(particle, batch):
        (first, last), (x, action, reward, n) = particle["weights"], batch
        hidden = jnp.maximum(x @ first["kernel"] + first["bias"], 0)
        mean = (hidden @ last["kernel"] + last["bias"])[action]
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(particle["weights"]))
        return -n * (reward - mean) ** 2 / (2 * 10.0**2) - squares / 2

    algorithm = svgd.build(log_joint, optax.adam(0.01))
    naive = algorithm.init(start)
    for t, (_, context, action, reward) in enumerate(decisions(6)):
        n = jnp.float32(t + 1 if count == "seen" else 1)
        naive, _ = algorithm.step(naive, (context.shared, action, reward, n))
    state = updated(agent, state, decisions(6))
    close(state.learner.particles, naive.particles, rtol=1e-3, atol=1e-5)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), naive.particles, start)
    assert min(jax.tree.leaves(moved)) > 1e-3, "the comparison is not of particles at rest"


def test_structure_gives_particles_reflections_and_scales_and_other_decisions():
    agent = stein_thompson(SHAPE, hidden=(5,), particles=4, learning=NEWEST)
    weights = agent.init(jax.random.key(0)).inner.learner.particles["weights"]
    kernel = weights[0]["kernel"]
    assert isinstance(kernel, StructuredWeight)
    assert kernel.v_left.shape == (4, 1, 4) and kernel.s_right.shape == (4, 5)


def test_a_million_decisions_of_the_agent_have_its_stated_propensities():
    agent = stein_thompson(SHAPE, hidden=(5,), particles=7, learning=NEWEST, warmup=0, epsilon=0.1)
    state = agent.init(jax.random.key(4))
    _, context, _, _ = next(decisions(1))
    context = context._replace(available=jnp.asarray([True, False, True]))
    n = 1_000_000
    decide = jax.jit(jax.vmap(agent.act, in_axes=(None, 0, None)))
    choices = decide(state, jax.random.split(jax.random.key(5), n), context)
    found = np.bincount(choices.action, minlength=3) / n
    stated = np.asarray(choices.propensities[0], np.float64)
    votes = (stated - [0.05, 0, 0.05]) / 0.9 * 7
    np.testing.assert_allclose(votes, np.round(votes), atol=1e-5)
    assert 1 <= votes[0] <= 6, "the particles do not all agree"
    assert (np.abs(found - stated) <= 5 * np.sqrt(stated * (1 - stated) / n)).all()


def test_equal_settings_give_the_same_agent_and_bad_ones_are_named():
    assert stein_thompson(SHAPE, hidden=[5]) is stein_thompson(SHAPE, hidden=(5,))
    assert stein_thompson(SHAPE) is not stein_thompson(SHAPE, epsilon=0.1)
    for call, name in [
        (lambda: stein_thompson(SHAPE, particles=0), "particles"),
        (lambda: stein_thompson(SHAPE, epsilon=-0.1), "epsilon"),
        (lambda: stein_thompson(SHAPE, warmup=-1), "pulls"),
        (lambda: stein_thompson(SHAPE, view="inputs"), "features of the actions"),
        (lambda: stein_thompson(ContextShape(3, 0, 2), view="outputs"), "shared features"),
        (lambda: stein_thompson(SHAPE, view="both"), "view"),
        (lambda: stein_thompson(SHAPE, anchor_scale=-1.0), "anchor_scale"),
        (lambda: stein_thompson(SHAPE, linear=-1.0), "linear"),
        (lambda: stein_thompson(SHAPE, average=-1.0), "average"),
        (lambda: stein_thompson(SHAPE, committee=0), "committee"),
        (lambda: stein_thompson(SHAPE, particles=20, committee=3), "committee must divide the 20"),
        (lambda: stein_thompson(SHAPE, optimistic="no"), "optimistic must be True or False"),
        (lambda: stein_thompson(SHAPE, bound=-1.0), "bound"),
        (lambda: stein_thompson(SHAPE, bound=1.0, learning=Learning(half_life=5.0)), "half_life"),
        (lambda: bootstrap_thompson(SHAPE, keep=0.0), "keep"),
        (lambda: vmg_thompson(SHAPE, draws=0), "draws"),
        (lambda: neural_linear(SHAPE, hidden=()), "hidden"),
        (lambda: neural_linear(SHAPE, reward=rewards.bernoulli()), "reward"),
        (lambda: neural_linear(SHAPE, learning=Learning(half_life=5.0)), "half_life"),
        (lambda: rewards.categorical([1.0]), "values"),
    ]:
        with pytest.raises(ValueError, match=name):
            call()


@pytest.mark.parametrize(("shape", "view"), [(SHAPE, "outputs"), (POOL, "inputs")])
def test_a_head_says_the_same_of_an_action_alone_and_among_all(shape, view):
    head = make_head(shape, (5,), width=2)
    assert head.view == view
    weights = head.init(jax.random.key(0))
    _, context, _, _ = next(decisions(1, shape))
    together = head.apply(weights, head.candidates(context))
    assert together.shape == (shape.actions, 2)
    for action in range(shape.actions):
        row = head.row(context, jnp.int32(action), jnp.float32(0))
        alone = head.apply(weights, Inputs(row.features[None], row.action[None]))
        np.testing.assert_allclose(alone[0], together[action], rtol=1e-5, atol=1e-6)


def test_reward_models_translate_rewards_and_average_them():
    given = jnp.asarray([-10.0, 5.0, 0.0, 4.9])
    many = rewards.categorical((-10.0, 0.0, 5.0))
    np.testing.assert_array_equal(many.targets(given), [0, 2, 1, 2])
    logits = jnp.log(jnp.asarray([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
    np.testing.assert_allclose(many.expected({}, logits), [-5 + 1.25, -1 + 4], rtol=1e-5)
    one = rewards.bernoulli()
    np.testing.assert_array_equal(one.targets(jnp.asarray([0.0, 1.0])), [0, 1])
    np.testing.assert_allclose(one.expected({}, jnp.asarray([[0.0], [2.0]])), [0.5, 0.880797], 1e-5)
    np.testing.assert_array_equal(rewards.gaussian(1.0).targets(given), given[:, None])
    assert rewards.gaussian(1.0).expected({}, given[:, None]).tolist() == given.tolist()
    varying = rewards.heteroscedastic()
    assert varying.width == 2
    params = varying.likelihood.init(jax.random.key(0), 1)
    assert varying.expected(params, jnp.asarray([[3.0, 9.0]])).tolist() == [3.0]


def test_randomised_priors_are_added_do_not_learn_and_are_not_compared():
    agent = stein_thompson(
        SHAPE, hidden=(5,), particles=4, learning=NEWEST, warmup=0, anchor_scale=2.0
    )
    state = agent.init(jax.random.key(0))
    after = updated(agent, state, decisions(3))
    before, moved = state.learner.particles, after.learner.particles
    close(moved[ANCHOR], before[ANCHOR], rtol=0)
    assert float(jnp.abs(moved["weights"][1]["bias"] - before["weights"][1]["bias"]).max()) > 1e-3

    flat = jax.random.normal(jax.random.key(1), (4, 6))
    blocks = (Block(f"{ANCHOR}/0", 0, 2), Block("weights/0", 2, 5), Block("weights/1", 5, 6))
    at, learned = IgnoringAnchors(rbf())(flat, blocks), rbf()(flat[:, 2:])
    np.testing.assert_allclose(at.matrix, learned.matrix, rtol=1e-6)
    np.testing.assert_allclose(at.repulsion[:, 2:], learned.repulsion, rtol=1e-6)
    assert (at.repulsion[:, :2] == 0).all()


def test_the_expected_rewards_contain_the_randomised_prior():
    plain, added = (
        make_model(SHAPE, (5,), rewards.gaussian(), anchor_scale=scale) for scale in (0.0, 2.0)
    )
    particle = added.bnn.init(jax.random.key(0))
    _, context, _, _ = next(decisions(1))
    fixed = added.head.apply(particle[ANCHOR], added.head.candidates(context))[:, 0]
    learned = plain.expected(particle, context)
    np.testing.assert_allclose(
        added.expected(particle, context), learned + 2 * fixed, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("reflections", [0, 1])
def test_a_linear_path_is_added_to_what_the_network_says(reflections):
    structure = Structure(reflections, "lognormal" if reflections else None)
    straight = make_model(SHAPE, (5,), rewards.gaussian(), structure, linear=3.0)
    particle = straight.bnn.init(jax.random.key(0))
    _, context, _, _ = next(decisions(1))
    first, last, path = materialise(particle["weights"])
    x = np.asarray(context.shared)
    hidden = np.maximum(x @ first["kernel"] + first["bias"], 0)
    by_hand = hidden @ last["kernel"] + last["bias"] + 3.0 * x @ path["kernel"]
    np.testing.assert_allclose(straight.expected(particle, context), by_hand, rtol=1e-4, atol=1e-5)
    if reflections:
        assert isinstance(particle["weights"][2]["kernel"], StructuredWeight)


def test_decisions_can_be_left_to_a_running_average_of_the_particles():
    settings = {
        "hidden": (5,),
        "particles": 4,
        "learning": NEWEST,
        "warmup": 0,
        "anchor_scale": 1.0,
    }
    plain, averaging = (stein_thompson(SHAPE, average=a, **settings) for a in (0.0, 2.0))
    state, other = plain.init(jax.random.key(0)), averaging.init(jax.random.key(0))
    average = state.learner.particles
    for n, decision in enumerate(decisions(4), start=1):
        state, other = plain.update(state, *decision), averaging.update(other, *decision)
        weight = (2.0 + 1.0) / (n + 2.0)
        average = jax.tree.map(
            lambda old, new, weight=weight: (1 - weight) * old + weight * new,
            average,
            state.learner.particles,
        )
    close(other.learner, state.learner, rtol=1e-5, atol=1e-6)
    close(other.average, average, rtol=1e-5, atol=1e-6)
    # It is the average that is asked.
    _, context, _, _ = next(decisions(1, seed=9))
    asked = other._replace(average=state.learner.particles)
    same, its_own = (averaging.act(s, jax.random.key(3), context) for s in (asked, other))
    close(plain.act(state, jax.random.key(3), context), same, rtol=1e-6)
    assert its_own.propensities.shape == (3,)


SIX = {"hidden": (5,), "particles": 6, "learning": NEWEST, "warmup": 0}


def expected_by_six(state, context):
    """What each particle of an agent with the settings SIX expects of each action, (6, 3)."""
    model = make_model(SHAPE, (5,), rewards.gaussian(), Structure())
    particles = state.learner.particles
    return np.asarray(jax.vmap(model.expected, in_axes=(0, None))(particles, context))


def test_a_committee_has_the_mean_opinion_of_its_members():
    single, pairs = (stein_thompson(SHAPE, committee=q, **SIX) for q in (1, 2))
    state = single.init(jax.random.key(0))
    _, context, _, _ = next(decisions(1))
    scores = expected_by_six(state, context)
    best = ((scores[::2] + scores[1::2]) / 2).argmax(axis=1)
    stated = pairs.act(state, jax.random.key(0), context).propensities
    np.testing.assert_allclose(stated, np.bincount(best, minlength=3) / 3, rtol=1e-6)


def test_an_optimistic_opinion_is_never_below_the_mean_of_all():
    optimistic = stein_thompson(SHAPE, optimistic=True, **SIX)
    state = optimistic.init(jax.random.key(0))
    changed = 0
    for _, context, _, _ in decisions(20):
        scores = expected_by_six(state, context)
        best = np.maximum(scores, scores.mean(axis=0)).argmax(axis=1)
        stated = optimistic.act(state, jax.random.key(0), context).propensities
        np.testing.assert_allclose(stated, np.bincount(best, minlength=3) / 6, rtol=1e-6)
        changed += np.any(best != scores.argmax(axis=1))
    assert changed, "no decision was changed by optimism, so nothing was tested"


@pytest.mark.parametrize(("shape", "view"), [(SHAPE, "outputs"), (POOL, "inputs")])
def test_a_bound_adds_the_width_of_a_linear_regression_to_every_opinion(shape, view):
    head = make_head(shape, (5,), width=1)
    assert head.view == view
    plain, bounded = (stein_thompson(shape, bound=b, **SIX) for b in (0.0, 3.0))
    start = jax.random.key(0)
    state = updated(bounded, bounded.init(start), decisions(30, shape))
    learned = updated(plain, plain.init(start), decisions(30, shape))
    close(state.learner, learned.learner, rtol=1e-5, atol=1e-6)
    # A regression for each action that is an output, and one for all that are inputs.
    precision = [np.eye(5) for _ in range(3)]
    for _, context, action, _ in decisions(30, shape):
        row = np.append(1, head.row(context, action, 0.0).features)
        for one in precision[action : action + 1] if view == "outputs" else precision:
            one += np.outer(row, row)
    model = make_model(shape, (5,), rewards.gaussian(), Structure())
    expected = jax.vmap(model.expected, in_axes=(0, None))
    changed = 0
    for _, context, _, _ in decisions(20, shape, seed=1):
        rows = [np.append(1, head.row(context, jnp.int32(a), 0.0).features) for a in range(3)]
        width = [np.sqrt(x @ np.linalg.solve(p, x)) for x, p in zip(rows, precision, strict=True)]
        scores = np.asarray(expected(state.learner.particles, context))
        best = (scores + 3.0 * np.array(width)).argmax(axis=1)
        stated = bounded.act(state, jax.random.key(0), context).propensities
        np.testing.assert_allclose(stated, np.bincount(best, minlength=3) / 6, rtol=1e-6)
        changed += np.any(best != scores.argmax(axis=1))
    assert changed, "no decision was changed by the bound, so nothing was tested"


def test_a_bootstrap_of_one_member_that_keeps_all_is_the_greedy_network():
    greedy = epsilon_greedy(SHAPE, epsilon=0.0, hidden=(5,), learning=NEWEST, warmup=0)
    one = bootstrap_thompson(SHAPE, members=1, keep=1.0, hidden=(5,), learning=NEWEST, warmup=0)
    by_svgd = greedy.init(jax.random.key(0))
    state = one.init(jax.random.key(1))._replace(members=by_svgd.learner.particles)
    by_svgd = updated(greedy, by_svgd, decisions(5))
    state = updated(one, state, decisions(5))
    close(state.members, by_svgd.learner.particles, rtol=1e-4, atol=1e-6)


def test_bootstrap_weights_are_nothing_or_double_and_average_one():
    agent = bootstrap_thompson(SHAPE, members=400, hidden=(2,), learning=NEWEST, warmup=0)
    state = updated(agent, agent.init(jax.random.key(0)), decisions(1))
    weights = np.asarray(state.buffer.rows.weight)
    assert set(np.unique(weights)) == {0.0, 2.0}
    assert abs(weights.mean() - 1) < 5 / np.sqrt(400)


def test_vmg_draws_of_outputs_have_the_moments_of_draws_of_networks():
    """One row cannot tell the two apart: means, variances, and covariances between actions."""
    head = make_head(ContextShape(3, shared=4), (6,), 1)
    matrices = MatrixGaussian(head.network, 3, 1.0, 0.6)
    params = matrices.init(jax.random.key(0))
    _, context, _, _ = next(decisions(1))
    n = 40_000
    short = jax.jit(_OfActions(head, matrices).draw_outputs, static_argnums=3)
    outputs = np.asarray(short(params, context, jax.random.key(1), n))[:, :, 0]

    @jax.jit
    def long(keys):
        def one(key):
            return head.network.apply(matrices.draw(params, key), context.shared[None])[0]

        return jax.lax.map(one, keys, batch_size=500)

    networks = np.asarray(long(jax.random.split(jax.random.key(2), n)))
    spread = networks.std(0)
    assert (np.abs(outputs.mean(0) - networks.mean(0)) < 6 * spread / np.sqrt(n)).all()
    difference = np.cov(outputs.T) - np.cov(networks.T)
    assert (np.abs(difference) < 0.04 * np.outer(spread, spread)).all()


def test_neural_linear_is_the_regression_on_frozen_features():
    """Between renewals rows are added one by one, at a renewal all are computed anew."""
    agent = neural_linear(
        *(SHAPE,),
        hidden=(5,),
        particles=2,
        refresh=4,
        ridge=0.5,
        learning=Learning(batch_size=4, learning_rate=0.05, capacity=6),
        warmup=0,
    )
    state = agent.init(jax.random.key(0))
    update, stream = jax.jit(agent.update), list(decisions(10))
    first = state.trunk
    for t, decision in enumerate(stream):
        state = update(state, *decision)
        if t == 2:
            close(state.trunk, first, rtol=0)
        # Rows 0-2 as they come; at row 7 the buffer of six is computed anew, and two more follow.
        rows = stream[: t + 1] if t < 7 else stream[2 : t + 1]
        if t not in (2, 7, 9):
            continue
        for m in range(2):
            trunk = jax.tree.map(lambda leaf, m=m: leaf[m], state.trunk)
            network = make_head(SHAPE, (5,), 1).network
            x = np.stack([last_features(network, trunk, c.shared[None])[0] for _, c, _, _ in rows])
            action = np.array([int(a) for _, _, a, _ in rows])
            y = np.array([float(r) for *_, r in rows])
            for a in range(3):
                own = x[action == a].astype(np.float64)
                want = np.linalg.inv(0.5 * np.eye(6) + own.T @ own)
                ridge = jax.tree.map(lambda leaf, m=m: leaf[m], state.ridge)
                got = np.asarray(ridge.inverse[a], np.float64).sum(-1)
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
                moment = np.asarray(ridge.moment[a], np.float64).sum(-1)
                np.testing.assert_allclose(moment, own.T @ y[action == a], rtol=1e-4, atol=1e-5)
                assert isinstance(ridge, regression.Ridge) and ridge.n_rows[a] == len(own)
    assert float(jnp.abs(state.trunk[0]["kernel"] - first[0]["kernel"]).max()) > 1e-3


def blobs():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    return rng.normal(size=(60, 4)) + 3 * np.eye(3, 4)[y], y


FAST = {"hidden": (16,), "learning": Learning(batch_size=32, learning_rate=0.01, capacity=400)}
SURE = rewards.gaussian(0.5)
BLOBS = worlds.classification(*blobs())
CLICKS = worlds.clicks(5, 3, 3, waves=2)


@pytest.mark.parametrize(
    ("world", "build"),
    [
        (BLOBS, lambda s: epsilon_greedy(s, epsilon=0.03, reward=rewards.gaussian(None), **FAST)),
        (BLOBS, lambda s: bootstrap_thompson(s, members=5, reward=SURE, **FAST)),
        pytest.param(BLOBS, lambda s: vmg_thompson(s, reward=SURE, **FAST), marks=pytest.mark.slow),
        pytest.param(
            *(BLOBS, lambda s: neural_linear(s, reward=SURE, refresh=50, **FAST)),
            marks=pytest.mark.slow,
        ),
        (BLOBS, lambda s: lin_ucb(s)),
        (BLOBS, lambda s: lin_ts(s, noise=0.5)),
        (BLOBS, lambda s: lin_ts(s)),
        (BLOBS, lambda s: lin_ucb(s, model="hybrid")),
        (
            CLICKS,
            lambda s: stein_thompson(
                s, particles=5, reward=rewards.bernoulli(), prior=HierarchicalPrior(), **FAST
            ),
        ),
    ],
    ids=[
        *("greedy", "bootstrap", "vmg", "neural_linear"),
        *("ucb", "ts", "ts_unknown", "hybrid", "stein"),
    ],
)
def test_every_agent_has_less_than_half_the_regret_of_uniform(world, build):
    result = simulate(build(world.shape), world, 400, seeds=2)
    by_chance = simulate(uniform(), world, 400, seeds=2).record.regret.sum(axis=1)
    assert (result.record.regret.sum(axis=1) < 0.5 * by_chance.mean()).all()
    group = Lanes.of(result.states, 2).group
    made = compiled(build(world.shape), world.rules, group)
    assert made._cache_size() == 1, "of two calls"
