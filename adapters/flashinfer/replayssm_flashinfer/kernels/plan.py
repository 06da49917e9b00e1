"""A caller's cursors as one step's plan, in one launch; `replayssm_flashinfer.plan` is its host side."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_ring_slots(p_slot, o_row, rows, slots, pad, HAS_SLOTS: tl.constexpr):
    """Slot of each row, int64; −1 for padding, a slot out of range and rows past the last."""
    b_slot = o_row.to(tl.int64)
    if HAS_SLOTS:
        b_slot = tl.load(p_slot + o_row, mask=o_row < rows, other=-1).to(tl.int64)
        b_slot = tl.where(b_slot == pad, -1, b_slot)
    return tl.where((o_row < rows) & (b_slot >= 0) & (b_slot < slots), b_slot, -1)


@triton.jit
def load_live(p_live, s_live, o_row, b_slot, WINDOW: tl.constexpr, BY_ROW: tl.constexpr):
    """Records of each row, from 0 to W; 0 for padding."""
    o_cursor = o_row.to(tl.int64) if BY_ROW else b_slot
    b_live = tl.load(p_live + o_cursor * s_live, mask=b_slot >= 0, other=0)
    return tl.minimum(tl.maximum(b_live, 0), WINDOW)


@triton.jit
def load_lengths(p_packed, o_row, rows, draft, tokens, PACKED: tl.constexpr):
    """New tokens of each row: T, or what a packed batch has of it."""
    b_length = tl.zeros(o_row.shape, dtype=tl.int32) + draft
    if PACKED:
        b_first = tl.load(p_packed + o_row, mask=o_row < rows, other=0)
        b_end = tl.minimum(tl.load(p_packed + o_row + 1, mask=o_row < rows, other=0), tokens)
        b_length = tl.where(b_first >= 0, tl.minimum(tl.maximum(b_end - b_first, 0), draft), 0)
    return b_length


@triton.jit(do_not_specialize=["rows", "slots", "pad", "draft", "limit", "tokens"])
def ring_plan_kernel(
    p_slot, p_start, p_live, p_packed,
    p_order, p_plan_slot, p_plan_length, p_plan_origin, p_plan_committed, p_plan_flush, p_plan_flushes,
    s_start, s_live, rows, slots, pad, draft, limit, tokens,
    R: tl.constexpr, WINDOW: tl.constexpr, HAS_SLOTS: tl.constexpr, BY_ROW: tl.constexpr, PACKED: tl.constexpr,
    BB: tl.constexpr,
):  # fmt: skip
    """See `plan_step`. Grid: ⌈rows / BB⌉; each program looks at all rows, for repeated slots and for the order."""
    o_row = tl.program_id(0) * BB + tl.arange(0, BB)
    b_slot = load_ring_slots(p_slot, o_row, rows, slots, pad, HAS_SLOTS)
    b_live = load_live(p_live, s_live, o_row, b_slot, WINDOW, BY_ROW)
    b_length = load_lengths(p_packed, o_row, rows, draft, tokens, PACKED)
    b_twins = tl.zeros([BB], dtype=tl.int32)
    b_place = tl.zeros([BB], dtype=tl.int32)
    for start in range(0, rows, BB):
        o_other = start + tl.arange(0, BB)
        b_other = load_ring_slots(p_slot, o_other, rows, slots, pad, HAS_SLOTS)
        b_earlier = o_other[None, :] < o_row[:, None]
        # A row without tokens takes no slot from a later one.
        b_busy = load_lengths(p_packed, o_other, rows, draft, tokens, PACKED)[None, :] > 0
        b_twins += tl.sum(((b_other[None, :] == b_slot[:, None]) & b_earlier & b_busy).to(tl.int32), axis=1)
        b_filled = load_live(p_live, s_live, o_other, b_other, WINDOW, BY_ROW)[None, :]
        b_fuller = (b_filled > b_live[:, None]) | ((b_filled == b_live[:, None]) & b_earlier)
        b_place += tl.sum((b_fuller & (o_other < rows)[None, :]).to(tl.int32), axis=1)
    b_real = (b_slot >= 0) & (b_twins == 0) & (b_length > 0)
    b_live = tl.where(b_real, b_live, 0)
    b_length = tl.where(b_real, b_length, 0)
    o_cursor = o_row.to(tl.int64) if BY_ROW else b_slot
    b_origin = tl.load(p_start + o_cursor * s_start, mask=b_real, other=0) % R
    b_origin = tl.where(b_origin < 0, b_origin + R, b_origin)
    b_flush = (b_live > 0) & (b_live + b_length > limit)
    m_row = o_row < rows
    tl.store(p_order + b_place, o_row, mask=m_row)
    tl.store(p_plan_slot + o_row, tl.where(b_real, b_slot, -1), mask=m_row)
    tl.store(p_plan_length + o_row, b_length, mask=m_row)
    tl.store(p_plan_origin + o_row, b_origin, mask=m_row)
    tl.store(p_plan_committed + o_row, b_live, mask=m_row)
    tl.store(p_plan_flush + o_row, b_flush.to(tl.int8), mask=m_row)
    # Counts for stochastic rounding: where the caller keeps one seed, folds of a slot still differ by it.
    tl.store(p_plan_flushes + o_row, b_origin, mask=m_row)
