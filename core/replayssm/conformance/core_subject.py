"""The core's own backends as subjects of the kit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from replayssm.capability import CAPABILITIES, Capability
from replayssm.conformance.subject import ALL_FEATURES, Dims, Feature, StateOptions
from replayssm.layout import Buffers, StateLayout
from replayssm.state import ReplayState


class CoreState(ReplayState):
    """`ReplayState` with its buffers in the open."""

    @property
    def buffers(self) -> Buffers:
        """Name → tensor."""
        return self.layer.buffers


@dataclass(frozen=True)
class CoreSubject:
    """A backend of the capability table.

    Args:
        name: the backend's name.
        device: where the cases run.
        rounds_to: dtype that a kernel rounds the operands of output products to; None for the compute dtype.
    """

    name: str
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    features: frozenset[Feature] = ALL_FEATURES
    dims: Dims = Dims()
    batches: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 98, 99)
    gaps: Path | None = None
    rounds_to: torch.dtype | None = None

    @property
    def capability(self) -> Capability:
        """The backend's row of the table."""
        return CAPABILITIES[self.name]

    def operand(self, activation: torch.dtype) -> torch.dtype:
        """See `Subject.operand`; naive and torch upcast before they multiply."""
        return self.rounds_to or (torch.float64 if activation == torch.float64 else torch.float32)

    def row(self, slot: int) -> int:
        """The kit's own numbers."""
        return slot

    def make(self, layout: StateLayout, options: StateOptions) -> CoreState:
        """See `Subject.make`."""
        return CoreState(
            layout,
            A=options.A,
            backend=self.name,
            flush=options.flush,
            device=self.device,
            buffers=options.buffers,
            check_inputs=options.check_inputs,
            seed=options.seed,
        )
