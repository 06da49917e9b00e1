"""Our own conventional decode kernel: the yardstick where no engine is installed, itself at the memory's ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from replayssm.bench.conventional import Kind, Ordinary, Prepared
from replayssm.bench.kernels import ordinary_kernel
from replayssm.errors import UnsupportedError
from replayssm.inputs import RawGate

SHAPES = {"8x1": (8, 1), "16x1": (16, 1), "16x2": (16, 2), "32x2": (32, 2), "32x4": (32, 4), "64x4": (64, 4)}
"""Rows of V a program × warps."""


@dataclass(frozen=True)
class OurOrdinary:
    """Read, update, write: a program holds some rows of V with the whole of K."""

    name: str = "ours"

    def variants(self, kind: Kind) -> Sequence[str]:
        """See `Implementation.variants`."""
        return [name for name, (rows, _) in SHAPES.items() if rows <= max(16, kind.geometry.recurrence.value_dim)]

    def prepare(self, step: Ordinary, start: Tensor, variant: str) -> Prepared:
        """See `Implementation.prepare`."""
        inputs, r = step.inputs, step.recurrence
        if inputs.raw is None or inputs.raw.dt_bias is None or inputs.z is not None:
            raise UnsupportedError("it takes raw gates with a bias, and no output gate")
        state, out = start.clone(), torch.empty_like(inputs.v)
        slots = torch.arange(inputs.batch, device=state.device)
        draft = inputs.draft
        snapshots = state.new_empty(inputs.batch, draft, *r.state_shape) if draft > 1 else state
        rows, warps = SHAPES[variant]

        def run() -> Tensor:
            ordinary_kernel[(triton.cdiv(r.value_dim, rows), r.heads, inputs.batch)](
                state, snapshots, slots,
                *_tensors(step),
                out, draft, state.stride(0),
                *_scalars(step),
                H=r.heads, G=r.groups, V=r.value_dim, K=r.key_dim, BV=rows,
                **_switches(step),
                num_warps=warps,
            )  # fmt: skip
            return out

        return Prepared(run, lambda: snapshots[:, -1] if draft > 1 else state)


def _tensors(step: Ordinary) -> list[Tensor]:
    """q, k, v, gate, β, D, A, A_log, dt_bias; one that is absent stands in as q and is not read."""
    inputs, raw = step.inputs, step.inputs.raw or RawGate()
    tensors = (inputs.q, inputs.k, inputs.v, inputs.gate, inputs.beta, inputs.D, step.A, raw.A_log, raw.dt_bias)
    return [inputs.q if x is None else x for x in tensors]


def _scalars(step: Ordinary) -> tuple[float, float, float, float]:
    raw = step.inputs.raw or RawGate()
    low, high = raw.dt_limit
    return step.inputs.scale, raw.lower_bound or 0.0, low, min(high, torch.finfo(torch.float32).max)


def _switches(step: Ordinary) -> dict[str, bool]:
    r, raw = step.recurrence, step.inputs.raw or RawGate()
    return {
        "DELTA": r.delta_rule,
        "CHANNEL": r.channel_decay,
        "BOUNDED": raw.lower_bound is not None,
        "SKIP": step.inputs.D is not None,
        "SNAPSHOT": step.inputs.draft > 1,
    }
