"""What `ReplayState.stats` says of one slot."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from replayssm.counts import SlotCounts
from replayssm.layer import LayerState
from replayssm.storage import read_matrix
from replayssm.traffic import StateBytes, ordinary_bytes


@dataclass(frozen=True)
class SlotStats:
    """One slot of one layer, since its state was written.

    Attributes:
        steps: steps that brought tokens.
        flushes: folds into the checkpoint.
        bytes_moved: state and ring bytes that those steps and folds read and wrote.
        ordinary_bytes: what an fp32 state that is read every step and written for every token would have moved.
        read_error: ‖copy − checkpoint‖ / ‖checkpoint‖ of the matrices as they are now (Frobenius norm, all heads); None
            without a read copy. Never NaN: 0 where the two are equal, zeros too, and infinite where the checkpoint alone
            is zero or, whoever wrote it, one of the two is not finite.
    """

    steps: int
    flushes: int
    bytes_moved: int
    ordinary_bytes: int
    read_error: float | None

    @property
    def bytes_saved(self) -> int:
        """Fewer bytes than the ordinary way; below 0 where it were more."""
        return self.ordinary_bytes - self.bytes_moved


def slot_stats(layer: LayerState, counts: SlotCounts, slot: int) -> SlotStats:
    """Statistics of a slot; waits for the device."""
    cost, n = StateBytes.of(layer.layout), counts.of(slot)
    state, _ = ordinary_bytes(layer.layout, 1)
    read = n["quiet_steps"] * cost.read_state + n["read_records"] * cost.output_record
    folded = n["flushes"] * (cost.checkpoint + cost.written_state) + n["folded_records"] * cost.fold_record
    return SlotStats(
        steps=n["steps"],
        flushes=n["flushes"],
        bytes_moved=read + folded + n["new_records"] * cost.new_record,
        ordinary_bytes=state * (n["steps"] + n["new_records"]),
        read_error=read_error(layer, slot),
    )


def read_error(layer: LayerState, slot: int) -> float | None:
    """Relative L2 distance of a slot's read copy from its checkpoint, None without a copy; see `SlotStats`."""
    layout = layer.layout
    if layout.precision.read_copy is None:
        return None
    index = torch.tensor([slot], device=layer.seed.device)
    copy, checkpoint = (
        read_matrix(layout, layer.buffers, name, index, torch.float64) for name in ("read_copy", "checkpoint")
    )
    distance, norm = float((copy - checkpoint).norm()), float(checkpoint.norm())
    if distance == 0.0:
        return 0.0
    return distance / norm if math.isfinite(distance) and norm > 0.0 else math.inf
