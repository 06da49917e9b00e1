"""Host side of the kernels: arguments from the layout, tiles from the shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from replayssm.cursors import StepPlan
from replayssm.inputs import RawGate, TokenInputs
from replayssm.kernels.step import step_kernel
from replayssm.kernels.tiles import choose_tiles
from replayssm.layer import LayerState
from replayssm.layout import StateLayout


def launch_step(layer: LayerState, plan: StepPlan, inputs: TokenInputs) -> Tensor:
    """Run one step; outputs `[B, T, H, V]` in the dtype of v."""
    out = torch.zeros_like(inputs.v, memory_format=torch.contiguous_format)
    if not len(plan.rows):
        return out
    recurrence = layer.layout.recurrence
    tiles = choose_tiles(layer.layout, plan.draft, len(plan.rows), inputs.v.device)
    parts, count = tiles.parts(recurrence.value_dim)
    pointers, strides = _memory(layer)
    tokens = {name: _inner_contiguous(getattr(inputs, name)) for name in ("q", "k", "v", "gate", "beta", "z")}
    step_kernel[(parts, recurrence.heads, len(plan.rows))](
        *_plan_tensors(layer, plan),
        *_present(plan, tokens.values()),
        *_present(plan, _weights(layer, inputs)),
        out,
        *pointers,
        *_batch_strides(tokens),
        *strides,
        *_scalars(inputs),
        **_shape(layer, plan.draft),
        **_switches(layer.layout, plan, inputs),
        BV=tiles.value,
        TILES=count,
        num_warps=tiles.warps,
        # Pipelined, tiles would pass through shared memory, and take the L1 cache from all the rest.
        num_stages=1,
        maxnreg=tiles.registers or None,
    )
    return out


def _plan_tensors(layer: LayerState, plan: StepPlan) -> list[Tensor]:
    ancestors = plan.slots if plan.ancestors is None else plan.ancestors.contiguous().view(torch.int8)
    rows = [plan.slots, plan.lengths, plan.origin, plan.committed, plan.flush.view(torch.int8), plan.flushes]
    return [*rows, layer.seed, ancestors]


def _weights(layer: LayerState, inputs: TokenInputs) -> tuple[Tensor | None, ...]:
    raw = inputs.raw or RawGate()
    return inputs.D, layer.A, raw.A_log, raw.dt_bias


def _present(plan: StepPlan, tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """A tensor that is absent stands in as one that is there; its switch keeps the kernel from reading it."""
    return [plan.slots if x is None else x for x in tensors]


def _scalars(inputs: TokenInputs) -> tuple[float, float, float, float]:
    raw = inputs.raw or RawGate()
    low, high = raw.dt_limit
    return inputs.scale, raw.lower_bound or 0.0, low, min(high, torch.finfo(torch.float32).max)


def _shape(layer: LayerState, draft: int) -> dict[str, int]:
    """Compile-time sizes. BT: keys, and queries, of the new tokens in a block; E: adjacent numbers of a row a thread."""
    r = layer.layout.recurrence
    sizes = {"H": r.heads, "G": r.groups, "V": r.value_dim, "K": r.key_dim, "R": layer.layout.rows}
    tokens = max(4, power_of_two(draft))
    return {**sizes, "J": history_tile(layer.layout), "T": draft, "BT": tokens, "E": adjacent(layer)}


def adjacent(layer: LayerState) -> int:
    """E of `kernels.tile`: 16 bytes of the checkpoint, or as much of a row as four threads leave for one."""
    return min(8, 16 // layer.buffers["checkpoint"].element_size(), layer.layout.recurrence.key_dim // 4)


def dot_precision(layout: StateLayout) -> str:
    """Products of reading round to TF32, which holds 16-bit activations exactly; in three parts for fp32 ones."""
    return "tf32x3" if layout.activation == torch.float32 else "tf32"


def _switches(layout: StateLayout, plan: StepPlan, inputs: TokenInputs) -> dict[str, Any]:
    """What tells layers, modes and precisions apart."""
    r, precision, raw = layout.recurrence, layout.precision, inputs.raw or RawGate()
    return {
        "DELTA": r.delta_rule,
        "CHANNEL": r.channel_decay,
        "EXACT": r.delta_rule and precision.exact_fold,
        "TREE": plan.ancestors is not None,
        "RAW": inputs.raw is not None,
        "HAS_BIAS": raw.dt_bias is not None,
        "BOUNDED": raw.lower_bound is not None,
        "L2NORM": inputs.qk_l2norm,
        "SKIP": 0 if inputs.D is None else inputs.D.dim(),
        "HAS_Z": inputs.z is not None,
        "FORMAT": precision.checkpoint,
        "SR": precision.stochastic_rounding,
        "DOT": dot_precision(layout),
    }


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def history_tile(layout: StateLayout) -> int:
    """J, rows of the history tile: the longest history, as a power of two of at least 16."""
    return max(16, power_of_two(max(layout.window, layout.max_draft)))


_RINGS = ("key_ring", "key_scale_ring", "value_ring", "raw_value_ring", "beta_ring", "gate_ring")


def _memory(layer: LayerState) -> tuple[list[Tensor], list[int]]:
    """Pointers and slot strides of state and rings; a buffer that the layer lacks stands in as the checkpoint."""
    buffers = layer.buffers
    state = buffers["checkpoint"]
    tensors = [state, buffers.get("checkpoint_scale", state), *(buffers.get(name, state) for name in _RINGS)]
    return tensors, [tensor.stride(0) for tensor in tensors]


def _inner_contiguous(x: Tensor | None) -> Tensor | None:
    """The dimensions after [B, T] contiguous; batch and token strides are free."""
    return None if x is None else x if x[0, 0].is_contiguous() else x.contiguous()


def _batch_strides(tensors: dict[str, Tensor | None]) -> list[int]:
    return [stride for x in tensors.values() for stride in ((0, 0) if x is None else x.stride()[:2])]
