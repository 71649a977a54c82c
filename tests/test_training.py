"""The training loop: the same numbers however it is cut up, interrupted, watched or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from s2vgd import _compiled, files, svgd
from s2vgd._packed import Carried
from s2vgd.errors import DivergedError, ModelFileError
from s2vgd.loop import carried_by, compiled_loop
from s2vgd.training import cosine_adam, train

KEY = jax.random.key(5)
N_ROWS = 23


class Batch(NamedTuple):
    x: Any
    y: Any
    weight: Any = None


class State(NamedTuple):
    particles: Any
    opt_state: Any
    step: Any
    key: Any
    poison: Any = None


class Info(NamedTuple):
    log_density: Any
    rows: Any


class Algorithm(NamedTuple):
    step: Any


def make_data(n_rows=N_ROWS):
    x = np.random.default_rng(0).normal(size=(n_rows, 3)).astype(np.float32)
    return Batch(x, x @ np.array([1.0, -2.0, 0.5], np.float32))


def log_density(particle, batch):
    return -jnp.mean((batch.x @ particle["w"] - batch.y) ** 2) - 0.01 * jnp.sum(particle["w"] ** 2)


OPTIMIZER = cosine_adam(0.05, 100)
NEVER = 10**6


def step(state, batch):
    """Noisy ascent; the state's poison says at which step what becomes NaN."""
    value, gradient = jax.vmap(jax.value_and_grad(log_density), (0, None))(state.particles, batch)
    updates, opt_state = OPTIMIZER.update(jax.tree.map(jnp.negative, gradient), state.opt_state)
    w = optax.apply_updates(state.particles, updates)["w"]
    key, subkey = jax.random.split(state.key)
    w = w + 1e-3 * jax.random.normal(subkey, w.shape, w.dtype)
    now = state.step + 1
    w = jnp.where(now >= state.poison["particles"], jnp.inf, w)
    value = jnp.where(now >= state.poison["log density"], jnp.nan, value)
    return State({"w": w}, opt_state, now, key, state.poison), Info(value.mean(), batch.y)


ALGORITHM = Algorithm(step)


def make_state(seed=1, **poison):
    particles = {"w": jax.random.normal(jax.random.key(seed), (4, 3))}
    poison = {"particles": NEVER, "log density": NEVER} | poison
    return State(
        particles,
        OPTIMIZER.init(particles),
        jnp.zeros((), jnp.int32),
        jax.random.key(2),
        jax.tree.map(jnp.asarray, poison),
    )


def run(algorithm=ALGORITHM, state=None, data=None, *, key=KEY, steps=90, batch_size=5, **options):
    state = make_state() if state is None else state
    data = make_data() if data is None else data
    if "epochs" in options:
        steps = None
    return train(algorithm, state, data, key=key, steps=steps, batch_size=batch_size, **options)


def same_bits(one, other):
    pairs = zip(
        files.tree_to_arrays(one, "t").items(),
        files.tree_to_arrays(other, "t").items(),
        strict=True,
    )
    return all(a == b and x.tobytes() == y.tobytes() for (a, x), (b, y) in pairs)


class Killed(Exception):
    """Stands for the death of the process in the tests that stay in this one."""


def die_at(step):
    def callback(now, state, info):
        if now >= step:
            raise Killed

    return callback


def negative_error(particles):
    """A validation score that rises and then, from some step on, falls again."""
    return -float(jnp.mean((particles["w"] - jnp.array([0.4, -0.9, 0.3])) ** 2))


# --- the steps ---


def test_full_batches_are_the_steps_one_by_one():
    state, data = make_state(), jax.tree.map(jnp.asarray, make_data())
    expected, log_densities, one_step = state, [], jax.jit(step)
    for _ in range(30):
        expected, info = one_step(expected, data)
        log_densities.append(info.log_density)
    for batch_size in (None, N_ROWS, N_ROWS + 10):
        result = run(steps=30, batch_size=batch_size, chunk=7)
        np.testing.assert_allclose(
            result.state.particles["w"], expected.particles["w"], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(result.history["log_density"], log_densities, rtol=1e-4)
        assert result.history["step"].tolist() == list(range(1, 31))
        assert result.stopped_at == 30


def rows_seen(**options):
    """Which rows each step saw, by their distinct targets: (steps, batch)."""
    data = make_data()
    row_of = {float(target): row for row, target in enumerate(data.y)}
    return np.vectorize(row_of.get)(run(data=data, **options).history["rows"])


def test_an_epoch_sees_each_row_once_at_most_and_epochs_differ():
    rows = rows_seen(steps=40, batch_size=5, chunk=9)
    epochs = rows.reshape(10, 4 * 5)
    for epoch in epochs:
        assert len(set(epoch.tolist())) == 20
    assert len({tuple(epoch) for epoch in epochs}) == 10
    assert set(rows.ravel().tolist()) == set(range(N_ROWS)), "what is left out must change"


def test_the_order_of_rows_depends_on_the_key_alone():
    rows = rows_seen(steps=12)
    np.testing.assert_array_equal(rows, rows_seen(steps=12, state=make_state(seed=9), chunk=5))
    assert not np.array_equal(rows, rows_seen(steps=12, key=jax.random.key(6)))


def test_epochs_count_full_batches():
    assert run(epochs=3, batch_size=5).stopped_at == 3 * (N_ROWS // 5)
    assert run(epochs=3, batch_size=None).stopped_at == 3


def test_a_density_without_data_trains_on_none():
    def halve(state, batch):
        assert batch is None
        particles = 0.5 * state.particles
        return State(particles, (), state.step + 1, None), {"log_density": -jnp.sum(particles**2)}

    state = State(jnp.ones((2, 2)), (), jnp.zeros((), int), None)
    result = train(Algorithm(halve), state, None, key=KEY, steps=3)
    np.testing.assert_array_equal(result.state.particles, np.full((2, 2), 0.125))
    assert result.history["log_density"].tolist() == [-1.0, -0.25, -0.0625]


def test_double_precision_is_kept():
    with jax.enable_x64(True):
        state = make_state()
        state = state._replace(
            particles=jax.tree.map(lambda leaf: leaf.astype(jnp.float64), state.particles)
        )
        state = state._replace(opt_state=OPTIMIZER.init(state.particles))
        data = jax.tree.map(lambda leaf: leaf.astype(np.float64), make_data())
        result = run(state=state, data=data, steps=12)
        assert result.state.particles["w"].dtype == jnp.float64


# --- cutting it up ---


@pytest.mark.optimised
@pytest.mark.parametrize("batch_size", [None, 5])
def test_looking_more_often_does_not_change_a_bit(tmp_path, batch_size):
    plain = run(batch_size=batch_size)
    for i, options in enumerate(
        [
            {"chunk": 1},
            {"chunk": 7, "checkpoint_every": 13, "checkpoint_dir": tmp_path / "a"},
            {"chunk": 90, "checkpoint_every": 1, "checkpoint_dir": tmp_path / "b"},
            {"chunk": 1000, "callbacks": [lambda step, state, info: None]},
        ]
    ):
        other = run(batch_size=batch_size, **options)
        assert same_bits(plain.state, other.state), i
        assert same_bits(plain.history, other.history), i


@pytest.mark.optimised
def test_long_chunks_are_the_same_steps_too():
    """More steps in a chunk than the loop's buffer holds."""
    assert same_bits(run(steps=600, chunk=600).state, run(steps=600, chunk=50).state)


@pytest.mark.optimised
def test_a_brief_training_is_another_program_for_the_same_training(tmp_path):
    """Up to rounding; and killed and resumed it is itself, to the last bit."""
    has_option = "xla_cpu_use_fusion_emitters" not in _compiled._unknown()  # in JAX 0.10
    assert (_compiled.effort("brief") != _compiled.effort("loop")) == has_option
    assert compiled_loop(step, 5, True) is not compiled_loop(step, 5)
    whole = run(brief=True)
    np.testing.assert_allclose(
        whole.state.particles["w"], run().state.particles["w"], rtol=1e-4, atol=1e-5
    )
    kept = {"checkpoint_dir": tmp_path, "checkpoint_every": 10, "chunk": 5, "brief": True}
    with pytest.raises(Killed):
        run(**kept, callbacks=[die_at(25)])
    assert same_bits(whole.state, run(**kept).state)


def test_nothing_is_compiled_or_traced_twice(tmp_path):
    """Not for other lengths, a last short chunk, nor a resumed run."""
    traces = []

    def counted(state, batch):
        traces.append(1)
        return step(state, batch)

    algorithm = Algorithm(counted)
    for steps, chunk in ((50, 20), (50, 20), (37, 36), (300, 300)):
        run(algorithm, steps=steps, chunk=chunk)
    kept = {"checkpoint_dir": tmp_path, "checkpoint_every": 10, "chunk": 5}
    with pytest.raises(Killed):
        run(algorithm, **kept, callbacks=[die_at(25)])
    run(algorithm, **kept)
    assert len(traces) == 1
    assert compiled_loop(counted, 5)._cache_size() == 1


def test_the_callers_state_survives_and_numbers_start_from_it_again():
    state = make_state()
    one, other = run(state=state), run(state=state)
    assert same_bits(one.state, other.state)
    assert same_bits(state, make_state())


def test_history_of_a_long_run_is_thinned_evenly():
    full, thin = run(steps=1000), run(steps=5000, chunk=500)
    steps = thin.history["step"]
    assert full.history["step"].tolist() == list(range(1, 1001))
    assert 512 < len(steps) <= 1024
    assert set(np.diff(steps)) == {8}
    assert steps[0] == 1
    early = steps <= 1000
    np.testing.assert_array_equal(
        thin.history["log_density"][early], full.history["log_density"][steps[early] - 1]
    )


# --- callbacks and early stopping ---


def test_callbacks_see_each_chunk_and_may_keep_what_they_see():
    seen = []
    run(steps=25, chunk=10, callbacks=[lambda *args: seen.append(args)])
    assert [step for step, _, _ in seen] == [10, 20, 25]
    for step, state, info in seen:
        short = run(steps=step)
        assert same_bits(state, short.state)
        assert info.log_density == short.history["log_density"][-1]


def test_checkpoints_and_validations_do_not_change_when_callbacks_are_called(tmp_path):
    seen = []
    run(
        steps=25,
        chunk=10,
        callbacks=[lambda step, *_: seen.append(step)],
        checkpoint_dir=tmp_path,
        checkpoint_every=4,
        validation=negative_error,
        validate_every=3,
    )
    assert seen == [10, 20, 25]


def test_any_callback_can_stop_and_all_are_called():
    seen = []
    result = run(
        chunk=10,
        callbacks=[lambda step, *_: step == 30, lambda step, *_: seen.append(step)],
    )
    assert result.stopped_at == 30
    assert seen == [10, 20, 30]
    assert same_bits(result.state, run(steps=30).state)


def test_validation_returns_the_best_state_and_patience_stops():
    states = {}

    def remember(step, state, info):
        states[step] = state

    full = run(validation=negative_error, validate_every=4, callbacks=[remember], chunk=2)
    scores, steps = full.history["validation_score"], full.history["validation_step"]
    assert steps.tolist() == [*range(4, 90, 4), 90], "the last step is always looked at"
    best = int(np.argmax(scores))
    assert 0 < best < len(scores) - 4, "the best must be in the middle for this test to tell"
    assert full.stopped_at == 90
    assert same_bits(full.state, states[int(steps[best])])
    assert scores[best] == negative_error(full.state.particles)

    short = run(validation=negative_error, validate_every=4, patience=3)
    assert short.stopped_at == steps[best + 3]
    assert same_bits(short.state, full.state)


def test_equal_scores_keep_the_first():
    result = run(steps=20, validation=lambda particles: 1.0, validate_every=5, patience=2)
    assert result.stopped_at == 15
    assert same_bits(result.state, run(steps=5).state)


# --- checkpoints ---


def test_a_finished_run_is_not_run_again_and_can_be_made_longer(tmp_path):
    calls = []
    options = {"checkpoint_dir": tmp_path, "callbacks": [lambda step, *_: calls.append(step)]}
    first = run(steps=40, **options)
    calls.clear()
    again = run(steps=40, **options)
    assert calls == []
    assert again.stopped_at == 40
    assert same_bits(again.state, first.state)
    assert same_bits(again.history, first.history)
    assert same_bits(run(steps=90, **options).state, run(steps=90).state)


def test_resume_false_starts_again(tmp_path):
    run(steps=40, checkpoint_dir=tmp_path)
    steps = []
    result = run(
        steps=20,
        chunk=5,
        checkpoint_dir=tmp_path,
        resume=False,
        callbacks=[lambda step, *_: steps.append(step)],
    )
    assert steps == [5, 10, 15, 20]
    assert same_bits(result.state, run(steps=20).state)


@pytest.mark.parametrize("patience", [None, 3])
@pytest.mark.parametrize("died_at", [2, 17, 41])
def test_early_stopping_goes_on_where_it_was(tmp_path, patience, died_at):
    options = {"validation": negative_error, "validate_every": 4, "patience": patience}
    whole = run(**options)
    kept = {"checkpoint_dir": tmp_path, "checkpoint_every": 3, **options}
    if died_at < whole.stopped_at:
        with pytest.raises(Killed):
            run(**kept, chunk=1, callbacks=[die_at(died_at)])
    else:
        run(**kept)
    resumed = run(**kept)
    assert resumed.stopped_at == whole.stopped_at
    assert same_bits(resumed.state, whole.state)
    assert same_bits(resumed.history, whole.history)


def be_killed(directory: str, how: str) -> None:
    """Train in a process of its own that kills itself, without warning, at a point."""
    kill_at_replace = {"tensors": 1, "manifest": 2}.get(how)
    replace, calls = os.replace, []

    def deadly_replace(*args):
        calls.append(args)
        if len(calls) == kill_at_replace:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*args)

    def deadly_callback(step, state, info):
        if how == "step" and step >= 35:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = deadly_replace
    run(**KILLED_RUN, checkpoint_dir=directory, chunk=5, callbacks=[deadly_callback])


KILLED_RUN: dict[str, Any] = {
    "checkpoint_every": 10,
    "validation": negative_error,
    "validate_every": 7,
}


def test_kill_9_and_resume_is_bit_identical(tmp_path):
    """Processes killed between steps and inside the writing of a checkpoint, one after another."""
    whole = run(validation=negative_error, validate_every=7)
    target = tmp_path / "checkpoint"
    at_step = {}
    for how in ("tensors", "step", "manifest"):
        code = f"import test_training; test_training.be_killed({str(target)!r}, {how!r})"
        paths = [str(Path(__file__).parent), str(Path(files.__file__).parents[1])]
        process = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert process.returncode == -signal.SIGKILL, process.stderr
        if files.is_saved(target):
            _, metadata, _ = files.load_directory(target, kind="checkpoint", max_version=1)
            at_step[how] = metadata["step"]
    # The first died in its first save; the last with a new tensor file but the old manifest.
    assert at_step == {"step": 30, "manifest": 30}
    assert len(os.listdir(target)) > 2, "the killed processes must have left something behind"
    resumed = run(**KILLED_RUN, checkpoint_dir=target)
    assert same_bits(resumed.state, whole.state)
    assert same_bits(resumed.history, whole.history)
    assert len(os.listdir(target)) == 2


DATA = make_data()
OTHER_RUNS = {
    "data": ({"data": DATA._replace(y=DATA.y + np.eye(N_ROWS, dtype=np.float32)[3])}, "data/y"),
    "order": ({"data": DATA._replace(x=DATA.x[::-1])}, "data/x"),
    "rows": ({"data": make_data(30)}, "data/x"),
    "weights": ({"data": DATA._replace(weight=np.ones(N_ROWS, np.float32))}, "data/weight"),
    "key": ({"key": jax.random.key(6)}, "key#threefry2x32"),
    "first state": ({"state": make_state(seed=3)}, "first_state/particles/w"),
    "optimiser": ({"state": make_state()._replace(opt_state=())}, "first_state/opt_state"),
    "batch size": ({"batch_size": 6}, "batch_size"),
    "settings": ({"settings": {"learning_rate": 0.1}}, "learning_rate"),
    "validation": ({"validation": negative_error}, "validate_every"),
}


@pytest.mark.parametrize("other", OTHER_RUNS)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, other):
    options = {"steps": 10, "checkpoint_dir": tmp_path, "settings": {"learning_rate": 0.05}}
    run(**options)
    change, word = OTHER_RUNS[other]
    with pytest.raises(ModelFileError, match=f"belongs to another run.*{word}"):
        run(**{**options, **change})


def test_rounding_does_not_make_it_another_run(tmp_path):
    """The same run started on another machine differs in the last bits of its data."""
    data = make_data()
    options = {"steps": 4, "checkpoint_dir": tmp_path}
    run(data=data, **options)
    noise = np.random.default_rng(1).choice([-1, 0, 1], size=data.x.shape) * 1.2e-7
    run(data=data._replace(x=(data.x * (1 + noise)).astype(np.float32)), **options)


def test_a_damaged_checkpoint_is_refused_and_not_started_over(tmp_path):
    run(steps=10, checkpoint_dir=tmp_path)
    (tensors,) = tmp_path.glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="damaged"):
        run(steps=10, checkpoint_dir=tmp_path)


def test_a_checkpoint_beyond_the_steps_and_a_foreign_directory_are_refused(tmp_path):
    run(steps=40, checkpoint_dir=tmp_path / "a")
    with pytest.raises(ValueError, match="step 40, beyond the 20"):
        run(steps=20, checkpoint_dir=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    with pytest.raises(ModelFileError, match=r"notes\.txt"):
        run(checkpoint_dir=tmp_path / "b", callbacks=[die_at(0)])


# --- divergence ---


@pytest.mark.parametrize("chunk", [1, 10, 50])
@pytest.mark.parametrize(("quantity", "step"), [("log density", 37), ("particles", 50)])
def test_divergence_names_step_and_quantity_and_keeps_the_last_good_checkpoint(
    tmp_path, chunk, quantity, step
):
    state = make_state(**{quantity: step})
    with pytest.raises(DivergedError, match=f"step {step}: the {quantity}") as caught:
        run(state=state, chunk=chunk, checkpoint_dir=tmp_path / "c", checkpoint_every=10)
    assert caught.value.step == step
    assert caught.value.quantity == quantity
    assert caught.value.checkpoint == tmp_path / "c"
    assert str(tmp_path / "c") in str(caught.value)
    arrays, metadata, _ = files.load_directory(tmp_path / "c", kind="checkpoint", max_version=1)
    assert metadata["step"] == 10 * ((step - 1) // 10)
    assert np.isfinite(arrays["state/particles/w"]).all()


def test_divergence_of_particles_names_the_leaf_and_needs_no_checkpoint():
    with pytest.raises(DivergedError, match="particles/w") as caught:
        run(state=make_state(particles=90))
    assert caught.value.checkpoint is None


def test_a_validation_score_that_is_not_finite_is_divergence():
    with pytest.raises(DivergedError, match="validation score is nan") as caught:
        run(validation=lambda particles: float("nan"), validate_every=10)
    assert caught.value.step == 10


# --- arguments ---


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": None}, "either steps or epochs"),
        ({"steps": 3, "epochs": 3}, "either steps or epochs"),
        ({"steps": 0}, "steps must be a positive integer, got 0"),
        ({"steps": 2.5}, "steps must be a positive integer"),
        ({"steps": True}, "steps must be a positive integer"),
        ({"steps": None, "epochs": -1}, "epochs must be a positive integer"),
        ({"batch_size": 0}, "batch_size must be a positive integer"),
        ({"chunk": 0}, "chunk must be a positive integer"),
        ({"validate_every": 0}, "validate_every must be a positive integer"),
        ({"patience": 2}, "patience needs a validation"),
        ({"patience": 0, "validation": negative_error}, "patience must be a positive integer"),
        ({"checkpoint_every": 0}, "checkpoint_every must be a positive integer"),
        ({"data": Batch(np.zeros((3, 2)), np.zeros(4))}, r"same number of rows.*'data\.x': 3"),
        ({"data": Batch(np.zeros((0, 2)), np.zeros(0))}, "empty"),
        ({"data": Batch(None, None)}, "empty"),
        ({"data": Batch(np.zeros((3, 2)), np.float32(1))}, r"data\.y must have a leading axis"),
        ({"data": None, "batch_size": 3}, "batch_size needs data"),
        ({"data": None, "steps": None, "epochs": 3}, "epochs needs data"),
    ],
)
def test_bad_arguments_are_named(options, words):
    arguments = {"data": make_data(), "steps": 5, "key": KEY} | options
    with pytest.raises(ValueError, match=words):
        train(ALGORITHM, make_state(), **arguments)


def test_wrong_types_are_named():
    with pytest.raises(TypeError, match="key must be a JAX key"):
        run(key=0)
    with pytest.raises(TypeError, match="state must have particles"):
        run(state=(1, 2))
    with pytest.raises(TypeError, match="algorithm must have a function step"):
        run(algorithm=make_state())


# --- the optimiser ---


def test_cosine_adam_is_adam_on_a_cosine_and_one_object():
    assert cosine_adam(1e-2, 4000) is cosine_adam(steps=4000, learning_rate=0.01) is cosine_adam()
    assert cosine_adam(5e-3, 100) is not cosine_adam(5e-3, 200)
    optimizer, steps = cosine_adam(0.1, 8), []
    weights = jnp.zeros(1)
    state = optimizer.init(weights)
    for _ in range(10):
        update, state = optimizer.update(jnp.ones(1), state)
        steps.append(float(-update[0]))
    # With a constant gradient each step of Adam is the learning rate.
    expected = 0.05 * (1 + np.cos(np.pi * np.minimum(np.arange(10), 8) / 8))
    np.testing.assert_allclose(steps, expected, rtol=1e-4, atol=1e-7)
    with pytest.raises(ValueError, match="learning_rate must be positive"):
        cosine_adam(0.0, 10)
    with pytest.raises(ValueError, match="steps must be a positive integer"):
        cosine_adam(0.1, 0)


# --- with the real algorithm ---


@pytest.mark.optimised
def test_svgd_trains_and_resumes_to_the_bit(tmp_path):
    from s2vgd import svgd

    def log_joint(particle, batch):
        fit = -0.5 * jnp.sum((batch.x @ particle["w"] - batch.y) ** 2) * N_ROWS / batch.y.size
        return fit - 0.5 * jnp.sum(particle["w"] ** 2)

    algorithm = svgd.build(log_joint, cosine_adam(0.05, 400))
    state = algorithm.init({"w": jax.random.normal(jax.random.key(0), (10, 3))})
    whole = run(algorithm, state, steps=400)
    x, y = make_data()[:2]
    exact = np.linalg.solve(x.T @ x + np.eye(3), x.T @ y)
    np.testing.assert_allclose(whole.state.particles["w"].mean(axis=0), exact, atol=0.05)
    assert {"step", "log_density", "bandwidth", "min_distance"} <= whole.history.keys()
    kept = {"checkpoint_dir": tmp_path, "checkpoint_every": 90, "steps": 400}
    with pytest.raises(Killed):
        run(algorithm, state, **kept, callbacks=[die_at(200)])
    assert same_bits(run(algorithm, state, **kept).state, whole.state)


def test_a_loop_runs_the_form_of_a_step_that_is_quicker_here(monkeypatch):
    own = Carried(lambda state: state, step, lambda state: state)
    assert carried_by(step, own) is own
    assert carried_by(step).step is step
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert carried_by(step, own) is not own
    assert carried_by(step, own).step is step


@pytest.mark.optimised
@pytest.mark.parametrize("batch_size", [None, 5])
def test_training_with_what_a_loop_carries_is_made_of_steps(batch_size):
    """Also in chunks, which pack and unpack: the particles and infos of single steps."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(N_ROWS, 3)), jnp.float32)
    algorithm = svgd.build(
        lambda p, rows: -jnp.sum((rows @ p["w"] + p["b"] - 1) ** 2), optax.adam(0.05)
    )
    start = {"w": jax.random.normal(jax.random.key(1), (4, 3)), "b": jnp.zeros(4)}
    trained = train(
        algorithm,
        algorithm.init(start),
        x,
        key=jax.random.key(2),
        steps=12,
        chunk=5,
        batch_size=batch_size,
    )
    plain = train(
        algorithm._replace(carried=None),
        algorithm.init(start),
        x,
        key=jax.random.key(2),
        steps=12,
        batch_size=batch_size,
    )
    for ours, theirs in zip(
        jax.tree.leaves(trained.state), jax.tree.leaves(plain.state), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        trained.history["log_density"], plain.history["log_density"], rtol=1e-5
    )
