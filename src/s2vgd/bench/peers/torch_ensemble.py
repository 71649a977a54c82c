"""A deep ensemble in PyTorch (Lakshminarayanan et al., 2017): networks that predict mean and noise.

All members are trained side by side by batched products, each on batches of its own, with Adam and
cosine decay. Inputs and targets are standardised. Training is on one thread: its products are too
small for more.
"""

from __future__ import annotations

import math

import numpy as np
import torch


class TorchEnsemble:
    """A regressor.

    Parameters
    ----------
    epochs : int
        How often the rows are seen.
    hidden, members, batch : int
        Width of the one hidden layer, networks, rows a step of each.
    learning_rate, decay : float
        Of Adam at the start, and the weight decay.
    seed : int
        Of everything random.
    """

    def __init__(
        self,
        epochs: int = 100,
        hidden: int = 50,
        members: int = 5,
        batch: int = 100,
        learning_rate: float = 1e-2,
        decay: float = 1e-4,
        seed: int = 0,
    ) -> None:
        self.epochs, self.hidden, self.members, self.batch = epochs, hidden, members, batch
        self.learning_rate, self.decay, self.seed = learning_rate, decay, seed

    def fit(self, x: np.ndarray, y: np.ndarray) -> TorchEnsemble:
        """Learn from rows (N, F) and their targets (N,)."""
        torch.manual_seed(self.seed)
        torch.set_num_threads(1)
        self._x_mean, self._x_std = x.mean(0), np.maximum(x.std(0), 1e-8)
        self._y_mean, self._y_std = float(y.mean()), float(max(y.std(), 1e-8))
        inputs = self._inputs(x)
        targets = torch.from_numpy(((y - self._y_mean) / self._y_std).astype(np.float32))
        self._weights = self._start(x.shape[1])
        optimizer = torch.optim.Adam(
            self._weights, self.learning_rate, weight_decay=self.decay, fused=True
        )
        batch = min(self.batch, len(x))
        steps = len(x) // batch
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs * steps)
        for _ in range(self.epochs):
            order = torch.stack([torch.randperm(len(x)) for _ in range(self.members)])
            for i in range(steps):
                rows = order[:, i * batch : (i + 1) * batch]
                mean, scale = self._outputs(inputs[rows])
                errors = (targets[rows] - mean) / scale
                loss = (0.5 * errors.square() + scale.log()).mean(1).sum()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
        return self

    @torch.inference_mode()
    def predict(self, x: np.ndarray, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and deviation of each member, (M, N)."""
        torch.set_num_threads(threads)
        inputs = self._inputs(x)
        mean, scale = self._outputs(inputs.expand(self.members, *inputs.shape))
        return mean.numpy() * self._y_std + self._y_mean, scale.numpy() * self._y_std

    def _inputs(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(((x - self._x_mean) / self._x_std).astype(np.float32))

    def _start(self, features: int) -> list[torch.Tensor]:
        shapes = ((features, self.hidden), (1, self.hidden), (self.hidden, 2), (1, 2))
        scales = (math.sqrt(2 / features), 0.0, math.sqrt(1 / self.hidden), 0.0)
        return [
            (scale * torch.randn(self.members, *shape)).requires_grad_()
            for scale, shape in zip(scales, shapes, strict=True)
        ]

    def _outputs(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w0, b0, w1, b1 = self._weights
        outputs = torch.baddbmm(b1, torch.relu(torch.baddbmm(b0, inputs, w0)), w1)
        return outputs[..., 0], torch.nn.functional.softplus(outputs[..., 1]) + 1e-3
