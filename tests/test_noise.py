"""Noise that is tied, free, or mixed: the same model three times, and the choice between them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from s2vgd import S2VGDClassifier, S2VGDRegressor
from s2vgd.bnn import BNN, Batch
from s2vgd.errors import DivergedError
from s2vgd.estimators import _base, _fitting
from s2vgd.estimators._noise import Rows, frozen
from s2vgd.estimators._trials import Trial, best_share, best_spread, shares_to_choose_from
from s2vgd.likelihoods import HeteroscedasticGaussian
from s2vgd.networks import MLP
from s2vgd.priors import FixedPrior
from s2vgd.refine import Diagnostics
from s2vgd.structure import Structure, materialise, structure_weights, unstructured

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3)).astype(np.float32)
STRUCTURES = [Structure(), Structure(2, "gaussian", min_side=2), Structure(0, None)]

SMALL = {
    "hidden": (8,),
    "particles": 4,
    "reflections": 0,
    "scales": None,
    "learning_rate": 0.03,
    "random_state": 0,
}
# Too short on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::s2vgd.refine.RefinementWarning")
SHORT = {"refine": "mclmc", "warmup": 200, "draws": 4, "thin": 2, "steps": 100, "chains": 4}


def rows_with_noise(changing: bool, n: int = 180) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(n, 1))
    scale = np.where(x[:, 0] > 0, 1.0, 0.05) if changing else 0.3
    return x, np.sin(x[:, 0]) + scale * rng.normal(size=n)


# -- tied and frozen ------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", STRUCTURES[:2], ids=str)
def test_a_plain_matrix_in_structured_form_comes_back_exactly(structure):
    matrix = jnp.asarray(RNG.normal(size=(5, 4)), jnp.float32)
    weights = structure_weights(jax.random.key(0), {"kernel": jnp.ones((5, 4))}, structure)
    kernel = unstructured(matrix, weights["kernel"])
    assert jax.tree.structure(kernel) == jax.tree.structure(weights["kernel"])
    np.testing.assert_array_equal(materialise({"kernel": kernel})["kernel"], matrix)


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_frozen_particles_predict_what_tied_ones_did(structure):
    """Two targets, so that the outputs' side is reflected and mixes means with noise."""
    likelihood = HeteroscedasticGaussian()
    bnn = BNN(MLP(3, (6,), 4), likelihood, structure, FixedPrior(), n_targets=2)
    particles = bnn.init_particles(jax.random.key(1), 3)
    batch = Batch(jnp.asarray(X), jnp.zeros((30, 2)))
    cold = frozen(particles)
    assert jax.tree.structure(cold) == jax.tree.structure(particles)
    tied = jax.vmap(lambda p: Rows.of(batch, True).model(bnn).components(p, batch.x))(particles)
    after = jax.vmap(lambda p: bnn.components(p, batch.x))(cold)
    for name in ("loc", "scale"):
        np.testing.assert_allclose(after[name], tied[name], rtol=1e-5, atol=1e-6)
    level = np.asarray(particles["likelihood"]["level"])
    expected = np.log1p(np.exp(level)) + likelihood.floor
    np.testing.assert_allclose(after["scale"], np.repeat(expected[:, None], 30, axis=1), rtol=1e-5)


def test_free_rows_are_scored_by_the_model_itself():
    bnn = BNN(MLP(3, (6,), 2), HeteroscedasticGaussian(), Structure(), FixedPrior())
    particle = bnn.init(jax.random.key(0))
    batch = Batch(jnp.asarray(X), jnp.ones((30, 1)))
    wanted = bnn.log_joint(particle, batch)
    for rows in (Rows(batch), Rows.of(batch, False)):
        np.testing.assert_allclose(rows.model(bnn).log_joint(particle, rows.batch), wanted)
    assert not np.isclose(Rows.of(batch, True).model(bnn).log_joint(particle, batch), wanted)


def trial(loc, scale, y, weight=None):
    """Return a trial of normal components, (S, N)."""
    weight = np.ones(len(y)) if weight is None else weight
    return Trial("normal", {"loc": np.array(loc), "scale": np.array(scale)}, y, weight)


def test_neither_kind_of_noise_is_left_out_where_there_are_chains_enough():
    for n, unit, wanted in [(8, 2, [0.25, 0.5, 0.75]), (3, 1, [1 / 3, 2 / 3]), (4, 2, [0.5])]:
        np.testing.assert_allclose(shares_to_choose_from(n, unit), wanted)
    for n, unit in [(1, 1), (2, 2)]:
        np.testing.assert_array_equal(shares_to_choose_from(n, unit), [0.0, 1.0])


def test_best_share_is_the_best_of_those_offered():
    y, weight = RNG.normal(size=40), RNG.uniform(0, 2, size=40)
    free = trial(RNG.normal(size=(1, 40)), np.ones((1, 40)), y, weight)
    tied = trial(RNG.normal(size=(1, 40)), np.ones((1, 40)), y, weight)
    shares = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    densities = [stats.norm(t.components["loc"][0], 1).pdf(y) for t in (free, tied)]
    pools = [(1 - s) * densities[0] + s * densities[1] for s in shares]
    scores = [np.sum(weight * np.log(pool)) for pool in pools]
    assert best_share(free, tied, shares) == shares[np.argmax(scores)]
    assert 0 < best_share(free, tied, shares) < 1
    right = trial(y[None], np.ones((1, 40)), y)
    assert best_share(right, tied, shares) == 0.0
    assert best_share(tied, right, shares) == 1.0


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_best_spread_undoes_predictions_that_are_too_wide_or_too_narrow(factor):
    """4000 outcomes from the pool itself: the factor is found to 5 %."""
    n, share = 4000, 0.25
    means = RNG.normal(size=n)
    free, tied = means + np.array([[-1.0], [0.0]]), means + np.array([[1.0], [2.0]])
    kinds = np.where(RNG.uniform(size=n) < share, RNG.integers(2, 4, n), RNG.integers(0, 2, n))
    y = np.concatenate([free, tied])[kinds, np.arange(n)] + 0.5 * RNG.normal(size=n)
    centre = (1 - share) * free.mean(axis=0) + share * tied.mean(axis=0)
    parts = [
        trial(centre + factor * (loc - centre), np.full((2, n), 0.5 * factor), y)
        for loc in (free, tied)
    ]
    np.testing.assert_allclose(best_spread(*parts, share), 1 / factor, rtol=0.05)


def test_best_spread_stays_near_one_where_there_are_few_rows():
    few = trial(np.zeros((2, 5)), np.ones((2, 5)), np.zeros(5))
    assert 0.8 < best_spread(few, few, 0.5) < 0.95  # all five were hit exactly


# -- noise="auto" ---------------------------------------------------------------------------------


@pytest.mark.parametrize("changing", [False, True])
def test_auto_finds_the_noise_that_the_data_have(changing):
    model = S2VGDRegressor(**SMALL, noise="auto", refine=None, steps=300)
    model.fit(*rows_with_noise(changing))
    assert model.noise == "auto"
    _, (low, high) = model.predict([[-1.0], [1.0]], return_std=True)
    if changing:
        assert model.constant_share_ <= 0.25
        assert high > 2 * low
    else:
        np.testing.assert_allclose([low, high], 0.3, rtol=0.4)


@pytest.fixture
def half(monkeypatch):
    """Let the choice be for half of the draws of each kind."""
    monkeypatch.setattr("s2vgd.estimators._regressor.best_share", lambda *_: 0.5)


@pytest.mark.parametrize("settings", [SHORT, {"refine": None, "steps": 50}], ids=["chains", "svgd"])
def test_draws_of_both_kinds_are_one_posterior(half, settings, tmp_path):
    x, y = rows_with_noise(changing=True)
    model = S2VGDRegressor(**SMALL, **settings, noise="auto").fit(x, y)
    assert model.noise_ == "mixed" and model.constant_share_ == 0.5
    scale = np.std(y) * model.posterior_.components(x.astype(np.float32))["scale"][..., 0]
    free, tied = np.split(np.ptp(scale, axis=1), 2)
    assert free.min() > 1e-3 > 1e-5 > tied.max()
    # Saved, loaded and continued like any other.
    model.save(tmp_path / "model", rows=True)
    back = S2VGDRegressor.load(tmp_path / "model")
    assert (back.noise_, back.constant_share_) == ("mixed", 0.5)
    assert back.spread_ == model.spread_ != 1.0
    for mine, theirs in zip(model.predict(x, True), back.predict(x, True), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for each in (model, back):
        each.partial_fit(x[:20], y[:20])
    np.testing.assert_array_equal(back.predict(x), model.predict(x))
    scale = model.posterior_.components(x.astype(np.float32))["scale"][..., 0]
    free, tied = np.split(np.ptp(scale, axis=1), 2)
    assert free.min() > 1e-3 > 1e-5 > tied.max()
    if model.diagnostics_ is not None:
        assert model.diagnostics_.step_size.shape == (4,)
        assert model.diagnostics_.log_density.shape == (4, 4)


def test_the_fit_after_the_choice_compiles_nothing_for_the_density(half, monkeypatch):
    traces, joint = [], BNN.log_joint
    monkeypatch.setattr(BNN, "log_joint", lambda *a: traces.append(0) or joint(*a))
    x, y = rows_with_noise(changing=True, n=61)  # a shape of its own
    counts, fit = [], _fitting.fit
    monkeypatch.setattr(
        "s2vgd.estimators._fitting.fit", lambda *a: (fit(*a), counts.append(len(traces)))[0]
    )
    S2VGDRegressor(**SMALL, **SHORT, noise="auto").fit(x, y)
    trial, final = counts
    assert trial > 0
    assert final == trial


@pytest.mark.parametrize("chains", [1, 3])
def test_few_or_odd_chains_can_choose_as_well(chains):
    model = S2VGDRegressor(**{**SMALL, **SHORT, "chains": chains}, noise="auto")
    model.fit(*rows_with_noise(changing=True, n=40))
    assert model.constant_share_ * chains == round(model.constant_share_ * chains)
    assert model.posterior_.n_chains == chains


def test_too_few_rows_to_hold_any_out_take_constant_noise():
    x, y = rows_with_noise(changing=False, n=5)
    model = S2VGDRegressor(**SMALL, noise="auto", refine=None, steps=5).fit(x, y)
    assert model.noise_ == "constant"


def test_joined_diagnostics_speak_of_all_chains():
    def part(chains: int, r_hat: float, rate: float) -> Diagnostics:
        column = np.ones(chains)
        numbers = np.array([r_hat, 1.0]), np.array([30.0, 40.0])
        return Diagnostics("mclmc", column, column, rate, *numbers, np.ones((chains, 5)), column)

    joined = Diagnostics.joined([part(6, 1.1, 0.0), part(2, 1.5, 0.4)])
    assert joined.step_size.shape == (8,) and joined.log_density.shape == (8, 5)
    assert joined.divergence_rate == pytest.approx(0.1)
    np.testing.assert_array_equal(joined.r_hat, [1.5, 1.0])
    np.testing.assert_array_equal(joined.effective_draws, [60.0, 80.0])


# -- steps="auto" ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [S2VGDRegressor, S2VGDClassifier])
def test_steps_are_chosen_on_held_out_rows(cls, monkeypatch, tmp_path):
    monkeypatch.setattr(_base, "STEPS_TO_CHOOSE_FROM", (1, 200, 2))
    x, y = rows_with_noise(changing=False, n=90)
    y = y if cls is S2VGDRegressor else (y > 0).astype(int)
    settings = {**SMALL, "refine": None}
    model = cls(**settings, steps="auto").fit(x, y)
    assert model.n_iter_ == 200
    plain = cls(**settings, steps=200).fit(x, y)
    np.testing.assert_allclose(model.predict_dist(x).mean, plain.predict_dist(x).mean, atol=0.05)
    model.save(tmp_path / "model", rows=True)
    assert cls.load(tmp_path / "model").partial_fit(x[:9], y[:9]).n_iter_ == 200


@pytest.mark.parametrize("bad", [1, 2])
def test_a_trial_that_diverges_ends_the_search_and_only_the_first_ends_the_fit(bad, monkeypatch):
    monkeypatch.setattr(_base, "STEPS_TO_CHOOSE_FROM", (1, 2))
    fit = _fitting.fit

    def diverging(bnn, data, recipe, seed, start=None):
        if recipe.steps == bad:
            raise DivergedError("it ran away", step=1, quantity="particles")
        return fit(bnn, data, recipe, seed, start)

    monkeypatch.setattr(_fitting, "fit", diverging)
    model = S2VGDRegressor(**SMALL, noise="constant", refine=None, steps="auto")
    if bad == 1:
        with pytest.raises(DivergedError):
            model.fit(*rows_with_noise(changing=False, n=30))
    else:
        assert model.fit(*rows_with_noise(changing=False, n=30)).n_iter_ == 1


def test_steps_are_not_chosen_before_a_refinement():
    model = S2VGDRegressor(**{**SMALL, **SHORT, "steps": "auto"}, noise="constant")
    assert model.fit(*rows_with_noise(changing=False, n=40)).n_iter_ == 1000
