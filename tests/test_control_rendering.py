"""Pictures show where things are, and films hold the pictures they were given."""

from __future__ import annotations

import builtins
import math

import jax
import numpy as np
import pytest
from PIL import Image

from s2vgd.control import make, names, rendering
from s2vgd.errors import DataError

CENTRE = (180, 240)  # row and column of the middle of a picture


def state_of(name, *values):
    environment = make(name)
    kind = jax.eval_shape(environment.reset, jax.random.key(0), environment.params)[1]
    return environment, type(kind)(*np.float32(values), np.int32(0))


def where(picture, colour, tolerance=25):
    """Return the mean place, as (right of the middle, above the middle), of what has a colour."""
    distance = np.abs(picture.astype(int) - colour).max(-1)
    rows, columns = np.nonzero(distance <= tolerance)
    assert len(rows)
    return columns.mean() - CENTRE[1], CENTRE[0] - rows.mean()


@pytest.mark.parametrize("name", names())
def test_every_environment_has_a_picture_of_the_size_that_was_asked_for(name):
    count = 2 if name in ("pendulum", "mountain-car") else 4
    environment, state = state_of(name, *[0.1] * count)
    picture = rendering.draw(environment, state)
    assert picture.shape == (360, 480, 3) and picture.dtype == np.uint8
    for colour in (rendering.PAPER, rendering.BODY):
        where(picture, colour)
    assert rendering.draw(environment, state, width=200, height=100).shape == (100, 200, 3)


@pytest.mark.parametrize(
    ("name", "values", "right", "up"),
    [
        # The pole is up and to its positive side: left in rllab, right in Gymnasium.
        ("cartpole", (0, 0, 0.2, 0), -1, 0),
        ("cartpole-v1", (0, 0, 0.2, 0), 1, 0),
        ("swing-up", (0, 0, math.pi, 0), 0, -1),
        ("swing-up", (0, 0, math.pi / 2, 0), -1, 0),
        ("pendulum", (0.0, 0.0), 0, 1),
        ("pendulum", (math.pi / 2, 0.0), -1, 0),
        ("double-pendulum", (0, 0, 0, 0), 0, -1),
        ("double-pendulum", (math.pi / 2, math.pi / 2, 0, 0), 1, 0),
        ("double-pendulum", (math.pi, math.pi, 0, 0), 0, 1),
        ("acrobot", (math.pi / 2, 0, 0, 0), 1, 0),
        ("acrobot", (math.pi / 2, math.pi / 2, 0, 0), 1, 1),
        ("mountain-car", (-1.1, 0), -1, 0),
        ("mountain-car", (0.5, 0), 1, 1),
    ],
)
def test_things_are_where_the_state_says(name, values, right, up):
    picture = rendering.draw(*state_of(name, *values))
    x, y = where(picture, rendering.BODY)
    for found, wanted in ((x, right), (y, up)):
        if wanted:
            assert found * wanted > 4
        elif name in ("pendulum", "double-pendulum", "acrobot", "swing-up"):
            assert abs(found) < 4


def test_a_picture_is_one_of_one_finite_state_of_a_known_environment():
    environment, state = state_of("pendulum", 0.0, 0.0)
    with pytest.raises(ValueError, match="state must be that of one environment"):
        rendering.draw(environment, state._replace(theta=np.zeros(3)))
    with pytest.raises(ValueError, match="state must be finite"):
        rendering.draw(environment, state._replace(theta=np.float32(np.nan)))
    with pytest.raises(ValueError, match="width must be at least"):
        rendering.draw(environment, state, width=0)


# -- films -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frames():
    environment, state = state_of("pendulum", 0.0, 0.0)
    angles = np.linspace(0, 2, 12)
    return [
        rendering.draw(environment, state._replace(theta=a), width=161, height=121) for a in angles
    ]


def test_gif_holds_every_picture_and_its_duration(frames, tmp_path):
    path = tmp_path / "film.gif"
    rendering.gif(iter(frames), path, fps=20)
    with Image.open(path) as film:
        assert film.n_frames == len(frames) and film.size == (161, 121)
        for i, frame in enumerate(frames):
            film.seek(i)
            assert film.info["duration"] == 50
            shown = np.asarray(film.convert("RGB"), int)
            assert np.abs(shown - frame).mean() < 2  # sixty-four colours


def test_mp4_holds_every_picture_at_its_rate(frames, tmp_path):
    import av

    path = tmp_path / "film.mp4"
    rendering.mp4(frames, path, fps=25)
    with av.open(str(path)) as film:
        stream = film.streams.video[0]
        assert stream.average_rate == 25
        shown = [frame.to_ndarray(format="rgb24") for frame in film.decode(stream)]
    assert len(shown) == len(frames) and shown[0].shape == (120, 160, 3)
    for found, frame in zip(shown, frames, strict=True):
        assert np.abs(found.astype(int) - frame[:120, :160]).mean() < 6


@pytest.mark.parametrize("write", [rendering.gif, rendering.mp4])
def test_a_film_that_cannot_be_made_leaves_what_was_there(write, frames, tmp_path):
    path = tmp_path / "film"
    path.write_text("before")
    for wrong, message in (
        ([], "at least one picture"),
        ([frames[0], frames[0][:50]], "one size"),
        ([frames[0].astype(float)], "uint8"),
    ):
        with pytest.raises(DataError, match=message):
            write(wrong, path)
    with pytest.raises(ValueError, match="fps must be positive"):
        write(frames, path, fps=0)
    with pytest.raises(DataError, match="no directory"):
        write(frames, tmp_path / "nowhere" / "film")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_mp4_without_its_package_names_the_extra(frames, tmp_path, monkeypatch):
    real = builtins.__import__

    def without_av(name, *rest):
        if name == "av":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_av)
    with pytest.raises(ImportError, match=r"s2vgd\[video\]"):
        rendering.mp4(frames, tmp_path / "film.mp4")
