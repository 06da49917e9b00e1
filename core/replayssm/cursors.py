"""Where each slot's ring stands, and the step protocol's arithmetic on it. All on the device, no host read.

Life of a row in one step: `plan` decides from the cursors, the layers run, `settle` moves the cursors past what was
folded and marks the new tokens as pending, `commit` turns accepted pending tokens into committed records. A commit that
never comes is a rejection; a commit that comes twice finds nothing pending. Layers of one model share one `Cursors`.

Padded rows (slot −1) stay in the batch: every buffer has one entry more than slots, and that last one is theirs. It has
no records and gets none, so a padded row never folds and never commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from replayssm.counts import SlotCounts
from replayssm.errors import InputError, StepError
from replayssm.schedule import FlushPolicy, first_limits, flush_rows, forced_rows
from replayssm.tree import ancestor_mask

PAD_SLOT = -1


@dataclass(frozen=True)
class StepPlan:
    """One step as plain data, for every layer that shares the cursors; n = B, rows of padding included.

    Attributes:
        rows: `[n]` int64, row of the batch.
        slots: `[n]` int64, slot of the row, −1 for padding.
        lengths: `[n]` int32, new tokens, 0 for padding.
        origin: `[n]` int32, ring row of the first record.
        committed: `[n]` int32, records since the checkpoint.
        flush: `[n]` bool, rows that fold.
        flushes: `[n]` int32, folds of the slot so far (the counter of stochastic rounding).
        batch: B, rows of the batch with padding.
        draft: T of the inputs.
        order: `[n]` int32, entries of this plan, fullest history first: rows that fold take longest, so a kernel starts
            them first. None where nobody made it.
        ancestors: `[n, T, T]` bool, or None for a chain: entry (t, s) says that token s is t or an ancestor of t.
        ticket: which cursors the plan was made from, and at which change of them; a later change makes it stale.
    """

    rows: Tensor
    slots: Tensor
    lengths: Tensor
    origin: Tensor
    committed: Tensor
    flush: Tensor
    flushes: Tensor
    batch: int
    draft: int
    order: Tensor | None = None
    ancestors: Tensor | None = None
    ticket: tuple[int, int] = (0, 0)

    @property
    def live(self) -> Tensor:
        """`[n, T]` bool, false past a row's length."""
        return torch.arange(self.draft, device=self.lengths.device) < self.lengths[:, None]

    @cached_property
    def compacted(self) -> StepPlan:
        """`without_padding`, once a plan: not for a plan that the replay of a graph rewrites."""
        return self.without_padding()

    def without_padding(self) -> StepPlan:
        """The plan, as it stands now, without its rows of padding. Waits for the device."""
        real = (self.slots != PAD_SLOT).nonzero()[:, 0]
        if len(real) == len(self.slots):
            return self
        return replace(
            self,
            rows=self.rows[real],
            order=None,
            slots=self.slots[real],
            lengths=self.lengths[real],
            origin=self.origin[real],
            committed=self.committed[real],
            flush=self.flush[real],
            flushes=self.flushes[real],
            ancestors=None if self.ancestors is None else self.ancestors[real],
        )


class Cursors:
    """Per-slot integers of a replay state, `[slots]` int32 each.

    Attributes:
        origin: ring row of the first record.
        committed: records since the checkpoint.
        pending: new tokens of the last step that await acceptance.
        limit: records that the current window may hold; below W only in a staggered slot's first window.
        position: tokens in the state, committed records included.
        flushes: states written since the slot was loaded.
        counts: what the slots' steps did, None unless it is counted.
    """

    NAMES = ("origin", "committed", "pending", "limit", "position", "flushes")

    origin: Tensor
    committed: Tensor
    pending: Tensor
    limit: Tensor
    position: Tensor
    flushes: Tensor

    def __init__(
        self, slots: int, rows: int, window: int, max_draft: int, policy: FlushPolicy, device: torch.device | str
    ) -> None:
        self.rows, self.window, self.max_draft, self.policy = rows, window, max_draft, policy
        self.changes = 0
        self.counts: SlotCounts | None = None
        self.padded = {name: torch.zeros(slots + 1, dtype=torch.int32, device=device) for name in self.NAMES}
        for name, buffer in self.padded.items():
            setattr(self, name, buffer[:slots])
        self.reset(torch.arange(slots, device=device))

    def check(self, slots: int, rows: int, window: int, max_draft: int) -> None:
        """Check that shared cursors are of a layout's geometry.

        Raises:
            InputError: they count other slots, rows, window or drafts.
        """
        ours, theirs = (slots, rows, window, max_draft), (len(self.origin), self.rows, self.window, self.max_draft)
        if theirs != ours:
            raise InputError(f"cursors are of (slots, rows, window, max_draft) = {theirs}; the layout has {ours}")

    def select(self, slots: Tensor) -> Cursors:
        """Cursors of their own that hold `slots [n]` as 0 … n − 1; drafts that await acceptance stay here."""
        selected = type(self)(len(slots), self.rows, self.window, self.max_draft, self.policy, slots.device)
        for name in self.NAMES:
            getattr(selected, name).copy_(self.padded[name][slots])
        selected.pending.zero_()
        if self.counts is not None:
            selected.counts = self.counts.select(slots)
        return selected

    def read(self, name: str, slots: Tensor) -> Tensor:
        """A cursor of `slots [n]`; padding (−1) reads 0 records, 0 pending."""
        return self.padded[name][slots]

    def reset(self, slots: Tensor, position: Tensor | int = 0) -> None:
        """A state was written to `slots [n]`: empty ring, first window ahead, `position` tokens in the state."""
        self.changes += 1
        self._count_reset(slots)
        for name in ("origin", "committed", "pending"):
            self.padded[name][slots] = 0
        # The write of a slot's first state counts as number 0; flushes that follow count from 1.
        self.padded["flushes"][slots] = 1
        self.padded["position"][slots] = torch.as_tensor(position, dtype=torch.int32, device=self.position.device)
        self.padded["limit"][slots] = first_limits(self.policy, self.window, self.max_draft, slots)

    def restore(self, slots: Tensor, values: Mapping[str, Tensor]) -> None:
        """Set every cursor of `slots [n]` to `values [n]`, as they were read from other cursors."""
        self.changes += 1
        self._count_reset(slots)
        for name in self.NAMES:
            getattr(self, name)[slots] = values[name]

    def plan(
        self,
        slots: Tensor,
        lengths: Tensor | None,
        draft: int,
        drain: Tensor | None = None,
        parents: Tensor | None = None,
    ) -> StepPlan:
        """Decide a step; reads the cursors, changes nothing.

        Args:
            slots: `[B]`, −1 for padding.
            lengths: `[B]` new tokens of each row, T when None.
            draft: T.
            drain: `[B]` bool, rows that must fold now.
            parents: `[B, T]` draft trees, chains when None.
        """
        slots = slots.long()
        lengths = torch.full_like(slots, draft) if lengths is None else lengths
        lengths = torch.where(slots == PAD_SLOT, 0, lengths).to(torch.int32)
        committed = self.read("committed", slots)
        forced = forced_rows(self.policy, self.window, committed, lengths, self.read("position", slots), drain)
        flush = flush_rows(committed, lengths, self.read("limit", slots), forced)
        return StepPlan(
            rows=torch.arange(len(slots), device=slots.device),
            slots=slots,
            lengths=lengths,
            origin=self.read("origin", slots),
            committed=committed,
            flush=flush,
            flushes=self.read("flushes", slots),
            batch=len(slots),
            draft=draft,
            ancestors=None if parents is None else ancestor_mask(parents),
            ticket=(id(self), self.changes),
        )

    def check_owner(self, plan: StepPlan) -> None:
        """Check that the plan was made from these cursors.

        Raises:
            StepError: it was made from others.
        """
        if plan.ticket[0] != id(self):
            raise StepError("the plan was made from the cursors of another state; plan on the state that settles it")

    def check_plan(self, plan: StepPlan) -> None:
        """Check that nothing moved since the plan was made.

        Raises:
            StepError: the plan is of other cursors, or slots were loaded, stepped, committed or copied since.
        """
        self.check_owner(plan)
        if plan.ticket[1] != self.changes:
            raise StepError("the plan is stale: the cursors changed since it was made; plan the step again")

    def settle(self, plan: StepPlan) -> None:
        """The layers ran: step over what was folded, leave the new tokens pending."""
        self.changes += 1
        self._count_step(plan)
        slots, flush = plan.slots, plan.flush
        moved = (plan.origin + plan.committed) % self.rows
        self.padded["origin"][slots] = torch.where(flush, moved, plan.origin)
        self.padded["committed"][slots] = torch.where(flush, 0, plan.committed)
        self.padded["limit"][slots] = torch.where(flush, self.window, self.read("limit", slots))
        self.padded["flushes"][slots] = plan.flushes + flush.to(torch.int32)
        self.padded["pending"][slots] = plan.lengths

    def commit(self, slots: Tensor, accepted: Tensor) -> None:
        """Accept the first `accepted [n]` pending tokens of each slot; the rest never happened."""
        self.changes += 1
        pending = self.read("pending", slots)
        taken = torch.minimum(accepted.clamp(min=0), pending).to(torch.int32)
        self.padded["committed"][slots] += taken
        self.padded["position"][slots] += taken
        self.padded["pending"][slots] = 0

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy all cursors of `source [n]` to `target [n]`; drafts that await acceptance stay with the source."""
        self.changes += 1
        self._count_copy(source, target)
        for buffer in self.padded.values():
            buffer[target] = buffer[source]
        self.padded["pending"][target] = 0
        # A padded target has written to the entry of padding.
        self.padded["committed"][-1] = 0

    def _count_reset(self, slots: Tensor) -> None:
        if self.counts is not None:
            self.counts.reset(slots)

    def _count_step(self, plan: StepPlan) -> None:
        if self.counts is not None:
            self.counts.settle(plan)

    def _count_copy(self, source: Tensor, target: Tensor) -> None:
        if self.counts is not None:
            self.counts.copy(source, target)
