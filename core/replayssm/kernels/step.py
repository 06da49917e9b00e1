"""One step of the replay protocol in one launch: read, append, and fold where a row flushes.

A program owns one head of one row, or a part of its V. It reads ring and new tokens once and then walks over tiles
`[BV, K]` of the state. A flush row folds its committed records into the tile and stores it; then every row reads its
outputs from tile and history. Two switches tell the layers apart (DELTA, CHANNEL); one token and several, chains and
trees are one path. docs/mathematics.md has the formulas, `tile.py` says how state meets tensor cores.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm import inputs
from replayssm.kernels.fold import fold_tile, load_window
from replayssm.kernels.matrix import load_tile, store_tile
from replayssm.kernels.primitives import sigmoid, solve_unit_lower
from replayssm.kernels.ring import age, history_rows, load_history, load_values, wrap
from replayssm.kernels.tile import flat, load_rows, order, store_rows, unflat
from replayssm.kernels.tokens import (
    above_mask,
    channel_gate,
    channel_gates,
    channel_pairs,
    channel_path,
    head_gates,
    head_path,
)

L2_EPS = tl.constexpr(inputs.L2_EPS)


@triton.jit
def step_kernel(
    p_slot, p_length, p_origin, p_committed, p_flush, p_flushes, p_seed, p_ancestors,
    q, k, v, gate, beta, z, skip, A, A_log, dt_bias, out,
    state, state_scale, key_ring, key_scale_ring, value_ring, raw_value_ring, beta_ring, gate_ring,
    sq_b, sq_t, sk_b, sk_t, sv_b, sv_t, sg_b, sg_t, sb_b, sb_t, sz_b, sz_t,
    s_state, s_state_scale, s_key, s_key_scale, s_value, s_raw, s_beta, s_gate,
    scale, lower_bound, dt_min, dt_max,
    H: tl.constexpr, G: tl.constexpr, V: tl.constexpr, K: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    T: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, TILES: tl.constexpr, E: tl.constexpr,
    DELTA: tl.constexpr, CHANNEL: tl.constexpr, EXACT: tl.constexpr, TREE: tl.constexpr,
    RAW: tl.constexpr, HAS_BIAS: tl.constexpr, BOUNDED: tl.constexpr, L2NORM: tl.constexpr,
    SKIP: tl.constexpr, HAS_Z: tl.constexpr, FORMAT: tl.constexpr, SR: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """See the module. Grid: (⌈V / (BV · TILES)⌉, H, rows)."""
    i_part, i_head, i_row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_group = i_head // (H // G)
    slot = tl.load(p_slot + i_row).to(tl.int64)
    if slot < 0:
        return
    row = i_row.to(tl.int64)
    length = tl.load(p_length + i_row)
    origin = tl.load(p_origin + i_row)
    committed = tl.load(p_committed + i_row)
    flush = tl.load(p_flush + i_row) != 0

    p_state = state + slot * s_state + i_head * V * K
    p_scale = state_scale + slot * s_state_scale + i_head * V
    first = i_part * TILES * BV
    p_key = key_ring + slot * s_key + i_group * R * K
    p_key_scale = key_scale_ring + slot * s_key_scale + i_group * R
    p_value = value_ring + slot * s_value + i_head * R * V
    p_raw = raw_value_ring + slot * s_raw + i_head * R * V
    p_beta = beta_ring + slot * s_beta + i_head * R
    p_gate = gate_ring + slot * s_gate + (i_head * R * K if CHANNEL else i_head * R)
    o_gate = i_head * K if CHANNEL else i_head
    rate, speed = 1.0, 1.0
    if not DELTA:
        rate = tl.load(A + i_head).to(tl.float32)
    elif RAW:
        speed = tl.exp(tl.load(A_log + i_head).to(tl.float32))

    # The new tokens: what does not depend on the columns.
    BX: tl.constexpr = 2 * BT
    o_x = tl.arange(0, BX)
    o_t = o_x % BT
    b_is_q = o_x >= BT
    b_live = o_t < length
    b_is_k = b_live & (o_x < BT)
    o_new = wrap(wrap(origin + committed, R) + o_t, R)
    p_x = tl.where(b_is_q, q + row * sq_b + i_group * K + o_t * sq_t, k + row * sk_b + i_group * K + o_t * sk_t)
    p_v = v + row * sv_b + i_head * V
    p_z = z + row * sz_b + i_head * V
    p_out = out + row * T * H * V + i_head * V
    p_new_gate = gate + row * sg_b + o_gate + o_t * sg_t
    b_above = above_mask(p_ancestors + i_row * T * T, o_x, T, BT, TREE)
    b_step = tl.zeros([BX], dtype=tl.float32)
    if DELTA:
        b_step = tl.load(beta + row * sb_b + o_t * sb_t + i_head, mask=b_is_k, other=0.0).to(tl.float32)
        if RAW:
            b_step = tl.where(b_is_k, sigmoid(b_step), 0.0)

    # Keys and queries: b_scores[x, s] of unit s reaches row x, each row through its own decay b_column.
    b_x = flat(load_rows(p_x, b_live, K, E))
    b_norm = tl.full([BX], 1.0, dtype=tl.float32)
    if L2NORM:
        b_norm = tl.rsqrt(tl.sum(b_x * b_x, axis=1) + L2_EPS)
    b_scale = b_norm * tl.where(b_is_q, scale, 1.0)
    b_seen = b_above & (b_is_q[:, None] | (o_t[:, None] != o_t[None, :]))
    p_bias = dt_bias + o_gate
    if CHANNEL and T == 1:
        b_gate = channel_gate(gate + row * sg_b + o_gate, p_bias, speed, lower_bound, K, E, RAW, HAS_BIAS, BOUNDED)
        b_x_end = b_x * tl.exp(b_gate)[None, :]
        b_scores = tl.where(b_seen, tl.dot(b_x, tl.trans(b_x), input_precision=DOT), 0.0)
        b_column = b_scale
    elif CHANNEL:
        b_gate = channel_gates(p_new_gate, p_bias, speed, b_live, lower_bound, K, E, RAW, HAS_BIAS, BOUNDED)
        b_path = channel_path(b_above, b_gate, o_x, T)
        b_x_end = b_x * tl.exp(b_path)
        b_scores = tl.where(b_seen, channel_pairs(b_x, b_path, o_x, BX, T), 0.0)
        b_column = b_scale
    else:
        b_gate = head_gates(
            p_new_gate, p_bias, speed, b_live, lower_bound, dt_min, dt_max, DELTA, RAW, HAS_BIAS, BOUNDED
        )
        b_path = head_path(b_above, b_gate * rate, T)
        b_x_end = b_x
        b_decay = tl.exp(tl.where(b_seen, b_path[:, None] - b_path[None, :], float("-inf")))
        b_scores = tl.dot(b_x, tl.trans(b_x), input_precision=DOT) * b_decay
        b_column = b_scale * tl.exp(b_path)
        if not DELTA:
            b_step = tl.where(b_is_k, b_gate, 0.0)
    b_scores = b_scores * b_scale[:, None] * b_scale[None, :]
    b_solve = b_scores
    if DELTA and BX >= 16:
        b_solve = solve_unit_lower(b_scores * b_step[:, None], o_x, T)

    o_j = tl.arange(0, J)
    o_hist = history_rows(origin, committed, o_j, R)
    b_committed = o_j < committed

    # Append what does not depend on the state.
    if i_part == 0:
        if CHANNEL and T == 1:
            o_k = order(K, E)
            tl.store(p_gate + wrap(origin + committed, R) * K + o_k, b_gate, mask=o_k < tl.where(length > 0, K, 0))
        elif CHANNEL:
            store_rows(p_gate + o_new * K, unflat(b_gate, E), b_is_k, K, E)
        else:
            tl.store(p_gate + o_new, b_gate, mask=b_is_k)
        if DELTA:
            tl.store(p_beta + o_new, b_step, mask=b_is_k)
        if i_head % (H // G) == 0:
            store_rows(p_key + o_new * K, unflat(b_x, E), b_is_k, K, E)
            if DELTA:
                tl.store(p_key_scale + o_new, b_norm, mask=b_is_k)

    if flush:
        b_weight, whole, b_seen_weight, b_beta, b_inverse, b_end_key, b_start_key = load_window(
            p_key, p_key_scale, p_beta, p_gate, rate, origin, committed, o_j, K, R, J, E, DELTA, CHANNEL, EXACT, DOT
        )
        seed, flushes = tl.load(p_seed), tl.load(p_flushes + i_row)
        for i in range(TILES):
            o_v = first + i * BV + tl.arange(0, BV)
            b_s = load_tile(p_state, p_scale, o_v, V, K, E, FORMAT == "fp8")
            b_value = load_values(p_raw if EXACT else p_value, o_hist, o_v, b_committed, V)
            b_s = fold_tile(
                b_s, b_value, p_key + o_hist * K, b_committed, b_weight, whole, b_seen_weight, b_beta, b_inverse,
                b_end_key, b_start_key, K, E, CHANNEL, EXACT, DOT,
            )  # fmt: skip
            store_tile(b_s, p_state, p_scale, seed, slot, flushes, i_head, o_v, V, K, E, FORMAT, SR)
            if not CHANNEL:
                b_x_end = flat(load_rows(p_x, b_live, K, E))
            b_read = tl.dot(b_s, tl.trans(b_x_end), input_precision=DOT) * b_column[None, :]
            finish_tile(
                b_read, b_scores, b_solve, b_step, p_v, p_z, p_out, p_value, p_raw, skip, i_head, o_v, o_x, o_new, b_live,
                sv_t, sz_t, H, V, T, BT, DELTA, SKIP, HAS_Z, DOT,
            )  # fmt: skip
    else:
        # b_reach[j, x] of value j reaches row x.
        b_key, b_unit, b_after, whole = load_history(
            p_key, p_key_scale, p_gate, rate, origin, committed, o_j, K, R, E, DELTA, CHANNEL
        )
        b_aged, b_weight = age(b_key, b_unit, b_after, CHANNEL)
        b_reach = tl.dot(b_aged, tl.trans(b_x_end), input_precision=DOT) * b_weight[:, None]
        b_x_state, state_decay = b_x_end, 1.0
        if CHANNEL:
            b_x_state = b_x_end * tl.exp(whole)
        else:
            state_decay = tl.exp(whole)
        for i in range(TILES):
            o_v = first + i * BV + tl.arange(0, BV)
            b_s = load_tile(p_state, p_scale, o_v, V, K, E, FORMAT == "fp8")
            b_u = load_values(p_value, o_hist, o_v, b_committed, V)
            b_read = tl.dot(b_s, tl.trans(b_x_state), input_precision=DOT) * state_decay
            b_read = tl.dot(b_u, b_reach, b_read, input_precision=DOT) * b_column[None, :]
            finish_tile(
                b_read, b_scores, b_solve, b_step, p_v, p_z, p_out, p_value, p_raw, skip, i_head, o_v, o_x, o_new, b_live,
                sv_t, sz_t, H, V, T, BT, DELTA, SKIP, HAS_Z, DOT,
            )  # fmt: skip


@triton.jit
def finish_tile(
    b_read, b_scores, b_solve, b_step, p_v, p_z, p_out, p_value, p_raw, skip, i_head, o_v, o_x, o_new, b_live, sv_t, sz_t,
    H: tl.constexpr, V: tl.constexpr, T: tl.constexpr, BT: tl.constexpr, DELTA: tl.constexpr, SKIP: tl.constexpr,
    HAS_Z: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """From what rows read of state and history `[BV, BX]` to outputs; appends values.

    U = β (V − R) (I + A)^-T for keys, O = R + U Wᵀ for queries; b_solve is the inverse, b_scores is W.
    """
    o_t = (o_x % BT)[None, :]
    m_v = (o_v < V)[:, None] & b_live[None, :]
    b_stored = tl.load(p_v + o_t * sv_t + o_v[:, None], mask=m_v, other=0.0)
    b_v = b_stored.to(tl.float32)
    b_u = b_v * b_step[None, :]
    if b_scores.shape[0] >= 16:
        if DELTA:
            b_u = tl.dot((b_v - b_read) * b_step[None, :], tl.trans(b_solve), input_precision=DOT)
        b_read = tl.dot(b_u, tl.trans(b_scores), b_read, input_precision=DOT)
    else:
        # Too few rows for tensor cores: a token's u needs what its key reads, and adds to what later rows read.
        for t in tl.static_range(T):
            b_is = (o_x == t)[None, :]
            if DELTA:
                b_u = tl.where(b_is, (b_v - b_read) * b_step[None, :], b_u)
            b_one = tl.sum(tl.where(b_is, b_u, 0.0), axis=1)
            b_read += b_one[:, None] * tl.sum(tl.where(b_is, b_scores, 0.0), axis=1)[None, :]
    if SKIP == 1:
        b_read += tl.load(skip + i_head).to(tl.float32) * b_v
    elif SKIP == 2:
        b_read += tl.load(skip + i_head * V + o_v, mask=o_v < V, other=0.0).to(tl.float32)[:, None] * b_v
    if HAS_Z:
        b_z = tl.load(p_z + o_t * sz_t + o_v[:, None], mask=m_v, other=0.0).to(tl.float32)
        b_read = b_read * b_z * sigmoid(b_z)
    b_is_q = (o_x >= BT)[None, :]
    tl.store(p_out + o_t * H * V + o_v[:, None], b_read.to(p_out.dtype.element_ty), mask=m_v & b_is_q)
    p_new = o_new[None, :] * V + o_v[:, None]
    m_k = m_v & (o_x < BT)[None, :]
    if DELTA:
        tl.store(p_value + p_new, b_u.to(p_value.dtype.element_ty), mask=m_k)
        tl.store(p_raw + p_new, b_stored, mask=m_k)
    else:
        tl.store(p_value + p_new, b_stored, mask=m_k)
