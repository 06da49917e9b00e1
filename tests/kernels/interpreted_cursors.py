"""Drive the cursors through torch and through kernels side by side; exit 1 at the first bit that differs.

Usage: TRITON_INTERPRET=1 python interpreted_cursors.py CASE
"""

from __future__ import annotations

import itertools
import sys

import torch

from replayssm import FlushPolicy
from replayssm.cursors import Cursors, StepPlan
from replayssm.kernels.device_cursors import DeviceCursors
from replayssm.tree import ancestor_mask

POLICIES = {
    "overflow": FlushPolicy(),
    "staggered": FlushPolicy.staggered(),
    "budget": FlushPolicy.budgeted(2, early=0.3),
    "boundary": FlushPolicy.at_boundary(4),
    "all": FlushPolicy(stagger=True, budget=3, early=0.7, boundary=5),
}
FIELDS = ("rows", "slots", "lengths", "origin", "committed", "flush", "flushes", "ancestors")


class Pair:
    """The same cursors twice; every call goes to both, and both must agree."""

    def __init__(self, policy: FlushPolicy, slots: int, window: int, draft: int) -> None:
        rows = max(window, draft) + draft
        self.plain, self.fused = (kind(slots, rows, window, draft, policy, "cpu") for kind in (Cursors, DeviceCursors))

    def __call__(self, name: str, *args: object) -> None:
        for cursors in (self.plain, self.fused):
            getattr(cursors, name)(*args)
        self.check(name)

    def plan(self, *args: object) -> StepPlan:
        plain, fused = self.plain.plan(*args), self.fused.plan(*args)
        for name in FIELDS:
            ours, theirs = getattr(fused, name), getattr(plain, name)
            if ours is None and theirs is None:
                continue
            assert ours.dtype == theirs.dtype, f"plan.{name} is {ours.dtype}, expected {theirs.dtype}"
            assert torch.equal(ours, theirs), f"plan.{name}: {ours.tolist()}, expected {theirs.tolist()}"
        fullest = fused.committed.argsort(descending=True, stable=True)
        assert torch.equal(fused.order.long(), fullest), (
            f"plan.order: {fused.order.tolist()}, expected {fullest.tolist()}"
        )
        return fused

    def check(self, what: str) -> None:
        for name in Cursors.NAMES:
            ours, theirs = getattr(self.fused, name), getattr(self.plain, name)
            assert torch.equal(ours, theirs), f"{name} after {what}: {ours.tolist()}, expected {theirs.tolist()}"


def random_life(policy: FlushPolicy) -> None:
    """Steps of random rows, lengths, drains and acceptance, some never committed, some committed twice; loads, copies."""
    slots, window, draft = 70, 7, 4
    pair = Pair(policy, slots, window, draft)
    for step in range(24):
        count = int(torch.randint(1, slots + 1, ()))
        index = torch.randperm(slots)[:count]
        index = torch.where(torch.rand(count) < 0.2, -1, index)
        lengths = None if step % 3 == 0 else torch.randint(1, draft + 1, (count,), dtype=torch.int32)
        drain = None if step % 4 else torch.rand(count) < 0.3
        parents = None if step % 5 else torch.randint(-1, draft, (count, draft)).clamp(max=torch.arange(draft) - 1)
        plan = pair.plan(index.to(torch.int32) if step % 2 else index, lengths, draft, drain, parents)
        pair("settle", plan)
        for _ in range(step % 3):
            accepted = torch.randint(-1, draft + 2, (count,))
            pair("commit", plan.slots, accepted if step % 2 else torch.tensor(2).expand(count))
        real = torch.randperm(slots)
        pair("reset", real[:3], torch.randint(0, 99, (3,)) if step % 2 else step)
        pair("copy", real[2:9], real[4:11])


def every_small_row(policy: FlushPolicy) -> None:
    """All records, lengths, positions, limits and drains of a small window, as rows of batches."""
    window, draft = 3, 2
    values = list(itertools.product(range(window + 1), range(1, draft + 1), range(7), range(1, window + 1), (0, 1)))
    pair = Pair(policy, len(values), window, draft)
    columns = [torch.tensor(column, dtype=torch.int32) for column in zip(*values, strict=True)]
    for cursors in (pair.plain, pair.fused):
        for name, column in zip(("committed", "position", "limit"), (columns[0], columns[2], columns[3]), strict=True):
            getattr(cursors, name).copy_(column)
        cursors.origin.copy_(torch.arange(len(values)) % cursors.rows)
    for start in range(0, len(values), 37):
        rows = torch.arange(start, min(start + 37, len(values)))
        plan = pair.plan(rows, columns[1][rows], draft, columns[4][rows].bool())
        pair("settle", plan)


def first_windows() -> None:
    """Staggered limits of every slot, for windows longer and shorter than the draft."""
    for window, draft in ((16, 1), (16, 4), (4, 16), (1, 1), (9, 8)):
        pair = Pair(FlushPolicy.staggered(), 999, window, draft)
        pair.check(f"a reset with W={window}, T={draft}")


def unchecked_slots() -> None:
    """Repeated slots and slots out of range, which no host looked at: padding, and nothing is written."""
    fused = DeviceCursors(4, 9, 6, 3, FlushPolicy(), "cpu")
    slots = torch.tensor([2, 9, 2, -7, 4, 0])
    plan = fused.plan(slots, torch.tensor([3, 1, 2, 1, 1, 99]), 3)
    assert plan.slots.tolist() == [2, -1, -1, -1, -1, 0]
    assert plan.lengths.tolist() == [3, 0, 0, 0, 0, 3]
    fused.settle(plan)
    assert fused.pending.tolist() == [3, 0, 3, 0]
    fused.commit(plan.slots, torch.tensor([2, 5, 5, 5, 5, 1]))
    fused.reset(torch.tensor([7, -2]), 5)
    fused.copy(torch.tensor([0, 9, 1]), torch.tensor([-1, 3, 8]))
    assert fused.committed.tolist() == [1, 0, 2, 0]
    assert all(int(buffer[-1]) == 0 for name, buffer in fused.padded.items() if name in ("committed", "pending"))


def trees() -> None:
    """The mask of ancestors, of random trees of every size."""
    pair = Pair(FlushPolicy(), 3, 6, 20)
    for draft in range(1, 20):
        parents = torch.randint(-1, draft, (3, draft)).clamp(max=torch.arange(draft) - 1)
        plan = pair.plan(torch.tensor([2, 0, 1]), None, draft, None, parents)
        assert torch.equal(plan.ancestors, ancestor_mask(parents))


def main(case: str) -> int:
    """Run a case; an assertion is the failure."""
    torch.manual_seed(0)
    if case in POLICIES:
        random_life(POLICIES[case])
        every_small_row(POLICIES[case])
    else:
        first_windows()
        unchecked_slots()
        trees()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
