"""TensorRT-LLM's own replay history of one Mamba-2 layer: two flat buffers a slot, one of them active.

Layout and rules as published (docs/engines/tensorrt-llm.md). A step appends to the active buffer, or, when the records
and the new tokens exceed the history, folds them and puts the new tokens at the start of the other one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm import InputError
from replayssm_trtllm.records import Records, check_room, silent


@dataclass(frozen=True)
class DoubleBuffer:
    """Tensors of one layer; the last two are shared by all layers.

    Attributes:
        old_x: `[slots, 2, R, H, P]`. old_B: `[slots, 2, R, G, N]`, both in the model's dtype.
        old_dt: `[slots, 2, H, R]` fp32, processed Δ.
        old_dA_cumsum: `[slots, 2, H, R]` fp32, running sums of A Δ since the checkpoint.
        prev_num_accepted_tokens: `[slots]` int32, records in the active buffer.
        cache_buf_idx: `[slots]` int32, the active buffer.
    """

    old_x: Tensor
    old_B: Tensor
    old_dt: Tensor
    old_dA_cumsum: Tensor
    prev_num_accepted_tokens: Tensor
    cache_buf_idx: Tensor

    @property
    def history(self) -> int:
        """R, records that a buffer holds."""
        return self.old_x.shape[2]

    def check(self) -> None:
        """Check shapes and dtypes.

        Raises:
            InputError: a tensor that is not as described.
        """
        slots, _, rows, heads, dim = self.old_x.shape
        expected = {
            "old_x": (slots, 2, rows, heads, dim),
            "old_B": (slots, 2, rows, *self.old_B.shape[3:]),
            "old_dt": (slots, 2, heads, rows),
            "old_dA_cumsum": (slots, 2, heads, rows),
            "prev_num_accepted_tokens": (slots,),
            "cache_buf_idx": (slots,),
        }
        for name, shape in expected.items():
            tensor = getattr(self, name)
            if tuple(tensor.shape) != shape:
                raise InputError(f"{name} is {tuple(tensor.shape)}; expected {shape}")
        for name in ("old_dt", "old_dA_cumsum"):
            if getattr(self, name).dtype != torch.float32:
                raise InputError(f"{name} is {getattr(self, name).dtype}; expected torch.float32")


def from_double_buffer(source: DoubleBuffer, slots: Tensor) -> Records:
    """Records of `slots [n]` in their active buffers."""
    source.check()
    count = source.prev_num_accepted_tokens[slots]
    active = source.cache_buf_idx[slots].long()
    longest = int(count.max()) if len(count) else 0
    live = torch.arange(longest, device=slots.device) < count[:, None]
    x, B = (tensor[slots, active, :longest] for tensor in (source.old_x, source.old_B))
    dt = source.old_dt[slots, active, :, :longest].transpose(1, 2)
    return Records(silent(x, live), silent(B, live), silent(dt, live), count)


def to_double_buffer(target: DoubleBuffer, slots: Tensor, records: Records, A: Tensor) -> None:
    """Make `records` the history of `slots [n]`, in buffer 0; the checkpoint stays.

    Args:
        A: `[H]` decay rates, for the running sums that this layout keeps: fp32, added oldest first.

    Raises:
        InputError: more records than a buffer holds; nothing was written.
    """
    target.check()
    check_room(records, target.history, "TensorRT-LLM's history")
    sums = running_decay(records.dt, A)
    n, j = records.live.nonzero(as_tuple=True)
    target.old_x[slots[n], 0, j] = records.x[n, j]
    target.old_B[slots[n], 0, j] = records.B[n, j]
    target.old_dt[slots[n], 0, :, j] = records.dt[n, j]
    target.old_dA_cumsum[slots[n], 0, :, j] = sums[n, j]
    target.prev_num_accepted_tokens[slots] = records.count.to(torch.int32)
    target.cache_buf_idx[slots] = 0


def running_decay(dt: Tensor, A: Tensor) -> Tensor:
    """Running sums of A Δ, `dt [n, J, H]` fp32 → `[n, J, H]` fp32, added one after the other."""
    total = torch.zeros_like(dt[:, 0]) if dt.shape[1] else dt.new_zeros(dt.shape[0], dt.shape[2])
    sums = torch.empty_like(dt)
    for j in range(dt.shape[1]):
        total = total + dt[:, j] * A.to(dt.dtype)
        sums[:, j] = total
    return sums
