"""What a backend is: four operations on the buffers of one layer. It never moves a cursor."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from replayssm.cursors import StepPlan
from replayssm.inputs import TokenInputs
from replayssm.layer import LayerState


class Backend(Protocol):
    """The operations that an implementation serves."""

    name: str

    def step(self, layer: LayerState, plan: StepPlan, inputs: TokenInputs) -> Tensor:
        """Append the new records, fold the committed ones of flush rows, return outputs `[B, T, H, V]`.

        Rows of padding and tokens past a row's length come back as zeros.
        """
        ...

    def fold(self, layer: LayerState, slots: Tensor, origin: Tensor, count: Tensor) -> Tensor:
        """Checkpoint of `slots [n]` with its first `count [n]` records folded: `[n, H, V, K]`, nothing written."""
        ...

    def store(self, layer: LayerState, slots: Tensor, state: Tensor, flushes: Tensor) -> None:
        """Write `state [n, H, V, K]` as checkpoint and read copy."""
        ...

    def compact(self, layer: LayerState, slots: Tensor, first: Tensor, path: Tensor) -> None:
        """Make the tokens of an accepted tree path `[n, P]` the first new records from ring row `first [n]`."""
        ...


def output_buffer(layer: LayerState, plan: StepPlan, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeroed `[B, T, H, V]`."""
    geometry = layer.layout.recurrence
    return torch.zeros(plan.batch, plan.draft, geometry.heads, geometry.value_dim, dtype=dtype, device=device)
