"""When to fold: pure functions on integers, shared by host model, backends and kernels.

A step brings `length` new tokens to a row that has `committed` records since its checkpoint. It flushes iff the records
and the new tokens would exceed the row's limit, or the row is forced. Policies only decide limits and forced rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm.errors import InputError

GOLDEN = 40503
"""2^16 divided by the golden ratio: multiples modulo 2^16 spread evenly for any run of slot numbers."""


@dataclass(frozen=True)
class FlushPolicy:
    """Which rows fold early. Without options a row folds when its window is full ("overflow").

    Attributes:
        stagger: shorten each slot's first window by a different amount, so that requests which start together do not
            all flush in one step.
        budget: at most this many early flushes per step, fullest rows first.
        early: share of the window that must be filled before the budget may flush a row.
        boundary: fold when the committed tokens end on a multiple of this (prefix-cache block ends).

    Draining (before a transfer, an offload or a preemption) is asked for per call, not by policy.
    """

    stagger: bool = False
    budget: int | None = None
    early: float = 0.5
    boundary: int | None = None

    def __post_init__(self) -> None:
        for name in ("budget", "boundary"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InputError(f"{name}={value!r} must be None or an integer of at least 1")
        if not isinstance(self.early, (int, float)) or not 0.0 < self.early <= 1.0:
            raise InputError(f"early={self.early!r} must be a number above 0 and at most 1")
        if not isinstance(self.stagger, bool):
            raise InputError(f"stagger={self.stagger!r} must be True or False")

    @classmethod
    def overflow(cls) -> FlushPolicy:
        """Fold when the window is full, never before."""
        return cls()

    @classmethod
    def staggered(cls) -> FlushPolicy:
        """Spread the first flush of slots that start together."""
        return cls(stagger=True)

    @classmethod
    def budgeted(cls, per_step: int, early: float = 0.5) -> FlushPolicy:
        """At most `per_step` early flushes a step."""
        return cls(budget=per_step, early=early)

    @classmethod
    def at_boundary(cls, block: int) -> FlushPolicy:
        """Fold at multiples of `block` tokens."""
        return cls(boundary=block)


def first_limits(policy: FlushPolicy, window: int, max_draft: int, slots: Tensor) -> Tensor:
    """Limit of each slot's first window.

    Args:
        slots: `[n]` slot numbers.

    Returns:
        `[n]` int32 between `min(max_draft, window)` and `window`.
    """
    if not policy.stagger:
        return torch.full_like(slots, window, dtype=torch.int32)
    span = window - min(max_draft, window) + 1
    phase = (slots.long() * GOLDEN) & 0xFFFF
    return (window - ((phase * span) >> 16)).to(torch.int32)


def early_records(policy: FlushPolicy, window: int) -> int:
    """Records that a row must have before the budget may flush it: the share `early` of the window, rounded up."""
    return math.ceil(policy.early * window)


def forced_rows(
    policy: FlushPolicy,
    window: int,
    committed: Tensor,
    lengths: Tensor,
    position: Tensor,
    drain: Tensor | None = None,
) -> Tensor:
    """Rows that fold whether or not their window is full.

    Args:
        committed, lengths, position: `[n]` records since the checkpoint, new tokens, tokens in the state.
        drain: `[n]` bool, rows that must fold now.

    Returns:
        `[n]` bool.
    """
    forced = torch.zeros_like(committed, dtype=torch.bool) if drain is None else drain.clone()
    if policy.boundary is not None:
        forced |= position % policy.boundary == 0
    if policy.budget is not None:
        candidate = (committed >= early_records(policy, window)) & (committed + lengths <= window)
        fullest_first = torch.argsort(torch.where(candidate, committed, -1), descending=True, stable=True)
        rank = torch.empty_like(fullest_first)
        rank[fullest_first] = torch.arange(len(rank), device=rank.device)
        forced |= candidate & (rank < policy.budget)
    return forced


def flush_rows(committed: Tensor, lengths: Tensor, limits: Tensor, forced: Tensor) -> Tensor:
    """The decision: `[n]` bool, rows that fold their committed records in this step. A row without records never does."""
    return (committed > 0) & (forced | (committed + lengths > limits))


def records_past_boundary(position: Tensor, committed: Tensor, block: int) -> Tensor:
    """How many of the committed records lie past the last multiple of `block`, at most all of them: `[n]` int32.

    `committed` minus this is the count to materialise for a prefix-cache block end.
    """
    return torch.minimum(position % block, committed)
