"""Reading and writing stored matrices and rings of a slot. The only place that turns names into buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm.formats import MatrixFormat
from replayssm.layout import Buffers, StateLayout
from replayssm.philox import uniform


def read_matrix(layout: StateLayout, buffers: Buffers, prefix: str, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """Checkpoint or read copy of `slots [n]` → `[n, H, V, K]` in `dtype`."""
    fmt = _format(layout, prefix)
    return fmt.decode(tuple(buffers[name][slots] for name in layout.names(prefix, fmt)), dtype)


def write_state(
    layout: StateLayout, buffers: Buffers, slots: Tensor, state: Tensor, flushes: Tensor, seed: Tensor
) -> None:
    """Store `state [n, H, V, K]` as checkpoint and, from the same unrounded value, as read copy.

    Args:
        flushes: `[n]`, states written to the slot before this one (counter of stochastic rounding).
        seed: `[1]` int64.
    """
    if not len(state):
        return
    noise = None
    if layout.precision.stochastic_rounding:
        noise = uniform(seed, slots, flushes, state[0].numel()).reshape(state.shape).to(state.dtype)
    _write(layout, buffers, "checkpoint", slots, state, noise)
    if layout.precision.read_copy is not None:
        _write(layout, buffers, "read_copy", slots, state, None)


def _write(
    layout: StateLayout, buffers: Buffers, prefix: str, slots: Tensor, state: Tensor, noise: Tensor | None
) -> None:
    fmt = _format(layout, prefix)
    for name, part in zip(layout.names(prefix, fmt), fmt.encode(state, noise), strict=True):
        buffers[name][slots] = part


def _format(layout: StateLayout, prefix: str) -> MatrixFormat:
    read = layout.precision.read_format
    return read if prefix == "read_copy" and read is not None else layout.precision.checkpoint_format


@dataclass(frozen=True)
class Records:
    """Records of n rows in order of age, dead ones zeroed: they decay by nothing and add nothing.

    key `[n, G, J, K]` with the norm applied; value `[n, H, J, V]`; gate `[n, H, J]` or `[n, H, J, K]`; for the delta rule
    raw_value `[n, H, J, V]` and beta `[n, H, J]`.
    """

    key: Tensor
    value: Tensor
    gate: Tensor
    raw_value: Tensor | None
    beta: Tensor | None


def gather_records(
    layout: StateLayout, buffers: Buffers, slots: Tensor, origin: Tensor, count: Tensor, dtype: torch.dtype
) -> Records:
    """The first `count [n]` records after ring row `origin [n]` of `slots [n]`, up to the longest count."""
    longest = int(count.max()) if len(count) else 0
    order = torch.arange(longest, device=slots.device)
    ring_row = (origin[:, None].long() + order) % layout.rows
    live = order < count[:, None]

    def take(name: str) -> Tensor:
        ring = buffers[name][slots[:, None], :, ring_row].transpose(1, 2).to(dtype)
        alive = live.reshape(live.shape[0], 1, live.shape[1], *[1] * (ring.dim() - 3))
        # A select, not a product: a dead row may hold anything, NaN included.
        return torch.where(alive, ring, torch.zeros((), dtype=dtype, device=ring.device))

    key = take("key_ring")
    if not layout.recurrence.delta_rule:
        return Records(key, take("value_ring"), take("gate_ring"), None, None)
    key = key * take("key_scale_ring")[..., None]
    return Records(key, take("value_ring"), take("gate_ring"), take("raw_value_ring"), take("beta_ring"))


def append_records(
    layout: StateLayout, buffers: Buffers, slots: Tensor, first: Tensor, lengths: Tensor, new: NewRecords
) -> None:
    """Write the new records of n rows from ring row `first [n]` on; row i gets its first `lengths[i]` tokens."""
    draft = new.key.shape[2]
    token = torch.arange(draft, device=slots.device)
    row, t = (token < lengths[:, None]).nonzero(as_tuple=True)
    ring_row = (first[row].long() + t) % layout.rows
    for name, value in new.by_buffer():
        buffer = buffers[name]
        limit = torch.finfo(buffer.dtype).max  # a u beyond fp16's range must not come back as an infinity
        buffer[slots[row], :, ring_row] = value.transpose(1, 2)[row, t].clamp(-limit, limit).to(buffer.dtype)


@dataclass(frozen=True)
class NewRecords:
    """What a step appends: key `[n, G, T, K]` as given and key_scale `[n, G, T]`; the rest as in `Records`."""

    key: Tensor
    key_scale: Tensor
    value: Tensor
    gate: Tensor
    raw_value: Tensor | None
    beta: Tensor | None

    def by_buffer(self) -> list[tuple[str, Tensor]]:
        """Pairs of buffer name and tensor, delta-rule buffers only where there are any."""
        pairs = [("key_ring", self.key), ("value_ring", self.value), ("gate_ring", self.gate)]
        if self.raw_value is not None and self.beta is not None:
            pairs += [("key_scale_ring", self.key_scale), ("raw_value_ring", self.raw_value), ("beta_ring", self.beta)]
        return pairs


def copy_slots(buffers: Buffers, source: Tensor, target: Tensor) -> None:
    """All buffers of `source [n]` to `target [n]`, bit for bit; all are read before any is written."""
    for buffer in buffers.values():
        buffer[target] = buffer[source]


def move_records(layout: StateLayout, buffers: Buffers, slots: Tensor, first: Tensor, path: Tensor) -> None:
    """Compact an accepted path of a draft tree: token `path[i, j]` of row i becomes its j-th new record.

    Args:
        first: `[n]`, ring row of the step's first new token.
        path: `[n, P]` token numbers in rising order, −1 for padding.
    """
    row, j = (path >= 0).nonzero(as_tuple=True)
    slot = slots[row]
    source = (first[row].long() + path[row, j].long()) % layout.rows
    target = (first[row].long() + j) % layout.rows
    for name in (spec.name for spec in layout.buffers if spec.name.endswith("_ring")):
        buffer = buffers[name]
        # The read happens as a whole before the write, so overlapping paths are safe.
        buffer[slot, :, target] = buffer[slot, :, source]
