"""State bytes that a step must move, counted from the layout. The model behind `plan`, metrics and the demo's table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm.cursors import PAD_SLOT, Cursors, StepPlan
from replayssm.layout import StateLayout
from replayssm.schedule import FlushPolicy


@dataclass(frozen=True)
class StateBytes:
    """Bytes of one slot and layer, by what moves them.

    Attributes:
        read_state: what a non-flush step reads of the state (read copy, or checkpoint).
        checkpoint: the checkpoint; a flush reads and writes it.
        written_state: what a flush writes (checkpoint and read copy).
        output_record: one record as an output reads it (key, u or x, gate).
        fold_record: one record as a fold reads it (key, raw value, β, gate).
        new_record: one record as it is appended.
    """

    read_state: int
    checkpoint: int
    written_state: int
    output_record: int
    fold_record: int
    new_record: int

    @classmethod
    def of(cls, layout: StateLayout) -> StateBytes:
        """Count a layout's bytes."""
        sizes = {spec.name: spec.slot_bytes for spec in layout.buffers}
        checkpoint = sum(size for name, size in sizes.items() if name.startswith("checkpoint"))
        copy = sum(size for name, size in sizes.items() if name.startswith("read_"))
        record = {name: size // layout.rows for name, size in sizes.items() if name.endswith("_ring")}
        total = sum(record.values())
        fold_only = record.get("raw_value_ring", 0) + record.get("beta_ring", 0)
        output_only = record["value_ring"] if layout.recurrence.delta_rule else 0
        return cls(copy or checkpoint, checkpoint, checkpoint + copy, total - fold_only, total - output_only, total)

    def step(self, committed: Tensor, new: Tensor, flush: Tensor) -> tuple[Tensor, Tensor]:
        """Bytes read and written by one step of n rows: two `[n]` int64 tensors."""
        committed, new = committed.long(), new.long()
        quiet = self.read_state + committed * self.output_record
        folding = self.checkpoint + committed * self.fold_record
        read = torch.where(flush, folding, quiet)
        return read, new * self.new_record + torch.where(flush, self.written_state, 0)


def ordinary_bytes(layout: StateLayout, draft: int) -> tuple[int, int]:
    """Bytes read and written per slot, layer and step by the ordinary decode with an fp32 state.

    With drafts the ordinary way keeps a state snapshot for each of the T tokens.
    """
    heads, value_dim, key_dim = layout.recurrence.state_shape
    state = 4 * heads * value_dim * key_dim
    return state, draft * state


class TrafficMeter:
    """Sums over the steps of a state: counters on the device, also under graph replay, read on request only."""

    NAMES = ("steps", "flushes", "drafted", "accepted", "bytes_read", "bytes_written", "ordinary_bytes")

    def __init__(self) -> None:
        self._sums: dict[torch.device, Tensor] = {}

    def place(self, device: torch.device) -> None:
        """Make the counters of a device, which must be there before a graph is captured."""
        sums = torch.zeros(len(self.NAMES), dtype=torch.int64, device=device)
        self._sums.setdefault(sums.device, sums)

    def record(self, layout: StateLayout, plan: StepPlan) -> None:
        """Count a step as planned; rows of padding move nothing."""
        read, written = StateBytes.of(layout).step(plan.committed, plan.lengths, plan.flush)
        # Row by row the ordinary way reads the state once and writes it once for each token.
        state, _ = ordinary_bytes(layout, 1)
        real = plan.slots != PAD_SLOT
        self._add("steps", real)
        self._add("flushes", plan.flush)
        self._add("drafted", plan.lengths)
        self._add("bytes_read", read * real)
        self._add("bytes_written", written)
        self._add("ordinary_bytes", state * (real + plan.lengths))

    def record_commit(self, pending: Tensor, accepted: Tensor) -> None:
        """Count the accepted of the pending tokens; a repeated commit has none pending."""
        self._add("accepted", torch.minimum(pending, accepted))

    @property
    def counters(self) -> dict[torch.device, Tensor]:
        """The sums as they stand on each device: `[len(NAMES)]` int64, for those who will not wait (see `totals`)."""
        return dict(self._sums)

    def totals(self) -> dict[str, int]:
        """The sums as integers, with `rolled_back` = drafted − accepted; waits for the device."""
        sums = sum((sums.cpu() for sums in self._sums.values()), torch.zeros(len(self.NAMES), dtype=torch.int64))
        totals = dict(zip(self.NAMES, sums.tolist(), strict=True))
        return {**totals, "rolled_back": totals["drafted"] - totals["accepted"]}

    def _add(self, name: str, amounts: Tensor) -> None:
        if amounts.device not in self._sums:
            self.place(amounts.device)
        self._sums[amounts.device][self.NAMES.index(name)] += amounts.sum()


@dataclass(frozen=True)
class Cadence:
    """Averages of a simulated steady state, per row and step.

    Attributes:
        tokens: accepted tokens.
        flush_rate: share of steps that flush.
        bytes_read, bytes_written: state bytes.
    """

    tokens: float
    flush_rate: float
    bytes_read: float
    bytes_written: float

    @property
    def bytes_per_token(self) -> float:
        """State bytes moved for each accepted token."""
        return (self.bytes_read + self.bytes_written) / self.tokens


def simulate(
    layout: StateLayout,
    draft: int = 1,
    acceptance: float = 0.8,
    policy: FlushPolicy | None = None,
    *,
    rows: int = 256,
    steps: int = 400,
    seed: int = 0,
) -> Cadence:
    """Run the real schedule on integers with independent acceptance of each draft; no state is computed.

    Args:
        draft: T, new tokens a step, the first of them always accepted.
        acceptance: probability that a draft is accepted when those before it were.
    """
    generator = torch.Generator().manual_seed(seed)
    cursors = Cursors(rows, layout.rows, layout.window, layout.max_draft, policy or FlushPolicy(), "cpu")
    index = torch.arange(rows)
    cost = StateBytes.of(layout)
    sums = torch.zeros(4, dtype=torch.float64)
    warm = steps // 4
    for step in range(steps):
        plan = cursors.plan(index, None, draft)
        read, written = cost.step(plan.committed, plan.lengths, plan.flush)
        hits = torch.rand(rows, draft - 1, generator=generator) < acceptance
        accepted = 1 + hits.long().cumprod(-1).sum(-1)
        cursors.settle(plan)
        cursors.commit(index, accepted)
        if step >= warm:
            sums += torch.stack([x.double().mean() for x in (accepted, plan.flush, read, written)])
    return Cadence(*(sums / (steps - warm)).tolist())
