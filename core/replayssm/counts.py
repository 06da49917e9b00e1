"""What the steps of each slot did, counted on the device while they run: for `ReplayState.stats`, off unless asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from replayssm.cursors import StepPlan


class SlotCounts:
    """`[slots + 1, 6]` int64 sums since each slot's state was written; the last row is that of padding.

    Columns: steps that brought tokens, those of them that did not flush, flushes (also those without tokens), records that
    quiet steps read, records that flushes folded, records appended. Every layer that shares the cursors did the same, so
    they are counted once.
    """

    NAMES = ("steps", "quiet_steps", "flushes", "read_records", "folded_records", "new_records")

    def __init__(self, slots: int, device: torch.device | str) -> None:
        self.sums = torch.zeros(slots + 1, len(self.NAMES), dtype=torch.int64, device=device)

    def settle(self, plan: StepPlan) -> None:
        """Count a step; nothing waits for the device, so a CUDA graph can hold it."""
        steps, quiet = plan.lengths > 0, ~plan.flush
        columns = (
            *(steps, steps & quiet, plan.flush),
            *(plan.committed * quiet, plan.committed * plan.flush, plan.lengths),
        )
        self.sums.index_add_(0, self._rows(plan.slots), torch.stack([x.long() for x in columns], dim=1))

    def reset(self, slots: Tensor) -> None:
        """States were written to `slots [n]`."""
        self.sums.index_fill_(0, self._rows(slots), 0)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """`target [n]` goes on where `source [n]` stands."""
        self.sums[self._rows(target)] = self.sums[self._rows(source)]

    def select(self, slots: Tensor) -> SlotCounts:
        """Sums of their own for `slots [n]` as 0 … n − 1."""
        selected = SlotCounts(len(slots), self.sums.device)
        selected.sums[: len(slots)] = self.sums[slots]
        return selected

    def of(self, slot: int) -> dict[str, int]:
        """The sums of one slot by name; waits for the device."""
        return dict(zip(self.NAMES, self.sums[slot].tolist(), strict=True))

    def _rows(self, slots: Tensor) -> Tensor:
        last = len(self.sums) - 1
        slots = slots.long()
        return torch.where((slots >= 0) & (slots < last), slots, last)
