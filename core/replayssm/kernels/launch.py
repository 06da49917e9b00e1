"""Host side of the kernels: arguments from the layout, tiles from the shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from replayssm.cursors import StepPlan
from replayssm.inputs import FIELDS, RawGate, TokenInputs
from replayssm.kernels.arguments import (
    OPTIONS,
    copy_format,
    plan_rows,
    read_copy,
    read_sizes,
    rings,
    row_slices,
    sizes,
    slot_strides,
    window_sizes,
)
from replayssm.kernels.step import step_kernel
from replayssm.kernels.tiles import choose_tiles
from replayssm.layer import LayerState


def launch_step(layer: LayerState, plan: StepPlan, inputs: TokenInputs, out: Tensor | None = None) -> Tensor:
    """Run one step; outputs `[B, T, H, V]` into `out`, contiguous, or new ones in the dtype of v."""
    if out is None:
        out = torch.empty_like(inputs.v, memory_format=torch.contiguous_format)
    if not len(plan.rows):
        return out
    recurrence = layer.layout.recurrence
    tiles = choose_tiles(layer.layout, plan.draft, len(plan.rows), inputs.v.device)
    parts, count = tiles.parts(recurrence.value_dim)
    shares, shared = tiles.sharing(recurrence.value_dim, len(plan.rows), plan.draft, layer.layout.window)
    memory = _memory(layer)
    if inputs.q.dtype != inputs.k.dtype:
        # Rows of one block, so of one dtype; keys go back to the ring's as they were.
        wider = torch.promote_types(inputs.q.dtype, inputs.k.dtype)
        inputs = replace(inputs, q=inputs.q.to(wider), k=inputs.k.to(wider))
    tokens = {name: _inner_contiguous(getattr(inputs, name)) for name in FIELDS}
    # Without an order of their own, rows start as they stand in the batch.
    order = plan.rows if plan.order is None else plan.order
    for places, sharing in _launches(order, shares, shared):
        step_kernel[(parts, recurrence.heads, len(places) + sharing * (shares - 1))](
            places,
            *_plan_tensors(layer, plan),
            *_present(plan, tokens.values()),
            *_present(plan, _weights(layer, inputs)),
            out,
            *memory,
            *_batch_strides(tokens),
            *slot_strides(memory),
            *_skip_strides(inputs),
            *_scalars(inputs),
            sharing,
            **sizes(layer.layout),
            **window_sizes(layer),
            **_switches(layer, plan, inputs),
            BV=tiles.value,
            TILES=count,
            SHARES=shares,
            **read_sizes(layer, plan.draft),
            num_warps=tiles.warps,
            maxnreg=tiles.registers or None,
            **OPTIONS,
        )
    return out


def _launches(order: Tensor, shares: int, shared: int) -> list[tuple[Tensor, int]]:
    """Rows of each launch, and how many of them share folds: none where the programs are too many for one launch."""
    if len(row_slices(len(order) + shared * (shares - 1))) == 1:
        return [(order, shared)]
    return [(order[some], 0) for some in row_slices(len(order))]


def _plan_tensors(layer: LayerState, plan: StepPlan) -> list[Tensor]:
    ancestors = plan.slots if plan.ancestors is None else plan.ancestors.contiguous().view(torch.int8)
    return [*plan_rows(plan), layer.seed, ancestors]


def _weights(layer: LayerState, inputs: TokenInputs) -> tuple[Tensor | None, ...]:
    raw = inputs.raw or RawGate()
    return inputs.D, *(None if x is None else x.contiguous() for x in (layer.A, raw.A_log, raw.dt_bias))


def _present(plan: StepPlan, tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """A tensor that is absent stands in as one that is there; its switch keeps the kernel from reading it."""
    return [plan.slots if x is None else x for x in tensors]


def _skip_strides(inputs: TokenInputs) -> tuple[int, int]:
    """D's from head to head and from row to row of V: one number a head may stand for all its rows."""
    return (0, 0) if inputs.D is None else (inputs.D.stride(0), 0 if inputs.D.dim() == 1 else inputs.D.stride(1))


def _scalars(inputs: TokenInputs) -> tuple[float, float, float, float]:
    raw = inputs.raw or RawGate()
    low, high = raw.dt_limit
    return inputs.scale, raw.lower_bound or 0.0, low, min(high, torch.finfo(torch.float32).max)


def _switches(layer: LayerState, plan: StepPlan, inputs: TokenInputs) -> dict[str, Any]:
    """What tells modes and precisions apart. BT: keys, and queries, of the new tokens in a block."""
    precision, raw = layer.layout.precision, inputs.raw or RawGate()
    return {
        "T": plan.draft,
        "BT": max(4, triton.next_power_of_2(plan.draft)),
        "TREE": plan.ancestors is not None,
        "RAW": inputs.raw is not None,
        "HAS_BIAS": raw.dt_bias is not None,
        "BOUNDED": raw.lower_bound is not None,
        "L2NORM": inputs.qk_l2norm,
        "SKIP": inputs.D is not None,
        "HAS_Z": inputs.z is not None,
        "FORMAT": precision.checkpoint,
        "SR": precision.stochastic_rounding,
        "COPY": copy_format(layer.layout),
    }


def _memory(layer: LayerState) -> list[Tensor]:
    """State, read copy and rings; without scales the state stands in for them."""
    state = layer.buffers["checkpoint"]
    return [state, layer.buffers.get("checkpoint_scale", state), *read_copy(layer), *rings(layer)]


def _inner_contiguous(x: Tensor | None) -> Tensor | None:
    """The dimensions after [B, T] contiguous; batch and token strides are free."""
    return None if x is None else x if x[0, 0].is_contiguous() else x.contiguous()


def _batch_strides(tensors: dict[str, Tensor | None]) -> list[int]:
    return [stride for x in tensors.values() for stride in ((0, 0) if x is None else x.stride()[:2])]
