"""Committed Mamba-2 records outside of any ring: what the core, TensorRT-LLM and FlashInfer store differently.

Mamba-2 only. For Gated DeltaNet the three rings hold different numbers: TensorRT-LLM and FlashInfer keep corrections,
keys that were normalised and then rounded, and running sums of decays; the core keeps raw values, β and unrounded keys
beside the corrections, because its fold solves for them again. Neither side can be made from the other bit for bit, so
such slots are exchanged drained: fold, and hand over the state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm import InputError, StateLayout, UnsupportedError
from replayssm.cursors import Cursors
from replayssm.layout import Buffers
from replayssm.recurrence import LayerKind


@dataclass(frozen=True)
class Records:
    """The committed records of n slots, oldest first; rows past a slot's count are zero.

    Attributes:
        x: `[n, J, H, P]` values, activation dtype.
        B: `[n, J, G, N]` keys, activation dtype.
        dt: `[n, J, H]` processed Δ, fp32.
        count: `[n]` int32.
    """

    x: Tensor
    B: Tensor
    dt: Tensor
    count: Tensor

    @property
    def longest(self) -> int:
        """J, rows of the tensors."""
        return self.x.shape[1]

    @property
    def live(self) -> Tensor:
        """`[n, J]` bool, false past a slot's count."""
        return torch.arange(self.longest, device=self.count.device) < self.count[:, None]


def check_convertible(layout: StateLayout) -> None:
    """Check that a layout's records mean the same elsewhere.

    Raises:
        UnsupportedError: not Mamba-2.
    """
    kind = layout.recurrence.kind
    if kind is not LayerKind.MAMBA2:
        raise UnsupportedError(
            f"{kind} rings differ in content between engines (corrections and rounded keys there, raw values and β here); "
            "drain the slots with `flush` and exchange their states"
        )


def silent(x: Tensor, live: Tensor) -> Tensor:
    """Zero dead rows, whatever they hold: `x [n, J, …]`, `live [n, J]`."""
    alive = live.reshape(*live.shape, *[1] * (x.dim() - 2))
    return torch.where(alive, x, torch.zeros((), dtype=x.dtype, device=x.device))


def from_core(layout: StateLayout, buffers: Buffers, cursors: Cursors, slots: Tensor) -> Records:
    """Records of `slots [n]` in the core's ring.

    Raises:
        UnsupportedError: not Mamba-2.
    """
    check_convertible(layout)
    count = cursors.read("committed", slots)
    order = torch.arange(int(count.max()) if len(count) else 0, device=slots.device)
    row = (cursors.read("origin", slots)[:, None].long() + order) % layout.rows
    live = order < count[:, None]

    def take(name: str) -> Tensor:
        return silent(buffers[name][slots[:, None], :, row], live)

    return Records(take("value_ring"), take("key_ring"), take("gate_ring"), count)


def to_core(layout: StateLayout, buffers: Buffers, cursors: Cursors, slots: Tensor, records: Records) -> None:
    """Make `records` the committed records of `slots [n]` of the core; the checkpoint stays.

    Raises:
        UnsupportedError: not Mamba-2.
        InputError: more records than the window holds; nothing was written.
    """
    check_convertible(layout)
    check_room(records, layout.window, "the core's window")
    cursors.reset(slots, records.count)
    n, j = records.live.nonzero(as_tuple=True)
    for name, value in (("value_ring", records.x), ("key_ring", records.B), ("gate_ring", records.dt)):
        buffers[name][slots[n], :, j] = value[n, j]
    cursors.origin[slots] = 0
    cursors.committed[slots] = records.count.to(torch.int32)


def check_room(records: Records, room: int, where: str) -> None:
    """Check that every slot's records fit.

    Raises:
        InputError: they do not.
    """
    most = int(records.count.max()) if len(records.count) else 0
    if most > room:
        raise InputError(f"{most} records do not fit into {where} of {room}; drain the slots first")
