"""One step of the replay protocol in one launch: read, append, and fold where a row flushes.

A program owns one tile `[BV, K]` of one head of one row. It loads the tile once. A flush row folds its committed records
into the tile and stores it; then every row reads its outputs from tile and history. Two switches tell the layers apart
(DELTA, CHANNEL), one the decode modes (T = 1 on vectors, T > 1 on tiles), see docs/mathematics.md for the formulas.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.fold import fold_tile
from replayssm.kernels.matrix import load_tile, store_tile
from replayssm.kernels.primitives import sigmoid, solve_unit_lower, sum_where
from replayssm.kernels.ring import wrap
from replayssm.kernels.tokens import load_gate, load_history, pair_scores

L2_EPS = tl.constexpr(1e-6)


@triton.jit
def step_kernel(
    p_row, p_slot, p_length, p_origin, p_committed, p_flush, p_flushes, p_seed, p_ancestors,
    q, k, v, gate, beta, z, skip, A, A_log, dt_bias, out,
    state, state_scale, key_ring, key_scale_ring, value_ring, raw_value_ring, beta_ring, gate_ring,
    sq_b, sq_t, sk_b, sk_t, sv_b, sv_t, sg_b, sg_t, sb_b, sb_t, sz_b, sz_t,
    s_state, s_state_scale, s_key, s_key_scale, s_value, s_raw, s_beta, s_gate,
    scale, lower_bound, dt_min, dt_max,
    H: tl.constexpr, G: tl.constexpr, V: tl.constexpr, K: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    T: tl.constexpr, BT: tl.constexpr, BX: tl.constexpr, BV: tl.constexpr,
    DELTA: tl.constexpr, CHANNEL: tl.constexpr, EXACT: tl.constexpr, TREE: tl.constexpr,
    RAW: tl.constexpr, HAS_BIAS: tl.constexpr, BOUNDED: tl.constexpr, L2NORM: tl.constexpr,
    SKIP: tl.constexpr, HAS_Z: tl.constexpr, FORMAT: tl.constexpr, SR: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """See the module. Grid: (⌈V / BV⌉, H, rows)."""
    i_tile, i_head, i_row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_group = i_head // (H // G)
    row = tl.load(p_row + i_row).to(tl.int64)
    slot = tl.load(p_slot + i_row).to(tl.int64)
    length = tl.load(p_length + i_row)
    origin = tl.load(p_origin + i_row)
    committed = tl.load(p_committed + i_row)
    flush = tl.load(p_flush + i_row) != 0
    o_v = i_tile * BV + tl.arange(0, BV)
    o_k = tl.arange(0, K)

    p_state = state + slot * s_state + i_head * V * K
    p_scale = state_scale + slot * s_state_scale + i_head * V
    b_s = load_tile(p_state, p_scale, o_v, o_k, V, K, FORMAT == "fp8")

    p_key = key_ring + slot * s_key + i_group * R * K
    p_key_scale = key_scale_ring + slot * s_key_scale + i_group * R
    p_value = value_ring + slot * s_value + i_head * R * V
    p_raw = raw_value_ring + slot * s_raw + i_head * R * V
    p_beta = beta_ring + slot * s_beta + i_head * R
    p_gate = gate_ring + slot * s_gate + (i_head * R * K if CHANNEL else i_head * R)
    rate = 1.0
    if not DELTA:
        rate = tl.load(A + i_head).to(tl.float32)

    if flush:
        b_s = fold_tile(
            b_s, p_key, p_key_scale, p_raw if EXACT else p_value, p_beta, p_gate, rate, origin, committed, o_v, o_k,
            V, K, R, DELTA, CHANNEL, EXACT,
        )  # fmt: skip
        flushes = tl.load(p_flushes + i_row)
        store_tile(b_s, p_state, p_scale, tl.load(p_seed), slot, flushes, i_head, o_v, o_k, V, K, FORMAT, SR)
    b_aged, b_hist, b_age = load_history(
        p_key, p_key_scale, p_value, p_gate, rate, origin, tl.where(flush, 0, committed), o_v, o_k,
        V, K, R, J, DELTA, CHANNEL,
    )  # fmt: skip
    p_q = q + row * sq_b + i_group * K
    p_k = k + row * sk_b + i_group * K
    p_v = v + row * sv_b + i_head * V
    p_z = z + row * sz_b + i_head * V
    o_new = wrap(origin + committed, R)

    if T == 1:
        # One token: everything is a vector.
        b_q = tl.load(p_q + o_k).to(tl.float32)
        b_key = tl.load(p_k + o_k)
        b_k = b_key.to(tl.float32)
        b_value = tl.load(p_v + o_v, mask=o_v < V, other=0.0)
        k_scale = 1.0
        if L2NORM:
            b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q, axis=0) + L2_EPS)
            k_scale = tl.rsqrt(tl.sum(b_k * b_k, axis=0) + L2_EPS)
            b_k = b_k * k_scale
        b_q = b_q * scale
        o_one = tl.arange(0, 1)
        b_gate = load_gate(
            gate, dt_bias, A_log, row, sg_b, sg_t, i_head, o_one, o_k, o_one < length, lower_bound, dt_min, dt_max,
            K, DELTA, CHANNEL, RAW, HAS_BIAS, BOUNDED,
        )  # fmt: skip
        b_step = tl.exp(tl.sum(b_gate, axis=0) * rate)
        b_old = tl.exp(b_age)
        b_x = b_q * b_step
        b_o = tl.sum(b_s * (b_x * b_old)[None, :], axis=1) + tl.sum(
            b_hist * tl.sum(b_aged * b_x[None, :], axis=1)[None, :], axis=1
        )
        b_u = b_value.to(tl.float32)
        if DELTA:
            weight = tl.load(beta + row * sb_b + i_head).to(tl.float32)
            if RAW:
                weight = sigmoid(weight)
            b_y = b_k * b_step
            b_u -= tl.sum(b_s * (b_y * b_old)[None, :], axis=1)
            b_u -= tl.sum(b_hist * tl.sum(b_aged * b_y[None, :], axis=1)[None, :], axis=1)
        else:
            weight = tl.sum(tl.sum(b_gate, axis=1), axis=0)
        b_u = b_u * weight
        b_o += b_u * tl.sum(b_q * b_k, axis=0)
        if SKIP == 1:
            b_o += tl.load(skip + i_head).to(tl.float32) * b_value.to(tl.float32)
        elif SKIP == 2:
            b_o += tl.load(skip + i_head * V + o_v, mask=o_v < V, other=0.0).to(tl.float32) * b_value.to(tl.float32)
        if HAS_Z:
            b_z = tl.load(p_z + o_v, mask=o_v < V, other=0.0).to(tl.float32)
            b_o = b_o * b_z * sigmoid(b_z)
        tl.store(out + (row * H + i_head) * V + o_v, b_o.to(out.dtype.element_ty), mask=o_v < V)
        p_new_value = p_value + o_new * V + o_v
        if DELTA:
            tl.store(p_new_value, b_u.to(value_ring.dtype.element_ty), mask=o_v < V)
            tl.store(p_raw + o_new * V + o_v, b_value, mask=o_v < V)
        else:
            tl.store(p_new_value, b_value, mask=o_v < V)
        if i_tile == 0:
            if CHANNEL:
                tl.store(p_gate + o_new * K + o_k, tl.sum(b_gate, axis=0))
            else:
                tl.store(p_gate + o_new, tl.sum(tl.sum(b_gate, axis=1), axis=0))
            if DELTA:
                tl.store(p_beta + o_new, weight)
            if i_head % (H // G) == 0:
                tl.store(p_key + o_new * K + o_k, b_key)
                if DELTA:
                    tl.store(p_key_scale + o_new, k_scale)
    else:
        # Rows of X: keys of the BT tokens, then their queries. One product with the state serves both.
        o_x = tl.arange(0, BX)
        o_t = o_x % BT
        b_is_q = o_x >= BT
        b_live = (o_t < length) & (o_x < 2 * BT)
        p_x = tl.where(b_is_q[:, None], p_q + o_t[:, None] * sq_t, p_k + o_t[:, None] * sk_t) + o_k[None, :]
        b_raw = tl.load(p_x, mask=b_live[:, None], other=0.0)
        b_x = b_raw.to(tl.float32)
        b_norm = tl.full([BX], 1.0, dtype=tl.float32)
        if L2NORM:
            b_norm = tl.rsqrt(tl.sum(b_x * b_x, axis=1) + L2_EPS)
        b_x = b_x * (b_norm * tl.where(b_is_q, scale, 1.0))[:, None]
        b_gate = load_gate(
            gate, dt_bias, A_log, row, sg_b, sg_t, i_head, o_t, o_k, b_live, lower_bound, dt_min, dt_max,
            K, DELTA, CHANNEL, RAW, HAS_BIAS, BOUNDED,
        )  # fmt: skip
        b_is_k = b_live & (o_x < BT)
        if DELTA:
            b_weight = tl.load(beta + row * sb_b + o_t * sb_t + i_head, mask=b_is_k, other=0.0).to(tl.float32)
            if RAW:
                b_weight = tl.where(b_is_k, sigmoid(b_weight), 0.0)
        else:
            b_weight = tl.where(b_is_k, tl.sum(b_gate, axis=1), 0.0)
        # above[i, s]: token s is token i or one of its ancestors; s counts once, as a key.
        if TREE:
            p_anc = p_ancestors + i_row * T * T + o_t[:, None] * T + o_t[None, :]
            b_above = tl.load(p_anc, mask=(o_t < T)[:, None] & (o_t < T)[None, :], other=0) != 0
        else:
            b_above = o_t[:, None] >= o_t[None, :]
        b_above = b_above & (o_x < BT)[None, :]
        b_path = sum_where(b_above, b_gate * rate, CHANNEL)
        b_seen = b_above & (b_is_q[:, None] | (o_t[:, None] != o_t[None, :]))
        b_scores = pair_scores(b_x, b_path, b_seen, o_x, T, BT, BX, CHANNEL, DOT)

        b_xd = b_x * tl.exp(b_path)
        b_read = tl.dot(b_s, tl.trans(b_xd * tl.exp(b_age)[None, :]), input_precision=DOT)
        b_read += tl.dot(b_hist, tl.dot(b_aged, tl.trans(b_xd), input_precision=DOT), input_precision=DOT)
        m_v = (o_v < V)[:, None] & b_is_k[None, :]
        b_value = tl.load(p_v + o_t[None, :] * sv_t + o_v[:, None], mask=m_v, other=0.0)
        b_u = b_value.to(tl.float32)
        if DELTA:
            b_inverse = solve_unit_lower(b_weight[:, None] * tl.where(b_is_q[:, None], 0.0, b_scores), o_x, T)
            b_u = tl.dot(b_weight[None, :] * (b_u - b_read), tl.trans(b_inverse), input_precision=DOT)
        else:
            b_u = b_u * b_weight[None, :]
        b_out = b_read + tl.dot(b_u, tl.trans(b_scores), input_precision=DOT)

        m_o = (o_v < V)[:, None] & (b_live & b_is_q)[None, :]
        if SKIP != 0 or HAS_Z:
            p_vo = p_v + o_t[None, :] * sv_t + o_v[:, None]
            b_vo = tl.load(p_vo, mask=m_o, other=0.0).to(tl.float32)
            if SKIP == 1:
                b_out += tl.load(skip + i_head).to(tl.float32) * b_vo
            elif SKIP == 2:
                b_out += tl.load(skip + i_head * V + o_v, mask=o_v < V, other=0.0).to(tl.float32)[:, None] * b_vo
            if HAS_Z:
                b_z = tl.load(p_z + o_t[None, :] * sz_t + o_v[:, None], mask=m_o, other=0.0).to(tl.float32)
                b_out = b_out * b_z * sigmoid(b_z)
        tl.store(
            out + ((row * T + o_t[None, :]) * H + i_head) * V + o_v[:, None], b_out.to(out.dtype.element_ty), mask=m_o
        )

        o_row = wrap(o_new + o_t, R)
        p_new_value = p_value + o_row[None, :] * V + o_v[:, None]
        if DELTA:
            tl.store(p_new_value, b_u.to(value_ring.dtype.element_ty), mask=m_v)
            tl.store(p_raw + o_row[None, :] * V + o_v[:, None], b_value, mask=m_v)
        else:
            tl.store(p_new_value, b_value, mask=m_v)
        if i_tile == 0:
            if CHANNEL:
                tl.store(p_gate + o_row[:, None] * K + o_k[None, :], b_gate, mask=b_is_k[:, None])
            else:
                tl.store(p_gate + o_row, tl.sum(b_gate, axis=1), mask=b_is_k)
            if DELTA:
                tl.store(p_beta + o_row, b_weight, mask=b_is_k)
            if i_head % (H // G) == 0:
                tl.store(p_key + o_row[:, None] * K + o_k[None, :], b_raw, mask=b_is_k[:, None])
                if DELTA:
                    tl.store(p_key_scale + o_row, b_norm, mask=b_is_k)
