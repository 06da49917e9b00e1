"""How the tokens of a step see each other where every channel of a head decays on its own.

A pair of tokens has K decays between it, and no product has them as factors: one that is strong would hide all after it.
So pairs are taken one by one, over vectors `[K]` that are spread over all threads: sums over tokens stay within a thread.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.primitives import exp


@triton.jit
def load_wide(p_rows, b_live, K: tl.constexpr):
    """K numbers at each pointer of `p_rows [N]` → `[N, K]` fp32, four a thread; rows that are not live are 0."""
    o_k = tl.max_contiguous(tl.arange(0, K), [4])
    return tl.load(p_rows[:, None] + o_k[None, :], mask=b_live[:, None], other=0.0).to(tl.float32)


@triton.jit
def pick(b_rows, t: tl.constexpr):
    """Row t of `[N, K]`."""
    return tl.sum(tl.where((tl.arange(0, b_rows.shape[0]) == t)[:, None], b_rows, 0.0), axis=0)


@triton.jit
def channel_paths(b_g, p_ancestors, T: tl.constexpr, TREE: tl.constexpr):
    """Log decays from the end of the history to each token, its own included, of gates `b_g [BT, K]`: `[BT, K]`."""
    b_path = tl.zeros_like(b_g)
    o_t = tl.arange(0, b_g.shape[0])
    for t in tl.static_range(T):
        b_sees = tl.load(p_ancestors + o_t * T + t, mask=o_t < T, other=0) != 0 if TREE else o_t >= t
        b_path += tl.where(b_sees[:, None], pick(b_g, t)[None, :], 0.0)
    return b_path


@triton.jit
def channel_pairs(b_g, b_paths, p_q, p_k, sq_t, sk_t, length, o_x, T: tl.constexpr, TREE: tl.constexpr):
    """Σ_k x_k s_k e^{P_x − P_s} `[BX, BX]` for row x and the key s of an earlier token; what x does not see is any number.

    Without a tree the decays between two tokens are summed for themselves; in one, P_x − P_s.
    """
    BT: tl.constexpr = b_g.shape[0]
    K: tl.constexpr = b_g.shape[1]
    o_t = tl.arange(0, BT)
    b_key = load_wide(p_k + o_t * sk_t, o_t < length, K)
    b_query = load_wide(p_q + o_t * sq_t, o_t < length, K)
    b_scores = tl.zeros([2 * BT, 2 * BT], dtype=tl.float32)
    for t in tl.static_range(1, T):
        b_key_here, b_query_here = pick(b_key, t), pick(b_query, t)
        b_between = tl.zeros([K], dtype=tl.float32)
        for i in tl.static_range(t):
            if TREE:
                b_between = tl.minimum(pick(b_paths, t) - pick(b_paths, t - 1 - i), 0.0)
            else:
                b_between += pick(b_g, t - i)
            b_seen = pick(b_key, t - 1 - i) * exp(b_between)
            b_is_key = (o_x == t - 1 - i)[None, :]
            b_scores = tl.where((o_x == t)[:, None] & b_is_key, tl.sum(b_seen * b_key_here), b_scores)
            b_scores = tl.where((o_x == BT + t)[:, None] & b_is_key, tl.sum(b_seen * b_query_here), b_scores)
    return b_scores
