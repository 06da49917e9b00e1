"""Device functions on a step's new tokens: keys and queries, gates, and how the tokens see each other.

Row x of a block of BX = 2 BT rows is key x of the step for x < BT, and query x − BT above: one product with the state
serves both.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.tile import flat, load_row, load_rows


@triton.jit
def load_numbers(p, s_t, o_t, T: tl.constexpr):
    """One number a token: of tokens `o_t [X]`, `[X]`; of a single one the number, for all threads to know. fp32."""
    b_number = tl.load(p) if T == 1 else tl.load(p + o_t * s_t, mask=o_t < T, other=0.0)
    return b_number.to(tl.float32)


@triton.jit
def load_gates(p_gate, sg_t, o_t, K: tl.constexpr, E: tl.constexpr, T: tl.constexpr, CHANNEL: tl.constexpr):
    """Gates of tokens `o_t [X]` of a row: `[X]`, or by channel `[X, K]`, fp32.

    One token's is a number, or by channel `[K]`, a vector over all threads, where a row of a tile would be one over four.
    """
    if not CHANNEL:
        b_gate = load_numbers(p_gate, sg_t, o_t, T)
    elif T == 1:
        b_gate = tl.load(p_gate + tl.arange(0, K)).to(tl.float32)
    else:
        b_gate = flat(load_rows(p_gate + o_t * sg_t, o_t < T, K, E))
    return b_gate


@triton.jit
def load_bias(p_bias, K: tl.constexpr, E: tl.constexpr, T: tl.constexpr, CHANNEL: tl.constexpr, PRESENT: tl.constexpr):
    """The gate's bias in a shape that can be added to `load_gates`, 0 where there is none."""
    bias = 0.0
    if PRESENT:
        if not CHANNEL:
            bias = tl.load(p_bias).to(tl.float32)
        elif T == 1:
            bias = tl.load(p_bias + tl.arange(0, K)).to(tl.float32)
        else:
            bias = load_row(p_bias, K, E)
    return bias


@triton.jit
def token_pointers(p_q, p_k, o_x, sq_t, sk_t, BT: tl.constexpr):
    """Where row x of a block is: a key of the step below BT, a query from there on."""
    o_t = o_x % BT
    return tl.where(o_x >= BT, p_q + o_t * sq_t, p_k + o_t * sk_t)


@triton.jit
def above_mask(p_ancestors, o_x, T: tl.constexpr, BT: tl.constexpr, TREE: tl.constexpr):
    """`[BX, BX]`: the token of key s (column) is the token of row x or an ancestor of it."""
    o_t = o_x % BT
    if TREE:
        p_above = p_ancestors + o_t[:, None] * T + o_t[None, :]
        b_above = tl.load(p_above, mask=(o_t < T)[:, None] & (o_t < T)[None, :], other=0) != 0
    else:
        b_above = o_t[:, None] >= o_t[None, :]
    return b_above & (o_x < BT)[None, :]


@triton.jit
def head_path(b_above, b_g, T: tl.constexpr):
    """Log decay `[BX]` from the end of the history to each row: the sum of `b_g` over its path."""
    b_path = b_g
    if T > 1:
        b_path = tl.sum(tl.where(b_above, b_g[None, :], 0.0), axis=1)
    return b_path


@triton.jit
def channel_path(b_above, b_g, o_x, T: tl.constexpr):
    """The same per channel: `[BX, K]`."""
    b_path = tl.zeros_like(b_g)
    for t in tl.static_range(T):
        b_row = tl.sum(tl.where((o_x == t)[:, None], b_g, 0.0), axis=0)
        b_sees = tl.sum(tl.where((o_x == t)[None, :] & b_above, 1.0, 0.0), axis=1)
        b_path += b_sees[:, None] * b_row[None, :]
    return b_path


@triton.jit
def channel_pairs(b_x, b_path, o_x, BX: tl.constexpr, T: tl.constexpr):
    """Σ_k x_k s_k e^{P_x − P_s} `[BX, BX]` for row x and key s, decay per channel; where P_x ≤ P_s."""
    b_scores = tl.zeros([BX, BX], dtype=tl.float32)
    for t in tl.static_range(T):
        b_is = (o_x == t)[:, None]
        b_here = tl.sum(tl.where(b_is, b_path, 0.0), axis=0)[None, :]
        b_key = tl.sum(tl.where(b_is, b_x, 0.0), axis=0)[None, :]
        b_column = tl.sum(b_x * b_key * tl.exp(tl.minimum(b_path - b_here, 0.0)), axis=1)
        b_scores = tl.where((o_x == t)[None, :], b_column[:, None], b_scores)
    return b_scores


@triton.jit
def see_tokens(
    b_x, b_dots, b_scale, b_gate, b_above, b_is_q, o_x, rate,
    K: tl.constexpr, T: tl.constexpr, BX: tl.constexpr, BT: tl.constexpr, E: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """How the rows of a step see each other and what came before. b_dots: their products with each other, `[BX, BX]`,
    times both scales b_scale.

    Returns:
        scores `[BX, BX]` of row x with key s, decayed from s to x, 0 where x does not see it; the path, log decay from the
        end of the history to each row, `[BX]` or by channel `[1 or BX, K]`; rows with what decays by channel in them,
        `[BX, K]`; and decays of the rows `[BX]`, 1 by channel.
    """
    o_t = o_x % BT
    b_seen = b_above & (b_is_q[:, None] | (o_t[:, None] != o_t[None, :]))
    b_decay = tl.full([BX], 1.0, dtype=tl.float32)
    if T == 1:
        b_path, b_x_end = b_gate * rate, b_x
        b_scores = tl.where(b_seen, b_dots, 0.0)
        if CHANNEL:
            b_path = flat(tl.reshape(b_gate, [1, K // (4 * E), 4 * E]))
            b_x_end = b_x * tl.exp(b_path)
        else:
            b_decay = tl.exp(b_path)
    elif CHANNEL:
        b_path = channel_path(b_above, b_gate, o_x, T)
        b_x_end = b_x * tl.exp(b_path)
        b_scores = tl.where(b_seen, channel_pairs(b_x, b_path, o_x, BX, T), 0.0)
        b_scores = b_scores * b_scale[:, None] * b_scale[None, :]
    else:
        b_path, b_x_end = head_path(b_above, b_gate * rate, T), b_x
        b_between = tl.exp(tl.where(b_seen, b_path[:, None] - b_path[None, :], float("-inf")))
        b_scores = b_dots * b_between
        b_decay = tl.exp(b_path)
    return b_scores, b_path, b_x_end, b_decay
