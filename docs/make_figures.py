"""Draw the figures of the documentation with the library itself: ``python docs/make_figures.py``.

Every figure comes from one fixed seed, or from the committed results. The SVG files in
``docs/figures`` are what this wrote; it takes a few minutes on two cores.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from s2vgd import svgd
from s2vgd.experiments import demo, figures, records, report
from s2vgd.experiments.sections import control, table1
from s2vgd.refine import refine
from s2vgd.rotations import orthogonal
from s2vgd.structure import Structure, structure_weights
from s2vgd.training import cosine_adam, train

OUT = Path(__file__).parent / "figures"


@figures.style()
def structure_figure() -> Figure:
    """Draw the row covariance U = P Λ² Pᵀ of a weight of 16 rows, for four structures."""
    titles = ("none: U = I", "scales: U = Λ²", "and K = 1: U = P Λ² Pᵀ", "and K = 4")
    figure, axes = figures.panels(len(titles), height=2.9, width=2.5)
    log_scales = 0.7 * jax.random.normal(jax.random.key(3), (16,))
    for axis, title, reflections in zip(axes, titles, (0, 0, 1, 4), strict=True):
        weight = structure_weights(
            jax.random.key(1), jnp.zeros((16, 16)), Structure(reflections, "lognormal")
        )
        p = orthogonal(weight.v_left, 16)
        scales = jnp.exp(log_scales) if title != titles[0] else jnp.ones(16)
        covariance = np.asarray((p * scales**2) @ p.T)
        axis.imshow(covariance, cmap="RdBu_r", vmin=-4, vmax=4, interpolation="nearest")
        axis.set_title(title)
        axis.set_axis_off()
    return figure


@figures.style()
def svgd_figure() -> Figure:
    """Draw forty particles on their way to a banana-shaped density."""

    def log_density(particle: jax.Array, batch: None) -> jax.Array:
        u, v = particle
        return -0.5 * u**2 - 2.0 * (v - 0.5 * u**2) ** 2

    steps = (0, 10, 50, 1000)
    figure, axes = figures.panels(len(steps), height=2.9, width=2.5)
    algorithm = svgd.build(log_density, optax.adam(0.05))
    start = jnp.array([2.0, 3.0]) + 0.3 * jax.random.normal(jax.random.key(0), (40, 2))
    state = algorithm.init(start)
    u, v = np.meshgrid(np.linspace(-3.2, 3.2, 80), np.linspace(-1.5, 5, 80))
    density = np.exp(-0.5 * u**2 - 2.0 * (v - 0.5 * u**2) ** 2)
    for axis, step in zip(axes, steps, strict=True):
        while int(state.step) < step:
            state, _ = algorithm.step(state)
        particles = np.asarray(state.particles)
        axis.contour(u, v, density, levels=[0.05, 0.2, 0.5, 0.8], colors="#9aa4ad", linewidths=0.8)
        axis.plot(*particles.T, "o", markersize=3, color=figures.COLOURS[1])
        axis.set(title=f"step {step}", xticks=[], yticks=[], xlim=(-3.2, 3.2), ylim=(-1.5, 5))
    return figure


@figures.style()
def collapse_figure() -> Figure:
    """Draw the variance that 20 particles, and chains from them, find for a standard Gaussian."""

    def log_density(particle: jax.Array, batch: None) -> jax.Array:
        return -0.5 * jnp.sum(particle**2)

    def variance(draws: jax.Array) -> float:
        """Return the mean square about the true mean, over draws and coordinates."""
        return float(jnp.mean(draws**2))

    dimensions = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    algorithm = svgd.build(log_density, cosine_adam(0.1, 1000))
    particles = {}
    for d in dimensions:
        start = 2.0 * jax.random.normal(jax.random.key(d), (20, d))
        result = train(algorithm, algorithm.init(start), None, key=jax.random.key(0), steps=1000)
        particles[d] = result.state.particles
    refined = {
        d: variance(refine(log_density, particles[d], key=jax.random.key(1), method="hmc").draws)
        for d in dimensions[1::3]
    }
    figure, (axis,) = figures.panels(1, height=3.2, width=5.6)
    axis.axhline(1, color=figures.INK, linewidth=0.8, linestyle="--", label="truth")
    plain = [variance(particles[d]) for d in dimensions]
    axis.plot(dimensions, plain, "o-", color=figures.COLOURS[0], label="20 particles of SVGD")
    axis.plot(
        refined.keys(), refined.values(), "s", color=figures.COLOURS[2], label="chains from them"
    )
    axis.set(xscale="log", xlabel="dimensions", ylabel="variance", ylim=(0, 1.3))
    axis.set_xticks(dimensions, [str(d) for d in dimensions])
    axis.minorticks_off()
    axis.legend(loc="center right")
    return figure


@figures.style()
def uncertainty_figure(problem: demo.Problem, result: demo.Result) -> Figure:
    """Draw the two parts of the standard deviation along the toy problem."""
    grid = np.linspace(-0.25, 1.25, 151)
    predictive = result.model.predict_dist(grid[:, None])
    figure, (axis,) = figures.panels(1, height=3.2, width=5.6)
    parts = {
        "all": predictive.std,
        "epistemic": np.sqrt(predictive.epistemic),
        "aleatoric": np.sqrt(predictive.aleatoric),
    }
    for (name, values), colour in zip(parts.items(), (figures.INK, *figures.COLOURS), strict=False):
        axis.plot(grid, values, color=colour, label=name)
    axis.plot(
        problem.x[:, 0],
        np.zeros(len(problem.x)),
        "|",
        color=figures.INK,
        markersize=12,
        label="data",
    )
    axis.set(xlabel="x", ylabel="standard deviation", ylim=(0, None), xlim=(grid[0], grid[-1]))
    axis.legend()
    return figure


def table1_figure() -> Figure:
    """Draw the log-likelihoods of Table 1, from the committed results."""
    rows = records.read(OUT.parents[1] / "results" / "table1.jsonl")
    (drawing,) = [d for d in table1.section(rows).drawings if d.name == "table1_log_likelihood"]
    return drawing.figure


def control_figure() -> Figure:
    """Draw the learning curves of the control tasks, thinned, from the committed results."""
    rows = records.read(OUT.parents[1] / "results" / "control.jsonl")
    for curve in (row["details"] for row in rows if "details" in row):
        for name in ("iterations", "mean", "best"):
            curve[name] = curve[name][::-7][::-1]  # the last point stays
    (drawing,) = [d for d in control.section(rows).drawings if d.name == "control"]
    return drawing.figure


def main() -> None:
    """Draw them all."""
    toy = demo.toy_problem(seed=0)
    yacht = demo.yacht_problem()
    fitted = {method: demo.fit(toy, method) for method in demo.METHODS}
    boats = {method: demo.fit(yacht, method) for method in demo.METHODS}
    drawn = {
        "structure": structure_figure(),
        "svgd": svgd_figure(),
        "collapse": collapse_figure(),
        "table1": table1_figure(),
        "control": control_figure(),
        "toy": demo.toy_figure(toy, {method: result.model for method, result in fitted.items()}),
        "uncertainty": uncertainty_figure(toy, fitted[demo.REFINED]),
        "calibration": figures.calibration(
            {
                "yacht": {m: r.predictive for m, r in boats.items()},
                "toy": {m: r.predictive for m, r in fitted.items()},
            },
            {"yacht": yacht.y_test, "toy": toy.y_test},
        ),
    }
    for name, figure in drawn.items():
        report.write(OUT / f"{name}.svg", figures.to_svg(figure, name))


if __name__ == "__main__":
    main()
