"""Tokens and outputs as a caller has them, to what a step's kernels take: rows of T tokens, contiguous outputs.

Packed batches are `[1, tokens, …]` with `cu_seqlens`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm.cursors import StepPlan
from replayssm.inputs import TokenInputs
from replayssm.kernels.launch import launch_step
from replayssm.layer import LayerState
from replayssm_flashinfer.kernels.packed import gather_kernel, spread_kernel

_BLOCK = 1024


def spread(
    packed: Tensor, draft: int, v: Tensor, gate: Tensor, k: Tensor, q: Tensor, z: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """`[1, tokens, …]` → `[B, T, …]`, T = `draft`; places without a token hold anything.

    Args:
        packed: `[B + 1]` int32.
        v, z: `[1, tokens, H, V]`. gate: `[1, tokens, H]`. k, q: `[1, tokens, G, K]`; tokens at any stride.
    """
    batch, tokens = len(packed) - 1, v.shape[1]
    given = [x if x[0, :1].is_contiguous() else x.contiguous() for x in (v, gate, k, q, v if z is None else z)]
    rows = [x.new_empty(batch, draft, *x.shape[2:]) for x in given]
    if batch and tokens:
        spread_kernel[(batch, draft)](
            packed.contiguous(),
            *given,
            *rows,
            *(x.stride(1) for x in given),
            tokens,
            T=draft,
            N=v[0, 0].numel(),
            H=gate.shape[2],
            M=k[0, 0].numel(),
            HAS_Z=z is not None,
            BLOCK=_BLOCK,
            num_warps=4,
        )
    v, gate, k, q, z_rows = rows
    return v, gate, k, q, None if z is None else z_rows


def gather(packed: Tensor, rows: Tensor, out: Tensor) -> None:
    """`rows [B, T, H, V]`, contiguous → the tokens of `out [1, tokens, H, V]` that rows have."""
    batch, draft = rows.shape[:2]
    if batch and out.shape[1]:
        gather_kernel[(batch, draft)](
            packed.contiguous(),
            rows,
            out,
            out.stride(1),
            out.shape[1],
            T=draft,
            N=rows[0, 0].numel(),
            BLOCK=_BLOCK,
            num_warps=4,
        )


def launch_into(layer: LayerState, plan: StepPlan, inputs: TokenInputs, out: Tensor) -> None:
    """A step of rows, its outputs in `out [B, T, H, V]` of any strides."""
    into = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
    launch_step(layer, plan, inputs, into)
    if into is not out:
        out.copy_(into)
