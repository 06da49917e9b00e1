"""Memory tricks of the kit: snapshots bit for bit, NaN where nothing may be read, slots inside larger pages."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm.conformance.subject import CursorView, SubjectState
from replayssm.layout import Buffers, BufferSpec, StateLayout

Snapshot = dict[str, Tensor]
CURSORS = ("origin", "committed", "position")
ALIGNMENT = 16
GAP = 48


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bytes, as a copy: NaN compares equal to itself, and −0 differs from 0."""
    return tensor.detach().clone().contiguous().reshape(-1).view(torch.uint8)


def snapshot(state: SubjectState, slots: Tensor | None = None) -> Snapshot:
    """Bytes of all buffers and cursors, of some slots or of all."""
    tensors = {**state.buffers, **{name: getattr(state.cursors, name) for name in CURSORS}}
    return {name: bits(x if slots is None else x[slots]) for name, x in tensors.items()}


def differing(before: Snapshot, after: Snapshot) -> list[str]:
    """Names whose bytes differ."""
    return [name for name in before if not torch.equal(before[name], after[name])]


def spoil(tensor: Tensor, index: Tensor | slice | tuple[Tensor, slice, Tensor] = slice(None)) -> None:
    """Fill with NaN, or with all bits set where the dtype has no NaN."""
    if tensor.dtype == torch.uint8:
        tensor[index] = 0xFF
    elif tensor.dtype.itemsize == 1:
        tensor.view(torch.uint8)[index] = 0x7F  # The NaN of e4m3.
    else:
        tensor[index] = torch.nan


def spoil_slots(buffers: Buffers, slots: Tensor) -> None:
    """Everything of some slots becomes NaN."""
    for buffer in buffers.values():
        spoil(buffer, slots)


def spoil_dead_rows(layout: StateLayout, buffers: Buffers, cursors: CursorView) -> None:
    """Every ring row that holds no committed record becomes NaN; call it when no step is open."""
    row = torch.arange(layout.rows, device=cursors.origin.device)
    age = (row - cursors.origin[:, None]) % layout.rows
    slot, dead = (age >= cursors.committed[:, None]).nonzero(as_tuple=True)
    for spec in layout.buffers:
        if spec.name.endswith("_ring"):
            spoil(buffers[spec.name], (slot, slice(None), dead))


def state_names(layout: StateLayout, prefix: str) -> list[str]:
    """Names of the buffers that hold the checkpoint, or the read copy."""
    return [spec.name for spec in layout.buffers if spec.name.startswith(prefix)]


def paged(layout: StateLayout, device: torch.device) -> tuple[Buffers, Tensor, Tensor]:
    """A slot's buffers interleaved in one page a slot, with gaps: an engine's pool.

    Returns:
        the buffers as views of the pool; the pool `[slots, bytes]`; and a mask `[bytes]` of what belongs to no buffer.
    """
    offset, places = GAP, []
    for spec in layout.buffers:
        places.append((spec, offset))
        offset += -(-spec.slot_bytes // ALIGNMENT) * ALIGNMENT + GAP
    pool = torch.full((layout.slots, offset), 0x7F, dtype=torch.uint8, device=device)
    gaps = torch.ones(offset, dtype=torch.bool, device=device)
    buffers = {}
    for spec, start in places:
        gaps[start : start + spec.slot_bytes] = False
        buffers[spec.name] = _view(pool, spec, start)
    return buffers, pool, gaps


def _view(pool: Tensor, spec: BufferSpec, start: int) -> Tensor:
    flat = pool[:, start : start + spec.slot_bytes].view(spec.dtype)
    return flat.view(len(pool), *spec.shape)
