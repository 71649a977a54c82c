"""SVGD in PyTorch as a good engineer would write it: batched products, autograd, Gram matrix.

All particles are one leaf tensor (M, D), so that the kernel needs no copies; networks run side by
side by batched products on views of it. Eager mode: no graph is compiled.
"""

from __future__ import annotations

import math

import jax
import numpy as np
import torch

from s2vgd.bench.problems import LEARNING_RATE, Optimizer, Regression, check_memory, on_gpu


class TorchSVGD:
    """SVGD at work.

    Parameters
    ----------
    mapped : bool
        Write the network for one particle and map it over the particles by ``torch.func``, in place
        of batched products.
    bandwidth : float, optional
        A fixed one; by default the median's.
    threads : int, optional
        Of the process, while it works; by default as many as PyTorch takes.
    """

    def __init__(
        self,
        problem: Regression,
        particles: int,
        optimizer: Optimizer = "adam",
        bandwidth: float | None = None,
        mapped: bool = False,
        threads: int | None = None,
    ) -> None:
        # Particles, gradient, direction, two products, two moments, and the activations.
        active = 4 * particles * problem.rows * sum(problem.widths)
        self.needs = check_memory(4 * (7 * particles * problem.size + active + 4 * particles**2))
        self._problem, self._bandwidth = problem, bandwidth
        self._threads = threads or torch.get_num_threads()
        self._device = torch.device("cuda" if on_gpu() else "cpu")
        # Products as JAX makes them there: in TF32 unless it is told not to.
        precision = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009
        exact = precision == "float32"
        torch.set_float32_matmul_precision("highest" if exact else "high")
        self._x, self._y = (torch.from_numpy(a).to(self._device) for a in problem.batch())
        self._sizes = [math.prod(shape) for shape in problem.shapes]
        start = torch.from_numpy(problem.start(particles))
        self._theta = start.to(self._device).requires_grad_()
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.Adam([self._theta], LEARNING_RATE, fused=True)
            if optimizer == "adam"
            else torch.optim.SGD([self._theta], 1.0)
        )
        self._mapped = mapped

    def steps(self, n: int) -> None:
        """Make n steps."""
        torch.set_num_threads(self._threads)
        for _ in range(n):
            # Not a method kept in the object, whose gigabytes only a search for cycles would free.
            gradient = self._mapped_gradient() if self._mapped else self._batched_gradient()
            with torch.no_grad():
                self._theta.grad = -self._direction(gradient)
            self._optimizer.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def particles(self) -> np.ndarray:
        """Return the particles (M, D)."""
        return self._theta.detach().cpu().numpy().copy()

    def _direction(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return eq. (svgd_update) by three matrix products."""
        theta, m = self._theta, len(self._theta)
        gram = theta @ theta.T
        norms = gram.diagonal()
        squared = (norms[:, None] + norms - 2 * gram).clamp_(min=0)
        if self._bandwidth is not None:
            h = torch.tensor(self._bandwidth, device=self._device)
        elif m == 1:
            h = torch.ones((), device=self._device)
        else:
            below = torch.ones(m, m, dtype=torch.bool, device=self._device).tril_(-1)
            pairs = squared[below]
            h = pairs.median() / math.log(m)
        kernel = torch.exp(-squared / h)
        push = (2 / h) * (theta * kernel.sum(1, keepdim=True) - kernel @ theta)
        return (kernel @ gradient + push) / m

    def _batched_gradient(self) -> torch.Tensor:
        problem, m = self._problem, len(self._theta)
        hidden = self._x.expand(m, *self._x.shape)
        parts = self._theta.split(self._sizes, dim=1)
        for i in range(0, len(parts), 2):
            kernel = parts[i].view(m, *problem.shapes[i])
            hidden = torch.baddbmm(parts[i + 1][:, None], hidden, kernel)
            if i < len(parts) - 2:
                hidden = hidden.relu()
        error = (hidden - self._y) / problem.noise
        value = -0.5 * (
            problem.total / problem.rows * error.square().sum() + self._theta.square().sum()
        )
        return torch.autograd.grad(value, self._theta)[0]

    def _mapped_gradient(self) -> torch.Tensor:
        problem = self._problem

        def log_joint(theta: torch.Tensor) -> torch.Tensor:
            hidden, parts = self._x, theta.split(self._sizes)
            for i in range(0, len(parts), 2):
                kernel = parts[i].view(problem.shapes[i])
                hidden = torch.addmm(parts[i + 1], hidden, kernel)
                if i < len(parts) - 2:
                    hidden = hidden.relu()
            error = (hidden - self._y) / problem.noise
            scale = problem.total / problem.rows
            return -0.5 * (scale * error.square().sum() + theta.square().sum())

        gradient: torch.Tensor = torch.func.vmap(torch.func.grad(log_joint))(self._theta.detach())
        return gradient
