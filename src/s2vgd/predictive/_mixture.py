"""``MixturePredictive``: the answer of a regression, an equally weighted mixture over draws.

This module holds units, shapes, chunks and checks. The numerics are in ``_numerics`` and the
component families in ``_families``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from . import _numerics as numerics
from ._base import (
    Predictive,
    check_count,
    check_q,
    device_dtype,
    finite_array,
    row_chunks,
    row_index,
)
from ._families import FAMILIES

# Up to here the S² pairs of normal components cost less than quadrature.
_PAIRWISE_DRAWS = 256

# Squares of scaled outcomes must not overflow in single precision.
_FARTHEST = 1e12


class _Chunk(NamedTuple):
    """Components of some rows in units where each cell is centred and of order one."""

    rows: slice
    row_index: np.ndarray  # the rows, and padding
    centre: np.ndarray  # (n, T) float64: where the cell's zero is, in component units
    unit: np.ndarray  # (n, T) float64: how large the cell's one is
    components: tuple[Array, Array, Array | None]


class MixturePredictive(Predictive):
    """Equally weighted mixture of S location-scale components for each of N rows and T targets.

    Row i, target t, draw s contributes ``loc[s, i, t] + scale[s, i, t] Z`` with Z standard normal,
    Student-t or Laplace; targets are independent given the draw. The components may live in
    standardised units, in which case the outcome is ``shift + scale * component``.

    Parameters
    ----------
    family : {"normal", "student_t", "laplace"}
        Distribution of Z.
    components : mapping
        ``"loc"`` of shape (S, N, T) or, for one target, (S, N); ``"scale"`` broadcastable to it and
        positive; for ``"student_t"`` also ``"df"``, broadcastable, above 1 so that a mean exists.
    shift, scale : array_like, optional
        The affine map to the user's units, scalars or (T,). Default: none.
    squeeze : bool
        Whether results for one target drop the target axis: (N,) rather than (N, 1).

    Notes
    -----
    Each cell (row, target) is centred and scaled in double precision before single-precision
    arithmetic, and mapped back in double precision after it, so that a target of 1e6 plus a little
    noise loses nothing. What remains is about 1e-6 of the cell's spread for quantiles and CRPS. An
    outcome more than 1e12 scales away is scored as if it were 1e12 away.
    """

    def __init__(
        self,
        family: str,
        components: Mapping[str, ArrayLike],
        *,
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        squeeze: bool = True,
    ) -> None:
        if family not in FAMILIES:
            raise ValueError(f"family must be one of {sorted(FAMILIES)}, got {family!r}")
        expected = {"loc", "scale"} | ({"df"} if family == "student_t" else set())
        if set(components) != expected:
            raise ValueError(
                f"components of family {family!r} must have the keys {sorted(expected)}, "
                f"got {sorted(components)}"
            )
        self.family = family
        self.squeeze = bool(squeeze)
        loc = finite_array("components['loc']", components["loc"])
        if loc.ndim not in (2, 3) or 0 in (loc.shape[0], *loc.shape[2:]):
            raise ValueError(
                "components['loc'] must have shape (draws, rows) or (draws, rows, targets) with at "
                f"least one draw and one target, got {loc.shape}"
            )
        self._loc = loc if loc.ndim == 3 else loc[..., None]
        self._scale = self._parameter("scale", components["scale"], loc.ndim, above=0.0)
        self._df = None
        if "df" in components:
            self._df = self._parameter("df", components["df"], loc.ndim, above=1.0)
        self.n_draws, self._n_rows, self.n_targets = self._loc.shape
        self._shift = self._affine("shift", shift, default=0.0)
        self._unit = self._affine("scale", scale, default=1.0)
        if np.any(self._unit <= 0):
            raise ValueError("scale must be positive")

    def _parameter(self, name: str, value: ArrayLike, ndim: int, above: float) -> np.ndarray:
        """Check a component parameter and make it as small as broadcasting allows, 3-D."""
        label = f"components[{name!r}]"
        array = finite_array(label, value)
        if ndim == 2 and array.ndim in (1, 2):
            array = array[..., None]
        try:
            fits = np.broadcast_shapes(array.shape, self._loc.shape) == self._loc.shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"{label} must broadcast to the shape {self._loc.shape} of components['loc'], "
                f"got {array.shape}"
            )
        if not np.all(array > above):
            raise ValueError(f"{label} must be greater than {above:g} everywhere")
        array = array.reshape((1,) * (3 - array.ndim) + array.shape)
        for axis in range(3):
            if array.shape[axis] > 1:
                first = array.take([0], axis=axis)
                if np.array_equal(np.broadcast_to(first, array.shape), array):
                    array = first
        return array

    def _affine(self, name: str, value: ArrayLike | None, default: float) -> np.ndarray:
        array = np.asarray(default if value is None else value, dtype=np.float64)
        if array.shape not in ((), (1,), (self.n_targets,)) or not np.all(np.isfinite(array)):
            raise ValueError(
                f"{name} must be finite, a number or of shape ({self.n_targets},), "
                f"got shape {array.shape}"
            )
        return np.broadcast_to(array, (self.n_targets,)).copy()

    def __len__(self) -> int:
        """Count the rows."""
        return self._n_rows

    def __getitem__(self, rows: Any) -> MixturePredictive:
        """Predictive of some of the rows; an integer gives a predictive of one row."""
        index = row_index(rows, len(self))
        components = {"loc": self._loc[:, index], "scale": _take_rows(self._scale, index)}
        if self._df is not None:
            components["df"] = _take_rows(self._df, index)
        return self._like(components)

    def __repr__(self) -> str:
        """Sizes and family."""
        return (
            f"MixturePredictive(family={self.family!r}, rows={len(self)}, "
            f"draws={self.n_draws}, targets={self.n_targets})"
        )

    def _like(self, components: Mapping[str, np.ndarray]) -> MixturePredictive:
        return MixturePredictive(
            self.family, components, shift=self._shift, scale=self._unit, squeeze=self.squeeze
        )

    @classmethod
    def _concatenate(cls, parts: Sequence[MixturePredictive]) -> MixturePredictive:
        first = parts[0]
        for part in parts[1:]:
            same = (
                (part.family, part.n_draws, part.n_targets, part.squeeze)
                == (first.family, first.n_draws, first.n_targets, first.squeeze)
                and np.array_equal(part._shift, first._shift)
                and np.array_equal(part._unit, first._unit)
            )
            if not same:
                raise ValueError(
                    f"cannot concatenate {part!r} to {first!r}: they differ in more than rows"
                )
        components = {
            "loc": np.concatenate([part._loc for part in parts], axis=1),
            "scale": _join_rows([part._scale for part in parts], parts),
        }
        if first._df is not None:
            components["df"] = _join_rows(
                [part._df for part in parts if part._df is not None], parts
            )
        return first._like(components)

    @cached_property
    def mean(self) -> np.ndarray:
        """Predictive mean, (N,) or (N, T)."""
        return self._to_user(self._loc.mean(axis=0, dtype=np.float64))

    @cached_property
    def epistemic(self) -> np.ndarray:
        """Variance of the component means over the draws, (N,) or (N, T).

        By the law of total variance ``epistemic + aleatoric == var``.
        """
        variance = np.empty(self._loc.shape[1:])
        for rows, _ in row_chunks(len(self), self.n_draws * self.n_targets):
            variance[rows] = self._loc[:, rows].var(axis=0, dtype=np.float64)
        return self._squeezed(variance * self._unit**2)

    @cached_property
    def aleatoric(self) -> np.ndarray:
        """Mean of the component variances over the draws, (N,) or (N, T); infinite for df <= 2."""
        spread = FAMILIES[self.family].variance(self._df)
        variance = np.mean(self._scale.astype(np.float64) ** 2 * spread, axis=0)
        return self._squeezed(np.broadcast_to(variance, self._loc.shape[1:]) * self._unit**2)

    @cached_property
    def var(self) -> np.ndarray:
        """Predictive variance, exactly that of the mixture, (N,) or (N, T)."""
        return self.epistemic + self.aleatoric

    @cached_property
    def entropy(self) -> np.ndarray:
        """Differential entropy in nats of each row and target, (N,) or (N, T), in the user's units.

        By Gauss-Legendre quadrature on panels that follow the components. Within 1e-5 (Laplace,
        which has kinks: 5e-4) when a row's components are few or their scales span no more than
        a factor of a hundred; at worst 0.1 too large, for hundreds of components whose scales
        span four decades.
        """
        return self._integrals[0]

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Log density of each row's outcome in the user's units, (N,).

        With several targets this is their joint density: the targets share the draw.
        """
        y = self._check_y(y)
        result = np.empty(len(self))
        for chunk in self._chunks():
            scaled = self._in_chunk(y, chunk)
            value = numerics.log_prob(FAMILIES[self.family], scaled, *chunk.components)
            volume = np.log(chunk.unit * self._unit).sum(axis=-1)
            result[chunk.rows] = _unpad(np.asarray(value, np.float64) - volume, chunk)
        return result

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """Predictive probability of an outcome of at most ``y``, (N,) or (N, T).

        At the observed outcome this is the probability integral transform, uniform when calibrated.
        """
        return self._squeezed(self._cellwise(numerics.cdf, y)[0])

    def crps(self, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score E|X - y| - E|X - X'|/2, (N,) or (N, T).

        The first term has a closed form. So has the second for normal components, and it is used up
        to 256 draws; otherwise it is ∫ F (1 - F) by the quadrature of ``entropy``, with an error
        below 1e-5 of the spread (3e-4 in the extreme mixtures named there).
        """
        distance, unit = self._cellwise(numerics.distance, y)
        return self._squeezed(distance * unit) - self._half_spread

    def quantile(self, q: ArrayLike) -> np.ndarray:
        """Exact quantiles of the mixture by root finding, not of a moment-matched normal.

        Parameters
        ----------
        q : float or array_like
            One probability in (0, 1), or a one-dimensional array of Q of them.

        Returns
        -------
        ndarray
            (N,) or (N, T) for a number, (Q, N) or (Q, N, T) for an array.
        """
        q = check_q(q)
        result = np.empty((q.size, *self._loc.shape[1:]))
        dtype = device_dtype()
        family = FAMILIES[self.family]
        for chunk in self._chunks():
            for i, level in enumerate(q.flat):
                p, sign = (level, 1.0) if level <= 0.5 else (1.0 - level, -1.0)
                x = numerics.lower_quantile(
                    family, dtype.type(p), dtype.type(sign), *chunk.components
                )
                cell = chunk.centre + chunk.unit * np.asarray(x, np.float64)
                result[i, chunk.rows] = _unpad(cell, chunk)
        result = self._to_user(result)
        return result if q.ndim else result[0]

    def sample(self, key: Array, n: int) -> np.ndarray:
        """Draw ``n`` outcomes a row, (n, N) or (n, N, T).

        Each of the n samples uses one draw for all rows and targets, so that a sample is one
        function plus noise and correlations between rows are those of the posterior.
        """
        n = check_count(n)
        key_draw, key_noise = jax.random.split(key)
        draw = np.asarray(jax.random.randint(key_draw, (n,), 0, self.n_draws))
        df = None if self._df is None else jnp.asarray(_take_draws(self._df, draw), device_dtype())
        noise = FAMILIES[self.family].noise(key_noise, df, (n, *self._loc.shape[1:]))
        scatter = _take_draws(self._scale, draw) * np.asarray(noise, np.float64)
        return self._to_user(self._loc[draw] + scatter)

    @cached_property
    def _half_spread(self) -> np.ndarray:
        """E|X - X'|/2 in the user's units."""
        if self.family != "normal" or self.n_draws > _PAIRWISE_DRAWS:
            return self._integrals[1]
        result = np.empty(self._loc.shape[1:])
        for chunk in self._chunks():
            loc, scale, _ = chunk.components
            value = numerics.pairwise_half_spread(FAMILIES[self.family], loc, scale)
            result[chunk.rows] = _unpad(np.asarray(value, np.float64) * chunk.unit, chunk)
        return self._squeezed(result * self._unit)

    @cached_property
    def _integrals(self) -> tuple[np.ndarray, np.ndarray]:
        """Entropy and E|X - X'|/2 in the user's units, which share their density evaluations."""
        family = FAMILIES[self.family]
        entropy, spread = (np.empty(self._loc.shape[1:]) for _ in range(2))
        cells = max(numerics.NODES, numerics.POINTS_PER_COMPONENT * self.n_draws)
        for chunk in self._chunks(cells):
            breaks = numerics.breakpoints(family, *chunk.components)
            values = numerics.integrals(family, breaks, *chunk.components)
            cell_entropy, cell_spread = (np.asarray(value, np.float64) for value in values)
            entropy[chunk.rows] = _unpad(cell_entropy + np.log(chunk.unit * self._unit), chunk)
            spread[chunk.rows] = _unpad(cell_spread * chunk.unit * self._unit, chunk)
        return self._squeezed(entropy), self._squeezed(spread)

    def _chunks(self, cells_per_target: int | None = None) -> Iterator[_Chunk]:
        """Cut the rows, each cell brought to its own centre and unit in double precision."""
        dtype = device_dtype()
        cells = (cells_per_target or self.n_draws) * self.n_targets
        for rows, index in row_chunks(len(self), cells):
            loc = self._loc[:, index].astype(np.float64)
            scale = np.broadcast_to(_take_rows(self._scale, index), loc.shape).astype(np.float64)
            # A median, because one stray draw must not cost the others their digits.
            centre = np.partition(loc, self.n_draws // 2, axis=0)[self.n_draws // 2]
            unit = scale.mean(axis=0)
            df = None if self._df is None else _take_rows(self._df, index)
            parts = (loc - centre) / unit, scale / unit, df
            with np.errstate(over="ignore"):
                # Rounded by NumPy: JAX would compile a program for it, one for each shape.
                rounded = jax.tree.map(lambda part: part.astype(dtype), parts)
            yield _Chunk(rows, index, centre, unit, jax.device_put(rounded))

    def _cellwise(
        self, function: Callable[..., Array], y: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values of a function of outcome and components, and each cell's unit, both (N, T)."""
        y = self._check_y(y)
        values, unit = (np.empty(self._loc.shape[1:]) for _ in range(2))
        for chunk in self._chunks():
            value = function(FAMILIES[self.family], self._in_chunk(y, chunk), *chunk.components)
            values[chunk.rows] = _unpad(np.asarray(value), chunk)
            unit[chunk.rows] = _unpad(chunk.unit * self._unit, chunk)
        return values, unit

    def _check_y(self, y: ArrayLike) -> np.ndarray:
        """Return ``y`` as (N, T) float64 in component units."""
        array = finite_array("y", y).astype(np.float64)
        if array.ndim == 1 and self.n_targets == 1:
            array = array[:, None]
        if array.shape != self._loc.shape[1:]:
            rows = f"({len(self)},)" if self.n_targets == 1 else f"{self._loc.shape[1:]}"
            raise ValueError(f"y must have shape {rows}, got {np.shape(y)}")
        return (array - self._shift) / self._unit

    def _in_chunk(self, y: np.ndarray, chunk: _Chunk) -> np.ndarray:
        distance = (y[chunk.row_index] - chunk.centre) / chunk.unit
        return np.clip(distance, -_FARTHEST, _FARTHEST).astype(device_dtype())

    def _to_user(self, values: np.ndarray) -> np.ndarray:
        return self._squeezed(self._shift + self._unit * values)

    def _squeezed(self, values: np.ndarray) -> np.ndarray:
        return values[..., 0] if self.squeeze and self.n_targets == 1 else values


def _unpad(values: np.ndarray, chunk: _Chunk) -> np.ndarray:
    return values[: chunk.rows.stop - chunk.rows.start]


def _take_rows(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    return array if array.shape[1] == 1 else array[:, index]


def _take_draws(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    return array if array.shape[0] == 1 else array[index]


def _join_rows(arrays: Sequence[np.ndarray], parts: Sequence[MixturePredictive]) -> np.ndarray:
    """Concatenate a parameter along rows, keeping it small where it is the same in all parts."""
    if all(a.shape[1] == 1 and np.array_equal(a, arrays[0]) for a in arrays):
        return arrays[0]
    return np.concatenate(
        [np.broadcast_to(a, part._loc.shape) for a, part in zip(arrays, parts, strict=True)], axis=1
    )
