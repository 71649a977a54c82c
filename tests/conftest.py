"""How programs are compiled for the tests: quickly. What a test needs besides is in its own file.

Nearly all the time of the tests is compilation of programs that then run for milliseconds. Where
the environment says nothing about it, XLA therefore leaves out what costs most: LLVM's optimisation
and the emitters of fused loops. That is set before anything imports JAX, and in the environment,
so that processes which tests start compile in the same way.

Code without optimisation also adds and multiplies in a simpler way than what users run. Tests that
compare two programs bit for bit, and those that compute for longer than they compile, are marked
``optimised``: ``make test`` runs them apart, with ``XLA_FLAGS`` set to nothing.
"""

from __future__ import annotations

import os
from importlib.metadata import version

QUICK_TO_COMPILE = [
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
]
# From 0.11 on XLA has no other emitters, and refuses to start when it is told to use them.
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    QUICK_TO_COMPILE.append("--xla_cpu_use_fusion_emitters=false")

# What one run of the tests compiled must not hide from the next what it would take to compile.
os.environ.setdefault("S2VGD_COMPILED", "off")
os.environ.setdefault("XLA_FLAGS", " ".join(QUICK_TO_COMPILE))
