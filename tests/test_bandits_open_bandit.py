"""The Open Bandit sample: its format, its published files, and estimates on real clicks.

The reader always runs on small files made here in the same format, and on the published files as
well where those are on the machine (``S2VGD_DATA``, or ``shared/data`` beside the repository).
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
from pathlib import Path

import numpy as np
import pytest
import requests

from s2vgd.bandits import open_bandit
from s2vgd.bandits.evaluation import (
    IPS,
    DegenerateWeightsWarning,
    LoggedData,
    Replay,
    SelfNormalisedIPS,
    deterministic_policy,
)
from s2vgd.bandits.open_bandit import load_open_bandit, logged_shares, read_open_bandit
from s2vgd.datasets.open_bandit import open_bandit_files
from s2vgd.datasets.storage import DataFile, Form
from s2vgd.errors import DataError

SHARED = Path(
    os.environ.get("S2VGD_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
)
FOLDER = Path("bandit") / "open_bandit_sample"
CASES = [(p, c) for p in ("random", "bts") for c in ("all", "men", "women")]
HAVE_PUBLISHED = all(
    (SHARED / file.folder / file.forms[0].filename).is_file()
    for case in CASES
    for file in open_bandit_files(*case)
)

LOG = """\
,timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1,user_feature_2,\
user_feature_3,user-item_affinity_0,user-item_affinity_1
0,2019-11-24 00:02:00.500000+00:00,1,3,1,0.25,aa,10,x,2,0.0,3.0
1,2019-11-24 00:01:00+00:00,0,1,0,0.75,bb,10,x,1,1.0,0.0
2,2019-11-24 00:03:00.250000+00:00,0,2,0,0.5,aa,20,y,1,0.0,0.0
"""
ITEMS = """\
,item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3
0,1,-0.5,h1,k,m
1,0,1.25,h2,k,n
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reaches the network, the user's cache or the user's data directory."""

    def get(url: str, **_: object) -> None:
        raise requests.exceptions.ConnectionError(f"no network for {url}")

    monkeypatch.setattr(requests, "get", get)
    monkeypatch.setenv("S2VGD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("S2VGD_DATA", raising=False)


def read(log: str = LOG, items: str = ITEMS, **options):
    return read_open_bandit(io.BytesIO(log.encode()), io.BytesIO(items.encode()), **options)


# -------------------------------------------------------------------------------- the format


def test_columns_of_the_format_become_a_log_in_the_order_of_time() -> None:
    log = read()
    np.testing.assert_array_equal(log.data.actions, [0, 1, 0])
    np.testing.assert_array_equal(log.data.rewards, [0, 1, 0])
    np.testing.assert_array_equal(log.data.propensities, [0.75, 0.25, 0.5])
    np.testing.assert_array_equal(log.data.positions, [1, 3, 2])
    assert log.data.n_actions == 2
    np.testing.assert_array_equal(log.affinities, [[1, 0], [0, 3], [0, 0]])
    assert (
        log.timestamps.tolist()
        == np.array(
            ["2019-11-24T00:01:00", "2019-11-24T00:02:00.5", "2019-11-24T00:03:00.25"],
            dtype="datetime64[us]",
        ).tolist()
    )


def test_hashes_become_indicators_even_where_they_look_like_numbers() -> None:
    log = read()
    assert log.levels == (("aa", "bb"), ("10", "20"), ("x", "y"), ("1", "2"))
    assert log.context_names[:3] == ("user_feature_0=aa", "user_feature_0=bb", "user_feature_1=10")
    np.testing.assert_array_equal(
        log.data.contexts,
        [[0, 1, 1, 0, 1, 0, 1, 0], [1, 0, 1, 0, 1, 0, 0, 1], [1, 0, 0, 1, 0, 1, 1, 0]],
    )
    assert log.item_feature_names == (
        "item_feature_0",
        "item_feature_1=h1",
        "item_feature_1=h2",
        "item_feature_2=k",
        "item_feature_3=m",
        "item_feature_3=n",
    )
    np.testing.assert_array_equal(log.item_features, [[1.25, 0, 1, 1, 0, 1], [-0.5, 1, 0, 1, 1, 0]])


def test_levels_of_another_log_give_the_same_columns() -> None:
    levels = (("zz", "aa"), ("10",), ("x",), ("1", "2"))
    log = read(levels=levels)
    assert log.levels == levels
    np.testing.assert_array_equal(
        log.data.contexts, [[0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 0, 1], [0, 1, 0, 0, 1, 0]]
    )
    with pytest.raises(DataError, match="levels must be given for 4 features: 1"):
        read(levels=(("aa",),))


BAD_FILES = [
    (LOG.replace("click", "clock"), ITEMS, "log has no column click"),
    (LOG.replace("affinity_1", "affinity_7"), ITEMS, "log has no column user-item_affinity_1"),
    (LOG, ITEMS.replace("item_feature", "feature"), "items has no column item_feature_0 and 3 oth"),
    (LOG, ITEMS.replace("0,1,-0.5", "0,2,-0.5"), "item_id must be 0, 1, 2"),
    (LOG.replace("2019-11-24 00:01:00+00:00", "noon"), ITEMS, "timestamp cannot be read"),
    (LOG.replace(",0.75,", ",,"), ITEMS, "log: propensity_score has gaps"),
    (LOG.replace(",0.75,", ",0,"), ITEMS, "propensities must be in"),
    (LOG.replace("00:00,1,3,1", "00:00,9,3,1"), ITEMS, "actions must be in"),
    (LOG.replace("aa,10,x,2", ",10,x,2"), ITEMS, "log: user_feature_0 has gaps"),
    ("", ITEMS, "log is not a CSV file"),
]


@pytest.mark.parametrize(("log", "items", "message"), BAD_FILES, ids=[m for *_, m in BAD_FILES])
def test_bad_file_is_refused_with_what_is_wrong(log: str, items: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(log, items)


# ------------------------------------------------------------------------- finding the files


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The small files, known by their checksums, in both of the forms that are accepted."""
    contents = {"random_men": LOG.encode(), "random_men_item_context": ITEMS.encode()}
    packed = {f"{name}.csv.xz": lzma.compress(content) for name, content in contents.items()}
    plain = {f"{name}.csv": content for name, content in contents.items()}

    def digest(content: bytes) -> str:
        return hashlib.sha256(content).hexdigest()

    def files(policy: str, campaign: str) -> tuple[DataFile, ...]:
        assert (policy, campaign) == ("random", "men")
        return tuple(
            DataFile(
                str(FOLDER),
                tuple(Form(f, digest((packed | plain)[f])) for f in (f"{n}.csv.xz", f"{n}.csv")),
            )
            for n in contents
        )

    monkeypatch.setattr(open_bandit, "open_bandit_files", files)
    return packed | plain


@pytest.mark.parametrize("suffix", [".csv.xz", ".csv"])
@pytest.mark.parametrize("folder", [FOLDER, Path()])
def test_files_are_found_where_s2vgd_data_says(made, monkeypatch, tmp_path, suffix, folder) -> None:
    (tmp_path / "data" / folder).mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        if name.endswith(suffix):
            (tmp_path / "data" / folder / name).write_bytes(content)
    monkeypatch.setenv("S2VGD_DATA", str(tmp_path / "data"))
    assert len(load_open_bandit("random", "men", download=False).data) == 3


def test_damaged_file_is_refused(made, monkeypatch, tmp_path) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    for name, content in made.items():
        (tmp_path / FOLDER / name).write_bytes(content)
    log = tmp_path / FOLDER / "random_men.csv.xz"
    log.write_bytes(lzma.compress(LOG.replace(",3,1,", ",3,0,").encode()))
    monkeypatch.setenv("S2VGD_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"random_men\.csv\.xz is damaged"):
        load_open_bandit("random", "men")


def test_missing_file_says_where_it_was_looked_for_and_what_was_tried() -> None:
    with pytest.raises(DataError, match=r"bts_women\.csv.* is not on this machine"):
        load_open_bandit("bts", "women", download=False)
    with pytest.raises(DataError, match=r"obd/bts/women/women\.csv could not be read"):
        load_open_bandit("bts", "women")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DataError, match="policy must be one of random, bts, got 'ts'"):
        load_open_bandit("ts")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="campaign must be one of all, men, women, got 'kids'"):
        load_open_bandit("bts", "kids")  # type: ignore[arg-type]


def test_every_log_of_the_sample_has_its_own_checksums() -> None:
    forms = [form for case in CASES for file in open_bandit_files(*case) for form in file.forms]
    assert len({form.sha256 for form in forms}) == len(forms) == 24


# ------------------------------------------------------------------------ the published files

ITEM_COUNTS = {"all": 80, "men": 34, "women": 46}
CLICKS = {"random": (38, 46, 46), "bts": (42, 69, 46)}  # all, men, women


class TestPublishedFiles:
    """There are these tests only where the files are."""

    __test__ = HAVE_PUBLISHED

    @pytest.fixture(autouse=True)
    def where(self, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S2VGD_DATA", str(SHARED))

    @pytest.mark.parametrize("case", CASES, ids="_".join)
    def test_log_has_its_documented_counts(self, case) -> None:
        policy, campaign = case
        log = load_open_bandit(*case, download=False)
        n_items = ITEM_COUNTS[campaign]
        assert len(log.data) == 10_000
        assert log.data.n_actions == n_items
        assert log.data.rewards.sum() == CLICKS[policy][list(ITEM_COUNTS).index(campaign)]
        assert np.unique(log.data.positions).tolist() == [1, 2, 3]
        assert log.affinities.shape == (10_000, n_items)
        assert log.item_features.shape == (n_items, len(log.item_feature_names))
        assert (np.diff(log.timestamps) >= np.timedelta64(0)).all()
        np.testing.assert_array_equal(log.data.contexts.sum(axis=1), np.full(10_000, 4))
        if policy == "random":
            np.testing.assert_allclose(log.data.propensities, 1 / n_items, rtol=1e-12)

    @pytest.mark.parametrize("case", CASES, ids="_".join)
    def test_packed_and_plain_forms_are_the_same_file(self, case) -> None:
        for file in open_bandit_files(*case):
            packed, plain = file.forms
            content = lzma.decompress((SHARED / file.folder / packed.filename).read_bytes())
            assert hashlib.sha256(content).hexdigest() == plain.sha256

    @pytest.mark.parametrize("campaign", ITEM_COUNTS)
    def test_replay_and_self_normalised_ips_agree_on_a_uniform_log(self, campaign) -> None:
        """For a deterministic policy both are the click rate of the rows that match."""
        log = load_open_bandit("random", campaign, download=False)
        clicks = np.bincount(log.data.actions, weights=log.data.rewards)
        favourite = np.full(10_000, clicks.argmax())
        matches = log.data.actions == favourite
        expected = clicks.max() / matches.sum()
        for estimator in (Replay(), SelfNormalisedIPS()):
            made = estimator.estimate(log.data, deterministic_policy(favourite, log.data.n_actions))
            assert made.warnings == ()
            assert made.value == pytest.approx(expected, rel=1e-12)
            assert made.effective_sample_size == pytest.approx(matches.sum(), rel=1e-12)

    @pytest.mark.parametrize("campaign", ITEM_COUNTS)
    def test_bts_evaluated_on_the_random_log_covers_what_it_earned(self, campaign) -> None:
        """The two logs are of one A/B test: the estimate's 99 % interval holds the other's mean."""
        random = load_open_bandit("random", campaign, download=False)
        bts = load_open_bandit("bts", campaign, levels=random.levels, download=False)
        assert bts.context_names == random.context_names
        policy = logged_shares(bts.data, random.data.positions)
        made = IPS().estimate(random.data, policy, level=0.99)
        assert made.warnings == ()
        assert made.lower < bts.data.rewards.mean() < made.upper

    @pytest.mark.parametrize("campaign", ITEM_COUNTS)
    def test_bts_log_is_known_to_be_unfit_for_the_uniform_policy(self, campaign) -> None:
        """It has propensities down to 1e-6, so that a handful of rows decide."""
        log = load_open_bandit("bts", campaign, download=False)
        uniform = np.full((10_000, log.data.n_actions), 1 / log.data.n_actions)
        with pytest.warns(DegenerateWeightsWarning, match=r"propensities below 0\.001"):
            IPS().estimate(log.data, uniform)

    def test_code_of_the_documentation_runs(self, capsys) -> None:
        page = Path(__file__).resolve().parents[1] / "docs" / "evaluation.md"
        (code,) = re.findall(r"^```py\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.M)
        exec(code, {})
        assert "snips" in capsys.readouterr().out


# ----------------------------------------------------------------------- shares as a policy


def test_logged_shares_are_counted_by_position() -> None:
    log = LoggedData([0, 0, 1, 2], np.zeros(4), np.full(4, 0.5), 3, positions=[1, 1, 1, 3])
    shares = logged_shares(log, [3, 1])
    np.testing.assert_allclose(shares, [[0, 0, 1], [2 / 3, 1 / 3, 0]], rtol=1e-15)


def test_logged_shares_refuse_positions_that_are_not_there() -> None:
    log = LoggedData([0, 1], [0.0, 1.0], [0.5, 0.5], 2, positions=[1, 1])
    with pytest.raises(DataError, match="positions has 2"):
        logged_shares(log, [1, 2])
    with pytest.raises(DataError, match="no positions"):
        logged_shares(LoggedData([0], [0.0], [1.0], 1), [1])
