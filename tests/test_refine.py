"""Refinement against an exact posterior, its diagnostics, and what it does with bad input."""

from __future__ import annotations

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.diagnostics import effective_sample_size

from s2vgd import samplers
from s2vgd.bnn import BNN, Batch
from s2vgd.errors import DivergedError
from s2vgd.layout import Layout
from s2vgd.likelihoods import Gaussian
from s2vgd.networks import MLP
from s2vgd.priors import FixedPrior
from s2vgd.refine import Diagnostics, RefinementWarning, compile_refinement, refine
from s2vgd.structure import Structure

# Chains part at the first rounding that differs, and their figures with them.
pytestmark = pytest.mark.optimised

ROWS, NOISE, PRIOR_VARIANCE, CHAINS = 40, 0.5, 2.0, 16

MODEL = BNN(
    MLP(3, (), 1),
    Gaussian(fixed_std=NOISE),
    Structure(reflections=0, scales=None),
    FixedPrior(variance=PRIOR_VARIANCE),
)


def rows() -> Batch:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3))
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]  # correlated, so that the posterior is too
    y = x @ [1.0, -0.5, 0.3] + 0.2 + NOISE * rng.normal(size=ROWS)
    return Batch(jnp.asarray(x), jnp.asarray(y[:, None]))


DATA = rows()


def exact_posterior() -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of bias and weights, from the textbook."""
    design = np.column_stack([np.ones(ROWS), np.asarray(DATA.x, np.float64)])
    precision = design.T @ design / NOISE**2 + np.eye(4) / PRIOR_VARIANCE
    covariance = np.linalg.inv(precision)
    return covariance @ design.T @ np.asarray(DATA.y[:, 0], np.float64) / NOISE**2, covariance


MEAN, COVARIANCE = exact_posterior()

traces = 0


def log_density(particle, batch):
    global traces
    traces += 1
    return MODEL.log_joint(particle, batch, ROWS)


def predict(particle, batch):
    return MODEL.outputs(particle, batch.x)[:, 0]


def take(batch, key):
    """Take a quarter of the rows."""
    chosen = jax.random.randint(key, (ROWS // 4,), 0, ROWS)
    return jax.tree.map(lambda leaf: leaf[chosen], batch)


START = MODEL.init_particles(jax.random.key(1), CHAINS)

# A small energy variance, to be as good as exact, and a short memory of the direction, because in
# four dimensions a long one goes in circles.
EXACT = {"energy_variance": (0.5, 5e-4), "decoherence": 20.0}

# In three times as many leapfrogs some directions of this Gaussian come back to where they began,
# and whether a chain mixes is left to the last digits of its step size.
SETTINGS = {
    "mclmc": {"warmup": 1000, "draws": 200, "thin": 20, **EXACT},
    "hmc": {"warmup": 500, "draws": 200, "thin": 8, "leapfrogs": 5},
    "nuts": {"warmup": 200, "draws": 200, "thin": 1},
    "sghmc": {"warmup": 1000, "draws": 200, "thin": 20, "take": take},
}


def run(method, key=2, **options):
    arguments = {"key": jax.random.key(key), "predict": predict, **SETTINGS[method], **options}
    return refine(log_density, START, DATA, method=method, **arguments)


@pytest.fixture(scope="module")
def refined():
    """Run each sampler once; none has anything to complain about."""
    results = {}

    def get(method):
        if method not in results:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RefinementWarning)
                results[method] = run(method)
        return results[method]

    return get


def flat(draws) -> np.ndarray:
    layer = draws["weights"][0]
    return np.concatenate([layer["bias"], layer["kernel"][..., 0]], axis=-1).astype(np.float64)


def standard_error(values: np.ndarray) -> np.ndarray:
    """Return the Monte-Carlo standard error of the mean of (C, S, K) over chains and draws."""
    independent = np.asarray(jax.jit(effective_sample_size)(values))
    # Draws that are better than independent are not counted as such.
    independent = np.minimum(independent, values.shape[0] * values.shape[1])
    return values.std(axis=(0, 1)) / np.sqrt(independent)


@pytest.mark.parametrize("method", SETTINGS)
def test_mean_and_covariance_are_exact_to_monte_carlo_error(refined, method):
    """Five standard errors, of 4 means and 10 covariances, given the effective sample size.

    On top of that, in units of the posterior's standard deviations, 0.02 for MCLMC, which has no
    acceptance step, and 0.05 for the stochastic gradients of SGHMC, from batches of 10 rows of 40.
    """
    allowed = {"mclmc": 0.02, "sghmc": 0.05}.get(method, 0.0)
    draws = flat(refined(method).draws)
    assert draws.shape == (CHAINS, SETTINGS[method]["draws"], 4)
    z = (draws - MEAN) / np.sqrt(np.diag(COVARIANCE))
    correlation = COVARIANCE / np.sqrt(np.outer(np.diag(COVARIANCE), np.diag(COVARIANCE)))
    i, j = np.triu_indices(4)
    values = np.concatenate([z, z[..., i] * z[..., j]], axis=-1)
    error = standard_error(values)
    assert np.all(error < 0.08), "the run is too short to say anything"
    difference = np.abs(values.mean(axis=(0, 1)) - np.concatenate([np.zeros(4), correlation[i, j]]))
    assert np.all(difference < 5 * error + allowed), (difference, error)


@pytest.mark.parametrize("method", SETTINGS)
def test_diagnostics_of_a_good_run(refined, method):
    found = refined(method).diagnostics
    n_draws = SETTINGS[method]["draws"]
    assert found.method == method
    assert found.problems() == []
    assert found.acceptance.shape == found.step_size.shape == found.divergences.shape == (CHAINS,)
    assert found.divergence_rate == 0.0 and not found.divergences.any()
    assert np.all(found.step_size > 0)
    if method in ("hmc", "nuts"):
        assert np.all((found.acceptance > 0.6) & (found.acceptance <= 1.0))
    else:
        assert np.all(np.isnan(found.acceptance))
    assert found.r_hat.shape == found.effective_draws.shape == (ROWS,)
    assert np.all((found.r_hat > 0.99) & (found.r_hat < 1.1))
    assert np.median(found.effective_draws) > 0.1 * CHAINS * n_draws
    assert found.log_density.shape == (CHAINS, n_draws)


@pytest.mark.parametrize("method", ["mclmc", "hmc", "nuts"])
def test_the_log_density_reported_is_that_of_the_draws(refined, method):
    draws, diagnostics = refined(method)
    one = jax.tree.map(lambda leaf: leaf[3, 5], draws)
    expected = MODEL.log_joint(one, DATA, ROWS)
    np.testing.assert_allclose(diagnostics.log_density[3, 5], expected, rtol=1e-4)


def test_sghmc_never_sees_all_data_and_reports_no_log_density(refined):
    assert np.all(np.isnan(refined("sghmc").diagnostics.log_density))


@pytest.mark.parametrize("method", SETTINGS)
def test_same_key_same_draws_and_nothing_is_compiled_twice(refined, method):
    first = flat(refined(method).draws)
    before = traces
    again = flat(run(method).draws)
    other = flat(run(method, key=3).draws)
    assert traces == before
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == other)


@pytest.mark.parametrize("method", ["mclmc", "hmc"])
def test_draws_do_not_depend_on_the_number_of_cores(refined, method, monkeypatch):
    monkeypatch.setattr("s2vgd.refine.n_cores", lambda: 1)
    np.testing.assert_array_equal(flat(run(method).draws), flat(refined(method).draws))


def test_when_one_group_of_chains_fails_the_others_end(monkeypatch):
    """Neither an error nor Ctrl-C waits until all other chains have run to their end."""
    real, ticks = samplers.mclmc, []

    def failing(*arguments, tick, start, **options):
        if start[0, 0] == flat_start[0, 0]:
            raise KeyboardInterrupt
        return real(*arguments, tick=lambda n: (ticks.append(n), tick(n)), start=start, **options)

    flat_start = Layout.of(START).flatten(START)
    monkeypatch.setattr(samplers, "mclmc", failing)
    with pytest.raises(KeyboardInterrupt):
        run("mclmc")
    assert max(ticks, default=0) < 1000 + 200 * 20


def test_an_odd_number_of_chains_runs():
    odd = jax.tree.map(lambda leaf: leaf[:3], START)
    draws, _ = refine(log_density, odd, DATA, key=jax.random.key(0), warmup=50, draws=3, thin=2)
    assert flat(draws).shape == (3, 3, 4)


@pytest.mark.filterwarnings("ignore::s2vgd.refine.RefinementWarning")  # short on purpose
@pytest.mark.parametrize("method", ["mclmc", "sghmc"])
def test_what_is_compiled_ahead_is_not_compiled_again(method):
    arguments = {"method": method, "predict": predict, "draws": 5}
    arguments |= {"take": take} if method == "sghmc" else {}

    def own_density(particle, batch):
        return log_density(particle, batch)

    compile_refinement(own_density, START, DATA, **arguments)
    before = traces
    refine(own_density, START, DATA, key=jax.random.key(0), warmup=50, thin=2, **arguments)
    assert traces == before > 0


@pytest.mark.parametrize(
    ("method", "options"), [("mclmc", {}), ("sghmc", {"leapfrogs": 1})], ids=["mclmc", "sghmc"]
)
def test_chains_start_at_the_particles(method, options):
    """The first steps are short compared with the distances between the particles."""
    draws = run(method, warmup=1, draws=1, thin=1, **options).draws
    start = flat(jax.tree.map(lambda leaf: np.asarray(leaf)[:, None], START))
    assert np.all(np.abs(flat(draws) - start) < 0.05)


def two_modes(particle, offset):
    """Two narrow peaks, 20 standard deviations apart."""
    x = particle["x"]
    peaks = jnp.stack([-0.5 * jnp.sum((x - side * offset) ** 2) for side in (-1, 1)])
    return jax.nn.logsumexp(peaks)


def test_chains_that_disagree_are_reported_in_words():
    start = {"x": jnp.where(jnp.arange(6)[:, None] < 3, -10.0, 10.0) * jnp.ones(2)}
    with pytest.warns(RefinementWarning) as caught:
        draws, diagnostics = refine(
            *(two_modes, start, jnp.full(2, 10.0)),
            key=jax.random.key(0),
            method="hmc",
            warmup=100,
            draws=40,
            thin=1,
            leapfrogs=7,
            predict=lambda particle, _: particle["x"],
        )
    assert any("chains disagree about the predictions" in str(w.message) for w in caught)
    assert np.all(diagnostics.r_hat > 5)
    assert diagnostics.effective_draws.max() < 20
    np.testing.assert_array_equal(
        np.sign(draws["x"]), np.broadcast_to(np.sign(start["x"])[:, None], (6, 40, 2))
    )


def test_draws_that_run_away_raise():
    """A density draws the chains over the edge of its support; NaN must not come back as a draw."""
    with pytest.raises(DivergedError, match="'sghmc' left the finite numbers") as caught:
        refine(
            lambda particle, _: -jnp.sum(jnp.log(1.5 - particle["x"])),
            {"x": jnp.ones((3, 2))},
            key=jax.random.key(0),
            method="sghmc",
            warmup=20,
            draws=20,
            thin=10,
            take=lambda data, key: data,
        )
    assert caught.value.quantity == "draws"


def test_steps_into_nowhere_are_undone_and_counted():
    """A wall of NaN inside the bulk of the density: draws stay on the good side of it."""

    def walled(particle, _):
        x = particle["x"]
        return jnp.where(x[0] > 0.5, jnp.nan, -0.5 * jnp.sum(x**2))

    draws, diagnostics = refine(
        *(walled, {"x": jnp.zeros((4, 3))}),
        key=jax.random.key(0),
        method="mclmc",
        warmup=500,
        draws=100,
        thin=5,
    )
    assert np.all(draws["x"][..., 0] <= 0.5)
    assert diagnostics.divergences.sum() > 0
    assert diagnostics.divergence_rate == diagnostics.divergences.mean() / 500
    assert diagnostics.r_hat.size == 0  # there was nothing to follow


GOOD = Diagnostics(
    method="hmc",
    acceptance=np.full(4, 0.8),
    divergences=np.zeros(4, int),
    divergence_rate=0.0,
    r_hat=np.full(3, 1.01),
    effective_draws=np.full(3, 400.0),
    log_density=np.zeros((4, 100)),
    step_size=np.full(4, 0.1),
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"divergence_rate": 0.04}, "4% of the steps ran off to infinity"),
        ({"acceptance": np.array([0.8, 0.12, 0.8, 0.8])}, "accepted only 12% of its steps"),
        ({"r_hat": np.full(3, 3.456)}, r"chains disagree .*median R-hat 3.5, 1 is perfect"),
        ({"effective_draws": np.full(3, 7.0)}, "worth only 7 independent ones"),
    ],
)
def test_each_problem_is_said_in_words_with_its_number(changes, words):
    assert GOOD.problems() == []
    (found,) = GOOD._replace(**changes).problems()
    assert re.search(words, found)


def test_progress_goes_to_the_end(capfd):
    run("mclmc", progress=True, description="chains")
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("chains 5000/5000")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "gibbs"}, ValueError, "method must be one of 'mclmc', 'hmc', .* got 'gibbs'"),
        ({"warmup": 0}, ValueError, "warmup must be a positive integer, got 0"),
        ({"draws": 1.5}, ValueError, "draws must be a positive integer, got 1.5"),
        ({"thin": True}, ValueError, "thin must be a positive integer, got True"),
        ({"method": "sghmc"}, TypeError, "take"),
        ({"leapfrog": 3}, TypeError, "leapfrog"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        refine(log_density, START, DATA, key=jax.random.key(0), **arguments)


@pytest.mark.parametrize(
    ("particles", "message"),
    [
        ({"x": jnp.array([[1.0, jnp.nan]])}, "particles must be finite"),
        ({"x": jnp.ones((3, 2)), "y": jnp.ones((4, 2))}, "particles must share one leading axis"),
        ({"x": jnp.ones(())}, "particles must share one leading axis"),
        ({"x": jnp.ones((3, 1))}, "mclmc needs a density of at least two dimensions"),
    ],
)
def test_bad_particles_are_refused(particles, message):
    with pytest.raises(ValueError, match=message):
        refine(lambda p, _: 0.0, particles, key=jax.random.key(0), method="mclmc")


@pytest.mark.parametrize("method", ["mclmc", "hmc"])
def test_single_precision_stays_so_where_double_is_enabled(method):
    with jax.enable_x64(True):
        draws, _ = refine(
            lambda particle, _: -0.5 * jnp.sum(particle["x"] ** 2),
            {"x": jnp.ones((2, 3), jnp.float32)},
            key=jax.random.key(0),
            method=method,
            warmup=100,
            draws=5,
            thin=1,
        )
    assert draws["x"].dtype == jnp.float32
