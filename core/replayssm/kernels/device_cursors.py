"""Cursors whose arithmetic is one kernel launch a call, on CUDA or under Triton's interpreter."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from replayssm.cursors import Cursors, StepPlan
from replayssm.kernels.arguments import plan_rows
from replayssm.kernels.cursors import (
    ancestors_kernel,
    commit_kernel,
    copy_kernel,
    plan_kernel,
    reset_kernel,
    settle_kernel,
)
from replayssm.schedule import early_records

BLOCK = 32


class DeviceCursors(Cursors):
    """`Cursors` through kernels: nothing waits for the device, and memory stays where it is, so graphs can capture it.

    Slots out of range count as padding, in a plan also the later of two equal ones.
    """

    def reset(self, slots: Tensor, position: Tensor | int = 0) -> None:
        """See `Cursors.reset`."""
        self.changes += 1
        self._count_reset(slots)
        if isinstance(position, int):
            position = torch.full((), position, dtype=torch.int32, device=slots.device)
        position = position.expand(slots.shape)
        reset_kernel[_grid(slots)](
            slots.contiguous(),
            position,
            position.stride(0),
            *self._buffers(*self.NAMES),
            len(slots),
            len(self.origin),
            WINDOW=self.window,
            MAX_DRAFT=self.max_draft,
            STAGGER=self.policy.stagger,
            BB=BLOCK,
            num_warps=1,
        )

    def plan(
        self,
        slots: Tensor,
        lengths: Tensor | None,
        draft: int,
        drain: Tensor | None = None,
        parents: Tensor | None = None,
    ) -> StepPlan:
        """See `Cursors.plan`."""
        plan = _empty_plan(slots, draft, None if parents is None else _ancestors(parents), (id(self), self.changes))
        policy = self.policy
        plan_kernel[_grid(slots)](
            slots.contiguous(),
            slots if lengths is None else lengths.contiguous(),
            slots if drain is None else drain.contiguous().view(torch.int8),
            *self._buffers("origin", "committed", "limit", "position", "flushes"),
            plan.rows,
            plan.order,
            *plan_rows(plan),
            len(slots),
            len(self.origin),
            draft,
            WINDOW=self.window,
            EARLY=early_records(policy, self.window),
            BUDGET=policy.budget or 0,
            BOUNDARY=policy.boundary or 0,
            HAS_LENGTHS=lengths is not None,
            HAS_DRAIN=drain is not None,
            BB=BLOCK,
            num_warps=1,
        )
        return plan

    def settle(self, plan: StepPlan) -> None:
        """See `Cursors.settle`."""
        self.changes += 1
        self._count_step(plan)
        settle_kernel[_grid(plan.slots)](
            *plan_rows(plan),
            *self._buffers("origin", "committed", "pending", "limit", "flushes"),
            len(plan.slots),
            len(self.origin),
            R=self.rows,
            WINDOW=self.window,
            BB=BLOCK,
            num_warps=1,
        )

    def commit(self, slots: Tensor, accepted: Tensor) -> None:
        """See `Cursors.commit`."""
        self.changes += 1
        commit_kernel[_grid(slots)](
            slots.contiguous(),
            accepted,
            accepted.stride(0),
            *self._buffers("committed", "pending", "position"),
            len(slots),
            len(self.origin),
            BB=BLOCK,
            num_warps=1,
        )

    def copy(self, source: Tensor, target: Tensor) -> None:
        """See `Cursors.copy`."""
        self.changes += 1
        self._count_copy(source, target)
        copy_kernel[(1,)](
            source.contiguous(),
            target.contiguous(),
            *self._buffers(*self.NAMES),
            len(source),
            len(self.origin),
            BB=max(BLOCK, triton.next_power_of_2(len(source))),
        )

    def _buffers(self, *names: str) -> list[Tensor]:
        return [self.padded[name] for name in names]


def _grid(slots: Tensor) -> tuple[int]:
    # A grid of no program is refused; the one program of an empty batch finds no row.
    return (max(1, triton.cdiv(len(slots), BLOCK)),)


def _empty_plan(slots: Tensor, draft: int, ancestors: Tensor | None, ticket: tuple[int, int]) -> StepPlan:
    """A plan to be filled in. Its tensors start at multiples of 16 bytes at any batch, so kernels compile once."""
    batch, device = len(slots), slots.device
    aligned = triton.cdiv(batch, 16) * 16
    numbers = torch.empty(5, aligned, dtype=torch.int32, device=device)[:, :batch]
    rows, plan_slots = torch.empty(2, aligned, dtype=torch.int64, device=device)[:, :batch]
    order, lengths, origin, committed, flushes = numbers
    flush = torch.empty(batch, dtype=torch.bool, device=device)
    return StepPlan(
        *(rows, plan_slots, lengths, origin, committed, flush, flushes, batch, draft),
        order=order,
        ancestors=ancestors,
        ticket=ticket,
    )


def _ancestors(parents: Tensor) -> Tensor:
    batch, draft = parents.shape
    mask = torch.empty(batch, draft, draft, dtype=torch.bool, device=parents.device)
    if batch:
        ancestors_kernel[(batch,)](
            parents.contiguous(), mask.view(torch.int8), T=draft, BT=max(2, triton.next_power_of_2(draft))
        )
    return mask
