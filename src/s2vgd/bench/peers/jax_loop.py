"""Many steps of a JAX implementation as one compiled program, for whoever brings the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from s2vgd import _compiled
from s2vgd.bench.problems import check_memory


class Loop:
    """A state, and a program that makes any number of steps from it.

    Parameters
    ----------
    step : callable
        ``step(state, batch) -> state``.
    state : pytree
        Where to start; it is used up.
    batch : pytree
        Given to every step.
    read : callable
        ``read(state) -> (M, D)``.
    """

    def __init__(
        self,
        step: Callable[[Any, Any], Any],
        state: Any,
        batch: Any,
        read: Callable[[Any], np.ndarray],
    ) -> None:
        def run(state: Any, batch: Any, n: Any) -> Any:
            return jax.lax.fori_loop(0, n, lambda _, state: step(state, batch), state)

        # Without weak types the state of the last step is of the very type of the first.
        state = jax.tree.map(lambda leaf: jax.numpy.array(leaf, leaf.dtype), state)
        self._batch = jax.tree.map(jax.numpy.asarray, batch)
        # As s2vgd.training compiles its loop, whoever the step is of.
        options = _compiled.effort("loop")
        jitted = jax.jit(run, donate_argnums=0, compiler_options=options)
        compiled = jitted.lower(state, self._batch, np.int32(1)).compile()
        plan: Any = compiled.memory_analysis()
        self.needs = check_memory(plan.temp_size_in_bytes + plan.argument_size_in_bytes)
        self._run, self._state, self._read = compiled, state, read

    def steps(self, n: int) -> None:
        """Make n steps."""
        self._state = jax.block_until_ready(self._run(self._state, self._batch, np.int32(n)))

    def particles(self) -> np.ndarray:
        """Return the particles (M, D)."""
        return np.asarray(self._read(self._state))
