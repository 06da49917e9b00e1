"""What a backend is: a few operations on the buffers of one layer. It never moves a cursor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from replayssm.cursors import PAD_SLOT, Cursors, StepPlan
from replayssm.inputs import TokenInputs
from replayssm.layer import LayerState
from replayssm.storage import copy_slots, move_records, write_state


class Backend(Protocol):
    """The operations that an implementation serves. Rows whose slot is −1 are padding, ignored by all of them.

    Attributes:
        name: its row of the capability table.
        cursors: the kind of cursors that fits it; any kind will do.
    """

    name: str
    cursors: type[Cursors]

    def step(self, layer: LayerState, plan: StepPlan, inputs: TokenInputs) -> Tensor:
        """Append the new records, fold the committed ones of flush rows, return outputs `[B, T, H, V]`.

        Rows of padding and tokens past a row's length come back as zeros.
        """
        ...

    def fold(self, layer: LayerState, slots: Tensor, origin: Tensor, count: Tensor) -> Tensor:
        """Checkpoint of `slots [n]` with its first `count [n]` records folded: `[n, H, V, K]`, nothing written."""
        ...

    def fold_into(
        self, layer: LayerState, source: Tensor, target: Tensor, origin: Tensor, count: Tensor, flushes: Tensor
    ) -> None:
        """Write what `fold` gives for `source [n]` to `target [n]`, each row's own source or no row's source."""
        ...

    def store(self, layer: LayerState, slots: Tensor, state: Tensor, flushes: Tensor) -> None:
        """Write `state [n, H, V, K]` as checkpoint and read copy."""
        ...

    def copy(self, layer: LayerState, source: Tensor, target: Tensor) -> None:
        """Copy all buffers of `source [n]` to `target [n]`; all are read before any is written."""
        ...

    def compact(self, layer: LayerState, slots: Tensor, first: Tensor, path: Tensor) -> None:
        """Make the tokens of an accepted tree path `[n, P]` the first new records from ring position `first [n]`."""
        ...


@runtime_checkable
class WritesOutputs(Protocol):
    """A backend that can write the outputs of a step where the engine wants them."""

    def step_into(self, layer: LayerState, plan: StepPlan, inputs: TokenInputs, out: Tensor) -> None:
        """As `Backend.step`, its outputs in `out [B, T, H, V]`, contiguous, of any float dtype."""
        ...


class PlainMemory(ABC):
    """The operations that only move memory, in plain torch, for a backend that has its own arithmetic.

    They leave padded rows out, for which they wait for the device.
    """

    cursors: type[Cursors] = Cursors

    @abstractmethod
    def fold(self, layer: LayerState, slots: Tensor, origin: Tensor, count: Tensor) -> Tensor:
        """See `Backend.fold`."""

    def fold_into(
        self, layer: LayerState, source: Tensor, target: Tensor, origin: Tensor, count: Tensor, flushes: Tensor
    ) -> None:
        """See `Backend.fold_into`."""
        real = target != PAD_SLOT
        state = self.fold(layer, source[real], origin[real], count[real])
        self.store(layer, target[real], state, flushes[real])

    def store(self, layer: LayerState, slots: Tensor, state: Tensor, flushes: Tensor) -> None:
        """See `Backend.store`."""
        real = slots != PAD_SLOT
        write_state(layer.layout, layer.buffers, slots[real], state[real], flushes[real], layer.seed)

    def copy(self, layer: LayerState, source: Tensor, target: Tensor) -> None:
        """See `Backend.copy`."""
        real = target != PAD_SLOT
        copy_slots(layer.buffers, source[real], target[real])

    def compact(self, layer: LayerState, slots: Tensor, first: Tensor, path: Tensor) -> None:
        """See `Backend.compact`."""
        real = slots != PAD_SLOT
        move_records(layer.layout, layer.buffers, slots[real], first[real], path[real])


def output_buffer(layer: LayerState, plan: StepPlan, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeroed `[B, T, H, V]`."""
    geometry = layer.layout.recurrence
    return torch.zeros(plan.batch, plan.draft, geometry.heads, geometry.value_dim, dtype=dtype, device=device)
