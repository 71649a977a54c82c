"""Pictures of the environments, and films made of them.

`draw` turns a state into an array of pixels with Pillow, which Matplotlib brings along; `gif` and
`mp4` write such arrays to files. Which states to film is the business of the caller.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from s2vgd.control.environments import Environment
from s2vgd.errors import DataError
from s2vgd.files import replacing
from s2vgd.priors import check_count, check_positive

Point = tuple[float, float]

PAPER, INK, FAINT = (255, 255, 255), (40, 44, 52), (205, 209, 216)
BODY, JOINT, GOAL = (66, 103, 172), (235, 238, 243), (214, 90, 74)

_FINER = 3
"""Pictures are drawn this many times larger and then reduced, which smooths their edges."""


class _Canvas:
    """Shapes in the coordinates of the world, of which `half_width` fits on either side of 0."""

    def __init__(self, size: tuple[int, int], half_width: float, middle: float) -> None:
        from PIL import Image, ImageDraw

        self._width, self._height = size[0] * _FINER, size[1] * _FINER
        self._image = Image.new("RGB", (self._width, self._height), PAPER)
        self._pen = ImageDraw.Draw(self._image)
        self._scale = self._width / (2 * half_width)
        self._middle = middle

    def line(self, points: list[Point], width: float, colour: tuple[int, int, int]) -> None:
        """Draw a line with round ends, `width` of the world wide."""
        self._pen.line([self._at(p) for p in points], colour, max(1, round(width * self._scale)))
        for point in (points[0], points[-1]):
            self.disc(point, width / 2, colour)

    def disc(self, centre: Point, radius: float, colour: tuple[int, int, int]) -> None:
        (x, y), r = self._at(centre), radius * self._scale
        self._pen.ellipse((x - r, y - r, x + r, y + r), colour)

    def box(self, centre: Point, width: float, height: float, colour: tuple[int, int, int]) -> None:
        (x, y), dx, dy = self._at(centre), width * self._scale / 2, height * self._scale / 2
        self._pen.rectangle((x - dx, y - dy, x + dx, y + dy), colour)

    def pixels(self) -> np.ndarray:
        from PIL import Image

        size = self._width // _FINER, self._height // _FINER
        return np.asarray(self._image.resize(size, Image.Resampling.BOX), np.uint8)

    def _at(self, point: Point) -> Point:
        x, y = (point[0], point[1] - self._middle)
        return self._width / 2 + x * self._scale, self._height / 2 - y * self._scale


def draw(
    environment: Environment, state: Any, *, width: int = 480, height: int = 360
) -> np.ndarray:
    """Draw a state of an environment.

    Parameters
    ----------
    environment : Environment
        One of :func:`s2vgd.control.make`.
    state : NamedTuple of scalars
        A state of it, of one environment and not of a batch.
    width, height : int
        Of the picture, in pixels.

    Returns
    -------
    pixels : uint8 array of shape (height, width, 3)
    """
    check_count("width", width, 16)
    check_count("height", height, 16)
    if environment.name not in _SCENES:
        raise ValueError(f"environment {environment.name!r} cannot be drawn, only {list(_SCENES)}")
    if any(np.ndim(entry) for entry in state):
        raise ValueError("state must be that of one environment: its entries must be scalars")
    at = type(state)(*(float(entry) for entry in state))
    if not all(math.isfinite(entry) for entry in at):
        raise ValueError("state must be finite")
    scene = _SCENES[environment.name]
    canvas = _Canvas((width, height), scene.half_width(environment.params), scene.middle)
    scene.paint(canvas, at, environment.params)
    return canvas.pixels()


class _Scene(NamedTuple):
    half_width: Callable[[Any], float]
    middle: float
    paint: Callable[[_Canvas, Any, Any], None]


def _towards(start: Point, angle: float, length: float) -> Point:
    """Go from a point in a direction: 0 is down, and a quarter is to the right."""
    return start[0] + length * math.sin(angle), start[1] - length * math.cos(angle)


def _paint_cart(canvas: _Canvas, x: float, lean: float, length: float, max_x: float) -> None:
    """Draw cart and pole; `lean` is the angle from upright, positive to the right."""
    canvas.line([(-max_x, 0.0), (max_x, 0.0)], 0.03, FAINT)
    for end in (-max_x, max_x):
        canvas.line([(end, -0.15), (end, 0.15)], 0.03, GOAL)
    canvas.box((x, 0.0), 0.5, 0.28, INK)
    canvas.line([(x, 0.0), _towards((x, 0.0), math.pi - lean, length)], 0.1, BODY)
    canvas.disc((x, 0.0), 0.05, JOINT)


def _rllab_cart(canvas: _Canvas, at: Any, params: Any) -> None:
    _paint_cart(canvas, at.x, -at.theta, 2 * params.pole_centre, params.max_x)


def _gymnasium_cart(canvas: _Canvas, at: Any, params: Any) -> None:
    _paint_cart(canvas, at.x, at.theta, 2 * params.half_length, params.max_x)


def _links(canvas: _Canvas, angles: tuple[float, float], length: float) -> None:
    elbow = _towards((0.0, 0.0), angles[0], length)
    canvas.line([(0.0, 0.0), elbow], 0.14, INK)
    canvas.line([elbow, _towards(elbow, angles[1], length)], 0.14, BODY)
    for joint in ((0.0, 0.0), elbow):
        canvas.disc(joint, 0.05, JOINT)


def _double_pendulum(canvas: _Canvas, at: Any, params: Any) -> None:
    canvas.disc((0.0, 2 * params.length), 0.1, GOAL)
    _links(canvas, (at.theta1, at.theta2), params.length)


def _acrobot(canvas: _Canvas, at: Any, params: Any) -> None:
    canvas.line([(-4.0, params.length), (4.0, params.length)], 0.03, GOAL)
    _links(canvas, (at.theta1, at.theta1 + at.theta2), params.length)


def _pendulum(canvas: _Canvas, at: Any, params: Any) -> None:
    tip = _towards((0.0, 0.0), math.pi + at.theta, params.length)
    canvas.line([(0.0, 0.0), tip], 0.18, BODY)
    canvas.disc((0.0, 0.0), 0.05, JOINT)


def _mountain_car(canvas: _Canvas, at: Any, params: Any) -> None:
    centre = (params.min_x + params.max_x) / 2

    def ground(x: float) -> Point:
        return x - centre, 0.45 * math.sin(3 * x)

    places = np.linspace(params.min_x, params.max_x, 100)
    canvas.line([ground(float(x)) for x in places], 0.015, INK)
    foot = ground(params.goal_x)
    top = (foot[0], foot[1] + 0.2)
    canvas.line([foot, top], 0.012, INK)
    canvas.line([top, (top[0] + 0.08, top[1] - 0.03)], 0.04, GOAL)
    x, y = ground(at.x)
    slope = math.atan(1.35 * math.cos(3 * at.x))
    along, up = (math.cos(slope), math.sin(slope)), (-math.sin(slope), math.cos(slope))

    def beside(forward: float, above: float) -> Point:
        return x + forward * along[0] + above * up[0], y + forward * along[1] + above * up[1]

    canvas.line([beside(-0.05, 0.06), beside(0.05, 0.06)], 0.05, BODY)
    for forward in (-0.04, 0.04):
        canvas.disc(beside(forward, 0.03), 0.025, INK)


_SCENES = {
    "cartpole": _Scene(lambda p: p.max_x + 0.4, 0.3, _rllab_cart),
    "swing-up": _Scene(lambda p: p.max_x + 0.4, 0.0, _rllab_cart),
    "double-pendulum": _Scene(lambda p: 3.0 * p.length, 0.0, _double_pendulum),
    "cartpole-v1": _Scene(lambda p: p.max_x + 0.4, 0.3, _gymnasium_cart),
    "pendulum": _Scene(lambda p: 1.7 * p.length, 0.0, _pendulum),
    "acrobot": _Scene(lambda p: 3.0 * p.length, 0.0, _acrobot),
    "mountain-car": _Scene(lambda p: (p.max_x - p.min_x) / 2 + 0.05, 0.05, _mountain_car),
}


def gif(frames: Iterable[np.ndarray], path: str | os.PathLike[str], fps: float = 30.0) -> None:
    """Write pictures as an animated GIF that repeats.

    Parameters
    ----------
    frames : iterable of uint8 arrays of shape (H, W, 3)
        All of one size.
    path : path-like
        The file. It appears when it is complete, replacing what was there, or not at all.
    fps : float
        Pictures a second. The format counts in hundredths of a second, and viewers slow down
        above 50.
    """
    check_positive("fps", fps)
    from PIL import Image

    images = [Image.fromarray(frame) for frame in _checked(frames)]
    palette = images[0].quantize(colors=64)
    indexed = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    hundredths = max(2, round(100 / fps))
    with replacing(Path(path)) as temporary:
        indexed[0].save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=indexed[1:],
            duration=10 * hundredths,
            loop=0,
        )


def mp4(frames: Iterable[np.ndarray], path: str | os.PathLike[str], fps: float = 30.0) -> None:
    """Write pictures as an MP4 film (H.264), which every browser plays.

    Parameters
    ----------
    frames : iterable of uint8 arrays of shape (H, W, 3)
        All of one size; an odd side loses its last line of pixels, as the format wants even ones.
    path : path-like
        The file. It appears when it is complete, replacing what was there, or not at all.
    fps : float
        Pictures a second.

    Raises
    ------
    ImportError
        Without PyAV, which comes with ``pip install s2vgd[video]``.
    """
    try:
        import av
    except ImportError as error:
        raise ImportError("mp4 needs PyAV: pip install s2vgd[video]") from error
    from fractions import Fraction

    check_positive("fps", fps)
    pictures = _checked(frames)
    height, width = (side - side % 2 for side in pictures[0].shape[:2])
    with replacing(Path(path)) as temporary, av.open(str(temporary), "w", format="mp4") as film:
        stream = film.add_stream("h264", rate=Fraction(fps).limit_denominator(1000))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in pictures:
            pixels = np.ascontiguousarray(picture[:height, :width])
            film.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        film.mux(stream.encode())


def _checked(frames: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Return the pictures of a film, of which there is at least one, all of one size."""
    pictures = [np.asarray(frame) for frame in frames]
    if not pictures:
        raise DataError("frames must hold at least one picture")
    for picture in pictures:
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise DataError(
                "frames must be uint8 arrays of shape (height, width, 3), "
                f"got {picture.dtype}{list(picture.shape)}"
            )
        if picture.shape != pictures[0].shape:
            raise DataError(
                f"frames must have one size, got {pictures[0].shape} and {picture.shape}"
            )
    return pictures
