"""A posterior's predictions in blocks, its files, and its way to ArviZ."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd import files, manifest, posterior
from s2vgd.bnn import BNN
from s2vgd.errors import ModelFileError
from s2vgd.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    StudentT,
)
from s2vgd.networks import MLP, from_flax
from s2vgd.posterior import Posterior
from s2vgd.priors import FixedPrior, HierarchicalPrior
from s2vgd.structure import Structure

X = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)


def model(likelihood=Gaussian(), n_targets=1, **options) -> BNN:  # noqa: B008
    network = MLP(3, (4,), likelihood.n_outputs(n_targets), "tanh")
    return BNN(network, likelihood, n_targets=n_targets, **options)


def some_posterior(bnn: BNN | None = None, chains: int = 2, draws: int = 3) -> Posterior:
    bnn = model() if bnn is None else bnn
    return Posterior(bnn, bnn.init_particles(jax.random.key(0), chains * draws), chains)


@pytest.fixture
def saved(tmp_path) -> Path:
    some_posterior().save(tmp_path / "model")
    return tmp_path / "model"


def assert_same(one: Posterior, other: Posterior) -> None:
    assert one.bnn == other.bnn
    assert one.n_chains == other.n_chains
    assert jax.tree.structure(one.particles) == jax.tree.structure(other.particles)
    jax.tree.map(np.testing.assert_array_equal, one.particles, other.particles)


MODELS = [
    model(Gaussian(a=2.0, b=0.5), n_targets=2),
    model(Gaussian(fixed_std=0.3), prior=FixedPrior(variance=2.0)),
    model(HeteroscedasticGaussian(floor=0.01), prior=HierarchicalPrior(a=2.0)),
    model(StudentT(df=5.0), structure=Structure(reflections=2, scales="gaussian")),
    model(Laplace(), structure=Structure(reflections=0, scales=None)),
    model(Categorical(4), structure=Structure(min_side=2)),
    model(Bernoulli(), prior=FixedPrior(variance=np.float32(0.5))),
    BNN(MLP(3, (5, 4), 1, "silu"), Gaussian()),
]


@pytest.mark.parametrize("bnn", MODELS, ids=lambda bnn: type(bnn.likelihood).__name__)
def test_save_and_load_give_the_same_posterior(bnn, tmp_path):
    before = some_posterior(bnn)
    before.save(tmp_path / "model")
    after = Posterior.load(tmp_path / "model")
    assert_same(before, after)
    np.testing.assert_array_equal(before.predict(X).mean, after.predict(X).mean)


def test_saving_again_replaces_the_model(saved):
    other = some_posterior(model(Laplace()))
    other.save(saved)
    assert_same(Posterior.load(saved), other)


def test_nothing_but_tensors_and_json_is_written(saved):
    assert {path.suffix for path in saved.iterdir()} == {".json", ".safetensors"}
    described = json.loads((saved / "manifest.json").read_text())["metadata"]["bnn"]
    assert described["class"] == "BNN"
    assert described["network"]["hidden"] == [4]


def flax_model() -> BNN:
    from flax import linen

    return BNN(from_flax(linen.Dense(1), jnp.ones((1, 3))), Gaussian())


def test_a_network_of_ones_own_has_to_be_given_again(tmp_path):
    bnn = flax_model()
    before = some_posterior(bnn)
    before.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"object of your own .* pass it as bnn"):
        Posterior.load(tmp_path / "model")
    after = Posterior.load(tmp_path / "model", bnn=bnn)
    assert_same(before, after)
    rebuilt = flax_model()
    np.testing.assert_array_equal(
        Posterior.load(tmp_path / "model", bnn=rebuilt).predict(X).mean, before.predict(X).mean
    )


def test_a_model_that_is_not_the_saved_one_is_refused(saved, tmp_path):
    """Shapes alone would not tell a Laplace likelihood from a Gaussian one."""
    with pytest.raises(ModelFileError, match="bnn is not the model that was saved"):
        Posterior.load(saved, bnn=model(Laplace()))
    some_posterior(flax_model()).save(tmp_path / "flax")
    other = BNN(flax_model().network, Laplace())
    with pytest.raises(ModelFileError, match="bnn is not the model that was saved"):
        Posterior.load(tmp_path / "flax", bnn=other)


def test_a_class_of_ones_own_with_a_name_of_ours_is_not_taken_for_ours(tmp_path):
    class MLP:
        def __hash__(self):
            return 0

        def init(self, key):
            return {"w": jnp.ones((3, 1))}

        def apply(self, weights, x):
            return x @ weights["w"]

    some_posterior(BNN(MLP(), Gaussian())).save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="object of your own"):
        Posterior.load(tmp_path / "model")


def tamper(path: Path, change) -> None:
    """Change the metadata and sign it again, as somebody with bad intentions would."""
    arrays, metadata, version = files.load_directory(path, kind=posterior.KIND, max_version=1)
    change(arrays, metadata)
    text, name, tensors = manifest.encode(arrays, metadata, kind=posterior.KIND, version=version)
    for old in path.iterdir():
        old.unlink()
    (path / name).write_bytes(tensors)
    (path / "manifest.json").write_bytes(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, m: m["bnn"].update({"class": "os.system"}), "uses 'os.system', which"),
        (lambda a, m: m["bnn"]["network"].update({"class": "__import__"}), "uses '__import__'"),
        (lambda a, m: m["bnn"]["prior"].update({"class": ["MLP"]}), "which this version does not"),
        (lambda a, m: m["bnn"]["likelihood"].update({"class": "MLP"}), "describes no valid MLP"),
        (lambda a, m: m["bnn"]["prior"].update({"class": "MLP"}), "describes no valid MLP"),
        (lambda a, m: m["bnn"]["network"].update({"n_inputs": -1}), "n_inputs must be at least 1"),
        (lambda a, m: m["bnn"]["network"].update({"extra": 1}), "unexpected keyword .* 'extra'"),
        (lambda a, m: m["bnn"]["network"].update({"n_inputs": 5}), "is wanted here"),
        (lambda a, m: m["bnn"].update({"prior": "flat"}), "cannot be built"),
        (lambda a, m: m.update({"bnn": {"class": "MLP", **MLP_FIELDS}}), "not describe a model"),
        (lambda a, m: m.update({"bnn": 3}), "does not describe a model"),
        (lambda a, m: m.pop("bnn"), "does not describe its model"),
        (lambda a, m: m.update({"n_chains": 4}), "n_chains=4 does not divide the 6 draws"),
        (lambda a, m: m.update({"n_chains": 0}), "n_chains=0 does not divide"),
        (lambda a, m: m.update({"n_chains": "2"}), "n_chains='2' does not divide"),
        (lambda a, m: a.pop("particles/likelihood/log_precision"), "missing"),
        (lambda a, m: a.update({"particles/more": np.ones(6)}), "unexpected"),
        (lambda a, m: a.clear(), "has no 'particles'"),
    ],
)
def test_a_tampered_model_is_refused(saved, change, message):
    tamper(saved, change)
    with pytest.raises(ModelFileError, match=message):
        Posterior.load(saved)


MLP_FIELDS = {"n_inputs": 3, "hidden": [4], "n_outputs": 1, "activation": "relu"}


def test_files_of_another_kind_and_pickles_are_refused(tmp_path):
    files.save_directory(tmp_path / "other", {"a": np.ones(2)}, {}, kind="checkpoint", version=1)
    with pytest.raises(ModelFileError, match="holds a 'checkpoint', not a 'posterior'"):
        Posterior.load(tmp_path / "other")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ModelFileError, match="it is a file"):
        Posterior.load(tmp_path / "model.pkl")
    with pytest.raises(ModelFileError, match="does not exist"):
        Posterior.load(tmp_path / "nothing")


def test_map_rows_is_predict_in_blocks(monkeypatch):
    x = np.random.default_rng(1).normal(size=(77, 3)).astype(np.float32)
    drawn = some_posterior(model(HeteroscedasticGaussian(), n_targets=2))
    whole = drawn.predict(x)
    blocks = []

    def both(predictive):
        blocks.append(len(predictive))
        return predictive.mean, predictive.interval(0.8)

    monkeypatch.setattr(posterior, "_BLOCK", 20 * len(drawn) * 4)
    mean, (lower, upper) = drawn.map_rows(both, x)
    assert blocks == [16, 16, 16, 16, 13]  # the power of two below 20
    np.testing.assert_allclose(mean, whole.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lower, whole.interval(0.8)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(upper, whole.interval(0.8)[1], rtol=1e-4, atol=1e-5)


def test_map_rows_takes_at_least_one_row_at_a_time(monkeypatch):
    monkeypatch.setattr(posterior, "_BLOCK", 1)
    drawn = some_posterior()
    np.testing.assert_allclose(
        drawn.map_rows(lambda p: p.mean, X), drawn.predict(X).mean, rtol=1e-5, atol=1e-6
    )


def test_map_rows_speaks_in_the_users_units():
    drawn = some_posterior()
    mean = drawn.map_rows(lambda p: p.mean, X, shift=[5.0], scale=[2.0], squeeze=False)
    np.testing.assert_allclose(mean, 5 + 2 * drawn.predict(X).mean[:, None], rtol=1e-6)


def test_predictions_average_the_particles_own():
    """Whatever is done about blocks and padding, row i of draw s is network s applied to row i."""
    drawn = some_posterior()
    components = drawn.components(X)
    assert components["loc"].shape == (6, 9, 1)
    for s in range(6):
        one = jax.tree.map(lambda leaf, s=s: leaf[s], drawn.particles)
        expected = drawn.bnn.components(one, X)
        for name, value in expected.items():
            np.testing.assert_allclose(components[name][s], value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        drawn.predict(X).mean, components["loc"].mean(axis=0)[:, 0], rtol=1e-6
    )


def test_few_shapes_are_compiled():
    """Numbers of rows between two powers of two share one program."""
    drawn = some_posterior(BNN(MLP(3, (7,), 1), Gaussian()))
    drawn.components(np.ones((33, 3), np.float32))
    before = posterior._components._cache_size()
    for n in (34, 50, 64):
        assert drawn.components(np.ones((n, 3), np.float32))["loc"].shape == (6, n, 1)
    assert posterior._components._cache_size() == before


def test_no_rows_give_no_predictions():
    assert some_posterior().predict(np.zeros((0, 3), np.float32)).mean.shape == (0,)


def test_from_chains_lays_chain_after_chain():
    bnn = model()
    flat = bnn.init_particles(jax.random.key(0), 6)
    chains = jax.tree.map(lambda leaf: leaf.reshape(2, 3, *leaf.shape[1:]), flat)
    pooled = Posterior.from_chains(bnn, chains)
    assert (len(pooled), pooled.n_chains) == (6, 2)
    kernel, of_chains = (tree["weights"][0]["bias"] for tree in (pooled.particles, chains))
    np.testing.assert_array_equal(kernel[:3], of_chains[0])
    np.testing.assert_array_equal(kernel[3:], of_chains[1])


def test_to_arviz_has_chains_and_draws():
    bnn = model()
    chains = jax.tree.map(
        lambda leaf: leaf.reshape(2, 3, *leaf.shape[1:]), bnn.init_particles(jax.random.key(0), 6)
    )
    data = Posterior.from_chains(bnn, chains).to_arviz()
    assert dict(data.posterior.sizes)["chain"] == 2
    assert dict(data.posterior.sizes)["draw"] == 3
    bias = data.posterior["weights.0.bias"]
    assert bias.dims[:2] == ("chain", "draw")
    np.testing.assert_array_equal(bias, chains["weights"][0]["bias"])
    assert data.posterior["weights.1.kernel.c"].shape == (2, 3, 4, 1)
    assert "weights.1.kernel.v_right" not in data.posterior  # a side of one is not reflected


@pytest.mark.parametrize(
    ("particles", "n_chains", "message"),
    [
        ({"a": jnp.ones((4, 2)), "b": jnp.ones((3, 2))}, 1, "one leading axis of draws"),
        ({"a": jnp.ones(())}, 1, "one leading axis of draws"),
        ({"a": jnp.ones((0, 2))}, 1, "one leading axis of draws"),
        ({"a": jnp.ones((4, 2))}, 3, "n_chains=3 does not divide the 4 draws"),
        ({"a": jnp.ones((4, 2))}, 2.0, "n_chains=2.0 does not divide"),
    ],
)
def test_impossible_draws_are_refused(particles, n_chains, message):
    with pytest.raises(ValueError, match=message):
        Posterior(model(), particles, n_chains)


def test_a_single_row_without_its_axis_is_refused():
    with pytest.raises(ValueError, match=r"x must have shape \(rows, features\), got \(3,\)"):
        some_posterior().predict(X[0])


def test_double_precision_survives_a_pickle():
    """JAX turns float64 into float32 when it is unpickled, unless x64 is enabled just then."""
    with jax.enable_x64(True):
        drawn = some_posterior()
    back = pickle.loads(pickle.dumps(drawn))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(back.particles)} == {"float64"}
    assert_same(back, drawn)
