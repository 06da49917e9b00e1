"""One layer's memory and constants, as every operation on it takes them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from replayssm.layout import Buffers, StateLayout


@dataclass(frozen=True)
class LayerState:
    """One layer's memory and constants, as every operation takes them.

    Attributes:
        layout: what the buffers are.
        buffers: name → tensor.
        A: `[H]` negative decay rates, Mamba-2 only.
        seed: `[1]` int64 on the device, for stochastic rounding.
    """

    layout: StateLayout
    buffers: Buffers
    A: Tensor | None
    seed: Tensor
