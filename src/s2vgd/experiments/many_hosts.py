"""One regression fit on several hosts, started by one command on each; also a script to copy from.

    python -m s2vgd.experiments.many_hosts --coordinator HOST:PORT --processes 2 --index 0
    python -m s2vgd.experiments.many_hosts --coordinator HOST:PORT --processes 2 --index 1

The coordinator is the host of index 0. Under Slurm or Open MPI the three options are found out, and
on a single host they are left away along with ``--several``. Each process uses all its devices.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from s2vgd import datasets, parallel
from s2vgd.bnn import BNN, Batch
from s2vgd.experiments import scores
from s2vgd.likelihoods import Gaussian
from s2vgd.networks import MLP
from s2vgd.posterior import Posterior
from s2vgd.predictive import MixturePredictive
from s2vgd.scaling import Scaler
from s2vgd.training import cosine_adam, train


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Fit the first split of a data set, and return the scores on its test rows."""
    options = _parser().parse_args(arguments)
    if options.several or options.coordinator:
        parallel.initialise(options.coordinator, options.processes, options.index)
    mesh = parallel.mesh(data=options.data)
    dataset = datasets.load(options.dataset)
    train_rows, test_rows = dataset.splits[0]
    train_rows = train_rows[: options.rows]
    # Rows are divided evenly: the few that are too many are left out.
    train_rows = train_rows[: len(train_rows) - len(train_rows) % options.data]
    x, y = dataset.x[train_rows], dataset.y[train_rows, None]
    scale_x, scale_y = Scaler.of(x, None), Scaler.of(y, None)
    rows = Batch(_single(scale_x(x)), _single(scale_y(y)))

    bnn = BNN(MLP(x.shape[1], (dataset.hidden_units,), 1), Gaussian())
    n_total = float(len(train_rows))
    algorithm = parallel.build(
        lambda particle, batch: bnn.log_joint(particle, batch, n_total),
        cosine_adam(steps=options.steps),
        mesh=mesh,
        exchange=options.exchange,
    )
    init_key, train_key = jax.random.split(jax.random.key(options.seed))
    particles = parallel.init_particles(bnn.init, init_key, options.particles, mesh)
    result = train(
        algorithm,
        algorithm.init(particles),
        parallel.shard_rows(rows, mesh),
        key=train_key,
        steps=options.steps,
        batch_size=options.batch_size,
    )
    # Whole on every host from here on: each predicts for itself, and the first one speaks.
    draws = jax.tree.map(jnp.asarray, parallel.to_host(result.state.particles))
    posterior = Posterior(bnn, draws, options.particles)
    predictive = posterior.predict(
        _single(scale_x(dataset.x[test_rows])), shift=scale_y.shift, scale=scale_y.scale
    )
    found = scores.regression(cast(MixturePredictive, predictive), dataset.y[test_rows])
    if jax.process_index() == 0:
        print(f"{jax.process_count()} processes, {dict(mesh.shape)}, {options.particles} particles")
        print(", ".join(f"{name} {value:.4f}" for name, value in found.items()))
        if options.out is not None:
            posterior.save(options.out)
    return found


def _single(values: np.ndarray) -> jax.Array:
    return jnp.asarray(values, jnp.float32)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--coordinator", help="host:port of process 0")
    parser.add_argument("--processes", type=int, help="how many processes there are")
    parser.add_argument("--index", type=int, help="the number of this one, from 0")
    parser.add_argument(
        "--several", action="store_true", help="ask the cluster for the three options above"
    )
    parser.add_argument("--dataset", default="yacht", help="a regression data set")
    parser.add_argument("--rows", type=int, help="learn only from so many rows")
    parser.add_argument("--particles", type=int, default=16)
    parser.add_argument("--data", type=int, default=1, help="parts that the rows are divided into")
    parser.add_argument("--exchange", choices=["auto", "gather", "ring"], default="auto")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, help="rows of an update; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="directory for the posterior, on host 0")
    return parser


if __name__ == "__main__":
    main()
