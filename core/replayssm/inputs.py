"""The inputs of one step, as the model has them, and their one processed form.

Engines hold raw projections (dt, a, b before softplus and sigmoid; q and k before normalisation), models in transformers
hold processed gates. Both are one object: `TokenInputs` with, or without, `RawGate`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from replayssm.recurrence import LayerKind, Recurrence

L2_EPS = 1e-6
FIELDS = ("q", "k", "v", "gate", "beta", "z")
"""Those of `TokenInputs` that have rows and tokens."""


@dataclass(frozen=True, kw_only=True)
class RawGate:
    """Parameters that turn raw gate projections into Δ or a log decay.

    Attributes:
        dt_bias: `[H]`, or `[H, K]` for a decay per channel; added before the softplus or the sigmoid.
        A_log: `[H]`; GDN and KDA, g = −exp(A_log) softplus(a + dt_bias).
        lower_bound: KDA's bounded gate, g = lower_bound · sigmoid(exp(A_log) (a + dt_bias)); below 0.
        dt_limit: Mamba-2, bounds of Δ after the softplus.
    """

    dt_bias: Tensor | None = None
    A_log: Tensor | None = None
    lower_bound: float | None = None
    dt_limit: tuple[float, float] = (0.0, float("inf"))


@dataclass(frozen=True, kw_only=True)
class TokenInputs:
    """T new tokens for each of B rows.

    Attributes:
        q: `[B, T, G, K]` queries (C for Mamba-2).
        k: `[B, T, G, K]` keys (B for Mamba-2).
        v: `[B, T, H, V]` values (x for Mamba-2).
        gate: Δ `[B, T, H]` for Mamba-2, log decay ≤ 0 `[B, T, H]` for GDN, `[B, T, H, K]` for KDA; with `raw`, the
            projection before its activation (dt, or a).
        beta: `[B, T, H]` for the delta rule; with `raw`, the logit b.
        raw: gate parameters, or None when `gate` and `beta` are processed.
        qk_l2norm: normalise q and k here (fp32, ε = 1e-6 inside the root, as flash-linear-attention does).
        scale: factor on q, after the normalisation; K ** -0.5 for GDN and KDA.
        D: `[H]` or `[H, V]` skip weight, adds D ⊙ x to the output (Mamba-2).
        z: `[B, T, H, V]` output gate; the output is multiplied by silu(z) (Mamba-2).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    beta: Tensor | None = None
    raw: RawGate | None = None
    qk_l2norm: bool = False
    scale: float = 1.0
    D: Tensor | None = None
    z: Tensor | None = None

    @property
    def batch(self) -> int:
        """B, rows."""
        return self.v.shape[0]

    @property
    def draft(self) -> int:
        """T, new tokens a row."""
        return self.v.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that have rows and tokens, by name, as far as they are given."""
        found = {name: getattr(self, name) for name in FIELDS}
        return {name: x for name, x in found.items() if x is not None}

    def process(self, recurrence: Recurrence, rows: Tensor, dtype: torch.dtype) -> ProcessedInputs:
        """Select rows, apply gates and normalisation.

        Args:
            rows: `[n]` row numbers to keep.
            dtype: fp32 or fp64, what the result is computed in.
        """
        q, k, v = (x[rows].to(dtype) for x in (self.q, self.k, self.v))
        k_scale = torch.ones(k.shape[:-1], dtype=dtype, device=k.device)
        if self.qk_l2norm:
            q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + L2_EPS)
            k_scale = torch.rsqrt((k * k).sum(-1) + L2_EPS)
        gate = self.gate[rows].to(dtype)
        beta = None if self.beta is None else self.beta[rows].to(dtype)
        if self.raw is not None:
            gate = activate_gate(recurrence, gate, self.raw)
            beta = None if beta is None else torch.sigmoid(beta)
        return ProcessedInputs(q * self.scale, k, k_scale, v, gate, beta)

    def finish(self, out: Tensor, rows: Tensor) -> Tensor:
        """Skip connection and output gate on `out [n, T, H, V]` of the selected rows."""
        if self.D is not None:
            weight = self.D.to(out.dtype)
            out = out + (weight[:, None] if weight.dim() == 1 else weight) * self.v[rows].to(out.dtype)
        return out if self.z is None else out * F.silu(self.z[rows].to(out.dtype))


@dataclass(frozen=True)
class ProcessedInputs:
    """Inputs of the selected rows in one compute dtype; q scaled, gates processed, k as given with its factor beside it.

    k stays as given because the ring stores it so: a normalised key rounded to bf16 would carry 2⁻⁹ of error into the
    fold, while the raw bf16 key and an fp32 factor are exact.
    """

    q: Tensor
    k: Tensor
    k_scale: Tensor
    v: Tensor
    gate: Tensor
    beta: Tensor | None


def activate_gate(recurrence: Recurrence, gate: Tensor, raw: RawGate) -> Tensor:
    """Raw projection → Δ (Mamba-2) or log decay (GDN, KDA), in the dtype of `gate`."""
    if raw.dt_bias is not None:
        gate = gate + raw.dt_bias.to(gate.dtype)
    if recurrence.kind is LayerKind.MAMBA2:
        return F.softplus(gate).clamp(*raw.dt_limit)
    if raw.A_log is None:
        raise ValueError("RawGate.A_log is required for the raw gates of GDN and KDA")
    rate = raw.A_log.to(gate.dtype).exp()
    rate = rate[:, None] if recurrence.channel_decay else rate
    if raw.lower_bound is not None:
        return raw.lower_bound * torch.sigmoid(rate * gate)
    return -rate * F.softplus(gate)
