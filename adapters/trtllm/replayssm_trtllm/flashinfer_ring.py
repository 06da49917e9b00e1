"""FlashInfer's ring of `checkpointing_ssu`: tensor for tensor the core's Mamba-2 ring, under other names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm import InputError, StateLayout
from replayssm.cursors import Cursors
from replayssm.layout import Buffers
from replayssm_trtllm.records import Records, check_convertible, check_room, silent


@dataclass(frozen=True)
class FlashInferRing:
    """One layer's ring and cursors.

    Attributes:
        x_cache: `[slots, H, L, P]`. B_cache: `[slots, G, L, N]`.
        dt_cache: `[slots, H, L]` fp32, processed Δ.
        ring_start: `[slots]` int32. prev_num_accepted_tokens: `[slots]` int32.
    """

    x_cache: Tensor
    B_cache: Tensor
    dt_cache: Tensor
    ring_start: Tensor
    prev_num_accepted_tokens: Tensor

    @property
    def rows(self) -> int:
        """L, rows of the ring."""
        return self.x_cache.shape[2]


def view_of_core(layout: StateLayout, buffers: Buffers, cursors: Cursors) -> FlashInferRing:
    """The core's own memory as FlashInfer's arguments; nothing is copied.

    Raises:
        UnsupportedError: not Mamba-2.
    """
    check_convertible(layout)
    return FlashInferRing(
        buffers["value_ring"], buffers["key_ring"], buffers["gate_ring"], cursors.origin, cursors.committed
    )


def from_flashinfer(source: FlashInferRing, slots: Tensor) -> Records:
    """Records of `slots [n]`."""
    count = source.prev_num_accepted_tokens[slots]
    order = torch.arange(int(count.max()) if len(count) else 0, device=slots.device)
    row = (source.ring_start[slots][:, None].long() + order) % source.rows
    live = order < count[:, None]
    parts = (tensor[slots[:, None], :, row] for tensor in (source.x_cache, source.B_cache, source.dt_cache))
    x, B, dt = (silent(part, live) for part in parts)
    return Records(x, B, dt, count)


def to_flashinfer(target: FlashInferRing, slots: Tensor, records: Records, draft: int) -> None:
    """Make `records` the live rows of `slots [n]`, from row 0 on.

    Args:
        draft: T; the ring keeps that many rows free for new tokens.

    Raises:
        InputError: more records than L − T; nothing was written.
    """
    if not 1 <= draft < target.rows:
        raise InputError(f"draft={draft} must be from 1 to {target.rows - 1}, one below the ring's rows")
    check_room(records, target.rows - draft, "FlashInfer's window")
    n, j = records.live.nonzero(as_tuple=True)
    for tensor, value in ((target.x_cache, records.x), (target.B_cache, records.B), (target.dt_cache, records.dt)):
        tensor[slots[n], :, j] = value[n, j]
    target.ring_start[slots] = 0
    target.prev_num_accepted_tokens[slots] = records.count.to(torch.int32)
