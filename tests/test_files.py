"""Saved directories: what goes in comes out, and anything odd is refused in words."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import threading
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy

from s2vgd import files, manifest
from s2vgd.errors import ModelFileError

KIND = "posterior"


def save(path, value=1.0, *, kind=KIND, version=1, metadata=None):
    arrays = {"weights/kernel": np.full((2, 3), value, np.float32), "step": np.asarray(7)}
    files.save_directory(path, arrays, metadata or {"value": value}, kind=kind, version=version)


def load(path, *, kind=KIND, max_version=1):
    return files.load_directory(path, kind=kind, max_version=max_version)


def read_manifest(path):
    return json.loads((path / "manifest.json").read_text())


def forge(path, change):
    """Change the manifest as someone who knows how to make its checksum right again."""
    content = read_manifest(path)
    content = change(content) or content
    content["sha256"] = manifest._manifest_digest(content)
    (path / "manifest.json").write_text(json.dumps(content))


def forge_tensor_file(path, payload):
    """Replace the tensor file and make every checksum right again."""

    def change(content):
        digest = hashlib.sha256(payload).hexdigest()
        name = f"arrays-{digest[:16]}.safetensors"
        (path / name).write_bytes(payload)
        content["tensor_file"] = {"name": name, "sha256": digest, "bytes": len(payload)}

    forge(path, change)


def tensor_file(path):
    return path / read_manifest(path)["tensor_file"]["name"]


class Bomb:
    """A pickle of this makes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


# --- what goes in comes out ---


@pytest.mark.parametrize(
    "array",
    [
        np.asarray(3, np.int64),
        np.zeros((0, 4), np.float32),
        np.arange(6, dtype=np.float64).reshape(2, 3).T,
        np.arange(10, dtype=np.int16)[::3],
        np.arange(4, dtype=">f4"),
        np.array([True, False]),
        np.array([np.nan, np.inf, -0.0], np.float16),
        np.asarray(jnp.array([[1.5, -2.0, 3e38]], jnp.bfloat16)),
        np.array([2**64 - 1], np.uint64),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_arrays_come_back_bit_for_bit(tmp_path, array):
    files.save_directory(tmp_path / "m", {"a": array, "b": np.ones(2)}, {}, kind=KIND, version=1)
    arrays, _, _ = load(tmp_path / "m")
    assert arrays["a"].shape == array.shape
    assert arrays["a"].dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(arrays["a"], array)
    assert np.array_equal(np.signbit(arrays["a"]), np.signbit(array)) or array.dtype == bool
    np.testing.assert_array_equal(arrays["b"], np.ones(2))


def test_metadata_and_version_come_back(tmp_path):
    metadata = {"name": "yacht ⛵", "nested": {"x": [1, 2.5e-17, None, True]}}
    save(tmp_path / "m", metadata=metadata, version=3)
    _, loaded, version = load(tmp_path / "m", max_version=5)
    assert loaded == metadata
    assert version == 3


def test_a_directory_holds_a_manifest_and_one_tensor_file_that_others_can_read(tmp_path):
    save(tmp_path / "deep" / "m")
    names = sorted(os.listdir(tmp_path / "deep" / "m"))
    assert names == [tensor_file(tmp_path / "deep" / "m").name, "manifest.json"]
    tensors = safetensors.numpy.load_file(tensor_file(tmp_path / "deep" / "m"))
    assert tensors.keys() == {"weights/kernel", "step"}


@pytest.mark.parametrize(
    ("arrays", "metadata", "error"),
    [
        ({"a": np.array([object()])}, {}, TypeError),
        ({"a": np.array(["text"])}, {}, TypeError),
        ({"": np.zeros(1)}, {}, ValueError),
        ({"__metadata__": np.zeros(1)}, {}, ValueError),
        ({}, {"x": float("nan")}, ValueError),
        ({}, {"x": object()}, TypeError),
        ({}, {"x": "x" * (manifest.MAX_BYTES + 1)}, ValueError),
    ],
    ids=["object", "text", "empty name", "reserved name", "nan", "not json", "too large"],
)
def test_what_could_not_be_read_back_is_not_written(tmp_path, arrays, metadata, error):
    with pytest.raises(error):
        files.save_directory(tmp_path / "m", arrays, metadata, kind=KIND, version=1)
    assert not (tmp_path / "m").exists()


# --- replacing ---


def test_saving_again_replaces_ours_and_leaves_other_files_alone(tmp_path):
    save(tmp_path, 1.0)
    (tmp_path / "README.md").write_text("mine")
    save(tmp_path, 2.0)
    assert load(tmp_path)[1] == {"value": 2.0}
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["README.md", tensor_file(tmp_path).name, "manifest.json"]
    )


def test_an_interrupted_first_save_does_not_block_the_next(tmp_path):
    (tmp_path / ".s2vgd-0123456789abcdef.tmp").write_bytes(b"half")
    (tmp_path / "arrays-0123456789abcdef.safetensors").write_bytes(b"whole, but never named")
    assert not files.is_saved(tmp_path)
    save(tmp_path)
    assert files.is_saved(tmp_path)
    assert len(os.listdir(tmp_path)) == 2


def interrupt_after(patch, n_calls):
    """Let a process do so many system calls of a save and no more."""
    count = 0

    def counted(original):
        def call(*args):
            nonlocal count
            count += 1
            if count > n_calls:
                raise KeyboardInterrupt
            return original(*args)

        return call

    for name in ("fsync", "replace", "unlink"):
        patch.setattr(os, name, counted(getattr(os, name)))


def test_an_interrupted_save_leaves_the_old_version_or_the_new_one(tmp_path, monkeypatch):
    """Stop at every single system call of a save, and read what is there."""
    seen, finished = [], False
    while not finished:
        save(tmp_path, 1.0)
        with monkeypatch.context() as patch:
            interrupt_after(patch, n_calls=len(seen))
            try:
                save(tmp_path, 2.0)
                finished = True
            except KeyboardInterrupt:
                pass
        arrays, metadata, _ = load(tmp_path)
        assert np.all(arrays["weights/kernel"] == metadata["value"])
        seen.append(metadata["value"])
    assert len(seen) > 5
    assert seen == sorted(seen)
    assert set(seen) == {1.0, 2.0}


def test_a_reader_never_sees_a_mixture(tmp_path):
    """Read while another thread rewrites: every read gives one whole version."""
    save(tmp_path, 0.0)
    done = threading.Event()

    def rewrite():
        for i in range(60):
            save(tmp_path, float(i % 7))
        done.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    reads = 0
    try:
        while not done.is_set():
            arrays, metadata, _ = load(tmp_path)
            assert np.all(arrays["weights/kernel"] == metadata["value"])
            reads += 1
    finally:
        writer.join()
    assert reads > 0


def test_a_reader_that_loses_the_race_reads_the_new_version(tmp_path, monkeypatch):
    save(tmp_path, 1.0)
    read, overtaken = files._read_regular_file, []

    def overtake(path, limit=None):
        if path.suffix == ".safetensors" and not overtaken:
            overtaken.append(path)
            save(tmp_path, 2.0)
        return read(path, limit)

    monkeypatch.setattr(files, "_read_regular_file", overtake)
    assert load(tmp_path)[1] == {"value": 2.0}
    assert not overtaken[0].exists()


@pytest.mark.parametrize(
    "foreign", ["file", "directory", "manifest", "kind", "damaged", "dangling"]
)
def test_what_is_not_ours_is_never_replaced(tmp_path, foreign):
    target = tmp_path / "m"
    match = "cannot save|cannot read"
    if foreign == "file":
        target.write_text("precious")
    elif foreign == "dangling":
        target.symlink_to(tmp_path / "nowhere")
    elif foreign == "kind":
        save(target, kind="checkpoint")
        match = "holds a 'checkpoint'"
    else:
        target.mkdir()
        if foreign == "directory":
            (target / "thesis.tex").write_text("precious")
            match = "thesis.tex"
        else:
            text = '{"format": "other"}' if foreign == "manifest" else '{"format": "s2v'
            (target / "manifest.json").write_text(text)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ModelFileError, match=match):
        save(target)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


# --- refusing ---


def truncate(path):
    file = tensor_file(path)
    file.write_bytes(file.read_bytes()[:-4])


def flip_a_bit(path):
    content = bytearray(tensor_file(path).read_bytes())
    content[-1] ^= 1
    tensor_file(path).write_bytes(content)


def edit_metadata(path):
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"value": 1.0', '"value": 2.0'))


def cut_manifest(path):
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text[: len(text) // 2])


def write_manifest(content):
    return lambda path: (path / "manifest.json").write_bytes(content)


def rename_tensor_file(name):
    return lambda path: forge(path, lambda content: content["tensor_file"].update(name=name))


def link_tensor_file_out(path):
    file = tensor_file(path)
    outside = path.parent / "outside.safetensors"
    file.rename(outside)
    file.symlink_to(outside)


def link_manifest_out(path):
    outside = path.parent / "outside.json"
    (path / "manifest.json").rename(outside)
    (path / "manifest.json").symlink_to(outside)


def pipe(path):
    tensor_file(path).unlink()
    os.mkfifo(path / read_manifest(path)["tensor_file"]["name"])


def with_field(**fields):
    return lambda path: forge(path, lambda content: content.update(**fields))


def with_tensor(**fields):
    return lambda path: forge(path, lambda content: content["tensors"]["step"].update(**fields))


def tensors_of(**arrays):
    return lambda path: forge_tensor_file(path, safetensors.numpy.save(arrays))


KERNEL = np.ones((2, 3), np.float32)
DAMAGES = {
    "truncated": (truncate, "damaged: it is .* bytes long instead of"),
    "tampered tensors": (flip_a_bit, "changed after it was written"),
    "tampered metadata": (edit_metadata, "manifest was changed after it was written"),
    "half a manifest": (cut_manifest, "not valid JSON"),
    "empty manifest": (write_manifest(b""), "not valid JSON"),
    "binary manifest": (write_manifest(b"\x80\x04\x95\xff\xfe"), "not valid JSON"),
    "deep json": (write_manifest(b"[" * 200_000), "not valid JSON"),
    "huge json": (write_manifest(b" " * (manifest.MAX_BYTES + 1)), "bytes long, over"),
    "nan": (write_manifest(b'{"format": "s2vgd", "version": NaN}'), "not valid JSON"),
    "infinite": (write_manifest(b'{"format": "s2vgd", "version": 1e999}'), "not valid JSON"),
    "a list": (write_manifest(b"[1, 2]"), "not one of s2vgd"),
    "another format": (write_manifest(b'{"format": "onnx"}'), "not one of s2vgd"),
    "another kind": (with_field(kind="checkpoint"), "holds a 'checkpoint', not a 'posterior'"),
    "newer": (with_field(version=2, library_version="9.1", extra=0), "version 2.*'9.1'.*upgrade"),
    "version 0": (with_field(version=0), "not a positive integer"),
    "version true": (with_field(version=True), "not a positive integer"),
    "version text": (with_field(version="1"), "not a positive integer"),
    "extra field": (with_field(code="import os"), "unknown field 'code'"),
    "missing field": (lambda path: forge(path, lambda c: c.pop("tensors") and c), "'tensors'"),
    "metadata list": (with_field(metadata=[]), "invalid metadata"),
    "tensors list": (with_field(tensors=[]), "invalid tensors"),
    "tensor number": (with_field(tensors={"a": 1}), "not an object"),
    "negative bytes": (
        lambda path: forge(path, lambda c: c["tensor_file"].update(bytes=-1)),
        "invalid bytes",
    ),
    "no tensor file": (lambda path: tensor_file(path).unlink(), "has no file arrays-"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "has no file manifest.json"),
    "parent": (rename_tensor_file("../arrays-0123456789abcdef.safetensors"), "forbidden name"),
    "absolute": (rename_tensor_file("/etc/passwd"), "forbidden name"),
    "subdirectory": (rename_tensor_file("a/arrays-0123456789abcdef.safetensors"), "forbidden name"),
    "backslash": (rename_tensor_file("..\\arrays.safetensors"), "forbidden name"),
    "another file": (rename_tensor_file("arrays-0123456789abcdef.safetensors"), "checksum"),
    "link": (link_tensor_file_out, "symbolic link"),
    "linked manifest": (link_manifest_out, "symbolic link"),
    "pipe": (pipe, "not a regular file"),
    "wrong dtype": (
        with_tensor(dtype="int32"),
        r"'step' is int64\[\], but the manifest says int32",
    ),
    "object dtype": (with_tensor(dtype="object"), "unknown dtype"),
    "wrong shape": (with_tensor(shape=[1]), "the manifest says"),
    "negative shape": (with_tensor(shape=[-1]), "impossible shape"),
    "fractional shape": (with_tensor(shape=[1.0]), "impossible shape"),
    "fewer tensors": (tensors_of(**{"weights/kernel": KERNEL}), "disagree about the array 'step'"),
    "more tensors": (
        tensors_of(**{"weights/kernel": KERNEL, "step": np.asarray(7), "x": KERNEL}),
        "disagree about the array 'x'",
    ),
    "not safetensors": (lambda path: forge_tensor_file(path, b"hello"), "not a safetensors file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_and_foreign_directories_are_refused_in_words(tmp_path, damage):
    target = tmp_path / "m"
    save(target)
    inflict, words = DAMAGES[damage]
    inflict(target)
    with pytest.raises(ModelFileError, match=words) as caught:
        load(target)
    assert str(target) in str(caught.value)


def test_missing_directories_and_plain_files_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match="does not exist"):
        load(tmp_path / "nothing")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"weights": [1.0]}))
    with pytest.raises(ModelFileError, match="is a file, not a directory"):
        load(tmp_path / "model.pkl")


def test_a_pickle_is_never_executed(tmp_path):
    bomb = pickle.dumps(Bomb(tmp_path / "executed"))
    save(tmp_path / "a")
    (tmp_path / "a" / "manifest.json").write_bytes(bomb)
    save(tmp_path / "b")
    forge_tensor_file(tmp_path / "b", bomb)
    (tmp_path / "c").write_bytes(bomb)
    for name in "abc":
        with pytest.raises(ModelFileError):
            load(tmp_path / name)
    assert not (tmp_path / "executed").exists()
    pickle.loads(bomb)
    assert (tmp_path / "executed").exists(), "the bomb must be able to go off"


# --- trees ---


class State(NamedTuple):
    particles: dict
    opt_state: tuple
    key: jax.Array
    nothing: None = None


def make_state(impl="threefry2x32"):
    particles = {"weights": ({"kernel": jnp.ones((4, 2, 3))},), "scale": jnp.zeros(4, jnp.bfloat16)}
    opt_state = optax.adam(1e-3).init(particles)
    return State(particles, opt_state, jax.random.split(jax.random.key(3, impl=impl), 2))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_trees_with_optimiser_states_and_keys_come_back_through_a_file(tmp_path, impl):
    state = make_state(impl)
    arrays = files.tree_to_arrays(state, "state")
    assert "state/particles/weights/0/kernel" in arrays
    assert f"state/key#{impl}" in arrays
    files.save_directory(tmp_path / "m", arrays, {}, kind=KIND, version=1)
    loaded, _, _ = load(tmp_path / "m")
    loaded["other/thing"] = np.zeros(3)
    blank = jax.tree.map(lambda leaf: leaf if leaf is state.key else jnp.zeros_like(leaf), state)
    restored = files.arrays_to_tree(loaded, blank, "state")
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert restored.key.dtype == state.key.dtype
    for one, other in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert one.dtype == other.dtype
        assert bool(jnp.all(one == other))
    np.testing.assert_array_equal(
        jax.random.normal(restored.key[1], (3,)), jax.random.normal(state.key[1], (3,))
    )


def test_one_leaf_numbers_and_shapes_alone_can_be_restored():
    key = jax.random.key(1)
    for tree in (jnp.arange(3), 2.5, 7, True, np.arange(2.0)):
        restored = files.arrays_to_tree(files.tree_to_arrays(tree, "x"), tree, "x")
        assert type(restored) is type(tree)
        assert np.array_equal(restored, tree)
    arrays = files.tree_to_arrays({"a": jnp.arange(3), "b": [jnp.ones(2)]}, "")
    assert arrays.keys() == {"a", "b/0"}
    example = {"a": jax.ShapeDtypeStruct((3,), jnp.int32), "b": [jnp.zeros(2)]}
    assert files.arrays_to_tree(arrays, example, "")["a"].tolist() == [0, 1, 2]
    restored_key = files.arrays_to_tree(files.tree_to_arrays(key, "k"), key, "k")
    assert bool(restored_key == key)


@pytest.mark.parametrize(
    ("example", "words"),
    [
        ({"a": jnp.zeros(3)}, "unexpected .*'t/b'"),
        ({"a": jnp.zeros(3), "b": jnp.zeros(()), "c": jnp.zeros(1)}, "missing .*'t/c'"),
        ({"a": jnp.zeros(4), "b": jnp.zeros(())}, r"'t/a' is float32\[3\], but float32\[4\]"),
        ({"a": jnp.zeros(3, int), "b": jnp.zeros(())}, r"float32\[3\], but int32\[3\]"),
        ({"a": jax.random.key(0), "b": jnp.zeros(())}, "missing .*'t/a#threefry2x32'"),
    ],
)
def test_a_tree_of_another_form_is_refused(example, words):
    arrays = files.tree_to_arrays({"a": jnp.ones(3), "b": jnp.ones(())}, "t")
    with pytest.raises(ModelFileError, match=words):
        files.arrays_to_tree(arrays, example, "t")


def test_keys_of_another_implementation_are_refused():
    arrays = files.tree_to_arrays(make_state("rbg"), "state")
    with pytest.raises(ModelFileError, match="state/key#threefry2x32"):
        files.arrays_to_tree(arrays, make_state("threefry2x32"), "state")


def test_leaves_whose_names_collide_are_not_saved():
    with pytest.raises(ValueError, match="same name 't/a/b'"):
        files.tree_to_arrays({"a": {"b": jnp.zeros(1)}, "a/b": jnp.ones(1)}, "t")
