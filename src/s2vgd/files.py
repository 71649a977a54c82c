"""Directories that hold named arrays and JSON: how models of this library reach a disk.

A saved directory holds ``manifest.json`` and one safetensors file. Nothing is ever pickled, so
nothing in a file can run when it is read. What the arrays mean (a posterior, a checkpoint) is the
business of the callers, who name it by ``kind`` and ``version``; what a manifest must say is in
:mod:`s2vgd.manifest`.

The name of the tensor file contains its own checksum. A new version is therefore written beside the
old one and becomes current in the single instant at which the manifest is replaced: a reader, or a
process killed at any point, finds the whole old version or the whole new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from s2vgd import manifest
from s2vgd.errors import DataError, ModelFileError

try:
    import fcntl
except ImportError:  # Windows has no such locks; there, one writer at a time is up to the user.
    fcntl = None  # type: ignore[assignment]

MANIFEST = "manifest.json"

_TEMPORARY_FILE = re.compile(r"\.s2vgd-[0-9a-f]{16}\.tmp")
_READ_ATTEMPTS = 10


def save_directory(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any],
    *,
    kind: str,
    version: int,
) -> None:
    """Write arrays and metadata to a directory, atomically.

    Parameters
    ----------
    path : path-like
        The directory. It is made if it is missing, and replaced if it holds something of the same
        kind; anything else that is there is left alone and refused.
    arrays : mapping of str to array
        Boolean, integer or floating (also bfloat16) arrays of any shape.
    metadata : mapping
        Anything that JSON can hold, without NaN or infinity.
    kind : str
        What the directory holds, for example ``"checkpoint"``.
    version : int
        Version of the meaning of ``arrays`` and ``metadata``, from 1.

    Raises
    ------
    ModelFileError
        If ``path`` exists and is not ours to replace.
    """
    target = Path(path)
    check_target(target, kind=kind)
    text, tensor_name, tensors = manifest.encode(arrays, metadata, kind=kind, version=version)
    target.mkdir(parents=True, exist_ok=True)
    with _one_writer(target):
        _replace_file(target / tensor_name, tensors)
        _replace_file(target / MANIFEST, text)
        _remove_leftovers(target, keep=tensor_name)
    _sync_directory(target.parent)


def load_directory(
    path: str | os.PathLike[str], *, kind: str, max_version: int
) -> tuple[dict[str, np.ndarray], dict[str, Any], int]:
    """Read what :func:`save_directory` wrote.

    Parameters
    ----------
    path : path-like
        The directory.
    kind : str
        The kind that is wanted; any other is refused.
    max_version : int
        The newest version that the caller understands.

    Returns
    -------
    arrays : dict of str to array
        The arrays, with the shapes and dtypes they had.
    metadata : dict
        The metadata.
    version : int
        The version they were written in.

    Raises
    ------
    ModelFileError
        If anything is missing, damaged, changed, foreign, too new or not what it claims to be.
    """
    directory = Path(path)
    with _reading(directory):
        raw = _read_manifest(directory)
        for _ in range(_READ_ATTEMPTS):
            content = manifest.parse(raw)
            manifest.check(content, kind=kind, max_version=max_version)
            try:
                tensors = _read_regular_file(directory / content["tensor_file"]["name"])
            except FileNotFoundError:
                # A writer may have replaced the version whose manifest was just read.
                previous, raw = raw, _read_manifest(directory)
                if raw == previous:
                    raise
                continue
            arrays = manifest.decode_tensors(content, tensors)
            return arrays, content["metadata"], content["version"]
        raise ModelFileError("it is being rewritten faster than it can be read")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path whose file takes the place of `path` if the block ends well.

    Raises
    ------
    DataError
        If `path` is a directory, or there is none for it.
    """
    if path.is_dir():
        raise DataError(f"{path} is a directory: name a file to write")
    if not path.parent.is_dir():
        raise DataError(f"there is no directory {path.parent} to write {path.name} to")
    temporary = path.parent / f".s2vgd-{secrets.token_hex(8)}.tmp"
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def is_saved(path: str | os.PathLike[str]) -> bool:
    """Whether a save to ``path`` was ever completed (not whether it is still intact)."""
    return os.path.lexists(Path(path) / MANIFEST)


def check_target(path: str | os.PathLike[str], *, kind: str) -> None:
    """Raise ModelFileError unless :func:`save_directory` may write to ``path``.

    It may where nothing is, into an empty directory (or one with the remains of an interrupted
    first save), and over something of the same kind.
    """
    target = Path(path)
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise ModelFileError(f"cannot save to {target}: it exists and is not a directory.")
    if is_saved(target):
        with _reading(target):
            held = manifest.parse(_read_manifest(target)).get("kind")
        if held != kind:
            raise ModelFileError(
                f"cannot save a {kind!r} to {target}: it holds a {manifest.shown(held)}."
            )
    elif strangers := sorted(entry for entry in os.listdir(target) if not _is_ours(entry)):
        raise ModelFileError(
            f"cannot save to {target}: the directory holds {strangers[0]!r} and nothing saved by "
            "s2vgd; choose a new or an empty directory."
        )


def tree_to_arrays(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """Name the leaves of a pytree by their path.

    Parameters
    ----------
    tree : pytree
        Leaves are arrays, numbers, or typed PRNG keys (stored as their key data, under a name that
        ends in the name of their implementation).
    prefix : str
        First part of each name.

    Returns
    -------
    arrays : dict of str to array
        For example ``{"state/particles/weights/0/kernel": ...}``.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, leaf in _named_leaves(tree, prefix):
        if name in arrays:
            raise ValueError(f"two leaves of the tree have the same name {name!r}.")
        arrays[name] = to_host(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return arrays


def to_host(leaf: Any) -> np.ndarray:
    """Return an array whole; one that is spread over processes is fetched by all of them."""
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        leaf = multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(leaf)


def arrays_to_tree(arrays: Mapping[str, np.ndarray], example_tree: Any, prefix: str) -> Any:
    """Fill a tree from named arrays, the inverse of :func:`tree_to_arrays`.

    Parameters
    ----------
    arrays : mapping of str to array
        May hold more than this tree: names under other prefixes are ignored.
    example_tree : pytree
        Says the structure, shapes and dtypes that are wanted. Leaves may be arrays or
        ``jax.ShapeDtypeStruct``; PRNG keys must be actual keys, and numbers come back as numbers.
    prefix : str
        First part of each name.

    Returns
    -------
    tree : pytree
        The structure of ``example_tree`` with the arrays as leaves.

    Raises
    ------
    ModelFileError
        If names, shapes or dtypes differ from those of the example.
    """
    examples = dict(_named_leaves(example_tree, prefix))
    starts = (f"{prefix}/", f"{prefix}#") if prefix else ("",)
    present = {name for name in arrays if name == prefix or name.startswith(starts)}
    if present != examples.keys():
        problems = [
            f"{word} {sorted(names)[:3]}"
            for word, names in (
                ("missing", examples.keys() - present),
                ("unexpected", present - examples.keys()),
            )
            if names
        ]
        raise ModelFileError(f"the stored {prefix!r} does not fit here: {', '.join(problems)}.")
    leaves = [_restore_leaf(name, arrays[name], example) for name, example in examples.items()]
    return jax.tree.unflatten(jax.tree.structure(example_tree), leaves)


def _restore_leaf(name: str, array: np.ndarray, example: Any) -> Any:
    is_number = isinstance(example, bool | int | float)
    wanted = jax.random.key_data(example) if _is_key(example) else example
    wanted = np.asarray(wanted) if is_number else wanted
    if array.shape != tuple(wanted.shape) or array.dtype != wanted.dtype:
        raise ModelFileError(
            f"the stored {name!r} is {array.dtype}{list(array.shape)}, "
            f"but {wanted.dtype}{list(wanted.shape)} is wanted here."
        )
    if is_number:
        return array.item()
    if isinstance(example, np.ndarray | np.generic):
        return array.copy()
    # Where the example lies, which may be on many devices; a copy, since it may be donated.
    place = getattr(wanted, "sharding", None) if getattr(wanted, "committed", False) else None
    restored = jnp.array(array) if place is None else jax.device_put(array, place, may_alias=False)
    if _is_key(example):
        return jax.random.wrap_key_data(restored, impl=jax.random.key_impl(example))
    return restored


def _named_leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        own_name = jax.tree_util.keystr(path, simple=True, separator="/")
        name = "/".join(filter(None, (prefix, own_name)))
        yield (f"{name}#{jax.random.key_impl(leaf)}" if _is_key(leaf) else name), leaf


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


@contextlib.contextmanager
def _one_writer(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, so that no writer tidies away what another is about to name."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot lock
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace_file(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".s2vgd-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(directory: Path, *, keep: str) -> None:
    """Remove older tensor files and what interrupted saves left, and nothing else."""
    for entry in os.listdir(directory):
        if _is_ours(entry) and entry != keep:
            os.unlink(directory / entry)


def _is_ours(entry: str) -> bool:
    return bool(manifest.TENSOR_FILE.fullmatch(entry) or _TEMPORARY_FILE.fullmatch(entry))


@contextlib.contextmanager
def _reading(directory: Path) -> Iterator[None]:
    """Say of anything that goes wrong which directory it was."""
    try:
        if not os.path.lexists(directory):
            raise ModelFileError("it does not exist")
        if not directory.is_dir():
            raise ModelFileError("it is a file, not a directory saved by s2vgd")
        yield
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise ModelFileError(f"cannot read {directory}: it has no file {missing}.") from error
    except (ModelFileError, OSError, RecursionError) as error:
        raise ModelFileError(f"cannot read {directory}: {error}.") from error


def _read_manifest(directory: Path) -> bytes:
    return _read_regular_file(directory / MANIFEST, limit=manifest.MAX_BYTES)


def _read_regular_file(path: Path, limit: int | None = None) -> bytes:
    """Read a file that is nothing but a file: no link that leads elsewhere, no pipe that hangs."""
    if path.is_symlink():
        raise ModelFileError(f"{path.name} is a symbolic link, which is not followed")
    flags = os.O_RDONLY
    for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC"):
        flags |= getattr(os, flag, 0)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path.name} is not a regular file")
        if limit is not None and status.st_size > limit:
            raise ModelFileError(f"{path.name} is {status.st_size} bytes long, over {limit}")
        return file.read()
