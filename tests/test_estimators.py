"""The estimators: what they predict, remember, save, and say when something is wrong."""

from __future__ import annotations

import pickle

import jax
import numpy as np
import pytest

from s2vgd import S2VGDClassifier, S2VGDRegressor, posterior, training
from s2vgd.bnn import BNN
from s2vgd.errors import DivergedError, ModelFileError
from s2vgd.estimators import _fitting
from s2vgd.predictive import CategoricalPredictive, MixturePredictive
from s2vgd.refine import RefinementWarning

# Small, and without structure, which takes half of the time to compile.
SMALL = {
    "hidden": (8,),
    "particles": 4,
    "reflections": 0,
    "scales": None,
    "refine": None,
    "steps": 150,
    "learning_rate": 0.03,
    "random_state": 0,
}


def regressor(**parameters) -> S2VGDRegressor:
    return S2VGDRegressor(**{**SMALL, "noise": "constant", **parameters})


def classifier(**parameters) -> S2VGDClassifier:
    return S2VGDClassifier(**{**SMALL, **parameters})


def table(seed: int = 0, rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    return x, np.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.1 * rng.normal(size=rows)


X, Y = table()
LABELS = np.digitize(Y, [-0.5, 0.5])  # 0, 1, 2


@pytest.fixture(scope="module")
def fitted() -> S2VGDRegressor:
    return regressor().fit(X, Y)


@pytest.fixture(scope="module")
def classified() -> S2VGDClassifier:
    return classifier().fit(X, LABELS)


# -- predictions ---------------------------------------------------------------------------------


def test_it_learns(fitted, classified):
    x, y = table(seed=1)
    assert fitted.score(x, y) > 0.85
    assert classified.score(x, np.digitize(y, [-0.5, 0.5])) > 0.75


def test_structure_is_learned_along_with_the_weights():
    model = regressor(reflections=2, scales="lognormal").fit(X, Y)
    assert model.score(*table(seed=1)) > 0.85
    kernel = model.posterior_.particles["weights"][0]["kernel"]
    assert kernel.v_right.shape == (4, 2, 8)
    assert np.all(np.asarray(kernel.s_right) != 0.0)


def test_every_prediction_is_the_predictives(fitted):
    dist = fitted.predict_dist(X)
    assert isinstance(dist, MixturePredictive)
    assert len(dist) == 60 and dist.n_draws == 4
    np.testing.assert_array_equal(fitted.predict(X), dist.mean)
    mean, std = fitted.predict(X, return_std=True)
    np.testing.assert_array_equal(mean, dist.mean)
    np.testing.assert_array_equal(std, dist.std)
    lower, upper = fitted.predict_interval(X, level=0.8)
    np.testing.assert_array_equal((lower, upper), dist.interval(0.8))
    assert np.all(lower < upper)
    np.testing.assert_array_equal(fitted.predict_quantiles(X, 0.25), dist.quantile(0.25))
    quantiles = fitted.predict_quantiles(X, [0.1, 0.5, 0.9])
    assert quantiles.shape == (60, 3)
    np.testing.assert_array_equal(quantiles, dist.quantile([0.1, 0.5, 0.9]).T)
    assert np.all(np.diff(quantiles, axis=1) > 0)


def test_samples_scatter_as_the_predictive_says(fitted):
    drawn = fitted.sample(X[:5], n=4000)
    assert drawn.shape == (4000, 5)
    mean, std = fitted.predict(X[:5], return_std=True)
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 5 * std / np.sqrt(4000))
    np.testing.assert_allclose(drawn.std(axis=0), std, rtol=0.1)
    np.testing.assert_array_equal(drawn, fitted.sample(X[:5], n=4000))
    assert not np.array_equal(drawn, fitted.sample(X[:5], n=4000, random_state=1))


def test_probabilities_and_what_goes_with_them(classified):
    probabilities = classified.predict_proba(X)
    assert probabilities.shape == (60, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-6)
    dist = classified.predict_dist(X)
    assert isinstance(dist, CategoricalPredictive)
    np.testing.assert_array_equal(dist.mean, probabilities)
    np.testing.assert_array_equal(classified.predict(X), probabilities.argmax(axis=1))
    lower, upper = classified.predict_interval(X, 0.5)
    assert lower.shape == upper.shape == (60, 3)
    assert np.all(lower <= upper)
    assert classified.predict_quantiles(X, 0.5).shape == (60, 3)
    assert classified.predict_quantiles(X, [0.2, 0.8]).shape == (60, 3, 2)
    drawn = classified.sample(X, n=2000)
    assert drawn.shape == (2000, 60)
    for label in range(3):
        np.testing.assert_allclose(
            np.mean(drawn == label, axis=0), probabilities[:, label], atol=0.06
        )


@pytest.mark.parametrize(
    "labels",
    [
        LABELS * 10,
        LABELS > 1,
        np.array(["low", "middling", "high"])[LABELS],
        np.array(["low", "middling", "high"], object)[LABELS],
        LABELS - 1.0,
    ],
    ids=["int", "bool", "str", "object", "float"],
)
def test_labels_of_any_type_come_back_and_survive_a_file(labels, tmp_path):
    model = classifier().fit(X, labels)
    assert model.classes_.dtype == labels.dtype
    np.testing.assert_array_equal(model.classes_, np.unique(labels))
    predicted = model.predict(X)
    assert predicted.dtype == labels.dtype
    assert np.mean(predicted == labels) > 0.8
    model.save(tmp_path / "model")
    back = S2VGDClassifier.load(tmp_path / "model")
    assert back.classes_.dtype == labels.dtype
    np.testing.assert_array_equal(back.predict(X), predicted)
    np.testing.assert_array_equal(back.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(back.sample(X, 3), model.sample(X, 3))


def test_several_targets():
    both = np.column_stack([Y, 100 - 7 * Y])
    model = regressor().fit(X, both)
    assert model.predict(X).shape == (60, 2)
    assert model.score(X, both) > 0.9
    assert model.predict_quantiles(X, [0.1, 0.9]).shape == (60, 2, 2)
    assert model.sample(X, 3).shape == (3, 60, 2)
    assert all(end.shape == (60, 2) for end in model.predict_interval(X))
    with pytest.raises(ValueError, match="y must have 2 targets, got 1"):
        model.partial_fit(X, Y)


def test_a_column_of_targets_stays_a_column(fitted):
    model = regressor().fit(X, Y[:, None])
    np.testing.assert_array_equal(model.predict(X), fitted.predict(X)[:, None])


# -- scaling -------------------------------------------------------------------------------------


def test_units_of_the_target_make_no_difference(fitted):
    mean, std = fitted.predict(X, return_std=True)
    other, other_std = regressor().fit(X, 1000.0 * Y - 3e4).predict(X, return_std=True)
    np.testing.assert_allclose(other, 1000.0 * mean - 3e4, rtol=1e-3)
    np.testing.assert_allclose(other_std, 1000.0 * std, rtol=1e-2)


def test_units_of_the_inputs_make_no_difference(fitted):
    units, offset = np.array([1e-3, 1.0, 1e4]), np.array([5.0, -1.0, 1e6])
    model = regressor().fit(X * units + offset, Y)
    np.testing.assert_allclose(model.predict(X * units + offset), fitted.predict(X), atol=0.01)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_units_may_be_absurd(unit, fitted):
    model = regressor().fit(X * unit, Y * unit)
    np.testing.assert_allclose(model.predict(X * unit) / unit, fitted.predict(X), atol=0.01)


@pytest.mark.parametrize("constant", [0.0, 3.3, 1e9])
def test_a_constant_column_changes_nothing(constant):
    x = X.copy()
    x[:, 2] = constant
    model = regressor().fit(x, Y)
    assert np.all(np.isfinite(model.predict(x)))
    assert model.score(x, Y) > 0.9


def test_a_constant_target_is_predicted():
    mean, std = regressor().fit(X, np.full(60, 12.5)).predict(X, return_std=True)
    np.testing.assert_allclose(mean, 12.5, atol=0.2)
    assert np.all(np.isfinite(std))


# -- randomness and compilation ------------------------------------------------------------------


def test_the_seed_decides_everything(fitted):
    again = regressor().fit(X, Y)
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(again.predict_interval(X), fitted.predict_interval(X))
    other = regressor(random_state=1).fit(X, Y)
    assert not np.any(other.predict(X) == fitted.predict(X))


def test_no_seed_means_a_new_one_each_time():
    first, second = (regressor(random_state=None).fit(X, Y).predict(X) for _ in range(2))
    assert not np.array_equal(first, second)


def test_a_generator_as_seed_moves_on():
    state = np.random.RandomState(0)
    first, second = (regressor(random_state=state).fit(X, Y).predict(X) for _ in range(2))
    assert not np.array_equal(first, second)
    again = regressor(random_state=np.random.RandomState(0)).fit(X, Y).predict(X)
    np.testing.assert_array_equal(first, again)


@pytest.fixture
def traced(monkeypatch) -> list[str]:
    """Note each time that the log density is traced, which is each time that it is compiled."""
    seen = []
    log_joint = BNN.log_joint

    def counted(self, particle, batch, *settings):
        seen.append(repr(batch))
        return log_joint(self, particle, batch, *settings)

    monkeypatch.setattr(BNN, "log_joint", counted)
    return seen


def test_a_second_fit_of_the_same_shape_compiles_nothing(fitted, traced):
    x, y = table(seed=5)
    fitted.predict(x)
    before = posterior._components._cache_size()
    model = regressor(random_state=3).fit(x, y)
    model.predict(x)
    assert traced == []
    assert posterior._components._cache_size() == before


def test_a_fit_of_another_shape_is_seen_to_compile(traced):
    """Otherwise the test above could not fail."""
    regressor(steps=1).fit(X[:17], Y[:17])
    assert traced


# -- refinement ----------------------------------------------------------------------------------

CHAINS = {"refine": "mclmc", "warmup": 200, "draws": 20, "thin": 5}


@pytest.fixture(scope="module")
def refined() -> S2VGDRegressor:
    return regressor(**CHAINS).fit(X, Y)


def test_refinement_pools_the_draws_of_a_chain_a_particle(refined, fitted):
    assert fitted.diagnostics_ is None
    assert len(refined.posterior_) == 4 * 20
    assert refined.posterior_.n_chains == 4
    assert refined.diagnostics_.method == "mclmc"
    assert refined.diagnostics_.r_hat.shape == (32,)  # of the first rows
    assert refined.score(*table(seed=1)) > 0.85


def test_refinement_restores_the_spread(refined, fitted):
    """Particles of SVGD lie too close together: the reason for refinement."""
    x, _ = table(seed=1)
    spread = [np.median(model.predict_dist(x).epistemic) for model in (refined, fitted)]
    assert spread[0] > spread[1]


def test_intervals_of_new_rows_cover_what_they_say(refined):
    x, y = table(seed=1, rows=1000)
    for level in (0.5, 0.9):
        lower, upper = refined.predict_interval(x, level)
        assert abs(np.mean((lower < y) & (y < upper)) - level) < 0.15


def test_a_second_refinement_compiles_nothing_and_is_the_same(refined, traced):
    again = regressor(**CHAINS).fit(X, Y)
    assert traced == []
    np.testing.assert_array_equal(again.predict(X), refined.predict(X))


def test_fewer_chains_than_particles_and_too_short_ones_are_reported():
    short = {**CHAINS, "chains": 2, "warmup": 1, "draws": 4, "thin": 1}
    with pytest.warns(RefinementWarning):
        model = regressor(**short).fit(X, Y)
    assert model.posterior_.n_chains == 2
    assert len(model.posterior_) == 2 * 4


# -- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["constant", "input"])
def test_integer_weights_are_repeated_rows(noise):
    weight = np.random.default_rng(0).integers(0, 4, size=60)
    double = {"noise": noise, "dtype": "float64", "steps": 40}
    weighted = regressor(**double).fit(X, Y, sample_weight=weight)
    repeated = regressor(**double).fit(np.repeat(X, weight, axis=0), np.repeat(Y, weight))
    for one, other in zip(
        weighted.predict(X, return_std=True), repeated.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)


def test_rows_without_weight_leave_no_trace(fitted):
    x, y = np.vstack([X, 1e6 * np.ones((5, 3))]), np.append(Y, np.full(5, -1e9))
    model = regressor().fit(x, y, sample_weight=np.repeat([1.0, 0.0], [60, 5]))
    np.testing.assert_array_equal(model.predict(X), fitted.predict(X))
    labels = np.append(LABELS, np.full(5, 99))
    model = classifier().fit(x, labels, sample_weight=np.repeat([1.0, 0.0], [60, 5]))
    np.testing.assert_array_equal(model.classes_, [0, 1, 2])


def test_weights_pull_the_fit():
    """Two contradictory halves: the heavier one wins."""
    x = np.vstack([X, X])
    y = np.concatenate([Y, -Y])
    heavy = np.repeat([1.0, 30.0], 60)
    model = regressor().fit(x, y, sample_weight=heavy)
    assert np.corrcoef(model.predict(X), -Y)[0, 1] > 0.8


# -- more rows later -----------------------------------------------------------------------------


def test_partial_fit_in_two_parts_ends_near_the_full_fit(fitted):
    x, y = table(seed=1)
    model = regressor().partial_fit(X[:15], Y[:15])
    first = model.score(x, y)
    assert model.partial_fit(X[15:], Y[15:]) is model
    assert model.score(x, y) > first
    mean, std = fitted.predict(x, return_std=True)
    assert np.mean(np.abs(model.predict(x) - mean) < 2 * std) > 0.9
    np.testing.assert_allclose(model.predict(x), mean, atol=0.5)


def test_a_first_partial_fit_is_a_fit(fitted):
    model = regressor().partial_fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), fitted.predict(X))


def test_partial_fit_goes_on_with_rows_one_at_a_time():
    model = regressor(steps=5).fit(X[:20], Y[:20])
    model.partial_fit(X[20:21], Y[20:21], sample_weight=[2.0])
    x, y, weight = model._rows
    assert x.shape == (21, 3) and y.shape == (21, 1)
    np.testing.assert_array_equal(weight, [1.0] * 20 + [2.0])


def test_partial_fit_forgets_nothing_when_fit_is_called_again(fitted):
    model = regressor().fit(X[:30], Y[:30]).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), fitted.predict(X))


def test_partial_fit_of_classes_to_come():
    first = LABELS < 2
    model = classifier(steps=20).partial_fit(X[first], LABELS[first], classes=[0, 1, 2])
    assert model.predict_proba(X).shape == (60, 3)
    model.set_params(steps=150).partial_fit(X[~first], LABELS[~first])
    assert model.score(X, LABELS) > 0.8
    with pytest.raises(ValueError, match=r"labels that are not in classes: \[7\]"):
        model.partial_fit(X[:1], [7])
    with pytest.raises(ValueError, match="labels that are not in classes"):
        model.partial_fit(X[:1], ["a"])
    with pytest.raises(ValueError, match="not the same as in the first call"):
        model.partial_fit(X[:1], [1], classes=[0, 1])


def test_partial_fit_cannot_change_the_network():
    model = regressor(steps=5).fit(X[:20], Y[:20])
    with pytest.raises(ValueError, match="hidden, activation, reflections, scales, prior"):
        model.set_params(hidden=(5,)).partial_fit(X, Y)
    model.set_params(hidden=(8,), particles=7).partial_fit(X[20:40], Y[20:40])
    assert len(model.posterior_) == 4  # it goes on with the particles that there are


# -- files ---------------------------------------------------------------------------------------


def same_everything(one: S2VGDRegressor, other: S2VGDRegressor) -> None:
    assert repr(one) == repr(other)
    assert one.n_features_in_ == other.n_features_in_
    np.testing.assert_array_equal(
        one.predict(X, return_std=True), other.predict(X, return_std=True)
    )
    np.testing.assert_array_equal(one.predict_interval(X), other.predict_interval(X))
    np.testing.assert_array_equal(one.sample(X, 2), other.sample(X, 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_saved_regressor_predicts_the_same_bits(dtype, tmp_path):
    model = regressor(dtype=dtype, checkpoint_dir=tmp_path / "checkpoints").fit(X, Y)
    model.save(tmp_path / "model")
    model.set_params(checkpoint_dir=str(tmp_path / "checkpoints"))
    same_everything(S2VGDRegressor.load(tmp_path / "model"), model)
    same_everything(pickle.loads(pickle.dumps(model)), model)


def test_a_refined_regressor_is_saved_whole(refined, tmp_path):
    refined.save(tmp_path / "model")
    back = S2VGDRegressor.load(tmp_path / "model")
    assert back.posterior_.n_chains == 4
    same_everything(back, refined)


def test_names_of_columns_are_saved(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    regressor().fit(frame, Y).save(tmp_path / "model")
    back = S2VGDRegressor.load(tmp_path / "model")
    assert list(back.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names should match"):
        back.predict(frame[["b", "a", "c"]])


def test_partial_fit_after_loading_needs_the_rows(fitted, tmp_path):
    fitted.save(tmp_path / "without")
    without = S2VGDRegressor.load(tmp_path / "without")
    with pytest.raises(ValueError, match=r"partial_fit needs the rows .* save\(path, rows=True\)"):
        without.partial_fit(X[:1], Y[:1])
    with pytest.raises(ValueError, match="rows=True needs the rows"):
        without.save(tmp_path / "again", rows=True)
    without.fit(X, Y)  # from the start is fine
    np.testing.assert_array_equal(without.predict(X), fitted.predict(X))


def test_partial_fit_after_loading_with_rows_goes_on_as_if_nothing_had_happened(tmp_path):
    model = regressor().fit(X[:40], Y[:40], sample_weight=np.linspace(0.5, 1.5, 40))
    model.save(tmp_path / "model", rows=True)
    back = S2VGDRegressor.load(tmp_path / "model")
    for one in (model, back):
        one.partial_fit(X[40:], Y[40:])
    same_everything(model, back)


def test_a_classifier_goes_on_after_loading(classified, tmp_path):
    classified.save(tmp_path / "model", rows=True)
    back = S2VGDClassifier.load(tmp_path / "model").partial_fit(X, LABELS)
    assert back.score(X, LABELS) > 0.8


def test_the_wrong_kind_a_damaged_file_and_a_pickle_are_refused(fitted, classified, tmp_path):
    fitted.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="holds a 'regressor', not a 'classifier'"):
        S2VGDClassifier.load(tmp_path / "model")
    with pytest.raises(ModelFileError, match="holds a 'regressor', not a 'posterior'"):
        posterior.Posterior.load(tmp_path / "model")
    with pytest.raises(ModelFileError, match="cannot save a 'classifier'"):
        classified.save(tmp_path / "model")
    (tensors,) = (tmp_path / "model").glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="is damaged"):
        S2VGDRegressor.load(tmp_path / "model")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(fitted))
    with pytest.raises(ModelFileError, match="it is a file"):
        S2VGDRegressor.load(tmp_path / "model.pkl")


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, metadata: metadata["parameters"].update(evil=1),
        lambda arrays, metadata: metadata["parameters"].update(hidden="8"),
        lambda arrays, metadata: metadata["parameters"].update(particles=-1),
        lambda arrays, metadata: metadata["targets"].update(noise="pink"),
        lambda arrays, metadata: metadata.update(features=4),
        lambda arrays, metadata: metadata.pop("seed"),
        lambda arrays, metadata: metadata.pop("posterior"),
        lambda arrays, metadata: metadata.update(posterior=None),
        lambda arrays, metadata: arrays.pop("y_scale"),
        lambda arrays, metadata: arrays.update(x_shift=np.zeros(7)),
        lambda arrays, metadata: arrays.pop("start/likelihood/log_precision"),
    ],
)
def test_a_regressor_made_up_by_somebody_is_refused(fitted, change, tmp_path):
    from s2vgd import files

    fitted.save(tmp_path / "model", rows=True)
    arrays, metadata, version = files.load_directory(
        tmp_path / "model", kind="regressor", max_version=1
    )
    change(arrays, metadata)
    files.save_directory(tmp_path / "model", arrays, metadata, kind="regressor", version=version)
    with pytest.raises(ModelFileError):
        S2VGDRegressor.load(tmp_path / "model")


def test_nothing_can_be_saved_before_it_is_fitted(tmp_path):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        regressor().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_generator_is_not_saved(tmp_path):
    model = regressor(random_state=np.random.RandomState(0)).fit(X, Y)
    with pytest.warns(UserWarning, match="random_state is saved as None"):
        model.save(tmp_path / "model")
    back = S2VGDRegressor.load(tmp_path / "model")
    assert back.random_state is None
    np.testing.assert_array_equal(back.sample(X, 2), model.sample(X, 2))


# -- noise ---------------------------------------------------------------------------------------


def test_noise_of_grades_is_no_finer_than_their_rounding(tmp_path):
    """Where targets are whole numbers, no row may be predicted as if they were not."""
    grades = np.round(3 * Y)
    model = regressor(noise="input", steps=20).fit(X, grades)
    least = 1 / 12**0.5  # the standard deviation of rounding to whole numbers
    assert model.posterior_.bnn.likelihood.floor == pytest.approx(least / grades.std())
    _, std = model.predict(X, return_std=True)
    assert std.min() > least
    model.save(tmp_path / "model", rows=True)
    S2VGDRegressor.load(tmp_path / "model").partial_fit(X[:3], grades[:3])
    # Measurements that hardly ever repeat have no such step.
    assert regressor(noise="input", steps=1).fit(X, Y).posterior_.bnn.likelihood.floor == 1e-3


@pytest.mark.parametrize(
    ("parameters", "steps"),
    [({"refine": None}, 4000), ({"refine": None, "batch_size": 16}, 8000), ({}, 1000)],
)
def test_steps_by_default(parameters, steps):
    assert S2VGDRegressor(**parameters)._recipe(200).steps == steps


@pytest.mark.filterwarnings("ignore::s2vgd.refine.RefinementWarning")  # short on purpose
def test_a_refined_fit_has_a_particle_a_chain():
    model = regressor(particles=6, chains=2, refine="mclmc", warmup=20, draws=4, thin=1, steps=5)
    model.fit(np.tile(X, (2, 1)), np.tile(Y, 2))
    assert model.posterior_.n_chains == 2 and len(model.posterior_) == 8


@pytest.mark.parametrize("noise", ["student_t", "laplace"])
def test_heavy_tails_ignore_outliers(noise):
    y = Y.copy()
    y[::10] += 30.0
    model = regressor(noise=noise).fit(X, y)
    good = np.arange(60) % 10 != 0
    assert np.sqrt(np.mean((model.predict(X) - Y)[good] ** 2)) < 1.0


# -- long runs -----------------------------------------------------------------------------------


def test_a_fit_goes_on_from_its_checkpoint(fitted, tmp_path, monkeypatch):
    """Interrupted in the middle and started again, it ends where it would have."""
    from s2vgd import checkpoints

    class Interrupted(Exception):
        pass

    save = checkpoints.Store.save

    def save_and_stop(self, run):
        save(self, run)
        if run.step >= 75:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Store, "save", save_and_stop)
        with pytest.raises(Interrupted):
            regressor(checkpoint_dir=tmp_path).fit(X, Y)
    resumed = regressor(checkpoint_dir=tmp_path)
    resumed.fit(X, Y)
    np.testing.assert_array_equal(resumed.predict(X), fitted.predict(X))
    with pytest.raises(ModelFileError, match="belongs to another run"):
        regressor(checkpoint_dir=tmp_path).fit(X, Y + 1.0 * X[:, 0])
    resumed.partial_fit(X, Y)  # a run of its own, which is not refused


def test_many_rows_are_predicted_in_blocks(fitted, monkeypatch):
    x, _ = table(seed=2, rows=50)
    whole = fitted.predict(x), fitted.predict_interval(x), fitted.predict_quantiles(x, [0.3, 0.6])
    sizes = []
    components = posterior.Posterior.components

    def noted(self, x):
        sizes.append(len(x))
        return components(self, x)

    monkeypatch.setattr(posterior.Posterior, "components", noted)
    monkeypatch.setattr(posterior, "_BLOCK", 16 * 4)
    parts = fitted.predict(x), fitted.predict_interval(x), fitted.predict_quantiles(x, [0.3, 0.6])
    assert sizes == [16, 16, 16, 2] * 3
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_batches_are_used_where_they_are_asked_for(fitted):
    model = regressor(batch_size=16).fit(X, Y)
    assert model.score(X, Y) > 0.8
    assert not np.array_equal(model.predict(X), fitted.predict(X))


def test_verbose_shows_how_far_it_is(capfd):
    regressor(verbose=True).fit(X, Y)
    shown = capfd.readouterr().err
    assert "SVGD 150/150" in shown
    assert "log density" in shown
    regressor().fit(X, Y)
    assert capfd.readouterr().err == ""


def test_a_divergence_raises_and_leaves_no_model():
    model = regressor(learning_rate=1e20)
    with pytest.raises(DivergedError, match="smaller learning rate"):
        model.fit(X, Y)
    assert not hasattr(model, "posterior_")


def test_history_says_how_the_fit_went(fitted):
    log_density = fitted.history_["log_density"]
    assert len(log_density) == len(fitted.history_["step"]) == 150
    assert np.mean(log_density[-10:]) > np.mean(log_density[:10])
    assert fitted.n_iter_ == 150


@pytest.mark.parametrize(("most", "brief"), [(1e9, True), (100, False)])
def test_only_short_fits_are_compiled_in_less_time(monkeypatch, most, brief):
    asked, real = [], training.train

    def train(*arguments, **options):
        asked.append(options["brief"])
        return real(*arguments, **options)

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(_fitting, "BRIEF_WORK", most)
    regressor(noise="input", refine=None).fit(X, Y)
    assert set(asked) == {brief}
