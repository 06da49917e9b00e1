"""The triton backend: one launch a step, on CUDA or under Triton's interpreter on CPU."""

from __future__ import annotations

from torch import Tensor

from replayssm.backends.vectorised import TorchBackend
from replayssm.cursors import Cursors, StepPlan
from replayssm.inputs import TokenInputs
from replayssm.kernels.device_cursors import DeviceCursors
from replayssm.kernels.launch import launch_step
from replayssm.layer import LayerState


class TritonBackend(TorchBackend):
    """Steps through `kernels`; folds outside a step and stores are the torch backend's."""

    name = "triton"
    cursors: type[Cursors] = DeviceCursors

    def step(self, layer: LayerState, plan: StepPlan, inputs: TokenInputs) -> Tensor:
        """See `Backend.step`."""
        return launch_step(layer, plan.compacted, inputs)
