"""Data sets: integrity, the published splits, every file format, lookup and download.

The readers of the large sets always run on small files made here in the same formats, and on the
published files as well where those are on the machine (``S2VGD_DATA``, or ``shared/data`` beside
the repository). The network is replaced throughout.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
import requests

from s2vgd import datasets
from s2vgd.datasets import catalogue, formats, storage
from s2vgd.datasets.lzw import uncompress
from s2vgd.errors import DataError

EMBEDDED = Path(datasets.__file__).parent / "embedded"
MANIFEST = json.loads((EMBEDDED / "manifest.json").read_text())["datasets"]
REGRESSION = sorted(set(MANIFEST) - {"mushroom"})
SHARED = Path(
    os.environ.get("S2VGD_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ------------------------------------------------------------------------------- the network


class FakeWeb:
    """Stands in for `requests.get`: a dictionary of pages, and no network behind it."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.requested: list[str] = []
        self.breaks_off = False

    def get(self, url: str, **_: object) -> FakeWeb.Response:
        self.requested.append(url)
        if url not in self.pages:
            raise requests.exceptions.ConnectionError("name or service not known")
        return self.Response(self.pages[url], self.breaks_off)

    class Response:
        def __init__(self, content: bytes, breaks_off: bool) -> None:
            self.content, self.breaks_off = content, breaks_off
            self.headers = {"content-length": str(len(content))}

        def raise_for_status(self) -> None:
            pass

        def iter_content(self, chunk_size: int):
            yield self.content[: len(self.content) // 2]
            if self.breaks_off:
                raise requests.exceptions.ConnectionError("connection reset by peer")
            yield self.content[len(self.content) // 2 :]


@pytest.fixture(autouse=True)
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeWeb:
    """No test reaches the network, the user's cache or the user's data directory."""
    web = FakeWeb()
    monkeypatch.setattr(requests, "get", web.get)
    monkeypatch.setenv("S2VGD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("S2VGD_DATA", raising=False)
    return web


# ------------------------------------------------------------- small files in the same formats


def compress_z(data: bytes, max_width: int = 16, clear_at: int = -1) -> bytes:
    """Unix `compress`, in the plainest way; the code with index `clear_at` is a CLEAR."""
    bits: list[str] = []
    group: list[str] = []
    width = 9

    def emit(code: int) -> None:
        group.append(format(code, f"0{width}b")[::-1])
        if len(group) == 8:
            flush()

    def flush() -> None:
        if group:
            bits.append("".join(group).ljust(8 * width, "0"))
            group.clear()

    codes = {bytes([value]): value for value in range(256)}
    next_code, n_emitted, prefix = 257, 0, b""
    for value in data:
        extended = prefix + bytes([value])
        if extended in codes:
            prefix = extended
            continue
        emit(codes[prefix])
        n_emitted += 1
        if next_code > (1 << width) - 1 and width < max_width:
            flush()
            width += 1
        if n_emitted == clear_at:
            emit(256)
            flush()
            codes, next_code, width = {bytes([v]): v for v in range(256)}, 257, 9
        elif next_code < 1 << max_width:
            codes[extended] = next_code
            next_code += 1
        prefix = bytes([value])
    if prefix:
        emit(codes[prefix])
    stream = "".join(bits) + "".join(group)
    stream = stream.ljust(-(-len(stream) // 8) * 8, "0")
    packed = bytes(int(stream[i : i + 8][::-1], 2) for i in range(0, len(stream), 8))
    return b"\x1f\x9d" + bytes([0x80 | max_width]) + packed


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def images(n: int, seed: int) -> tuple[bytes, bytes]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
    return idx(pixels), idx(np.arange(n, dtype=np.uint8) % 10)


def numbers(n: int, columns: int, separator: str, last: int | None = None) -> bytes:
    rng = np.random.default_rng(n)
    rows = rng.integers(-50, 3000, (n, columns))
    if last is not None:
        rows[:, -1] = np.arange(n) % last + 1
    return "".join(separator.join(map(str, row)) + "\n" for row in rows).encode()


ADULT_TRAIN = b"""\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, \
2174, 0, 40, United-States, <=50K
54, ?, 180211, Some-college, 10, Married-civ-spouse, ?, Husband, Asian-Pac-Islander, Male, 0, 0, \
60, South, >50K

"""
ADULT_TEST = b"""\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, Male, 0, 0, 40, \
United-States, <=50K.

"""


def year_rows(n: int) -> bytes:
    rng = np.random.default_rng(n)
    timbre = rng.normal(scale=50, size=(n, 90))
    lines = (f"{1950 + i}," + ",".join(f"{v:.5f}" for v in row) for i, row in enumerate(timbre))
    return ("\n".join(lines) + "\n").encode()


MADE: dict[str, Callable[[], tuple[bytes, ...]]] = {
    "mnist": lambda: (*images(6, seed=0), *images(4, seed=1)),
    "fashion-mnist": lambda: images(5, seed=2),
    "notmnist": lambda: images(5, seed=3),
    "covertype": lambda: (numbers(9, 55, ",", last=7),),
    "adult": lambda: (ADULT_TRAIN, ADULT_TEST),
    "shuttle": lambda: (numbers(8, 10, " ", last=7), numbers(5, 10, " ", last=7)),
    "year": lambda: (year_rows(10),),
}
MADE_READERS = {  # the size of the fixed training part is that of the published files
    "mnist": partial(formats.read_images, classes=tuple("0123456789"), n_train=6),
    "year": partial(formats.read_year, n_train=7),
}


class MadeFiles:
    """A small version of a data set: every form of its files, known to the catalogue."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents = MADE[name]()
        self.packed: dict[str, bytes] = {}
        self.urls: dict[str, bytes] = {}
        entry = catalogue.entries()[name]
        archives: dict[str, dict[str, bytes]] = {}
        for file, content in zip(entry.files, self.contents, strict=True):
            for form in file.forms:
                if form.member is not None:
                    packed = compress_z(content) if form.member.endswith(".Z") else content
                    archives.setdefault(form.filename, {})[form.member] = packed
                else:
                    packers = {".xz": lzma.compress, ".gz": partial(gzip.compress, mtime=0)}
                    pack = packers.get(Path(form.filename).suffix, bytes)
                    self.packed[form.filename] = pack(content)
        self.packed |= {filename: zipped(members) for filename, members in archives.items()}
        files = []
        for file, content in zip(entry.files, self.contents, strict=True):
            forms = []
            for form in file.forms:
                checked = content if form.member else self.packed[form.filename]
                forms.append(dataclasses.replace(form, sha256=sha256(checked)))
                self.urls |= {url: self.packed[form.filename] for url in form.urls}
            files.append(dataclasses.replace(file, forms=tuple(forms)))
        self.entry = dataclasses.replace(
            entry, files=tuple(files), read=MADE_READERS.get(name, entry.read)
        )
        known = {**catalogue.entries(), name: self.entry}
        monkeypatch.setattr(catalogue, "entries", lambda: known)

    def write(self, root: Path, form: int = 0, *, flat: bool = False) -> list[Path]:
        """Write each file of the set in its form with this index."""
        paths = []
        for file in self.entry.files:
            path = root / ("" if flat else file.folder) / file.forms[form].filename
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.packed[path.name])
            paths.append(path)
        return paths


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], MadeFiles]:
    return lambda name: MadeFiles(name, monkeypatch)


def published(name: str) -> bool:
    """Whether the published files are on this machine."""
    files = catalogue.entries()[name].files
    return all(
        any((SHARED / file.folder / form.filename).is_file() for form in file.forms)
        for file in files
    )


def sources(*names: str):
    """Parametrise over (name, origin): always made here, and published where present."""
    return pytest.mark.parametrize(
        ("name", "origin"),
        [(name, "made") for name in names]
        + [(name, "published") for name in names if published(name)],
    )


@pytest.fixture
def load_from(make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Load a set from a directory named by S2VGD_DATA, of made or of published files."""

    def load(name: str, origin: str) -> tuple[datasets.Dataset, MadeFiles | None]:
        made = None
        root = SHARED
        if origin == "made":
            root = tmp_path / "data"
            made = make(name)
            made.write(root)
        monkeypatch.setenv("S2VGD_DATA", str(root))
        assert datasets.info(name).where == "directory"
        return datasets.load(name, download=False), made

    return load


# ------------------------------------------------------------------------ embedded data sets


def test_manifest_is_the_published_one() -> None:
    """The checksums below are compared with this file, so it must not drift with them."""
    digest = sha256((EMBEDDED / "manifest.json").read_bytes())
    assert digest == "cdad3d6f7a35fb7f22bb45dd5dd4250ceb0beaef85af778208b2d8e1393c94ef"


@pytest.mark.parametrize("name", sorted(MANIFEST))
def test_embedded_file_has_published_checksums(name: str) -> None:
    facts = MANIFEST[name]
    packed = (EMBEDDED / Path(facts["file"]).name).read_bytes()
    assert len(packed) == facts["bytes"]
    assert sha256(packed) == facts["sha256"]
    assert sha256(lzma.decompress(packed)) == facts["unpacked_sha256"]


@pytest.mark.parametrize("name", REGRESSION)
def test_regression_set_matches_manifest(name: str) -> None:
    facts = MANIFEST[name]
    data = datasets.load(name)
    assert data.task == "regression"
    assert data.x.shape == (facts["rows"], len(facts["features"]))
    assert data.x.dtype == data.y.dtype == np.float64
    assert data.y.shape == (facts["rows"],)
    assert np.isfinite(data.x).all()
    assert data.feature_names == tuple(facts["column_names"][i] for i in facts["features"])
    assert data.target_name == facts["column_names"][facts["target"]]
    assert np.mean(data.y) == pytest.approx(facts["target_mean"], rel=1e-12)
    assert np.std(data.y) == pytest.approx(facts["target_std"], rel=1e-12)
    assert data.hidden_units == (100 if name == "protein" else 50)


@pytest.mark.parametrize("name", REGRESSION)
def test_splits_are_the_published_ones(name: str) -> None:
    """The permutations hash to the manifest's checksum: same rows in the same order."""
    facts = MANIFEST[name]
    splits = datasets.load(name).splits
    assert len(splits) == facts["n_splits"]
    for train, test in splits:
        assert (len(train), len(test)) == (facts["n_train"], facts["n_test"])
    permutations = np.array([np.concatenate(split) for split in splits])
    assert (np.sort(permutations, axis=1) == np.arange(facts["rows"])).all()
    assert sha256(permutations.astype("<u2").tobytes()) == facts["permutations_sha256"]


def test_naval_keeps_its_two_constant_columns() -> None:
    """They are part of the benchmark; a scaler has to survive them."""
    constant = np.flatnonzero(np.ptp(datasets.load("naval").x, axis=0) == 0)
    assert constant.tolist() == [8, 11]


def test_boston_carries_the_ethics_note() -> None:
    assert "racial" in datasets.load("boston").note
    assert "racial" in datasets.info("boston").note


def test_mushroom_one_hot_decodes_to_the_raw_letters() -> None:
    data = datasets.load("mushroom")
    assert data.x.shape == (8124, 117)
    assert data.classes == ("edible", "poisonous")
    assert np.bincount(data.y).tolist() == [4208, 3916]
    assert data.raw is not None
    assert data.raw.shape == (8124, 22)
    assert data.raw[0].tolist() == list("xsntpfcnkeesswwpwopksu")
    assert np.sum(data.raw == "?", axis=0).nonzero()[0].tolist() == [10]
    assert np.sum(data.raw == "?") == 2480
    set_names = np.array(data.feature_names)[np.nonzero(data.x)[1]].reshape(8124, 22)
    expected = np.char.add(np.char.add(np.array(data.raw_names), "="), data.raw)
    assert (set_names == expected).all()
    assert data.splits == []


# ---------------------------------------------------------------------------- larger data sets


@sources("mnist")
def test_mnist(load_from, name: str, origin: str) -> None:
    data, made = load_from(name, origin)
    (train, test), *others = data.splits
    assert not others
    assert data.x.dtype == np.float32
    assert data.x.shape[1] == len(data.feature_names) == 784
    assert data.classes == tuple("0123456789")
    if made:
        raw = [np.frombuffer(made.contents[i][16:], np.uint8).reshape(-1, 784) for i in (0, 2)]
        np.testing.assert_array_equal(data.x[train], raw[0])
        np.testing.assert_array_equal(data.x[test], raw[1])
        assert data.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    else:
        counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        assert np.bincount(data.y[train]).tolist() == counts
        counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
        assert np.bincount(data.y[test]).tolist() == counts
        pixels = data.x[train].astype(np.float64) / 255
        assert pixels.mean() == pytest.approx(0.13066, abs=5e-6)
        assert pixels.std() == pytest.approx(0.30811, abs=5e-6)


@sources("fashion-mnist", "notmnist")
def test_out_of_distribution_images(load_from, name: str, origin: str) -> None:
    """They are test sets: no split, ten classes of equal size."""
    data, made = load_from(name, origin)
    assert data.splits == []
    assert len(data.classes) == 10
    if made:
        raw = np.frombuffer(made.contents[0][16:], np.uint8)
        np.testing.assert_array_equal(data.x.ravel(), raw)
        assert data.y.tolist() == [0, 1, 2, 3, 4]
    else:
        assert data.x.shape == (10_000, 784)
        assert np.bincount(data.y).tolist() == [1000] * 10


@sources("covertype")
def test_covertype(load_from, name: str, origin: str) -> None:
    data, made = load_from(name, origin)
    assert data.x.shape[1] == len(data.feature_names) == 54
    assert len(data.classes) == 7
    assert data.splits == []
    if made:
        rows = np.loadtxt(io.BytesIO(made.contents[0]), delimiter=",")
        np.testing.assert_array_equal(data.x, rows[:, :-1])
        assert data.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    else:
        counts = [211840, 283301, 35754, 2747, 9493, 17367, 20510]
        assert np.bincount(data.y).tolist() == counts
        one_hot = data.x[:, 10:]
        assert (one_hot[:, :4].sum(axis=1) == 1).all()
        assert (one_hot[:, 4:].sum(axis=1) == 1).all()


@sources("adult")
def test_adult(load_from, name: str, origin: str) -> None:
    """'?' is a level, the test file's comment line is no row and its labels lose their dot."""
    data, made = load_from(name, origin)
    assert data.raw is not None
    assert data.raw.shape[1] == len(data.raw_names) == 14
    (train, test), *others = data.splits
    assert not others
    assert data.classes == ("<=50K", ">50K")
    occupation = data.raw[:, data.raw_names.index("occupation")]
    missing = data.x[:, data.feature_names.index("occupation=?")]
    np.testing.assert_array_equal(missing == 1, occupation == "?")
    age = data.x[:, data.feature_names.index("age")]
    if made:
        assert data.y.tolist() == [0, 1, 0]
        assert age.tolist() == [39, 54, 25]
        assert occupation.tolist() == ["Adm-clerical", "?", "Machine-op-inspct"]
        assert (train.tolist(), test.tolist()) == ([0, 1], [2])
    else:
        assert (len(train), len(test)) == (32_561, 16_281)
        assert data.x.shape == (48_842, 108)
        assert np.bincount(data.y[train]).tolist() == [24_720, 7_841]
        assert np.bincount(data.y[test]).tolist() == [12_435, 3_846]


@sources("shuttle")
def test_shuttle(load_from, name: str, origin: str) -> None:
    data, made = load_from(name, origin)
    (train, test), *others = data.splits
    assert not others
    if made:
        rows = np.concatenate([np.loadtxt(io.BytesIO(part)) for part in made.contents])
        np.testing.assert_array_equal(data.x, rows[:, :-1])
        np.testing.assert_array_equal(data.y, rows[:, -1] - 1)
        assert (len(train), len(test)) == (8, 5)
    else:
        counts = [34108, 37, 132, 6748, 2458, 6, 11]
        assert np.bincount(data.y[train]).tolist() == counts
        assert np.bincount(data.y[test]).tolist() == [11478, 13, 39, 2155, 809, 4, 2]


@sources("year")
def test_year(load_from, name: str, origin: str) -> None:
    """The year comes first in the file and the first rows train."""
    data, made = load_from(name, origin)
    (train, test), *others = data.splits
    assert not others
    assert len(data.feature_names) == data.x.shape[1] == 90
    assert data.hidden_units == 100
    if made:
        rows = np.loadtxt(io.BytesIO(made.contents[0]), delimiter=",")
        np.testing.assert_allclose(data.x, rows[:, 1:], rtol=1e-15)
        assert data.y.tolist() == list(range(1950, 1960))
        assert (train.tolist(), test.tolist()) == ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9])
    else:
        assert (len(train), len(test)) == (463_715, 51_630)


def test_year_split_is_the_one_its_producers_ask_for() -> None:
    """Without the test's own override, the fixed split has the published sizes."""
    table = catalogue.entries()["year"].read(io.BytesIO(year_rows(3)))
    assert table.n_train == 463_715
    assert catalogue.entries()["year"].n_rows - table.n_train == 51_630


# ------------------------------------------------------------------------------ where files are


ALL_FORMS = [
    (name, form) for name in MADE for form in range(len(catalogue.entries()[name].files[0].forms))
]


@pytest.mark.parametrize(("name", "form"), ALL_FORMS)
@pytest.mark.parametrize("flat", [False, True])
def test_every_form_of_a_file_is_read(
    make, monkeypatch, tmp_path: Path, name: str, form: int, flat: bool
) -> None:
    """Plain, xz, gz and UCI's own zip give the same data, in a folder or at the top."""
    made = make(name)
    expected = made.entry.read(*map(io.BytesIO, made.contents))
    paths = made.write(tmp_path / "data", form, flat=flat)
    monkeypatch.setenv("S2VGD_DATA", str(tmp_path / "data"))
    data = datasets.load(name, download=False)
    np.testing.assert_array_equal(data.x, expected.x)
    np.testing.assert_array_equal(data.y, expected.y)
    assert datasets.info(name).paths == tuple(dict.fromkeys(paths))


def test_directory_comes_before_cache_comes_before_download(
    make, monkeypatch, tmp_path: Path, web: FakeWeb
) -> None:
    made = make("covertype")
    web.pages |= made.urls
    assert datasets.info("covertype").where == "not present"
    assert datasets.info("covertype").paths == ()

    downloaded = datasets.fetch("covertype")
    assert len(web.requested) == 1
    assert downloaded == (tmp_path / "cache" / "covertype" / "covtype.data.gz",)
    assert datasets.info("covertype").where == "cache"
    datasets.load("covertype")
    assert len(web.requested) == 1

    (in_directory,) = made.write(tmp_path / "data")
    monkeypatch.setenv("S2VGD_DATA", str(tmp_path / "data"))
    assert datasets.info("covertype").where == "directory"
    assert datasets.fetch("covertype") == (in_directory,)
    datasets.load("covertype")
    assert len(web.requested) == 1


def test_a_set_with_a_file_missing_is_not_present(make, monkeypatch, tmp_path: Path) -> None:
    made = make("mnist")
    first, *others = made.write(tmp_path / "data")
    for path in others:
        path.unlink()
    monkeypatch.setenv("S2VGD_DATA", str(tmp_path / "data"))
    info = datasets.info("mnist")
    assert info.where == "not present"
    assert info.paths == (first,)


@pytest.mark.parametrize("name", REGRESSION)
def test_embedded_sets_need_neither_cache_nor_network(name: str, web: FakeWeb) -> None:
    assert datasets.info(name).where == "embedded"
    (path,) = datasets.fetch(name)
    assert path.parent == EMBEDDED
    assert web.requested == []


def test_cache_defaults_to_the_place_the_system_has_for_it(monkeypatch) -> None:
    monkeypatch.delenv("S2VGD_CACHE")
    assert storage.cache_dir().name == "s2vgd"


def test_data_variable_that_names_no_directory_is_reported(monkeypatch, tmp_path: Path) -> None:
    """A typo in S2VGD_DATA must not silently lead to a download."""
    monkeypatch.setenv("S2VGD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"S2VGD_DATA is set to .*nowhere"):
        datasets.load("mnist")


# ----------------------------------------------------------------------------- download, damage


def files_under(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if not path.is_dir()]


@pytest.mark.parametrize("name", list(MADE))
def test_download_gives_the_same_data(make, web: FakeWeb, name: str) -> None:
    """Every set has an address whose file is accepted, archives with two members included."""
    made = make(name)
    web.pages |= made.urls
    expected = made.entry.read(*map(io.BytesIO, made.contents))
    data = datasets.load(name)
    np.testing.assert_array_equal(data.x, expected.x)
    np.testing.assert_array_equal(data.y, expected.y)
    assert len(web.requested) == len(set(web.requested))
    assert datasets.info(name).where == "cache"


def test_download_shows_progress_when_asked(make, web: FakeWeb, capsys) -> None:
    made = make("covertype")
    web.pages |= made.urls
    datasets.fetch("covertype", progress=True)
    assert "covtype.data.gz" in capsys.readouterr().out


def test_second_mirror_is_tried(make, web: FakeWeb) -> None:
    made = make("mnist")
    web.pages |= {url: page for url, page in made.urls.items() if "googleapis" in url}
    assert datasets.load("mnist").x.shape == (10, 784)
    assert len(web.requested) == 8


def test_offline_says_what_to_do_and_leaves_nothing(make, tmp_path: Path) -> None:
    made = make("adult")
    with pytest.raises(DataError) as caught:
        datasets.load("adult")
    message = str(caught.value)
    for part in ("adult.data.xz", "adult.zip", "S2VGD_DATA", str(tmp_path / "cache"), *made.urls):
        assert part in message
    assert "name or service not known" in message
    assert files_under(tmp_path) == []


def test_no_download_unless_allowed(make, web: FakeWeb) -> None:
    web.pages |= make("covertype").urls
    with pytest.raises(DataError, match=r"covtype\.data\.xz .* is not on this machine"):
        datasets.load("covertype", download=False)
    assert web.requested == []


@pytest.mark.parametrize("name", ["covertype", "year"])
def test_wrong_download_is_discarded(make, web: FakeWeb, tmp_path: Path, name: str) -> None:
    """An error page served as the file is refused by checksum and not kept."""
    made = make(name)
    web.pages |= dict.fromkeys(made.urls, b"<html>moved</html>")
    with pytest.raises(DataError) as caught:
        datasets.fetch(name)
    message = str(caught.value)
    (form, *_) = [form for form in made.entry.files[0].forms if form.urls]
    assert form.filename in message
    assert f"{form.sha256}, got" in message
    if form.member is None:
        assert sha256(b"<html>moved</html>") in message
    assert files_under(tmp_path) == []
    assert datasets.info(name).where == "not present"


def test_connection_that_breaks_off_leaves_nothing(make, web: FakeWeb, tmp_path: Path) -> None:
    web.pages |= make("covertype").urls
    web.breaks_off = True
    with pytest.raises(DataError, match="connection reset by peer"):
        datasets.fetch("covertype")
    assert files_under(tmp_path) == []
    web.breaks_off = False
    assert datasets.load("covertype").x.shape == (9, 54)


def test_cache_that_cannot_be_written_is_reported(make, web: FakeWeb, tmp_path: Path) -> None:
    web.pages |= make("covertype").urls
    (tmp_path / "cache").write_text("a file where a directory should be")
    with pytest.raises(DataError, match="S2VGD_CACHE"):
        datasets.fetch("covertype")


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty"])
@pytest.mark.parametrize(("name", "form"), ALL_FORMS)
def test_damaged_file_is_refused(
    make, monkeypatch, tmp_path: Path, name: str, form: int, damage: str
) -> None:
    """Whatever the form, damage gives an error that names the file, expected and got."""
    made = make(name)
    path = made.write(tmp_path / "data", form)[0]
    whole = path.read_bytes()
    at = middle = len(whole) // 2
    if zipfile.is_zipfile(path):  # where a bit may be of no consequence: hit the member itself
        with zipfile.ZipFile(path) as archive:
            member = archive.infolist()[0]
            at = 30 + len(member.filename) + member.compress_size // 2
    path.write_bytes(
        {
            "flipped": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
            "truncated": whole[:middle],
            "empty": b"",
        }[damage]
    )
    monkeypatch.setenv("S2VGD_DATA", str(tmp_path / "data"))
    damaged_forms = [file.forms[form] for file in made.entry.files]
    with pytest.raises(DataError) as caught:
        datasets.load(name, download=False)
    message = str(caught.value)
    assert str(path) in message
    assert "got" in message
    assert any(f.sha256 in message for f in damaged_forms if f.filename == path.name)


def test_damaged_cache_says_to_delete_the_file(make, web: FakeWeb) -> None:
    web.pages |= make("covertype").urls
    (path,) = datasets.fetch("covertype")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="Delete the file"):
        datasets.load("covertype")


def test_damaged_embedded_file_is_refused(monkeypatch, tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED, tmp_path / "embedded")
    (tmp_path / "embedded" / "yacht.txt.xz").write_bytes(b"")
    monkeypatch.setattr(storage, "_EMBEDDED", tmp_path / "embedded")
    with pytest.raises(DataError, match=r"yacht\.txt\.xz .* Reinstall"):
        datasets.load("yacht")


# -------------------------------------------------------------------------- names, bad contents


@pytest.mark.parametrize(
    ("given", "suggested"),
    [("yatch", "yacht"), ("covtype", "covertype"), ("YearPredictionMSD", "year")],
)
def test_unknown_name_lists_the_known_and_suggests_one(given: str, suggested: str) -> None:
    with pytest.raises(DataError) as caught:
        datasets.load(given)
    message = str(caught.value)
    assert f"Did you mean '{suggested}'?" in message
    assert all(name in message for name in datasets.names())


@pytest.mark.parametrize("given", ["", "zzzzzz"])
def test_unknown_name_without_a_likeness_gets_no_suggestion(given: str) -> None:
    with pytest.raises(DataError, match="unknown data set") as caught:
        datasets.info(given)
    assert "Did you mean" not in str(caught.value)


def test_names_are_not_case_sensitive() -> None:
    assert datasets.load("Yacht").name == "yacht"


def test_info_states_the_shape_that_load_gives() -> None:
    for name in [*REGRESSION, "mushroom"]:
        info = datasets.info(name)
        assert datasets.load(name).x.shape == (info.n_rows, info.n_features)
        assert info.licence


def test_readers_refuse_what_they_do_not_understand() -> None:
    with pytest.raises(DataError, match="IDX"):
        formats.read_images(io.BytesIO(b"P5 28 28 255"), io.BytesIO(b""), classes="01")
    with pytest.raises(DataError, match="row 2 has 3 fields"):
        formats.read_mushroom(io.BytesIO(b"e,x\ne,x,y\n"), columns=["class", "cap-shape"])
    with pytest.raises(DataError, match=r"unknown class labels \['q'\]"):
        formats.read_mushroom(io.BytesIO(b"q,x\n"), columns=["class", "cap-shape"])


# --------------------------------------------------------------------------------- .Z archives

Z_CASES = {
    "text": (numbers(400, 10, " "), 16, -1),
    "table full": (numbers(400, 10, " "), 10, -1),
    "cleared": (numbers(400, 10, " "), 12, 700),
    "code defined by itself": (b"a" * 5000, 16, -1),
    "one byte": (b"x", 16, -1),
    "empty": (b"", 16, -1),
}


@pytest.mark.parametrize("case", list(Z_CASES))
def test_z_files_are_unpacked(case: str) -> None:
    """Against an encoder written here, which gzip, where there is one, vouches for."""
    content, max_width, clear_at = Z_CASES[case]
    packed = compress_z(content, max_width, clear_at)
    assert uncompress(packed) == content
    if shutil.which("gzip") and content:
        unpacked = subprocess.run(["gzip", "-dc"], input=packed, capture_output=True, check=True)
        assert unpacked.stdout == content


def test_what_is_not_a_z_file_is_refused() -> None:
    with pytest.raises(ValueError, match="1f 9d"):
        uncompress(b"PK\x03\x04")
    undefined = b"\x1f\x9d\x90" + (400 << 9 | ord("a")).to_bytes(3, "little")
    with pytest.raises(ValueError, match="undefined code 400"):
        uncompress(undefined)


# ---------------------------------------------------------------------------------- toy problems


def test_toy_regression_is_the_papers() -> None:
    """12 points left of the gap, 8 right, noise inside the curve with the paper's variance."""
    data = datasets.toy_regression(0)
    assert data.x.shape == (20, 1)
    x = data.x[:, 0]
    assert ((x[:12] >= 0) & (x[:12] <= 0.6)).all()
    assert ((x[12:] >= 0.8) & (x[12:] <= 1)).all()

    many = datasets.toy_regression(1, n=200_000)
    x = many.x[:, 0]
    # Around 0.24 the curve falls steeply for four standard deviations either way, so that
    # the noise can be recovered by Newton's method.
    steep = np.abs(x - 0.24) < 0.01
    x, y = x[steep], many.y[steep]
    z = x.copy()
    for _ in range(20):
        slope = 1 + 4 * np.cos(4 * z) + 13 * np.cos(13 * z)
        z -= (z + np.sin(4 * z) + np.sin(13 * z) - y) / slope
    eps = z - x
    assert np.mean(eps) == pytest.approx(0, abs=3 * 0.03 / np.sqrt(len(eps)))
    assert np.var(eps) == pytest.approx(0.0009, rel=0.08)


def test_toy_classification_is_the_papers() -> None:
    data = datasets.toy_classification(0)
    assert data.x.shape == (20, 2)
    assert data.y.tolist() == [0] * 10 + [1] * 10
    assert ((data.x[:10] >= -3) & (data.x[:10] <= -1)).all()
    assert ((data.x[10:] >= 1) & (data.x[10:] <= 3)).all()


@pytest.mark.parametrize("toy", [datasets.toy_regression, datasets.toy_classification])
def test_toy_sets_follow_the_seed(toy) -> None:
    """An int or either kind of JAX key; the same seed gives the same points."""
    for seed, other in [(3, 4), (jax.random.key(3), jax.random.key(4))]:
        np.testing.assert_array_equal(toy(seed).x, toy(seed).x)
        assert (toy(seed).x != toy(other).x).any()
    np.testing.assert_array_equal(toy(jax.random.key(3)).x, toy(jax.random.PRNGKey(3)).x)


def test_toy_sets_refuse_bad_arguments() -> None:
    with pytest.raises(TypeError, match="seed must be"):
        datasets.toy_regression("zero")
    with pytest.raises(ValueError, match="n must be"):
        datasets.toy_regression(0, n=0)
    with pytest.raises(ValueError, match="n_per_class must be"):
        datasets.toy_classification(0, n_per_class=0)
