"""Made-up click logs in the format of Yahoo! Today (R6A), from a model whose truth is known.

The real log needs a licence. This writes files with the same lines, so that everything that reads
them can be run and tested; whatever is computed from them must be labelled "simulated". The model:

Time goes in steps of five minutes, as in R6A. Articles live in ``slots`` places; in each, an
article stays for 0.3 to 1.2 days and the next one follows after a gap of at most 0.05 (none in the
first place), so that nearly all are taken at any time. Users and articles have memberships in five
clusters, Dirichlet with parameter 0.4, as features 2 to 6, and the constant 1 as feature 1. A
visitor who is shown article a at time t (in days) clicks with probability::

    p(u, a, t) = sigmoid(b + q_a + 0.3 sin(2π (t + s_a)) - 0.5 (t - birth_a)
                           + cos(π t / 10) f(u, a) + sin(π t / 10) g(u, a))

with an appeal q_a ~ N(0, 0.3²) that goes up and down each day with the phase s_a ~ U(0, 1) and
fades with age, and two functions f and g drawn once from a Gaussian process with variance 0.6 and a
squared-exponential kernel of length 0.5 over the ten memberships (64 random Fourier features):
tastes are not linear, and they turn from f to g in five days. The constant b makes the mean over
uniformly displayed articles equal to ``ctr``. Which article of the pool is displayed is uniform, as
in R6A.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from s2vgd.bandits.news.events import N_FEATURES, ArticleTable, Events
from s2vgd.bandits.news.parquet import SIMULATED_PREFIX
from s2vgd.bandits.replay import Block, as_block
from s2vgd.errors import DataError
from s2vgd.files import replacing
from s2vgd.progress import progress_bar

START = 1_241_136_000  # the first of May 2009, 00:00 UTC
STEP_SECONDS = 300
STEPS_A_DAY = 86_400 // STEP_SECONDS
TRUTH_FILE = "truth.parquet"

_FIRST_ARTICLE = 100_000
_FREQUENCIES = 64
_LENGTH, _TASTE_VARIANCE = 0.5, 0.6


@dataclass(frozen=True)
class Visits:
    """The n visits of one step of five minutes, and the truth about them.

    Parameters
    ----------
    timestamp : int
        The time that all of them have.
    pool : (A,) int array
        Rows of the model's articles.
    user : (n, 6) array
        Features 1 to 6, multiples of a millionth as they are written.
    probability : (n, A) array
        The probability of a click for each article of the pool.
    displayed : (n,) int array
        Positions in the pool.
    click : (n,) bool array
        Whether the displayed article was clicked.
    """

    timestamp: int
    pool: np.ndarray
    user: np.ndarray
    probability: np.ndarray
    displayed: np.ndarray
    click: np.ndarray

    def as_events(self) -> Events:
        """Return what a log shows of them."""
        n, size = self.probability.shape
        return Events(
            timestamp=np.full(n, self.timestamp, np.int64),
            displayed=self.displayed.astype(np.int32),
            click=self.click,
            user=self.user.astype(np.float32),
            offsets=size * np.arange(n + 1, dtype=np.int64),
            pool=np.tile(self.pool.astype(np.int32), n),
        )


class ClickModel:
    """A world of users, articles and clicks; see the module for its equation.

    Parameters
    ----------
    seed : int
        Of everything: the same seed, days and settings give the same world and the same visits.
    days : int
        How long it lasts.
    slots : int
        The most articles that are live at a time, at least 2.
    ctr : float
        Mean probability of a click on a uniformly displayed article.

    Attributes
    ----------
    ids : (V,) int array
        Article identifiers, in the order of birth.
    features : (V, 6) array
        Features 1 to 6 of the articles, multiples of a millionth.
    birth, death : (V,) int array
        First step at which an article is live, and first at which it is no longer.
    """

    def __init__(self, seed: int, days: int, *, slots: int = 20, ctr: float = 0.04) -> None:
        for name, value, least in (("seed", seed, 0), ("days", days, 1), ("slots", slots, 2)):
            if value < least:
                raise DataError(f"{name}: expected at least {least}, got {value}")
        if not 0 < ctr < 1:
            raise DataError(f"ctr: expected a number between 0 and 1, got {ctr}")
        self.seed, self.days = seed, days
        rng = self._rng(0)
        self.birth, self.death = _lives(rng, slots, self.n_steps)
        n_articles = len(self.birth)
        self.ids = _FIRST_ARTICLE + np.arange(n_articles)
        self.features = _memberships(rng, n_articles)
        self._appeal = rng.normal(0, 0.3, n_articles)
        self._phase = rng.uniform(0, 1, n_articles)
        self._frequency = rng.normal(0, 1 / _LENGTH, (_FREQUENCIES, 2, N_FEATURES - 1))
        self._shift = rng.uniform(0, 2 * np.pi, _FREQUENCIES)
        self._tastes = rng.normal(0, np.sqrt(2 * _TASTE_VARIANCE / _FREQUENCIES), (2, _FREQUENCIES))
        self._constant = 0.0
        self._constant = self._calibrate(ctr)

    @property
    def n_steps(self) -> int:
        """Number of steps of five minutes."""
        return self.days * STEPS_A_DAY

    @functools.cached_property
    def articles(self) -> ArticleTable:
        """The articles, in the order of birth, as a log has them."""
        return ArticleTable.from_arrays(self.ids, self.features)

    def pool(self, step: int) -> np.ndarray:
        """Return the articles that are live at a step, (A,) rows in the order of birth."""
        return np.flatnonzero((self.birth <= step) & (step < self.death))

    def probability(self, user: np.ndarray, step: int) -> np.ndarray:
        """Return the probability of a click, (n, A), of users (n, 6) on each live article."""
        return _sigmoid(self._logit(user, step))

    def visits(self, step: int, n: int, draw: int = 0) -> Visits:
        """Draw n visits at a step; each ``draw`` is independent of the others."""
        rng = self._rng(step, n, draw)
        user = _memberships(rng, n)
        probability = self.probability(user, step)
        displayed = rng.integers(probability.shape[1], size=n)
        click = rng.random(n) < probability[np.arange(n), displayed]
        timestamp = START + STEP_SECONDS * step
        return Visits(timestamp, self.pool(step), user, probability, displayed, click)

    def all_visits(self, n_events: int, draw: int = 0) -> Iterator[Visits]:
        """Draw visits at uniformly random steps, in order of time; steps without any are absent."""
        shares = np.full(self.n_steps, 1 / self.n_steps)
        counts = self._rng(n_events, draw).multinomial(n_events, shares)
        for step in np.flatnonzero(counts):
            yield self.visits(int(step), int(counts[step]), draw)

    def _logit(self, user: np.ndarray, step: int) -> np.ndarray:
        day, rows = step / STEPS_A_DAY, self.pool(step)
        # By einsum and not @: these products are small, and on a busy machine the threads of a BLAS
        # wait for each other many times longer than it takes.
        x = np.einsum("ni,fi->nf", user[:, 1:], self._frequency[:, 0]) + self._shift
        y = np.einsum("ai,fi->af", self.features[rows, 1:], self._frequency[:, 1])
        turn = np.pi * day / 10
        weight = np.cos(turn) * self._tastes[0] + np.sin(turn) * self._tastes[1]
        # cos(x + y) = cos x cos y - sin x sin y, so that cosines are not taken of all pairs.
        taste = np.einsum("nf,af->na", weight * np.cos(x), np.cos(y))
        taste -= np.einsum("nf,af->na", weight * np.sin(x), np.sin(y))
        wave = 0.3 * np.sin(2 * np.pi * (day + self._phase[rows]))
        age = day - self.birth[rows] / STEPS_A_DAY
        return self._constant + self._appeal[rows] + wave - 0.5 * age + taste

    def _calibrate(self, ctr: float) -> float:
        user = _memberships(self._rng(), 200)
        steps = np.linspace(0, self.n_steps - 1, 200).astype(int)
        logits = [self._logit(user, int(step)) for step in steps]
        low, high = -30.0, 30.0
        for _ in range(60):
            middle = (low + high) / 2
            mean = np.mean([_sigmoid(logit + middle).mean() for logit in logits])
            low, high = (middle, high) if mean < ctr else (low, middle)
        return (low + high) / 2

    def _rng(self, *stream: int) -> np.random.Generator:
        """Return the numbers of a stream; streams of different lengths are different too."""
        return np.random.default_rng([self.seed, self.days, len(stream), *stream])


@dataclass(frozen=True)
class SimulatedLog:
    """A log of a model, kept nowhere but drawn at each reading; what a policy is worth on it.

    Parameters
    ----------
    model : ClickModel
        The world.
    n_events : int
        Number of visits.
    draw : int
        Which of the model's independent logs of that length.
    """

    model: ClickModel
    n_events: int
    draw: int = 0

    @property
    def articles(self) -> ArticleTable:
        """The articles of the model."""
        return self.model.articles

    def __iter__(self) -> Iterator[Events]:
        for visits in self.model.all_visits(self.n_events, self.draw):
            yield visits.as_events()

    def true_ctr(self, choose_block: Callable[[Block], np.ndarray]) -> float:
        """Return the true click-through rate of a policy that does not learn, on these visits.

        It is what :func:`s2vgd.bandits.replay.replay_fixed` estimates, with no noise from display
        and clicks: the mean probability of a click on what is chosen, weighted by one over the size
        of the pool as the accepted events of a replay are.
        """
        articles, total, weight = self.articles, 0.0, 0.0
        for visits in self.model.all_visits(self.n_events, self.draw):
            choices = np.asarray(choose_block(as_block(visits.as_events(), articles)))
            n, size = visits.probability.shape
            total += float(visits.probability[np.arange(n), choices].sum()) / size
            weight += n / size
        return total / weight


def simulate(
    out: str | Path,
    n_events: int,
    days: int,
    seed: int,
    *,
    compress: bool = True,
    truth: bool = False,
    progress: bool | None = False,
) -> list[Path]:
    """Write a simulated log, a file a day, in the format of R6A.

    Parameters
    ----------
    out : path-like
        A directory that is new or empty.
    n_events, days, seed : int
        Number of visits, over how many days, and the seed of all randomness.
    compress : bool
        Whether to gzip the files.
    truth : bool
        Whether to write ``truth.parquet`` too: for each event, in the order of the files, the list
        ``probability`` of a click on each article of its pool, in the order of the line.
    progress : bool or None
        As in :func:`s2vgd.progress.progress_bar`.

    Returns
    -------
    files : list of Path
        The text files, ``simulated-clicks.20090501.gz`` and so on, in order.
    """
    if n_events < 1:
        raise DataError(f"events: expected at least 1, got {n_events}")
    model, directory = ClickModel(seed, days), Path(out)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise DataError(f"{directory} exists and is not an empty directory")
    directory.mkdir(parents=True, exist_ok=True)
    texts = [
        f"|{article} {_feature_text(features)}"
        for article, features in zip(model.ids, model.features, strict=True)
    ]
    files: list[Path] = []
    done = 0
    with contextlib.ExitStack() as whole, contextlib.ExitStack() as today:
        update = whole.enter_context(progress_bar(progress, n_events, description="simulating"))
        update(0, None)
        write_truth = whole.enter_context(_truth_writer(directory)) if truth else None
        file: Any = None
        for visits in model.all_visits(n_events):
            date = datetime.fromtimestamp(visits.timestamp, UTC)
            name = f"{SIMULATED_PREFIX}clicks.{date:%Y%m%d}" + (".gz" if compress else "")
            if file is None or files[-1].name != name:
                today.close()
                files.append(directory / name)
                file = today.enter_context(_day_file(files[-1], compress))
            file.write(_lines(visits, model.ids, texts))
            if write_truth is not None:
                write_truth(visits.probability)
            done += len(visits.user)
            update(done, None)
    return files


def _lives(rng: np.random.Generator, slots: int, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw births and deaths in steps; articles in the order of birth."""
    lives = []
    for slot in range(slots):
        # The first article of a slot is found somewhere in its life, not at its beginning.
        birth = -int(rng.integers(0, round(0.3 * STEPS_A_DAY)))
        while birth < n_steps:
            death = birth + int(rng.integers(round(0.3 * STEPS_A_DAY), round(1.2 * STEPS_A_DAY)))
            lives.append((birth, death))
            # The first slot has no gaps, so that no pool is ever empty.
            birth = death + (int(rng.integers(0, round(0.05 * STEPS_A_DAY))) if slot else 0)
    birth_and_death = np.array(sorted(lives))
    return birth_and_death[:, 0], birth_and_death[:, 1]


def _memberships(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw features 1 to 6, (n, 6), rounded as they are written."""
    shares = rng.dirichlet(np.full(N_FEATURES - 1, 0.4), n)
    return np.column_stack([np.ones(n), np.round(shares, 6)])


def _sigmoid(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit))


def _feature_text(features: np.ndarray) -> str:
    one, *others = features.tolist()
    words = [f"{feature}:{value:.6f}" for feature, value in enumerate(others, 2)]
    return " ".join([*words, f"1:{one:.6f}"])


def _lines(visits: Visits, ids: np.ndarray, texts: list[str]) -> bytes:
    pool_text = " ".join(texts[row] for row in visits.pool)
    displayed = ids[visits.pool][visits.displayed]
    columns = zip(displayed.tolist(), visits.click.tolist(), visits.user, strict=True)
    lines = [
        f"{visits.timestamp} {article} {click:d} |user {_feature_text(user)} {pool_text}\n"
        for article, click, user in columns
    ]
    return "".join(lines).encode()


@contextlib.contextmanager
def _day_file(path: Path, compress: bool) -> Iterator[Any]:
    with replacing(path) as temporary, open(temporary, "wb") as raw:
        if not compress:
            yield raw
            return
        # Without a name and a time in its header, the same log is the same bytes.
        with gzip.GzipFile("", "wb", compresslevel=3, fileobj=raw, mtime=0) as file:
            yield file


@contextlib.contextmanager
def _truth_writer(directory: Path) -> Iterator[Callable[[np.ndarray], None]]:
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([("probability", pyarrow.list_(pyarrow.float32()))])
    with (
        replacing(directory / TRUTH_FILE) as temporary,
        pyarrow.parquet.ParquetWriter(temporary, schema) as writer,
    ):

        def write(probability: np.ndarray) -> None:
            n, size = probability.shape
            offsets = size * np.arange(n + 1, dtype=np.int32)
            values = probability.ravel().astype(np.float32)
            lists = pyarrow.ListArray.from_arrays(offsets, values)
            writer.write_table(pyarrow.table([lists], schema=schema))

        yield write
