"""Compiled programs are kept between processes, where nobody has said otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from s2vgd import _compiled

PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
jnp.ones(3).sum()  # compiled before anybody asked: it must not close the store
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
from s2vgd import _compiled
where = _compiled.keep()

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
value = jax.jit(lambda x: jnp.tanh(x @ x.T).sum())(jnp.eye(7))
hits = sum("cache_hits" in name for name in events)
print(json.dumps([str(where), hits, float(value)]))
"""


def run(folder, **environment):
    keys = ("S2VGD_COMPILED", "JAX_COMPILATION_CACHE_DIR")
    inherited = {name: value for name, value in os.environ.items() if name not in keys}
    source = str(Path(_compiled.__file__).parents[1])
    environment = {**inherited, "S2VGD_CACHE": str(folder), "PYTHONPATH": source, **environment}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_second_process_reads_what_the_first_compiled_and_computes_the_same(tmp_path):
    where, hits, value = run(tmp_path)
    assert where.startswith(str(tmp_path / "compiled")) and hits == 0
    assert any(Path(where).iterdir())
    again, hits, same = run(tmp_path)
    assert (again, same) == (where, value) and hits >= 1


def test_a_damaged_program_is_compiled_again(tmp_path):
    where, _, value = run(tmp_path)
    for path in Path(where).iterdir():
        path.write_bytes(b"not a program")
    assert run(tmp_path)[2] == value


@pytest.mark.parametrize(
    "environment", [{"S2VGD_COMPILED": "off"}, {"JAX_COMPILATION_CACHE_DIR": "elsewhere"}]
)
def test_who_says_no_or_keeps_them_elsewhere_is_left_alone(tmp_path, environment):
    environment = {
        name: value.replace("elsewhere", str(tmp_path / "own"))
        for name, value in environment.items()
    }
    assert run(tmp_path, **environment)[0] == "None"
    assert not (tmp_path / "compiled").exists()


def test_what_was_used_longest_ago_is_forgotten_first(tmp_path):
    for age, name in enumerate(["new", "middle", "old"]):
        path = tmp_path / name
        path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age, 1e9 - age))
    _compiled._forget(tmp_path, 200)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["middle", "new"]
    _compiled._forget(tmp_path, 200)
    assert len(list(tmp_path.iterdir())) == 2


def test_less_effort_computes_the_same_and_leaves_other_programs_their_own():
    """Also inside a program that is being traced, where options of its own are not allowed."""

    @_compiled.jit("once", static_argnums=0)
    def power(n, x):
        return x**n

    x = np.linspace(0, 1, 5, dtype=np.float32)
    np.testing.assert_allclose(power(3, x), x**3, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda x: power(3, x))(x), x**3, rtol=1e-6)


@pytest.mark.parametrize("flags", ["", "--xla_backend_optimization_level=2"])
def test_whoever_set_the_level_keeps_it(monkeypatch, flags):
    monkeypatch.setenv("XLA_FLAGS", flags)
    found = _compiled.effort.__wrapped__("loop")
    assert (found is None) == bool(flags)


def test_options_that_xla_does_not_know_are_left_out(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    known = dict(_compiled._EFFORTS["loop"])
    monkeypatch.setattr(_compiled, "_is_wide", lambda: True)
    monkeypatch.setitem(_compiled._EFFORTS, "loop", {**known, "xla_no_such_option": 1})
    monkeypatch.setattr(_compiled, "_unknown", _compiled._unknown.__wrapped__)
    assert _compiled.effort.__wrapped__("loop") == known


@pytest.mark.parametrize(
    ("flags", "wide"), [("avx2 avx512f", False), ("avx512f avx512_bf16", True)]
)
def test_long_registers_are_used_where_they_are_as_fast_as_others(monkeypatch, flags, wide):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(_compiled, "_cpuinfo", lambda: f"flags : {flags}")
    found = _compiled.effort.__wrapped__("loop")
    assert (_compiled._WIDTH in found) == wide
