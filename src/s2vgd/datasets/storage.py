"""Where the files of a data set are: lookup, checksums and verified download.

A file may lie on a disk in several forms (plain, packed, inside a zip archive), each with the
checksum that identifies it. Nothing here knows what is in a file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, cast

from s2vgd.datasets.lzw import uncompress
from s2vgd.errors import DataError

Place = Literal["embedded", "directory", "cache"]

DATA_VARIABLE = "S2VGD_DATA"
CACHE_VARIABLE = "S2VGD_CACHE"
_EMBEDDED = Path(__file__).parent / "embedded"
_UNPACK_ERRORS = (
    OSError,
    EOFError,
    KeyError,  # no such member
    RuntimeError,  # an encrypted one
    ValueError,
    lzma.LZMAError,
    zlib.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Form:
    """One way a file can lie on a disk.

    Attributes
    ----------
    filename : str
        Its name there; ``.xz`` and ``.gz`` are unpacked when it is opened.
    sha256 : str
        Checksum of the file as it lies there or, if it is a member of an archive, of the
        unpacked member, since an archive may be repacked.
    member : str, optional
        The member to read, if `filename` is a zip archive, in whichever folder of it; ``.Z`` is
        unpacked as well.
    urls : tuple of str
        Where exactly this form can be downloaded, in order of preference.
    """

    filename: str
    sha256: str
    member: str | None = None
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataFile:
    """One file of a data set: the folder it belongs in and the forms accepted for it."""

    folder: str
    forms: tuple[Form, ...]
    embedded: bool = False


@dataclass(frozen=True)
class Located:
    """A file found on this machine, not necessarily intact: see `verify`."""

    form: Form
    path: Path
    place: Place

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the unpacked content as a binary stream."""
        if self.form.member is None:
            openers: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open}
            with openers.get(self.path.suffix, open)(self.path, "rb") as stream:
                yield stream
            return
        with zipfile.ZipFile(self.path) as archive:
            inside = {PurePosixPath(name).name: name for name in archive.namelist()}
            with archive.open(inside[self.form.member]) as stream:
                if self.form.member.endswith(".Z"):
                    yield io.BytesIO(uncompress(stream.read()))
                else:
                    yield stream

    def mismatch(self) -> str | None:
        """Say in words how the file differs from the published one; None if it does not."""
        if self.form.member is None:
            with self.path.open("rb") as stream:
                found = _sha256(stream)
        else:
            try:
                with self.open() as stream:
                    found = _sha256(stream)
            except _UNPACK_ERRORS as error:
                found = f"nothing, as {self.form.member} could not be unpacked ({error})"
        if found == self.form.sha256:
            return None
        part = f" of {self.form.member}" if self.form.member else ""
        return f"expected sha256{part} {self.form.sha256}, got {found}"

    def verify(self) -> None:
        """Raise `DataError` unless this is the published file."""
        mismatch = self.mismatch()
        if mismatch:
            raise DataError(
                f"{self.path} is damaged or is not the published file: {mismatch}. "
                f"{_REMEDY[self.place]}"
            )


_REMEDY: dict[Place, str] = {
    "embedded": "Reinstall s2vgd.",
    "directory": f"Replace the file, or unset {DATA_VARIABLE} to have it downloaded.",
    "cache": "Delete the file to have it downloaded again.",
}
_BY_HAND = f"Put such a file into the directory named by {DATA_VARIABLE}"


def data_dir() -> Path | None:
    """Return the directory named by ``S2VGD_DATA``, if any."""
    named = os.environ.get(DATA_VARIABLE)
    if not named:
        return None
    path = Path(named).expanduser()
    if not path.is_dir():
        raise DataError(f"{DATA_VARIABLE} is set to {named!r}, which is not a directory")
    return path


def cache_dir() -> Path:
    """Return where downloads go: ``S2VGD_CACHE``, or the place the system has for caches."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    import pooch

    return Path(pooch.os_cache("s2vgd"))


def locate(file: DataFile) -> Located | None:
    """Find a file on this machine without reading it.

    The order is: the package (for embedded files, nowhere else), ``S2VGD_DATA``, the cache. In a
    directory, a file may lie in its folder or at the top.
    """
    places: list[tuple[Place, Path | None]]
    if file.embedded:
        places = [("embedded", _EMBEDDED)]
    else:
        places = [("directory", data_dir()), ("cache", cache_dir())]
    for place, root in places:
        if root is None:
            continue
        for folder in (root / file.folder, root):
            for form in file.forms:
                path = folder / form.filename
                if path.is_file():
                    return Located(form, path, place)
    return None


def obtain(files: Sequence[DataFile], *, download: bool, progress: bool) -> list[Located]:
    """Find every file, or else download it, and verify each.

    Raises
    ------
    DataError
        If a file is damaged, is nowhere and may not be downloaded, or cannot be downloaded.
    """
    found = []
    for file in files:
        located = locate(file)
        if located is None and download:
            located = _download(file, progress)  # verified before it is kept
        elif located is None:
            raise DataError(f"{_missing(file)} {_BY_HAND}, or call s2vgd.datasets.fetch.")
        else:
            located.verify()
        found.append(located)
    return found


def _download(file: DataFile, progress: bool) -> Located:
    """Download the first form that can be had into the cache; a failure leaves nothing there."""
    target_folder = cache_dir() / file.folder
    failures = []
    try:
        target_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=target_folder) as scratch:
            offers = [(form, url) for form in file.forms for url in form.urls]
            for form, url in offers:
                draft = Located(form, Path(scratch) / form.filename, "cache")
                try:
                    _transfer(url, draft.path, progress)
                except OSError as error:  # which every error of requests is
                    failures.append(f"{url} could not be read: {error}.")
                    continue
                mismatch = draft.mismatch()
                if mismatch:
                    failures.append(f"{url} sent a wrong {form.filename}: {mismatch}.")
                    continue
                final = target_folder / form.filename
                os.replace(draft.path, final)
                return Located(form, final, "cache")
    except OSError as error:
        raise DataError(
            f"cannot write to the cache {target_folder} ({error}); "
            f"set {CACHE_VARIABLE} to a directory that can be written to"
        ) from error
    raise DataError(f"{_missing(file)} Downloading it failed. {_BY_HAND}. {' '.join(failures)}")


def _transfer(url: str, path: Path, progress: bool) -> None:
    import pooch

    if not progress:
        pooch.HTTPDownloader(chunk_size=1 << 16)(url, str(path), None)
        return
    with _progress_bar(path.name) as bar:
        pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16)(url, str(path), None)


@contextmanager
def _progress_bar(title: str) -> Iterator[_PoochBar]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn()) as display:
        yield _PoochBar(display, display.add_task(title, total=None))


class _PoochBar:
    """A rich progress bar with the four names pooch asks of one."""

    def __init__(self, display: Any, task: Any) -> None:
        self._display, self._task = display, task
        self.total = 0

    def update(self, n_bytes: int) -> None:
        self._display.update(self._task, advance=n_bytes, total=self.total or None)

    def reset(self) -> None:
        self._display.reset(self._task)

    def close(self) -> None:
        self._display.refresh()


def _missing(file: DataFile) -> str:
    names = " or ".join(dict.fromkeys(form.filename for form in file.forms))
    directory = data_dir()
    looked = f"{DATA_VARIABLE} ({directory or 'not set'}) and the cache ({cache_dir()})"
    return f"{names} is not on this machine: looked in {looked}."


def _sha256(stream: IO[bytes]) -> str:
    return hashlib.file_digest(cast(Any, stream), "sha256").hexdigest()
