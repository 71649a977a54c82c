"""Fit sklearn-contrib-bde in an interpreter that has it, and write down what it predicts.

Run as a script by :mod:`s2vgd.experiments.bde`, with two files as arguments; nothing of this
package can be imported there. The settings are those of bde's README.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

import numpy as np

_PACKAGES = ("sklearn-contrib-bde", "jax", "jaxlib", "numpy", "optax", "blackjax")


def main(asked: str, answered: str) -> None:
    """Read rows and settings from one file, write draws of location and scale to the other."""
    import jax
    import jax.numpy as jnp
    from bde import BdeRegressor
    from bde.loss import GaussianNLL

    # As our own chains have it: on a GPU JAX would round the factors of its products to TF32.
    jax.config.update("jax_default_matmul_precision", "float32")
    with np.load(asked) as file:
        x, y, x_new, settings = file["x"], file["y"], file["x_new"], json.loads(str(file["about"]))
    model = BdeRegressor(
        hidden_layers=settings["hidden"],
        n_members=settings["members"],
        seed=settings["seed"],
        loss=GaussianNLL(),
        epochs=200,
        validation_split=0.15,
        lr=1e-3,
        weight_decay=1e-4,
        warmup_steps=settings["warmup"],
        n_samples=settings["draws"],
        n_thinning=2,
        patience=10,
    )
    began = time.perf_counter()
    model.fit(x=jnp.asarray(x, jnp.float32), y=jnp.asarray(y, jnp.float32))
    seconds = time.perf_counter() - began
    raw = np.asarray(model.predict(jnp.asarray(x_new, jnp.float32), raw=True))
    raw = raw.reshape(-1, *raw.shape[-2:])
    # Evenly thinned where all draws of all rows would not fit into memory.
    raw = raw[:: -(-raw[..., 0].size // settings["most"])]
    scale = np.logaddexp(0, raw[..., 1]) + 1e-6
    about = json.dumps({package: version(package) for package in _PACKAGES})
    np.savez(answered, loc=raw[..., 0], scale=scale, versions=about, seconds=seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
