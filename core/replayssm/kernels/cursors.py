"""The step protocol's arithmetic on the cursors: one launch for each of plan, settle, commit, reset and copy.

Padding is a slot of −1. So is, to every kernel here, a slot out of range, and to `plan` a slot that an earlier row of the
batch has: nothing outside the cursors is written and no slot is folded twice, though no host looked at the numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.ring import wrap
from replayssm.kernels.schedule import at_boundary, first_limits, flush_rows, is_candidate, is_fuller


@triton.jit
def load_slots(p_slot, o_row, rows, slots):
    """Slot of each row, int64; −1 past the last row and for a slot out of range."""
    b_slot = tl.load(p_slot + o_row, mask=o_row < rows, other=-1).to(tl.int64)
    return tl.where((b_slot >= 0) & (b_slot < slots), b_slot, -1)


@triton.jit
def load_lengths(p_length, o_row, b_real, draft, HAS_LENGTHS: tl.constexpr):
    """New tokens of each row, from 0 to T; 0 for padding."""
    b_length = tl.where(b_real, draft, 0)
    if HAS_LENGTHS:
        b_given = tl.load(p_length + o_row, mask=b_real, other=0)
        b_length = tl.minimum(tl.maximum(b_given, 0), draft)
    return b_length.to(tl.int32)


@triton.jit(do_not_specialize=["rows", "slots", "draft"])
def plan_kernel(
    p_slot, p_length, p_drain, p_origin, p_committed, p_limit, p_position, p_flushes,
    p_row, p_order, p_plan_slot, p_plan_length, p_plan_origin, p_plan_committed, p_plan_flush, p_plan_flushes,
    rows, slots, draft,
    WINDOW: tl.constexpr, EARLY: tl.constexpr, BUDGET: tl.constexpr, BOUNDARY: tl.constexpr,
    HAS_LENGTHS: tl.constexpr, HAS_DRAIN: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """See `Cursors.plan`. Grid: ⌈rows / BB⌉; each program looks at all rows, for repeated slots and for the budget."""
    o_row = tl.program_id(0) * BB + tl.arange(0, BB)
    b_slot = load_slots(p_slot, o_row, rows, slots)
    b_length = load_lengths(p_length, o_row, b_slot >= 0, draft, HAS_LENGTHS)
    b_committed = tl.load(p_committed + b_slot, mask=b_slot >= 0, other=0)
    b_before = tl.zeros([BB], dtype=tl.int32)
    b_twins = tl.zeros([BB], dtype=tl.int32)
    b_place = tl.zeros([BB], dtype=tl.int32)
    for start in range(0, rows, BB):
        o_other = start + tl.arange(0, BB)
        b_other = load_slots(p_slot, o_other, rows, slots)
        b_twin = (b_other[None, :] == b_slot[:, None]) & (o_other[None, :] < o_row[:, None])
        b_twins += tl.sum(b_twin.to(tl.int32), axis=1)
        b_filled = tl.load(p_committed + b_other, mask=b_other >= 0, other=0)
        b_first = is_fuller(b_filled[None, :], o_other[None, :], b_committed[:, None], o_row[:, None])
        b_place += tl.sum((b_first & (o_other < rows)[None, :]).to(tl.int32), axis=1)
        if BUDGET > 0:
            b_new = load_lengths(p_length, o_other, b_other >= 0, draft, HAS_LENGTHS)
            b_first = b_first & is_candidate(b_filled, b_new, WINDOW, EARLY)[None, :]
            b_before += tl.sum(b_first.to(tl.int32), axis=1)

    b_real = (b_slot >= 0) & (b_twins == 0)
    b_slot = tl.where(b_real, b_slot, -1)
    b_length = tl.where(b_real, b_length, 0)
    b_committed = tl.where(b_real, b_committed, 0)
    b_forced = at_boundary(tl.load(p_position + b_slot, mask=b_real, other=1), BOUNDARY)
    if HAS_DRAIN:
        b_forced = b_forced | (tl.load(p_drain + o_row, mask=b_real, other=0) != 0)
    if BUDGET > 0:
        b_forced = b_forced | (is_candidate(b_committed, b_length, WINDOW, EARLY) & (b_before < BUDGET))
    b_flush = flush_rows(b_committed, b_length, tl.load(p_limit + b_slot, mask=b_real, other=0), b_forced)

    m_row = o_row < rows
    tl.store(p_row + o_row, o_row.to(tl.int64), mask=m_row)
    tl.store(p_order + b_place, o_row, mask=m_row)
    tl.store(p_plan_slot + o_row, b_slot, mask=m_row)
    tl.store(p_plan_length + o_row, b_length, mask=m_row)
    tl.store(p_plan_origin + o_row, tl.load(p_origin + b_slot, mask=b_real, other=0), mask=m_row)
    tl.store(p_plan_committed + o_row, b_committed, mask=m_row)
    tl.store(p_plan_flush + o_row, b_flush.to(tl.int8), mask=m_row)
    tl.store(p_plan_flushes + o_row, tl.load(p_flushes + b_slot, mask=b_real, other=0), mask=m_row)


@triton.jit(do_not_specialize=["rows", "slots"])
def settle_kernel(
    p_slot, p_plan_length, p_plan_origin, p_plan_committed, p_plan_flush, p_plan_flushes,
    p_origin, p_committed, p_pending, p_limit, p_flushes,
    rows, slots,
    R: tl.constexpr, WINDOW: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """See `Cursors.settle`. Grid: ⌈rows / BB⌉."""
    o_row = tl.program_id(0) * BB + tl.arange(0, BB)
    b_slot = load_slots(p_slot, o_row, rows, slots)
    b_real = b_slot >= 0
    b_origin = tl.load(p_plan_origin + o_row, mask=b_real, other=0)
    b_committed = tl.load(p_plan_committed + o_row, mask=b_real, other=0)
    b_flush = tl.load(p_plan_flush + o_row, mask=b_real, other=0) != 0
    b_flushes = tl.load(p_plan_flushes + o_row, mask=b_real, other=0)
    tl.store(p_origin + b_slot, tl.where(b_flush, wrap(b_origin + b_committed, R), b_origin), mask=b_real)
    tl.store(p_committed + b_slot, tl.where(b_flush, 0, b_committed), mask=b_real)
    tl.store(p_limit + b_slot, tl.zeros([BB], dtype=tl.int32) + WINDOW, mask=b_real & b_flush)
    tl.store(p_flushes + b_slot, b_flushes + b_flush.to(tl.int32), mask=b_real)
    tl.store(p_pending + b_slot, tl.load(p_plan_length + o_row, mask=b_real, other=0), mask=b_real)


@triton.jit(do_not_specialize=["rows", "slots"])
def commit_kernel(
    p_slot, p_accepted, s_accepted, p_committed, p_pending, p_position, rows, slots, BB: tl.constexpr
):  # fmt: skip
    """See `Cursors.commit`. Grid: ⌈rows / BB⌉. `s_accepted` is 0 where one number is for all rows."""
    o_row = tl.program_id(0) * BB + tl.arange(0, BB)
    b_slot = load_slots(p_slot, o_row, rows, slots)
    b_real = b_slot >= 0
    b_pending = tl.load(p_pending + b_slot, mask=b_real, other=0)
    b_accepted = tl.load(p_accepted + o_row * s_accepted, mask=b_real, other=0)
    b_taken = tl.minimum(tl.maximum(b_accepted, 0), b_pending).to(tl.int32)
    b_committed = tl.load(p_committed + b_slot, mask=b_real, other=0)
    b_position = tl.load(p_position + b_slot, mask=b_real, other=0)
    tl.store(p_committed + b_slot, b_committed + b_taken, mask=b_real)
    tl.store(p_position + b_slot, b_position + b_taken, mask=b_real)
    tl.store(p_pending + b_slot, tl.zeros([BB], dtype=tl.int32), mask=b_real)


@triton.jit(do_not_specialize=["rows", "slots"])
def reset_kernel(
    p_slot, p_new_position, s_new_position, p_origin, p_committed, p_pending, p_limit, p_position, p_flushes,
    rows, slots,
    WINDOW: tl.constexpr, MAX_DRAFT: tl.constexpr, STAGGER: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """See `Cursors.reset`. Grid: ⌈rows / BB⌉. `s_new_position` is 0 where one number is for all rows."""
    o_row = tl.program_id(0) * BB + tl.arange(0, BB)
    b_slot = load_slots(p_slot, o_row, rows, slots)
    b_real = b_slot >= 0
    b_zero = tl.zeros([BB], dtype=tl.int32)
    b_position = tl.load(p_new_position + o_row * s_new_position, mask=b_real, other=0)
    tl.store(p_origin + b_slot, b_zero, mask=b_real)
    tl.store(p_committed + b_slot, b_zero, mask=b_real)
    tl.store(p_pending + b_slot, b_zero, mask=b_real)
    tl.store(p_flushes + b_slot, b_zero + 1, mask=b_real)
    tl.store(p_limit + b_slot, first_limits(b_slot, WINDOW, MAX_DRAFT, STAGGER), mask=b_real)
    tl.store(p_position + b_slot, b_position.to(tl.int32), mask=b_real)


@triton.jit(do_not_specialize=["rows", "slots"])
def copy_kernel(
    p_source, p_target, p_origin, p_committed, p_pending, p_limit, p_position, p_flushes,
    rows, slots,
    BB: tl.constexpr,
):  # fmt: skip
    """See `Cursors.copy`. One program for all rows, so that every source is read before any target is written."""
    o_row = tl.arange(0, BB)
    b_source = load_slots(p_source, o_row, rows, slots)
    b_target = load_slots(p_target, o_row, rows, slots)
    b_real = (b_source >= 0) & (b_target >= 0)
    b_origin = tl.load(p_origin + b_source, mask=b_real, other=0)
    b_committed = tl.load(p_committed + b_source, mask=b_real, other=0)
    b_limit = tl.load(p_limit + b_source, mask=b_real, other=0)
    b_position = tl.load(p_position + b_source, mask=b_real, other=0)
    b_flushes = tl.load(p_flushes + b_source, mask=b_real, other=0)
    tl.debug_barrier()
    tl.store(p_origin + b_target, b_origin, mask=b_real)
    tl.store(p_committed + b_target, b_committed, mask=b_real)
    tl.store(p_pending + b_target, tl.zeros([BB], dtype=tl.int32), mask=b_real)
    tl.store(p_limit + b_target, b_limit, mask=b_real)
    tl.store(p_position + b_target, b_position, mask=b_real)
    tl.store(p_flushes + b_target, b_flushes, mask=b_real)


@triton.jit
def ancestors_kernel(p_parent, p_mask, T: tl.constexpr, BT: tl.constexpr):
    """See `tree.ancestor_mask`. Grid: rows. A parent that does not come before its child counts as the history."""
    i_row = tl.program_id(0).to(tl.int64)
    o_t = tl.arange(0, BT)
    b_parent = tl.load(p_parent + i_row * T + o_t, mask=o_t < T, other=-1).to(tl.int32)
    b_above = tl.zeros([BT, BT], dtype=tl.int32)
    for t in range(T):
        parent = tl.sum(tl.where(o_t == t, b_parent, 0), axis=0)
        b_line = tl.sum(tl.where(o_t[:, None] == parent, b_above, 0), axis=0)
        b_line = tl.where(o_t == t, 1, b_line)
        b_above = tl.where(o_t[:, None] == t, b_line[None, :], b_above)
    p_line = p_mask + (i_row * T + o_t[:, None]) * T + o_t[None, :]
    tl.store(p_line, b_above.to(tl.int8), mask=(o_t < T)[:, None] & (o_t < T)[None, :])
