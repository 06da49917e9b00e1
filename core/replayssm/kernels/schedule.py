"""The formulas of `replayssm.schedule` as device functions: when to fold, row by row. A test holds the two together."""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm import schedule

GOLDEN = tl.constexpr(schedule.GOLDEN)


@triton.jit
def flush_rows(b_committed, b_length, b_limit, b_forced):
    """See `schedule.flush_rows`."""
    return (b_committed > 0) & (b_forced | (b_committed + b_length > b_limit))


@triton.jit
def first_limits(b_slot, WINDOW: tl.constexpr, MAX_DRAFT: tl.constexpr, STAGGER: tl.constexpr):
    """See `schedule.first_limits`."""
    b_limit = tl.zeros_like(b_slot) + WINDOW
    if STAGGER:
        span = WINDOW - min(MAX_DRAFT, WINDOW) + 1
        b_limit = WINDOW - ((((b_slot * GOLDEN) & 0xFFFF) * span) >> 16)
    return b_limit.to(tl.int32)


@triton.jit
def at_boundary(b_position, BOUNDARY: tl.constexpr):
    """Rows whose tokens end a prefix-cache block; BOUNDARY 0 means no blocks."""
    b_ends = b_position < 0
    if BOUNDARY > 0:
        b_ends = b_position % BOUNDARY == 0
    return b_ends


@triton.jit
def is_candidate(b_committed, b_length, WINDOW: tl.constexpr, EARLY: tl.constexpr):
    """Rows that the budget may flush: full enough, and not about to overflow."""
    return (b_committed >= EARLY) & (b_committed + b_length <= WINDOW)


@triton.jit
def is_fuller(b_committed, o_row, b_than, o_than):
    """Whether row `o_row` comes before row `o_than` in the budget's order: fullest first, then in order of the batch."""
    return (b_committed > b_than) | ((b_committed == b_than) & (o_row < o_than))
