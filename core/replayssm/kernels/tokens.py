"""Device functions on a step's history and new tokens: what the outputs are made of besides the state tile."""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.primitives import activate_gate, sum_where
from replayssm.kernels.ring import load_gates, load_keys, load_values, wrap


@triton.jit
def load_history(
    p_key, p_key_scale, p_value, p_gate, rate, origin, count, o_v, o_k,
    V: tl.constexpr, K: tl.constexpr, R: tl.constexpr, J: tl.constexpr, DELTA: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """Keys `[J, K]` decayed to the end of the history, u `[BV, J]`, and the history's whole log decay `[D]`."""
    o_j = tl.arange(0, J)
    b_live = o_j < count
    o_row = wrap(origin + o_j, R)
    b_key = load_keys(p_key, p_key_scale, o_row, o_k, b_live, K, DELTA)
    b_u = load_values(p_value, o_row, o_v, b_live, V)
    b_gate = load_gates(p_gate, o_row, o_k, b_live, K, CHANNEL)
    b_g = b_gate * rate
    b_aged = b_key * tl.exp(sum_where(o_j[None, :] > o_j[:, None], b_g, CHANNEL))
    if not DELTA:
        b_u = b_u * tl.trans(b_gate)
    return b_aged, b_u, tl.sum(b_g, axis=0)


@triton.jit
def load_gate(
    gate, dt_bias, A_log, row, sg_b, sg_t, i_head, o_t, o_k, b_live, lower_bound, dt_min, dt_max,
    K: tl.constexpr, DELTA: tl.constexpr, CHANNEL: tl.constexpr, RAW: tl.constexpr, HAS_BIAS: tl.constexpr,
    BOUNDED: tl.constexpr,
):  # fmt: skip
    """Δ or log decay of the new tokens `[X, D]`, 0 where `b_live` is false."""
    p_gate = gate + row * sg_b + o_t * sg_t
    if CHANNEL:
        b_gate = tl.load(p_gate[:, None] + i_head * K + o_k[None, :], mask=b_live[:, None], other=0.0).to(tl.float32)
    else:
        b_gate = tl.load(p_gate + i_head, mask=b_live, other=0.0).to(tl.float32)[:, None]
    if RAW:
        b_bias = 0.0
        if HAS_BIAS and CHANNEL:
            b_bias = tl.load(dt_bias + i_head * K + o_k).to(tl.float32)[None, :]
        elif HAS_BIAS:
            b_bias = tl.load(dt_bias + i_head).to(tl.float32)
        speed = 1.0
        if DELTA:
            speed = tl.exp(tl.load(A_log + i_head).to(tl.float32))
        b_active = activate_gate(b_gate, b_bias, speed, lower_bound, dt_min, dt_max, DELTA, BOUNDED)
        b_gate = tl.where(b_live[:, None], b_active, 0.0)
    return b_gate


@triton.jit
def pair_scores(
    b_x, b_path, b_seen, o_x, T: tl.constexpr, BT: tl.constexpr, BX: tl.constexpr, CHANNEL: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Σ_k x_i x_s e^{P_i − P_s} `[BX, BX]` where `b_seen` holds, 0 elsewhere."""
    if CHANNEL:
        b_scores = tl.zeros([BX, BX], dtype=tl.float32)
        for t in range(T):
            b_here = tl.sum(tl.where((o_x == t)[:, None], b_path, 0.0), axis=0)[None, :]
            b_decayed = b_x * tl.exp(tl.minimum(b_here - b_path, 0.0))
            b_k_row = tl.sum(b_decayed * tl.sum(tl.where((o_x == t)[:, None], b_x, 0.0), axis=0)[None, :], axis=1)
            b_q_row = tl.sum(b_decayed * tl.sum(tl.where((o_x == BT + t)[:, None], b_x, 0.0), axis=0)[None, :], axis=1)
            b_scores = tl.where((o_x == t)[:, None], b_k_row[None, :], b_scores)
            b_scores = tl.where((o_x == BT + t)[:, None], b_q_row[None, :], b_scores)
        b_scores = tl.where(b_seen, b_scores, 0.0)
    else:
        b_decay = tl.exp(tl.where(b_seen, b_path - tl.trans(b_path), float("-inf")))
        b_scores = tl.dot(b_x, tl.trans(b_x), input_precision=DOT) * b_decay
    return b_scores
