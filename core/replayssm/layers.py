"""`ReplayLayers`: the layers of one model, which share cursors, as one object for what engines do to whole slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from replayssm.capability import CAPABILITIES
from replayssm.cursors import PAD_SLOT, Cursors, StepPlan
from replayssm.errors import InputError
from replayssm.state import ReplayState

if TYPE_CHECKING:
    from replayssm.traffic import TrafficMeter


class ReplayLayers:
    """Operations on slots in every layer, with the cursors moved once.

    Slots are tensors on the device, −1 is padding. Nothing waits for the device where the backend can be captured in a
    CUDA graph; the others take padding out first.

    Args:
        layers: in the order of the model; all hold the first one's cursors.
        meter: counts steps (see `record`) and commits, of one layer, for all layers move the same.

    Raises:
        InputError: no layers, or one with cursors of its own.
    """

    def __init__(self, layers: Sequence[ReplayState], meter: TrafficMeter | None = None) -> None:
        if not layers:
            raise InputError("layers is empty; a model of no recurrent layer has nothing to replay")
        if any(layer.cursors is not layers[0].cursors for layer in layers):
            raise InputError("layers must share cursors: make the others with cursors=first.cursors")
        self.layers, self.meter = tuple(layers), meter
        if meter is not None:
            meter.place(layers[0].device)

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[ReplayState]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> ReplayState:
        return self.layers[index]

    @property
    def first(self) -> ReplayState:
        """The layer that plans, settles and commits for all."""
        return self.layers[0]

    @property
    def cursors(self) -> Cursors:
        """Where the rings of all layers stand."""
        return self.first.cursors

    def adopt(self, slots: Tensor, position: Tensor | int = 0) -> None:
        """See `ReplayState.adopt`; `slots [n]`, `position` one number or `[n]`."""
        (slots,), position = self._real(slots, of=slots), self._counts(position, slots)
        self.first.adopt(slots, position)
        for layer in self.layers[1:]:
            layer.refresh(slots)

    def begin(self, slots: Tensor, position: Tensor | int = 0) -> None:
        """The engine will write the checkpoints of `slots [n]`: their rings are empty from now on; `refresh` may follow."""
        (slots,), position = self._real(slots, of=slots), self._counts(position, slots)
        self.cursors.reset(slots, position)

    def flush(self, slots: Tensor) -> None:
        """Fold all committed records of `slots [n]` now; pending drafts are dropped."""
        (slots,) = self._real(slots, of=slots)
        plan = self.first.plan_flush(slots)
        for layer in self.layers:
            layer.fold(plan)
        self.cursors.settle(plan)

    def materialise(self, source: Tensor, target: Tensor, count: Tensor | None = None) -> None:
        """See `ReplayState.materialise`; `source`, `target`, `count [n]`, rows with a target of −1 are padding."""
        taken = None if count is None else self._counts(count, target)
        source, target = self._real(source, target, of=target)
        origin, committed = self.cursors.read("origin", source), self.cursors.read("committed", source)
        counts = committed if taken is None else torch.minimum(torch.as_tensor(taken).clamp(min=0), committed)
        counts = counts.to(torch.int32)
        for layer in self.layers:
            layer.backend.fold_into(layer.layer, source, target, origin, counts, torch.zeros_like(counts))
        self.cursors.reset(target, self.cursors.read("position", source) - committed + counts)

    def commit(self, slots: Tensor, accepted: Tensor) -> None:
        """Accept the first `accepted [B]` of the new tokens that `slots [B]` await; see `ReplayState.commit`.

        Needs no plan, so it serves engines whose steps are graphs: the tokens are those of the slot's last step.
        """
        if self.meter is not None:
            self.meter.record_commit(self.cursors.read("pending", slots.long()), accepted)
        self.cursors.commit(slots, accepted)

    def record(self, plan: StepPlan) -> None:
        """Count a step, once for all layers, where there is a meter."""
        if self.meter is not None:
            self.meter.record(self.first.layout, plan)

    def commit_path(self, slots: Tensor, path: Tensor) -> None:
        """Accept a path `[B, P]` of each slot's draft tree, −1 for padding; see `ReplayState.commit_path`."""
        slots = slots.long()
        awaiting = torch.where(self.cursors.read("pending", slots) > 0, slots, PAD_SLOT)
        first = self.cursors.read("origin", slots) + self.cursors.read("committed", slots)
        for layer in self.layers:
            layer.backend.compact(layer.layer, awaiting, first, path)
        self.commit(slots, (path >= 0).sum(-1))

    def _real(self, *slots: Tensor, of: Tensor) -> tuple[Tensor, ...]:
        """The rows of `slots [n]` where `of [n]` is no padding, for backends that look at every row."""
        if self._takes_padding:
            return slots
        real = of != PAD_SLOT
        return tuple(x[real] for x in slots)

    def _counts(self, count: Tensor | int, of: Tensor) -> Tensor | int:
        return count if isinstance(count, int) or count.dim() == 0 else self._real(count, of=of)[0]

    @property
    def _takes_padding(self) -> bool:
        return CAPABILITIES[self.first.backend.name].graph_capture and not self.first.check_inputs
