"""The triton backend: one launch an operation, on CUDA or under Triton's interpreter on CPU."""

from __future__ import annotations

from torch import Tensor

from replayssm.cursors import Cursors, StepPlan
from replayssm.inputs import TokenInputs
from replayssm.kernels.device_cursors import DeviceCursors
from replayssm.kernels.launch import launch_step
from replayssm.kernels.launch_slots import launch_compact, launch_copy, launch_fold, launch_fold_into, launch_store
from replayssm.layer import LayerState


class TritonBackend:
    """Everything through `kernels`: nothing waits for the device, so a CUDA graph can capture all of it."""

    name = "triton"
    cursors: type[Cursors] = DeviceCursors

    def step(self, layer: LayerState, plan: StepPlan, inputs: TokenInputs) -> Tensor:
        """See `Backend.step`."""
        return launch_step(layer, plan, inputs)

    def step_into(self, layer: LayerState, plan: StepPlan, inputs: TokenInputs, out: Tensor) -> None:
        """See `WritesOutputs.step_into`."""
        launch_step(layer, plan, inputs, out)

    def fold(self, layer: LayerState, slots: Tensor, origin: Tensor, count: Tensor) -> Tensor:
        """See `Backend.fold`."""
        return launch_fold(layer, slots, origin, count)

    def fold_into(
        self, layer: LayerState, source: Tensor, target: Tensor, origin: Tensor, count: Tensor, flushes: Tensor
    ) -> None:
        """See `Backend.fold_into`."""
        launch_fold_into(layer, source, target, origin, count, flushes)

    def store(self, layer: LayerState, slots: Tensor, state: Tensor, flushes: Tensor) -> None:
        """See `Backend.store`."""
        launch_store(layer, slots, state, flushes)

    def copy(self, layer: LayerState, source: Tensor, target: Tensor) -> None:
        """See `Backend.copy`."""
        launch_copy(layer, source, target)

    def compact(self, layer: LayerState, slots: Tensor, first: Tensor, path: Tensor) -> None:
        """See `Backend.compact`."""
        launch_compact(layer, slots, first, path)
