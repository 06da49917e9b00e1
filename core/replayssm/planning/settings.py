"""What a plan is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from replayssm.errors import InputError
from replayssm.hybrid import HybridModel
from replayssm.layout import MAX_DRAFT, MAX_WINDOW, StateLayout
from replayssm.precision import PrecisionPolicy

# Larger numbers describe no machine, and floats of bytes would overflow.
_MAX = 2**31 - 1


@dataclass(frozen=True)
class PlanSettings:
    """How a model is served.

    Attributes:
        batch: sequences decoded together.
        draft: T, new tokens of a step: 1 is ordinary decode, n drafts and the token before them are n + 1.
        window: W.
        acceptance: probability that a draft is accepted when those before it were.
        memory_gib: GiB for sequences, on one rank.
        tp: tensor-parallel ranks.
        context: tokens of a sequence whose KV cache counts too; None leaves attention out.
        preset: precision preset whose buffers are listed.

    Raises:
        InputError: a value out of range.
    """

    batch: int = 256
    draft: int = 4
    window: int = 16
    acceptance: float = 0.8
    memory_gib: float = 40.0
    tp: int = 1
    context: int | None = None
    preset: str = "exact"

    def __post_init__(self) -> None:
        for name, high in (("batch", _MAX), ("draft", MAX_DRAFT), ("window", MAX_WINDOW), ("tp", _MAX)):
            if not 1 <= getattr(self, name) <= high:
                raise InputError(f"{name}={getattr(self, name)} must be from 1 to {high}")
        if not 0.0 <= self.acceptance <= 1.0:
            raise InputError(f"acceptance={self.acceptance} must be from 0 to 1")
        if not 0.0 < self.memory_gib <= _MAX:
            raise InputError(f"memory_gib={self.memory_gib} must be above 0 and at most {_MAX}")
        if self.context is not None and not 0 <= self.context <= _MAX:
            raise InputError(f"context={self.context} must be from 0 to {_MAX}")
        PrecisionPolicy.preset(self.preset)

    def layout(self, model: HybridModel, preset: str, window: int | None = None) -> StateLayout:
        """One layer's layout in a preset, of one slot.

        Raises:
            InputError: the model's K does not suit the preset.
        """
        precision = PrecisionPolicy.preset(preset)
        return StateLayout(model.recurrence, 1, window or self.window, self.draft, precision, model.activation)
