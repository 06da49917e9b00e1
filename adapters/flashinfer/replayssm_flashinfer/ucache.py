"""Steps and folds of Gated DeltaNet on FlashInfer's rings (k, u and running decays), through the core's kernels.

Those rings have no room for raw values and β, so a fold adds the corrections u as they were solved, and nothing is solved
again: FlashInfer's own arithmetic. With a caller's rings of both beside them a fold solves again from the checkpoint, which
a read copy needs: its steps solve for u from the copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from torch import Tensor

from replayssm import PrecisionPolicy, Recurrence, StateLayout
from replayssm.cursors import StepPlan
from replayssm.inputs import TokenInputs
from replayssm.kernels.arguments import OPTIONS
from replayssm.kernels.launch import launch_step
from replayssm.kernels.launch_slots import launch_fold_into
from replayssm.layer import LayerState
from replayssm_flashinfer.copy_checks import NO_COPY, Copy, copy_format, scaled_buffers
from replayssm_flashinfer.kernels.ucache import close_kernel, open_kernel, part_kernel
from replayssm_flashinfer.mamba_checks import STATES

WINDOW = 16
"""Records of a window, whatever the ring holds."""


@dataclass(frozen=True)
class UCache:
    """A layer's memory as FlashInfer lays it out; slot strides are free.

    Attributes:
        state: `[S, HV, V, K]` fp32, bf16 or fp16.
        k: `[S, H, R, K]` normalised keys. u: `[S, HV, R, V]` corrections, either in bf16, fp16 or fp32.
        g: `[S, HV, R]` fp32, log decay from the checkpoint to each record.
        v: `[S, HV, R, V]` values as they came. beta: `[S, HV, R]` fp32. Both or neither.
        read_copy: the copy, its block scales, its scales.
    """

    state: Tensor
    k: Tensor
    u: Tensor
    g: Tensor
    v: Tensor | None = None
    beta: Tensor | None = None
    read_copy: Copy = NO_COPY

    @property
    def rows(self) -> int:
        """R."""
        return self.k.shape[2]

    def layout(self, draft: int, *, stochastic: bool) -> StateLayout:
        """The core's layout of this memory: as many records as the ring has rows beside the new tokens'."""
        precision = (STATES[self.state.dtype], stochastic, copy_format(self.read_copy), self.v is not None)
        return ucache_layout(
            tuple(self.state.shape), self.k.shape[1], self.rows, draft, precision, self.k.dtype
        )  # fmt: skip


@lru_cache(maxsize=1024)
def ucache_layout(
    state: tuple[int, int, int, int],
    groups: int,
    rows: int,
    draft: int,
    precision: tuple[str, bool, str | None, bool],
    activation: torch.dtype,
) -> StateLayout:
    """The core's layout of state `[slots, HV, V, K]` with rings of R = `rows`."""
    slots, heads, value_dim, key_dim = state
    return StateLayout(
        Recurrence.gdn(value_heads=heads, key_heads=groups, value_dim=value_dim, key_dim=key_dim),
        slots=slots,
        window=rows - draft,
        max_draft=draft,
        precision=PrecisionPolicy(*precision),
        activation=activation,
    )


def step_ucache(memory: UCache, plan: StepPlan, inputs: TokenInputs, seed: Tensor | None, out: Tensor) -> None:
    """Append, fold what the plan folds, and write outputs `[B, T, HV, V]` to `out`, contiguous."""
    if not plan.batch:
        return
    layer = _layer(memory, plan.draft, seed)
    r, gates = layer.layout.recurrence, layer.buffers["gate_ring"]
    batch, draft, groups, key_dim = inputs.k.shape
    q, k = (x if x[0, 0].is_contiguous() else x.contiguous() for x in (inputs.q, inputs.k))
    q_ready, k_ready = (torch.empty(k.shape, dtype=torch.float32, device=k.device) for _ in range(2))
    open_kernel[(batch, draft * groups + r.heads)](
        q, k, q_ready, k_ready, memory.k, *q.stride()[:2], *k.stride()[:2],
        plan.slots, plan.origin, plan.committed, memory.g, gates, memory.g.stride(0), gates.stride(0),
        T=draft, G=groups, H=r.heads, K=key_dim, R=memory.rows, J=triton.next_power_of_2(memory.rows),
        L2NORM=inputs.qk_l2norm, num_warps=1, **OPTIONS,
    )  # fmt: skip
    ready = TokenInputs(
        q=q_ready, k=k_ready, v=inputs.v, gate=inputs.gate, beta=inputs.beta, raw=inputs.raw, scale=inputs.scale
    )
    launch_step(layer, plan, ready, out)
    close_kernel[(batch, r.heads)](
        plan.slots, plan.lengths, plan.origin, plan.committed, plan.flush.view(torch.int8),
        memory.g, gates, memory.g.stride(0), gates.stride(0),
        H=r.heads, R=memory.rows, BT=triton.next_power_of_2(draft), num_warps=1, **OPTIONS,
    )  # fmt: skip


def fold_ucache(memory: UCache, source: Tensor, target: Tensor, origin: Tensor, count: Tensor) -> None:
    """States of `source [n]` after `count [n]` records, to other slots `target [n]`; −1 is padding."""
    layer = _layer(memory, 1, None)
    gates, r = layer.buffers["gate_ring"], layer.layout.recurrence
    if len(source):
        part_kernel[(len(source), r.heads)](
            source, origin, count, memory.g, gates, memory.g.stride(0), gates.stride(0),
            R=memory.rows, J=triton.next_power_of_2(memory.rows), num_warps=1, **OPTIONS,
        )  # fmt: skip
    launch_fold_into(layer, source, target, origin, count, torch.zeros_like(count))


def _layer(memory: UCache, draft: int, seed: Tensor | None) -> LayerState:
    slots, heads, rows, value_dim = memory.u.shape
    raw, beta = memory.v, memory.beta
    # What these rings lack: one row of memory that stands in for every slot's, written and never read, and scales of
    # keys, which are all 1. Decays of single records live for this call.
    fp32 = memory.g.new_empty
    if raw is None or beta is None:
        raw = memory.u.new_empty(1, heads, rows, value_dim).expand(slots, -1, -1, -1)
        beta = fp32(1, heads, rows).expand(slots, -1, -1)
    buffers = {
        "checkpoint": memory.state,
        "value_ring": memory.u,
        "key_ring": memory.k,
        "gate_ring": fp32(slots, heads, rows),
        "raw_value_ring": raw,
        "beta_ring": beta,
        "key_scale_ring": memory.g.new_ones(1, memory.k.shape[1], rows).expand(slots, -1, -1),
    }
    buffers |= scaled_buffers(None, memory.read_copy)
    layout = memory.layout(draft, stochastic=seed is not None)
    return LayerState(layout, buffers, None, memory.g if seed is None else seed)
