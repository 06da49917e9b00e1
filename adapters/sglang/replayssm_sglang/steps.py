"""One forward pass as one step of the protocol: the first layer plans, the last one settles.

Layers run in order, so no engine call is needed around them, and all of it, the flush decision included, is on the device:
a CUDA graph that captures the layers captures the step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm import ReplayLayers, StepError, TokenInputs
from replayssm.cursors import PAD_SLOT, StepPlan


class Steps:
    """Runs the recurrent layers of a model.

    Args:
        layers: all of this rank, in order.

    Attributes:
        ran: whether a step has gone through all of them, or been captured.
    """

    def __init__(self, layers: ReplayLayers) -> None:
        self.layers, self.ran = layers, False
        self._plan: StepPlan | None = None
        self._one = torch.ones(1, dtype=torch.int32, device=layers.first.device)

    def decode(self, index: int, inputs: TokenInputs, slots: Tensor, out: Tensor | None = None) -> Tensor:
        """Layer `index` of a step of one token a row, accepted at once: outputs `[B, 1, H, V]`, in `out` where given."""
        plan = self._planned(index, inputs, slots, None)
        outputs = self.layers[index].run(plan, inputs, out)
        if self._ended(index, plan):
            self.layers.commit(plan.slots, self._one.expand(plan.batch))
        return outputs

    def verify(
        self,
        index: int,
        inputs: TokenInputs,
        slots: Tensor,
        parents: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Layer `index` of a step whose acceptance comes later: outputs `[B, T, H, V]`, in `out` where given.

        Args:
            slots: `[B]` SGLang's, of which 0 and below are padding.
            parents: `[B, T]` draft trees, chains when None; the first token of a row is always its root.
        """
        plan = self._planned(index, inputs, slots, parents)
        outputs = self.layers[index].run(plan, inputs, out)
        self._ended(index, plan)
        return outputs

    def _planned(self, index: int, inputs: TokenInputs, slots: Tensor, parents: Tensor | None) -> StepPlan:
        if index == 0:
            self._plan = self.layers.first.plan(inputs, real_slots(slots), parents=parents)
        if self._plan is None:
            raise StepError(f"recurrent layer {index} ran before layer 0; the model skips layers, which is not served")
        return self._plan

    def _ended(self, index: int, plan: StepPlan) -> bool:
        """Whether that was the last layer; then the step is settled."""
        last = index == len(self.layers) - 1
        if last:
            self.layers.first.settle(plan)
            self.layers.record(plan)
            self._plan, self.ran = None, True
        return last


def real_slots(slots: Tensor) -> Tensor:
    """SGLang's slots `[B]` → the core's: its slot 0 is where padded rows point, and some paths use −1."""
    return torch.where(slots > 0, slots.long(), PAD_SLOT)
