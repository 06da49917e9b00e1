"""Random tokens of a layer whose heads remember from a few to many thousands of tokens: error that stays is seen."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from replayssm.inputs import TokenInputs
from replayssm.recurrence import LayerKind, Recurrence

MEMORY = (16.0, 16384.0)
"""Tokens until a head (KDA: a channel) has decayed to 1/e, spread evenly in the logarithm."""
STRENGTH = (0.02, 1.0)
"""Largest β of the heads, in the same way: with random keys the delta rule alone forgets in about K / β tokens."""


class Tokens:
    """One generator on the device; q, k and v are standard normal, in the rings' dtype.

    Args:
        rows: sequences.
        activation: dtype of q, k and v.
    """

    def __init__(
        self, recurrence: Recurrence, rows: int, activation: torch.dtype, device: torch.device, seed: int = 0
    ) -> None:
        self.recurrence, self.rows, self.activation, self.device = recurrence, rows, activation, device
        self.generator = torch.Generator(device).manual_seed(seed)
        self._rate = 1.0 / self._spread(MEMORY, recurrence.gate_shape)
        self._strength = self._spread(STRENGTH, (recurrence.heads,))
        mamba2 = recurrence.kind is LayerKind.MAMBA2
        # Δ is about 0.1, so that A alone makes the memory.
        self.A = -10.0 * self._rate if mamba2 else None

    def next(self, count: int) -> TokenInputs:
        """The next `count` tokens of every row."""
        r, lead = self.recurrence, (self.rows, count)
        q, k = (self._normal(*lead, r.groups, r.key_dim) for _ in "qk")
        swing = self._uniform(0.5, 2.0, *lead, *r.gate_shape)
        beta = self._strength * self._uniform(0.0, 1.0, *lead, r.heads) if r.delta_rule else None
        return TokenInputs(
            q=q,
            k=k,
            v=self._normal(*lead, r.heads, r.value_dim),
            gate=0.1 * swing if self.A is not None else -self._rate * swing,
            beta=beta,
            qk_l2norm=r.delta_rule,
            scale=r.key_dim**-0.5 if r.delta_rule else 1.0,
        )

    def _spread(self, ends: tuple[float, float], shape: tuple[int, ...]) -> Tensor:
        low, high = (math.log(end) for end in ends)
        # Along heads, so that every head of KDA has channels of neighbouring memories.
        return torch.linspace(low, high, math.prod(shape), device=self.device).exp().reshape(shape)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device).to(self.activation)

    def _uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.generator, device=self.device)
