"""Host side of the kernels that work on slots outside a step: arguments from the layout."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from replayssm.errors import InputError
from replayssm.kernels.arguments import (
    OPTIONS,
    copy_format,
    read_copy,
    rings,
    row_slices,
    sizes,
    slot_strides,
    window_sizes,
)
from replayssm.kernels.flush import fold_kernel
from replayssm.kernels.slots import compact_kernel, copy_slots_kernel
from replayssm.layer import LayerState

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Numbers of a program in copy, and most slots, of which it holds 16 numbers each: a tile has at most 2^20. Rows of V of a
# program in fold.
_TILE = 2048
_COPIED = 65536
_VALUES = 16


@dataclass(frozen=True)
class Matrix:
    """Where states stand: a slot's checkpoint, or a tensor `[n, H, V, K]` with a state for each row of the call."""

    state: Tensor
    scale: Tensor
    format: str
    by_row: bool

    @classmethod
    def checkpoint(cls, layer: LayerState) -> Matrix:
        """The layer's own."""
        state = layer.buffers["checkpoint"]
        scale = layer.buffers.get("checkpoint_scale", state)
        return cls(state, scale, layer.layout.precision.checkpoint, by_row=False)

    @classmethod
    def rows(cls, state: Tensor) -> Matrix:
        """A tensor, inner dimensions contiguous."""
        return cls(state, state, "fp32", by_row=True)

    def of(self, rows: slice) -> Matrix:
        """Where those of some rows of the call stand."""
        return replace(self, state=self.state[rows], scale=self.scale[rows]) if self.by_row else self


def launch_fold(layer: LayerState, slots: Tensor, origin: Tensor, count: Tensor) -> Tensor:
    """States of `slots [n]` after their first `count [n]` records: `[n, H, V, K]` fp32, zeros for padding."""
    out = torch.zeros(len(slots), *layer.layout.recurrence.state_shape, device=slots.device)
    _launch_folds(layer, Matrix.checkpoint(layer), Matrix.rows(out), (slots, slots, origin, count, count))
    return out


def launch_fold_into(
    layer: LayerState, source: Tensor, target: Tensor, origin: Tensor, count: Tensor, flushes: Tensor
) -> None:
    """The same, into the checkpoints of `target [n]`, none of them another row's source."""
    checkpoint = Matrix.checkpoint(layer)
    _launch_folds(layer, checkpoint, checkpoint, (source, target, origin, count, flushes))


def launch_store(layer: LayerState, slots: Tensor, state: Tensor, flushes: Tensor) -> None:
    """`state [n, H, V, K]` into the checkpoints of `slots [n]`."""
    state = state.float()
    state = state if not len(state) or state[0].is_contiguous() else state.contiguous()
    _launch_folds(layer, Matrix.rows(state), Matrix.checkpoint(layer), (slots, slots, flushes, flushes, flushes))


def _launch_folds(layer: LayerState, source: Matrix, target: Matrix, rows: tuple[Tensor, ...]) -> None:
    """Rows: slots of sources and of targets, origins, counts and flushes, `[n]` each."""
    for some in row_slices(len(rows[0])):
        _launch_fold(layer, source.of(some), target.of(some), [x[some] for x in rows])


def _launch_fold(layer: LayerState, source: Matrix, target: Matrix, rows: list[Tensor]) -> None:
    """One launch; `rows` as of `_launch_folds`."""
    r = layer.layout.recurrence
    memory = [source.state, source.scale, target.state, target.scale, *read_copy(layer), *rings(layer)]
    fold_kernel[(triton.cdiv(r.value_dim, _VALUES), r.heads, len(rows[0]))](
        *rows,
        layer.seed,
        layer.seed if layer.A is None else layer.A,
        *memory,
        *slot_strides(memory),
        layer.layout.slots,
        **sizes(layer.layout),
        **window_sizes(layer),
        BV=_VALUES,
        FROM_ROWS=source.by_row,
        TO_ROWS=target.by_row,
        SOURCE_FORMAT=source.format,
        FORMAT=target.format,
        SR=layer.layout.precision.stochastic_rounding and not target.by_row,
        COPY="none" if target.by_row else copy_format(layer.layout),
        num_warps=1,
        **OPTIONS,
    )


def launch_copy(layer: LayerState, source: Tensor, target: Tensor) -> None:
    """All buffers of `source [n]` to `target [n]`; one launch a buffer.

    Raises:
        InputError: more slots than one launch reads before it writes.
    """
    if not len(source):
        return
    if len(source) > _COPIED:
        raise InputError(f"{len(source)} slots to copy in one call; expected at most {_COPIED}: make several calls")
    rows = triton.next_power_of_2(len(source))
    piece = max(16, _TILE // rows)
    for buffer in layer.buffers.values():
        size = buffer[0].numel()
        copy_slots_kernel[(triton.cdiv(size, piece),)](
            source.contiguous(),
            target.contiguous(),
            buffer.view(_BITS[buffer.element_size()]),
            buffer.stride(0),
            len(source),
            layer.layout.slots,
            SIZE=size,
            BB=rows,
            BN=piece,
            num_warps=4 if rows * piece <= 2 * _TILE else 8,
        )


def launch_compact(layer: LayerState, slots: Tensor, first: Tensor, path: Tensor) -> None:
    """Accepted paths `[n, P]` to the front of the new records from ring position `first [n]`, below 2 R."""
    if not path.numel():
        return
    r = layer.layout.recurrence
    memory = rings(layer)
    compact_kernel[(len(slots), r.heads)](
        slots,
        first,
        path.contiguous(),
        *memory,
        *slot_strides(memory),
        layer.layout.slots,
        path.shape[1],
        **sizes(layer.layout),
        BV=triton.next_power_of_2(r.value_dim),
        BK=triton.next_power_of_2(r.key_dim),
        num_warps=1,
        num_stages=1,
    )
