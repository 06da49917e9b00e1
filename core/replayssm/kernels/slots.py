"""Moving stored bits: whole slots for `copy`, records of an accepted tree path for `compact`. No arithmetic."""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.cursors import load_slots
from replayssm.kernels.ring import wrap


@triton.jit(do_not_specialize=["rows", "slots"])
def copy_slots_kernel(
    p_source, p_target, buffer, s_slot, rows, slots, SIZE: tl.constexpr, BB: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """One buffer's slots `[n]` to others. Grid: ⌈SIZE / BN⌉.

    A program owns BN numbers of every slot: it reads them from all sources before it writes a target.
    """
    o_row = tl.arange(0, BB)
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    b_source = load_slots(p_source, o_row, rows, slots)
    b_target = load_slots(p_target, o_row, rows, slots)
    b_mask = ((b_source >= 0) & (b_target >= 0))[:, None] & (o_n < SIZE)[None, :]
    b_bits = tl.load(buffer + b_source[:, None] * s_slot + o_n[None, :], mask=b_mask, other=0)
    tl.debug_barrier()
    tl.store(buffer + b_target[:, None] * s_slot + o_n[None, :], b_bits, mask=b_mask)


@triton.jit
def move_row(p_ring, source, target, o_d, D: tl.constexpr):
    """One row of D numbers of a ring to another row of it."""
    b_row = tl.load(p_ring + source * D + o_d, mask=o_d < D, other=0)
    tl.store(p_ring + target * D + o_d, b_row, mask=o_d < D)


@triton.jit(do_not_specialize=["slots", "depth"])
def compact_kernel(
    p_slot, p_first, p_path,
    key_ring, key_scale_ring, value_ring, raw_value_ring, beta_ring, gate_ring,
    s_key, s_key_scale, s_value, s_raw, s_beta, s_gate,
    slots, depth,
    H: tl.constexpr, G: tl.constexpr, V: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
    DELTA: tl.constexpr, CHANNEL: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """See `Backend.compact`. Grid: (rows, H).

    Token j of a path is at least j, so a row is read before a later one moves into it.
    """
    i_row, i_head = tl.program_id(0), tl.program_id(1)
    i_group = i_head // (H // G)
    o_v, o_k, o_one = tl.arange(0, BV), tl.arange(0, BK), tl.arange(0, 1)
    slot = tl.load(p_slot + i_row).to(tl.int64)
    first = wrap(tl.load(p_first + i_row), R)
    p_key = key_ring + slot * s_key + i_group * R * K
    p_key_scale = key_scale_ring + slot * s_key_scale + i_group * R
    p_value = value_ring + slot * s_value + i_head * R * V
    p_raw = raw_value_ring + slot * s_raw + i_head * R * V
    p_beta = beta_ring + slot * s_beta + i_head * R
    p_gate = gate_ring + slot * s_gate + i_head * R * (K if CHANNEL else 1)
    if (slot >= 0) & (slot < slots):
        for j in range(depth):
            token = tl.load(p_path + i_row * depth + j).to(tl.int32)
            if (token > j) & (token < R):
                source, target = wrap(first + token, R), wrap(first + j, R)
                move_row(p_value, source, target, o_v, V)
                if CHANNEL:
                    move_row(p_gate, source, target, o_k, K)
                else:
                    move_row(p_gate, source, target, o_one, 1)
                if DELTA:
                    move_row(p_raw, source, target, o_v, V)
                    move_row(p_beta, source, target, o_one, 1)
                if i_head % (H // G) == 0:
                    move_row(p_key, source, target, o_k, K)
                    if DELTA:
                        move_row(p_key_scale, source, target, o_one, 1)
            tl.debug_barrier()
