"""A caller's cursors as one step's plan, in one launch: FlashInfer's kernels decide on the device, and so do ours.

The core's kernels take a plan by row of the batch; FlashInfer's callers have slots, a ring's start and the number of its
live rows, by slot (Mamba-2) or by row of the batch (GDN), which are only read here. Numbers that FlashInfer leaves undefined
are defined: a slot out of range is padding, so is the later row of two with one slot, a cursor past the ring wraps around,
and a history longer than the window counts as a full one. A packed row that is longer than T has its first T tokens, and
places outside of the batch are no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from replayssm.cursors import StepPlan
from replayssm.kernels.arguments import plan_rows
from replayssm_flashinfer.kernels.plan import ring_plan_kernel

BLOCK = 32


@dataclass(frozen=True)
class RingCursors:
    """What a caller says of its rows.

    Attributes:
        slots: `[B]` int32 or int64, None for slot b of row b.
        start: int32, ring row of the oldest record; any stride.
        live: int32, records that await a fold; any stride.
        by_row: `start` and `live` are `[B]`, not by slot.
        starts_of_rows: `[B + 1]` int32, where each row's tokens start in a packed batch; None where every row has T.
        pad: the slot that means padding.
        tokens: of a packed batch.
    """

    slots: Tensor | None
    start: Tensor
    live: Tensor
    by_row: bool = False
    starts_of_rows: Tensor | None = None
    pad: int = -1
    tokens: int = 0


def plan_step(
    cursors: RingCursors, *, batch: int, draft: int, slots: int, rows: int, window: int, limit: int
) -> StepPlan:
    """What the core's kernels need to know of each row of the batch.

    Args:
        batch: B. draft: T. slots: of the pool. rows: R of the ring.
        window: the longest history.
        limit: a row folds where its history and its new tokens are more than this.
    """
    device = cursors.start.device
    i32 = torch.empty(5, batch, dtype=torch.int32, device=device)
    plan = StepPlan(
        rows=torch.empty(batch, dtype=torch.int64, device="meta"),
        slots=torch.empty(batch, dtype=torch.int64, device=device),
        lengths=i32[0],
        origin=i32[1],
        committed=i32[2],
        flush=torch.empty(batch, dtype=torch.bool, device=device),
        flushes=i32[3],
        order=i32[4],
        batch=batch,
        draft=draft,
    )
    if batch:
        given = cursors.start if cursors.slots is None else cursors.slots.contiguous()
        packed = cursors.starts_of_rows
        ring_plan_kernel[(triton.cdiv(batch, BLOCK),)](
            given,
            cursors.start,
            cursors.live,
            cursors.start if packed is None else packed.contiguous(),
            plan.order,
            *plan_rows(plan),
            cursors.start.stride(0),
            cursors.live.stride(0),
            batch,
            slots,
            cursors.pad,
            draft,
            limit,
            cursors.tokens,
            R=rows,
            WINDOW=window,
            HAS_SLOTS=cursors.slots is not None,
            BY_ROW=cursors.by_row,
            PACKED=packed is not None,
            BB=BLOCK,
            num_warps=1,
        )
    return plan
