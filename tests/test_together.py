"""Tasks side by side: each ends as it would have alone, and what goes wrong stays its own."""

import threading
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2vgd import baselines, together, training
from s2vgd.errors import DivergedError
from s2vgd.estimators import S2VGDRegressor
from s2vgd.together import side_by_side

SETTINGS = {"hidden": (5,), "steps": 30}


def rows_of(seed, n=40):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    return x, x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=n)


def task_of(method, seed, n=40, classes=False, **changes):
    """Return a task that fits a rival to rows of its own and says what it thinks of them."""

    def task():
        x, y = rows_of(seed, n)
        y = (y > np.median(y)).astype(np.int64) if classes else y
        model = baselines.methods()[method](**{**SETTINGS, **changes}, seed=seed)
        return model.fit(x, y).predict_dist(x).log_prob(y)

    return task


@pytest.fixture
def made(monkeypatch):
    """Return a list that will hold how many trainings were made as one, in order."""
    sizes = []
    merged = together._made_as_one

    def noted(filled):
        sizes.append(len({id(wanted) for wanted in filled}))
        return merged(filled)

    monkeypatch.setattr(together, "_made_as_one", noted)
    return sizes


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("svgd", {"particles": 3, "batch_size": 7, "classes": True}),
        ("s2vgd", {"particles": 3, "batch_size": None}),
        ("s2vgd", {"particles": 3, "batch_size": 40}),
        ("vmg_dropout", {"batch_size": 7}),
    ],
)
def test_each_fit_is_what_it_would_have_been_alone(made, method, settings):
    tasks = [task_of(method, seed, **settings) for seed in range(3)]
    found = side_by_side(tasks)
    assert made == [3], "one program for all of them"
    for task, scores in zip(tasks, found, strict=True):
        np.testing.assert_allclose(scores, task(), rtol=2e-3, atol=2e-3)


def test_estimators_choose_as_they_would_alone(made, monkeypatch):
    """The trials of one length are merged, those that stop earlier wait no more."""
    monkeypatch.setattr("s2vgd.estimators._base.STEPS_TO_CHOOSE_FROM", (5, 20, 60))

    def task(seed):
        def fit():
            x, y = rows_of(seed, 60)
            model = S2VGDRegressor(
                (5,), particles=3, refine=None, noise="constant", steps="auto", random_state=seed
            ).fit(x, y)
            return model.n_iter_, model.predict(x), model.history_["log_density"]

        return fit

    tasks = [task(seed) for seed in range(4)]
    found = side_by_side(tasks)
    assert made[0] == 4, "the first trial is for all"
    assert len({steps for steps, _, _ in found}) > 1, "otherwise nobody left early"
    for one, (steps, mean, density) in zip(tasks, found, strict=True):
        wanted = one()
        assert steps == wanted[0]
        np.testing.assert_allclose(mean, wanted[1], rtol=1e-3, atol=2e-3)
        np.testing.assert_allclose(density, wanted[2], rtol=1e-3, atol=2e-2)


def test_what_is_not_alike_is_made_apart(made):
    tasks = [
        *(task_of("svgd", seed, particles=2) for seed in range(2)),
        *(task_of("svgd", seed, particles=2, steps=31) for seed in range(2)),
        task_of("svgd", 0, n=41, particles=2),
    ]
    assert [len(scores) for scores in side_by_side(tasks)] == [40, 40, 40, 40, 41]
    assert made == [2, 2]


def test_fewer_tasks_run_the_program_of_all(caplog):
    """Tasks that leave early must not make the others wait for the compiler."""

    def task(trainings):
        def train():
            return [doubled(1.0 + i) for i in range(trainings)]

        return train

    side_by_side([task(1)] * 3)
    with jax.log_compiles():
        side_by_side([task(1), task(3), task(3)])
        assert "run_steps" not in caplog.text
        side_by_side([task(1)] * 4)
    assert "run_steps" in caplog.text, "otherwise the assertion above could not fail"


class State(NamedTuple):
    particles: jax.Array


class Doubling:
    """An algorithm whose numbers double in every step."""

    @staticmethod
    def step(state, batch):
        return State(2 * state.particles), {"log_density": -state.particles[0]}


def doubled(start, **settings):
    state = State(jnp.full(1, start, jnp.float32))
    result = training.train(Doubling, state, None, key=jax.random.key(0), steps=40, **settings)
    return float(result.state.particles[0])


def test_one_that_diverges_is_told_and_the_others_get_their_results(made):
    def handled():
        with pytest.raises(DivergedError, match="step"):
            doubled(1e30)
        return doubled(3.0)

    assert side_by_side([handled, lambda: doubled(1.0)]) == [3 * 2.0**40, 2.0**40]
    assert made == [2], "tried together, then one by one; the last training had no company"


def test_trainings_that_somebody_watches_are_made_where_they_are(made):
    seen = []

    def watched():
        return doubled(1.0, callbacks=[lambda *_: seen.append(threading.current_thread())])

    assert side_by_side([watched, watched]) == [2.0**40] * 2
    assert made == [] and len(set(seen)) == 2


def test_an_error_of_a_task_is_raised_when_the_others_are_done():
    done = []

    def fails():
        doubled(1.0)
        raise OSError("no space")

    def works():
        doubled(1.0)
        doubled(1.0)
        done.append(True)

    with pytest.raises(OSError, match="no space"):
        side_by_side([fails, works])
    assert done and side_by_side([]) == []


def test_an_interrupt_leaves_no_thread_behind(monkeypatch):
    def interrupted(alike):
        raise KeyboardInterrupt

    monkeypatch.setattr(together, "_made_as_one", interrupted)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        side_by_side([lambda: doubled(1.0)] * 2)
    for _ in range(100):
        if threading.active_count() == before:
            break
        time.sleep(0.05)
    assert threading.active_count() == before


def test_precision_is_that_of_the_task(made):
    def careful():
        with jax.default_matmul_precision("highest"):
            return doubled(1.0)

    assert side_by_side([careful, lambda: doubled(1.0)]) == [2.0**40] * 2
    assert made == [], "products of one precision are not those of another"

    def task():
        with jax.enable_x64(True):
            state = State(jnp.ones(1, jnp.float64))
            result = training.train(Doubling, state, None, key=jax.random.key(0), steps=3)
            return result.state.particles.dtype

    assert side_by_side([task, task]) == [np.float64, np.float64]
