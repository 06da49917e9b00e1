"""What rows of a step read of the history and of the state before it.

    O_x = e^{P_x} (S_0 e^{G_h} x + Σ_j u_j reach_jx),    reach_jx = w_j k_jᵀ x e^{after_j}

u_j are the ring's values and w_j the units of `ring.load_units`. Decays by channel are inside the sums over k: in x for
the state, in the keys for the history.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.primitives import INTERPRETED, dot_stored, exp
from replayssm.kernels.ring import STRONGEST, channel_decay, head_decay, history_rows, load_keys, load_units, wrap
from replayssm.kernels.tile import flat


@triton.jit
def split_reach(b_reach, BF16: tl.constexpr):
    """Reach as products with the ring's values take it: of bf16 values, in two bf16 parts whose sum is within 2^-17."""
    b_high, b_low = b_reach, b_reach
    if BF16:
        b_high = b_reach.to(tl.bfloat16)
        b_low = (b_reach - b_high.to(tl.float32)).to(tl.bfloat16)
    return b_high, b_low


@triton.jit
def add_history(b_u, b_high, b_low, b_read, DOT: tl.constexpr):
    """b_read + Σ_j u_j reach_j for values `[BV, J]` as stored."""
    if b_u.dtype == tl.bfloat16 and not INTERPRETED:
        b_read = tl.dot(b_u, b_high, tl.dot(b_u, b_low, b_read))
    elif b_u.dtype == tl.bfloat16:
        b_read += tl.dot(b_u.to(tl.float32), b_high.to(tl.float32) + b_low.to(tl.float32))
    else:
        b_read = tl.dot(b_u.to(tl.float32), b_high, b_read, input_precision=DOT)
    return b_read


@triton.jit
def load_reach(
    b_x_end, b_live, b_path, b_gate, p_q, p_k, o_x, p_key, p_key_scale, p_gate, rate, origin, count, o_j,
    K: tl.constexpr, R: tl.constexpr, J: tl.constexpr, T: tl.constexpr, BT: tl.constexpr, E: tl.constexpr,
    EK: tl.constexpr, DELTA: tl.constexpr, CHANNEL: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Reach `[J, BX]`, and the log decay of what rows read of the state: a number, or by channel `[1 or BX, K]`.

    b_x_end, b_live: rows at the end of the history and which of them count, as stored unless by channel; b_path: by channel,
    their log decays; b_gate, p_q, p_k: gate, query and key of a single token.
    """
    b_unit = load_units(p_key_scale, p_gate, origin, count, o_j, R, DELTA)
    if CHANNEL and T == 1:
        b_reach, whole = reach_of_one(p_k, p_q, b_gate, p_key, b_unit, p_gate, origin, count, o_j, o_x, K, R, J, BT)
        whole = b_path + flat(tl.reshape(whole, [1, K // (4 * E), 4 * E]))
    elif CHANNEL:
        o_row = history_rows(origin, count, o_j, R)
        b_after, whole = channel_decay(p_gate + o_row * K, o_j < count, o_j, K, E)
        b_aged = load_keys(p_key, origin, count, o_j, K, R, E).to(tl.float32) * exp(b_after)
        b_reach = tl.dot(b_aged, tl.trans(b_x_end), input_precision=DOT) * b_unit[:, None]
        whole = b_path + whole
    else:
        b_dots = dot_stored(load_keys(p_key, origin, count, o_j, K, R, EK), tl.trans(b_x_end), DOT)
        b_after, whole = head_decay(p_gate, rate, origin, count, o_j, R)
        b_reach = tl.where(b_live[None, :], b_dots, 0.0) * (b_unit * exp(b_after))[:, None]
    return b_reach, whole


@triton.jit
def reach_of_one(
    p_k, p_q, b_gate, p_key, b_unit, p_gate, origin, count, o_j, o_x,
    K: tl.constexpr, R: tl.constexpr, J: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Reach `[J, BX]` of the key and the query of a single token, decay per channel; `b_gate [K]` its own.

    Sums over k of vectors over all threads: for two rows cheaper than a product, whose sides would have to be laid out anew.
    Also returns the log decay `[K]` of the state by all records.
    """
    o_k = tl.arange(0, K)
    # A record is decayed by the gates after its own: row j has the one of record j − 1.
    o_next = wrap(origin + tl.maximum(count - o_j, 0), R)
    b_next = tl.load(p_gate + o_next[:, None] * K + o_k[None, :], mask=((o_j > 0) & (o_j <= count))[:, None], other=0.0)
    b_after = tl.cumsum(tl.maximum(b_next, STRONGEST), axis=0)
    oldest = tl.load(p_gate + origin * K + o_k)
    whole = tl.sum(tl.where((o_j == J - 1)[:, None], b_after, 0.0), axis=0)
    whole += tl.where(count >= J, tl.maximum(oldest, STRONGEST), 0.0)
    o_row, b_live = history_rows(origin, count, o_j, R), o_j < count
    # Four numbers a thread, as of the gates.
    o_four = tl.max_contiguous(o_k, [4])
    b_key = tl.load(p_key + o_row[:, None] * K + o_four[None, :], mask=b_live[:, None], other=0.0).to(tl.float32)
    b_aged = b_key * exp(b_after + b_gate[None, :])
    b_of_k = b_unit * tl.sum(b_aged * tl.load(p_k + o_k).to(tl.float32)[None, :], axis=1)
    b_of_q = b_unit * tl.sum(b_aged * tl.load(p_q + o_k).to(tl.float32)[None, :], axis=1)
    b_reach = tl.where((o_x == BT)[None, :], b_of_q[:, None], 0.0)
    return tl.where((o_x == 0)[None, :], b_of_k[:, None], b_reach), whole
