"""Fresh random inputs of every layer, with decays as trained models have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from replayssm.inputs import RawGate, TokenInputs
from replayssm.recurrence import LayerKind, Recurrence

SHORTEST, LONGEST = 2.0, 2000.0
"""Time constants in tokens between which decays are drawn, log-uniformly over heads or channels."""
STRONG = 40.0
"""One token in 16 decays so many times faster than the others."""
LARGEST_DECAY = 2.0 * STRONG / SHORTEST
"""Largest −log decay of a processed token."""


class Source:
    """Random tensors from one generator on the CPU, so that a seed means the same on every device.

    Args:
        recurrence: the layer.
        activation: dtype of q, k, v and z. Gates are fp32, or fp64 for fp64 activations.
        device: where results go.
        seed: of the generator.
        raw: give raw gate projections and unnormalised keys, to be processed by the subject.
        extras: add a skip weight D and an output gate z (Mamba-2).
    """

    def __init__(
        self,
        recurrence: Recurrence,
        activation: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        seed: int = 0,
        raw: bool = False,
        extras: bool = False,
    ) -> None:
        self.recurrence, self.activation, self.device = recurrence, activation, torch.device(device)
        self.raw, self.extras = raw, extras and recurrence.kind is LayerKind.MAMBA2
        self.generator = torch.Generator().manual_seed(seed)
        self.gate_dtype = torch.float64 if activation == torch.float64 else torch.float32
        mamba2 = recurrence.kind is LayerKind.MAMBA2
        self.A = -self.uniform(recurrence.heads, low=0.5, high=16.0).to(self.device) if mamba2 else None
        self.rate = self._log_rates()
        self.D = self.normal(recurrence.heads).to(self.device) if self.extras else None
        self.parameters = self._raw_parameters() if raw else None

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, float64 on the CPU."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform numbers, float64 on the CPU."""
        return low + (high - low) * torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        """Integers from `low` to `high` inclusive, on the CPU."""
        return torch.randint(low, high + 1, shape, generator=self.generator)

    def states(self, count: int) -> Tensor:
        """`[n, H, V, K]` states of unit entries, in the gates' dtype."""
        return self.normal(count, *self.recurrence.state_shape).to(self.device, self.gate_dtype)

    def tokens(self, batch: int, draft: int) -> TokenInputs:
        """T new tokens of B rows."""
        r = self.recurrence
        q, k = (self._cast(self.normal(batch, draft, r.groups, r.key_dim)) for _ in "qk")
        v = self._cast(self.normal(batch, draft, r.heads, r.value_dim))
        z = self._cast(self.normal(batch, draft, r.heads, r.value_dim)) if self.extras else None
        delta = r.delta_rule
        return TokenInputs(
            q=q,
            k=k,
            v=v,
            gate=self._gate(batch, draft),
            beta=self._beta(batch, draft) if delta else None,
            raw=self.parameters,
            qk_l2norm=delta,
            scale=r.key_dim**-0.5 if delta else 1.0,
            D=self.D,
            z=z,
        )

    def forgetting(self, inputs: TokenInputs, share: float, log_decay: float) -> TokenInputs:
        """Processed inputs in which one head forgets everything at a share of the tokens: a log decay far below the rest."""
        hit = (self.uniform(inputs.batch, inputs.draft) < share).to(self.device)
        gate = inputs.gate.clone()
        # Of Mamba-2 the head with the fastest rate, so that Δ, which also weighs the token, stays small.
        head = 0 if self.A is None else int(self.A.argmin())
        gate[:, :, head][hit] = log_decay if self.A is None else log_decay / float(self.A[head])
        return replace(inputs, gate=gate)

    def _log_rates(self) -> Tensor:
        """Decay per token of each head (or channel): 1 / time constant, log-uniform."""
        spread = self.uniform(*self.recurrence.gate_shape, low=math.log(SHORTEST), high=math.log(LONGEST))
        return torch.exp(-spread)

    def _gate(self, batch: int, draft: int) -> Tensor:
        shape = (batch, draft, *self.recurrence.gate_shape)
        if self.raw:
            return self._cast(self.normal(*shape))
        # Half to twice the rate, and one token in 16 decays far more than the rest together.
        g = self.rate * self.uniform(*shape, low=0.5, high=2.0)
        g = torch.where(self.uniform(*shape[:2], *[1] * (len(shape) - 2)) < 1 / 16, STRONG * g, g)
        gate = g / -self.A.cpu() if self.A is not None else -g
        return gate.to(self.device, self.gate_dtype)

    def _beta(self, batch: int, draft: int) -> Tensor:
        shape = (batch, draft, self.recurrence.heads)
        if self.raw:
            return self._cast(self.normal(*shape))
        return self.uniform(*shape, low=0.05, high=0.95).to(self.device, self.gate_dtype)

    def _raw_parameters(self) -> RawGate:
        r = self.recurrence
        bias = self.normal(*r.gate_shape).to(self.device, self.gate_dtype)
        if not r.delta_rule:
            return RawGate(dt_bias=bias - 2, dt_limit=(0.001, 10.0))
        a_log = self.uniform(r.heads, low=-3.0, high=0.0).to(self.device, self.gate_dtype)
        return RawGate(dt_bias=bias, A_log=a_log, lower_bound=-5.0 if r.channel_decay else None)

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self.device, self.activation)


def mapped(inputs: TokenInputs, function: Callable[[Tensor], Tensor]) -> TokenInputs:
    """A function applied to every tensor that has rows and tokens."""
    parts: dict[str, Any] = {name: function(x) for name, x in inputs.tensors().items()}
    return replace(inputs, **parts)


def select(inputs: TokenInputs, rows: Tensor | slice, tokens: Tensor | slice = slice(None)) -> TokenInputs:
    """The inputs of some rows, and of some of their tokens."""
    return mapped(inputs, lambda x: x[rows][:, tokens])


def concatenate(first: TokenInputs, second: TokenInputs) -> TokenInputs:
    """Rows of `first`, then rows of `second`."""
    theirs = second.tensors()
    parts: dict[str, Any] = {name: torch.cat((x, theirs[name])) for name, x in first.tensors().items()}
    return replace(first, **parts)


def overwrite(fixed: TokenInputs, given: TokenInputs) -> None:
    """New values at fixed addresses, where a captured graph reads them."""
    target = fixed.tensors()
    for name, x in given.tensors().items():
        target[name].copy_(x)


def poison(inputs: TokenInputs, live: Tensor) -> TokenInputs:
    """NaN in all tokens where `live [B, T]` is False: what padding may hold."""
    return mapped(inputs, lambda x: torch.where(live.reshape(*live.shape, *[1] * (x.dim() - 2)), x, torch.nan))
