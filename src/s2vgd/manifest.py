"""The manifest of a saved directory: what it says, and the checks before it is believed.

Everything here works on bytes and dictionaries and touches no disk; :mod:`s2vgd.files` does. The
checks assume nothing: a manifest may be damaged, foreign, from the future, or made to mislead.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from s2vgd.errors import ModelFileError

FORMAT = "s2vgd"
MAX_BYTES = 16 * 2**20
TENSOR_FILE = re.compile(r"arrays-[0-9a-f]{16}\.safetensors")

_BFLOAT16 = np.dtype(jnp.bfloat16)
_DTYPES = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
}
_FIELDS: dict[str, type] = {
    "format": str,
    "kind": str,
    "version": int,
    "library_version": str,
    "tensor_file": dict,
    "tensors": dict,
    "metadata": dict,
    "sha256": str,
}


def encode(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any], *, kind: str, version: int
) -> tuple[bytes, str, bytes]:
    """Turn arrays and metadata into the contents of the two files.

    Returns
    -------
    manifest : bytes
        The JSON of ``manifest.json``.
    tensor_name : str
        The name of the tensor file, made from its checksum.
    tensors : bytes
        The safetensors bytes.
    """
    stored = {name: _storable(name, array) for name, array in arrays.items()}
    payload = safetensors.numpy.save({name: _as_bits(array) for name, array in stored.items()})
    digest = hashlib.sha256(payload).hexdigest()
    content = {
        "format": FORMAT,
        "kind": kind,
        "version": version,
        "library_version": _library_version(),
        "tensor_file": {
            "name": _tensor_name(digest),
            "sha256": digest,
            "bytes": len(payload),
        },
        "tensors": {
            name: {"shape": list(array.shape), "dtype": array.dtype.name}
            for name, array in stored.items()
        },
        "metadata": dict(metadata),
    }
    text = json.dumps(
        content | {"sha256": _manifest_digest(content)}, indent=1, allow_nan=False
    ).encode()
    if len(text) > MAX_BYTES:
        raise ValueError(f"metadata is too large: the manifest would take {len(text)} bytes.")
    return text, _tensor_name(digest), payload


def parse(raw: bytes) -> dict[str, Any]:
    """Read the JSON of a manifest and make sure that it is one of ours, and no more."""
    try:
        manifest = json.loads(raw, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"its manifest is not valid JSON ({str(error)[:80]})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ModelFileError("its manifest is not one of s2vgd")
    return manifest


def check(manifest: Mapping[str, Any], *, kind: str, max_version: int) -> None:
    """Raise ModelFileError unless a parsed manifest is complete, consistent and of this kind."""
    if manifest.get("kind") != kind:
        raise ModelFileError(f"it holds a {shown(manifest.get('kind'))}, not a {kind!r}")
    # The version comes before the other fields, because a newer version may have other fields.
    version: Any = manifest.get("version")
    if not _is_count(version) or version < 1:
        raise ModelFileError(f"its version {shown(version)} is not a positive integer")
    if version > max_version:
        raise ModelFileError(
            f"it is a {kind} of version {shown(version)}, written by s2vgd "
            f"{shown(manifest.get('library_version'))}, and this s2vgd ({_library_version()}) "
            f"reads versions up to {max_version}; upgrade s2vgd"
        )
    _check_fields("the manifest", manifest, _FIELDS)
    file = manifest["tensor_file"]
    _check_fields("tensor_file", file, {"name": str, "sha256": str, "bytes": int})
    if not TENSOR_FILE.fullmatch(file["name"]):
        raise ModelFileError(f"its tensor file has the forbidden name {shown(file['name'])}")
    if file["name"] != _tensor_name(file["sha256"]):
        raise ModelFileError("the name of its tensor file does not match its checksum")
    for name, entry in manifest["tensors"].items():
        where = f"tensor {shown(name)}"
        _check_fields(where, entry, {"shape": list, "dtype": str})
        if not all(map(_is_count, entry["shape"])):
            raise ModelFileError(f"{where} has the impossible shape {shown(entry['shape'])}")
        if entry["dtype"] not in _DTYPES:
            raise ModelFileError(f"{where} has the unknown dtype {shown(entry['dtype'])}")
    if manifest["sha256"] != _manifest_digest(manifest):
        raise ModelFileError("its manifest was changed after it was written (checksum mismatch)")


def decode_tensors(manifest: Mapping[str, Any], payload: bytes) -> dict[str, np.ndarray]:
    """Read the tensor file that a checked manifest describes."""
    file, tensors = manifest["tensor_file"], manifest["tensors"]
    if len(payload) != file["bytes"]:
        raise ModelFileError(
            f"{file['name']} is damaged: it is {len(payload)} bytes long instead of {file['bytes']}"
        )
    if hashlib.sha256(payload).hexdigest() != file["sha256"]:
        raise ModelFileError(f"{file['name']} was changed after it was written (checksum mismatch)")
    try:
        arrays = safetensors.numpy.load(payload)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ModelFileError(
            f"{file['name']} is not a safetensors file ({str(error)[:80]})"
        ) from error
    if arrays.keys() != tensors.keys():
        odd = min(arrays.keys() ^ tensors.keys())
        raise ModelFileError(f"manifest and tensor file disagree about the array {shown(odd)}")
    for name, entry in tensors.items():
        array = arrays[name]
        if entry["dtype"] == "bfloat16" and array.dtype == np.uint16:
            arrays[name] = array = array.view(_BFLOAT16)
        if list(array.shape) != entry["shape"] or array.dtype.name != entry["dtype"]:
            raise ModelFileError(
                f"array {shown(name)} is {array.dtype}{list(array.shape)}, but the manifest says "
                f"{entry['dtype']}{entry['shape']}"
            )
    return arrays


def shown(value: Any) -> str:
    """Shorten an untrusted value for a message."""
    return repr(value)[:80]


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    if not isinstance(name, str) or not name or name == "__metadata__":
        raise ValueError(f"{name!r} cannot be the name of an array.")
    # safetensors copies the memory of an array as it lies: C order and native bytes are needed.
    array = np.asarray(array, order="C")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.name not in _DTYPES:
        raise TypeError(f"array {name!r} has dtype {array.dtype}, which cannot be saved.")
    return array


def _as_bits(array: np.ndarray) -> np.ndarray:
    """View bfloat16, which the NumPy side of safetensors cannot read back, as integers."""
    return array.view(np.uint16) if array.dtype == _BFLOAT16 else array


def _tensor_name(digest: str) -> str:
    return f"arrays-{digest[:16]}.safetensors"


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    content = {field: value for field, value in manifest.items() if field != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _library_version() -> str:
    try:
        return importlib.metadata.version("s2vgd")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is not a finite number")
    return value


def _check_fields(where: str, entry: Any, fields: Mapping[str, type]) -> None:
    if not isinstance(entry, Mapping):
        raise ModelFileError(f"{where} is not an object")
    if entry.keys() != fields.keys():
        odd = min(entry.keys() ^ fields.keys())
        raise ModelFileError(f"{where} has a missing or an unknown field {shown(odd)}")
    for field, expected in fields.items():
        value = entry[field]
        if not (_is_count(value) if expected is int else isinstance(value, expected)):
            raise ModelFileError(f"{where} has an invalid {field} {shown(value)}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
