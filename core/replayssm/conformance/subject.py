"""What the kit needs of a subject: a declaration, and a state that speaks the step protocol."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from replayssm.capability import Capability
from replayssm.inputs import TokenInputs
from replayssm.layout import Buffers, StateLayout
from replayssm.schedule import FlushPolicy


class Feature(StrEnum):
    """Parts of the protocol that a subject may leave out. What is declared is tested, and may not skip."""

    LENGTHS = "rows of different lengths in one step"
    PADDING = "padded rows (slot −1)"
    RESET = "reset"
    COPY = "copy a slot"
    MATERIALISE = "materialise a prefix of the records into another slot"
    PREFIX_STATE = "state after a prefix of the records"
    FLUSH = "forced flush of slots between steps"
    DRAIN = "forced flush of rows within a step"
    POLICIES = "flush policies"
    MEMORY = "buffers and cursors are visible and may be written by the kit"
    FOREIGN_MEMORY = "buffers are handed in"
    RAW_GATES = "raw gate projections and key normalisation"
    SKIP_AND_GATE = "skip weight D and output gate z (Mamba-2)"
    SKIP_BY_ROW = "skip weight D of each row of V (Mamba-2)"
    CHECKS = "values are checked before anything is changed, for which the host waits for the device"


ALL_FEATURES = frozenset(Feature)
"""Every feature, as the core declares."""


@dataclass(frozen=True)
class Dims:
    """Geometry of the cases. H must have more than one divisor; K must be a multiple of 16."""

    heads: int = 4
    groups: int = 2
    value_dim: int = 8
    key_dim: int = 16


class CursorView(Protocol):
    """`[slots]` int32 tensors, writable in place (`Feature.MEMORY`)."""

    @property
    def origin(self) -> Tensor:
        """Ring row of the first record."""
        ...

    @property
    def committed(self) -> Tensor:
        """Records since the checkpoint."""
        ...

    @property
    def position(self) -> Tensor:
        """Tokens in the state."""
        ...


class SubjectState(Protocol):
    """One layer's state under test; the methods mean what they mean on `ReplayState`.

    Only `load`, `verify`, `commit` and `state` are always called. The others may raise where their feature, or the mode
    "tree", is not declared (see `replayssm.conformance.undeclared`).
    """

    @property
    def buffers(self) -> Buffers:
        """The layout's buffers as views of the subject's memory, not copies."""
        ...

    @property
    def cursors(self) -> CursorView:
        """The cursors, not copies."""
        ...

    def reset(self, slots: Tensor) -> None:
        """Zero state, empty ring."""
        ...

    def load(self, slots: Tensor, state: Tensor, position: Tensor | int = 0) -> None:
        """Start slots from a prefill's state."""
        ...

    def verify(
        self,
        inputs: TokenInputs,
        slots: Tensor,
        lengths: Tensor | None = None,
        parents: Tensor | None = None,
        drain: Tensor | None = None,
    ) -> Tensor:
        """Append new tokens, return outputs `[B, T, H, V]`."""
        ...

    def commit(self, accepted: Tensor) -> None:
        """Accept the first `accepted [B]` tokens of each row."""
        ...

    def commit_path(self, path: Tensor) -> None:
        """Accept a path `[B, P]` of each row's tree."""
        ...

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Clone slots bit for bit."""
        ...

    def materialise(self, source: Tensor, target: Tensor, count: Tensor | None = None) -> None:
        """Fold a prefix of the records into another slot."""
        ...

    def state(self, slots: Tensor, count: Tensor | None = None) -> Tensor:
        """State `[n, H, V, K]` after the committed (or the first `count`) records."""
        ...

    def flush(self, slots: Tensor) -> None:
        """Fold all committed records now."""
        ...


@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """What a state is made with, beside its layout.

    Attributes:
        A: `[H]` decay rates for Mamba-2, else None.
        flush: flush policy.
        seed: of stochastic rounding.
        buffers: memory handed in, else None.
        check_inputs: whether values are checked; off where a check would break CUDA-graph capture.
    """

    A: Tensor | None
    flush: FlushPolicy = FlushPolicy()
    seed: int = 0
    buffers: Buffers | None = None
    check_inputs: bool = True


class Subject(Protocol):
    """A backend or an engine adapter, as it declares itself.

    Attributes:
        name: for reports.
        capability: layers, modes, formats, devices and dtypes served; graph capture.
        features: parts of the protocol served.
        device: where the cases run.
        dims: geometry of the cases.
        batches: batch sizes of the sweep.
        gaps: reviewed file of known gaps (see `replayssm.conformance.gaps`), or None.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - documented above
    @property
    def capability(self) -> Capability: ...  # noqa: D102
    @property
    def features(self) -> frozenset[Feature]: ...  # noqa: D102
    @property
    def device(self) -> torch.device: ...  # noqa: D102
    @property
    def dims(self) -> Dims: ...  # noqa: D102
    @property
    def batches(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def gaps(self) -> Path | None: ...  # noqa: D102

    def operand(self, activation: torch.dtype) -> torch.dtype:
        """Coarsest dtype that operands of the *output* products are rounded to; picks the row of tolerances.

        There is no such choice for the fold: its operands stay fp32 (fp64 for fp64 activations) or the subject is wrong.
        """
        ...

    def row(self, slot: int) -> int:
        """Number that a slot has inside the subject, where it is not the kit's.

        Stochastic rounding and staggered windows depend on it.
        """
        ...

    def make(self, layout: StateLayout, options: StateOptions) -> SubjectState:
        """A state for a layout.

        Raises:
            UnsupportedError: the layout is outside the capability.
        """
        ...
