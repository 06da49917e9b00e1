"""What rows of a step read of the history and of the state before it.

    O_x = e^{P_x} (S_0 e^{G_h} x + Σ_j u_j reach_jx),    reach_jx = w_j k_jᵀ x e^{after_j}

u_j are the ring's values and w_j the units of `ring.load_units`. Decays by channel are inside the sums over k: in x for
the state, in the keys for the history.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.ring import STRONGEST, channel_decay, head_decay, history_rows, load_keys, load_units, wrap
from replayssm.kernels.tile import flat


@triton.jit
def load_reach(
    b_x_end, b_path, b_gate, p_q, p_k, o_x, p_key, p_key_scale, p_gate, rate, origin, count, o_j,
    K: tl.constexpr, R: tl.constexpr, J: tl.constexpr, T: tl.constexpr, BT: tl.constexpr, E: tl.constexpr,
    DELTA: tl.constexpr, CHANNEL: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Reach `[J, BX]`, and the log decay of what rows read of the state: a number, or by channel `[1 or BX, K]`.

    b_x_end, b_path: rows and, by channel, log decays at the end of the history; b_gate, p_q, p_k: gate, query and key of a
    single token.
    """
    b_unit = load_units(p_key_scale, p_gate, origin, count, o_j, R, DELTA)
    if CHANNEL and T == 1:
        b_reach, whole = reach_of_one(p_k, p_q, b_gate, p_key, b_unit, p_gate, origin, count, o_j, o_x, K, R, J, BT)
        whole = b_path + flat(tl.reshape(whole, [1, K // (4 * E), 4 * E]))
    elif CHANNEL:
        o_row = history_rows(origin, count, o_j, R)
        b_after, whole = channel_decay(p_gate + o_row * K, o_j < count, o_j, K, E)
        b_aged = load_keys(p_key, origin, count, o_j, K, R, E) * tl.exp(b_after)
        b_reach = tl.dot(b_aged, tl.trans(b_x_end), input_precision=DOT) * b_unit[:, None]
        whole = b_path + whole
    else:
        b_dots = tl.dot(load_keys(p_key, origin, count, o_j, K, R, E), tl.trans(b_x_end), input_precision=DOT)
        b_after, whole = head_decay(p_gate, rate, origin, count, o_j, R)
        b_reach = b_dots * (b_unit * tl.exp(b_after))[:, None]
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
    b_aged = b_key * tl.exp(b_after + b_gate[None, :])
    b_of_k = b_unit * tl.sum(b_aged * tl.load(p_k + o_k).to(tl.float32)[None, :], axis=1)
    b_of_q = b_unit * tl.sum(b_aged * tl.load(p_q + o_k).to(tl.float32)[None, :], axis=1)
    b_reach = tl.where((o_x == BT)[None, :], b_of_q[:, None], 0.0)
    return tl.where((o_x == 0)[None, :], b_of_k[:, None], b_reach), whole
