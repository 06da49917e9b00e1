"""What launches have in common: pointers and compile-time sizes, from the layout."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from replayssm.cursors import StepPlan
from replayssm.layer import LayerState
from replayssm.layout import StateLayout

OPTIONS = {"num_stages": 1, "enable_fp_fusion": False}
"""How kernels with arithmetic are compiled. Pipelined, tiles would pass through shared memory, and take the L1 cache from
all the rest. And which products a compiler fuses with a sum depends on what it knows of strides: bits must not."""
GRID_ROWS = 65520
"""Most rows of a launch: a grid's third dimension has at most 65,535, and kernels are compiled for rows that start at
multiples of 16 bytes."""
COPY = ("read_copy", "read_copy_block_scale", "read_copy_scale")
RINGS = ("key_ring", "key_scale_ring", "value_ring", "raw_value_ring", "beta_ring", "gate_ring")


def plan_rows(plan: StepPlan) -> list[Tensor]:
    """What a plan says of each row, in the order in which kernels take it."""
    return [plan.slots, plan.lengths, plan.origin, plan.committed, plan.flush.view(torch.int8), plan.flushes]


def row_slices(rows: int) -> list[slice]:
    """Rows of each launch of a call, in order: all of them in one, as long as a grid has room for them."""
    return [slice(first, first + GRID_ROWS) for first in range(0, rows, GRID_ROWS)]


def rings(layer: LayerState) -> list[Tensor]:
    """A ring that the layer lacks stands in as one that it has; its switch keeps the kernel from touching it."""
    return [layer.buffers.get(name, layer.buffers["value_ring"]) for name in RINGS]


def read_copy(layer: LayerState) -> list[Tensor]:
    """The read copy, its block scales and its scales; the checkpoint, and its, stand in for what there is not.

    A checkpoint of NVFP4 is what steps read, as a copy would be.
    """
    checkpoint = layer.buffers["checkpoint"]
    own = [layer.buffers.get(name.replace("read_copy", "checkpoint"), checkpoint) for name in COPY]
    return [layer.buffers.get(name, mine) for name, mine in zip(COPY, own, strict=True)]


def copy_format(layout: StateLayout) -> str:
    """Format of `read_copy`, "none" where steps read the checkpoint."""
    precision = layout.precision
    return precision.read_copy or ("nvfp4" if precision.checkpoint == "nvfp4" else "none")


def slot_strides(tensors: list[Tensor]) -> list[int]:
    """From one slot to the next, in numbers."""
    return [tensor.stride(0) for tensor in tensors]


def sizes(layout: StateLayout) -> dict[str, int]:
    """A layer's geometry, and the two switches that tell layers apart."""
    r = layout.recurrence
    geometry = {"H": r.heads, "G": r.groups, "V": r.value_dim, "K": r.key_dim, "R": layout.rows}
    return {**geometry, "DELTA": r.delta_rule, "CHANNEL": r.channel_decay}


def window_sizes(layer: LayerState) -> dict[str, int | str | bool]:
    """What reading or folding a window needs besides.

    J, rows of the history's tile: the longest history, as a power of two of at least 16. C: columns that a fold takes at
    a time: some for GDN, whose tile goes through twice; all where it does once, where a row has one scale or where
    channels decay on their own. E of `kernels.tile`, of the checkpoint; EK, of keys that do not meet the state. ALIGN:
    bytes at whose multiples slots start. DOT: products of reads, as `StateLayout.dot` has them.
    """
    layout = layer.layout
    r = layout.recurrence
    scaled = copy_format(layout) != "none" or layout.precision.checkpoint == "fp8"
    some = r.delta_rule and not r.channel_decay and not scaled
    return {
        "J": max(16, triton.next_power_of_2(max(layout.window, layout.max_draft))),
        "C": min(r.key_dim, 32) if some else r.key_dim,
        "E": vector(layer.buffers["checkpoint"], r.key_dim),
        "EK": vector(layer.buffers["checkpoint" if r.channel_decay else "key_ring"], r.key_dim),
        "EXACT": r.delta_rule and layout.precision.exact_fold,
        "ALIGN": 16 if _aligned(layer) else 1,
        "DOT": layout.dot,
    }


def _aligned(layer: LayerState) -> bool:
    """Whether every slot of what a fold by channel reads starts at a multiple of 16 bytes, as in memory of its own."""
    if not layer.layout.recurrence.channel_decay:
        return False
    read = (layer.buffers[name] for name in ("checkpoint", "key_ring", "gate_ring"))
    return all(x.data_ptr() % 16 == 0 and x.stride(0) * x.element_size() % 16 == 0 for x in read)


def read_sizes(layer: LayerState, draft: int) -> dict[str, int]:
    """ER, the E of what a step reads, and P of `kernels.tile`: what four threads load at a time, in a line of 128 bytes.

    Of a copy, or of bytes, a thread has 16 bytes, and neighbouring rows, or loads, fill a line. Rows of a 16-bit state are
    the left side of a product as they were loaded. A draft of more than four tokens has rows enough for a product without
    parts, and no registers for them.
    """
    key_dim = layer.layout.recurrence.key_dim
    copy = copy_format(layer.layout)
    if copy != "none" or layer.layout.precision.checkpoint == "fp8":
        return {"ER": min(32 if copy == "nvfp4" else 16, key_dim // 4), "P": 1}
    state = layer.buffers["checkpoint"]
    columns = 4 * vector(state, key_dim)
    line = min(128 // (columns * state.element_size()), key_dim // columns)
    whole = draft > 4 or state.element_size() == 2
    return {"ER": columns // 4, "P": 1 if whole else line}


def vector(state: Tensor, key_dim: int) -> int:
    """E of `kernels.tile`: 16 bytes of a stored state, NVFP4 as fp32, or as much of a row as four threads leave for one."""
    return min(4 if state.dtype == torch.uint8 else 16 // state.element_size(), key_dim // 4)
