"""Neural Thompson sampling in PyTorch: a bootstrapped ensemble, trained by batched products.

A decision asks one network, drawn at random; an update draws a batch from the rewards so far and
makes one step of Adam on all networks, each of which counts a reward twice or not at all. All on
one thread: the products are too small for more.
"""

from __future__ import annotations

import numpy as np
import torch


class TorchBandit:
    """An agent.

    Parameters
    ----------
    arms, features, hidden, members : int
        Sizes of the networks, and their number.
    batch : int
        Rows an update.
    capacity : int
        Rewards that are kept.
    seed : int
        Of everything random.
    """

    def __init__(
        self,
        arms: int,
        features: int,
        hidden: int,
        members: int,
        batch: int = 64,
        capacity: int = 50_000,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self._rng = np.random.default_rng(seed)
        self._members, self._batch = members, batch
        shapes = ((features, hidden), (1, hidden), (hidden, arms), (1, arms))
        self._weights = [
            (
                torch.randn(members, *shape) * (shape[0] ** -0.5 if shape[0] > 1 else 0.0)
            ).requires_grad_()
            for shape in shapes
        ]
        self._optimizer = torch.optim.Adam(self._weights, 1e-3, fused=True)
        self._x = torch.zeros(capacity, features)
        self._action = torch.zeros(capacity, dtype=torch.long)
        self._reward = torch.zeros(capacity)
        self._counts = torch.zeros(capacity, members)
        self._seen = 0

    @torch.inference_mode()
    def decide(self, context: np.ndarray) -> int:
        """Return the action that one network expects most of."""
        member = int(self._rng.integers(self._members))
        w0, b0, w1, b1 = (weight[member] for weight in self._weights)
        hidden = torch.relu(torch.addmm(b0, torch.from_numpy(context)[None], w0))
        return int(torch.addmm(b1, hidden, w1).argmax())

    def learn(self, context: np.ndarray, action: int, reward: float) -> None:
        """Keep a reward, and make one gradient step on a batch of those that are kept."""
        place = self._seen % len(self._x)
        self._x[place] = torch.from_numpy(context)
        self._action[place] = action
        self._reward[place] = reward
        self._counts[place] = 2.0 * torch.randint(0, 2, (self._members,))
        self._seen += 1
        rows = torch.randint(0, min(self._seen, len(self._x)), (self._batch,))
        x, counts = self._x[rows], self._counts[rows].T
        w0, b0, w1, b1 = self._weights
        hidden = torch.relu(torch.baddbmm(b0, x.expand(self._members, *x.shape), w0))
        outputs = torch.baddbmm(b1, hidden, w1)
        chosen = self._action[rows].expand(self._members, -1)[..., None]
        errors = outputs.gather(2, chosen)[..., 0] - self._reward[rows]
        loss = (counts * errors.square()).mean(1).sum()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
