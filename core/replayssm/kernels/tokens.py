"""Device functions on a step's new tokens: keys and queries, gates, and how the tokens see each other.

Row x of a block of BX = 2 BT rows is key x of the step for x < BT, and query x − BT above: one product with the state
serves both.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.channel import channel_pairs, channel_paths, load_wide
from replayssm.kernels.primitives import exp
from replayssm.kernels.ring import STRONGEST
from replayssm.kernels.tile import flat


@triton.jit
def load_numbers(p, s_t, o_t, T: tl.constexpr):
    """One number a token: of tokens `o_t [X]`, `[X]`; of a single one the number, for all threads to know. fp32."""
    b_number = tl.load(p) if T == 1 else tl.load(p + o_t * s_t, mask=o_t < T, other=0.0)
    return b_number.to(tl.float32)


@triton.jit
def load_gates(p_gate, sg_t, o_t, K: tl.constexpr, T: tl.constexpr, CHANNEL: tl.constexpr):
    """Gates of tokens `o_t [X]` of a row: `[X]`, or by channel `[X, K]`, fp32; of one token a number, or `[K]`."""
    if not CHANNEL:
        b_gate = load_numbers(p_gate, sg_t, o_t, T)
    elif T == 1:
        b_gate = tl.load(p_gate + tl.arange(0, K)).to(tl.float32)
    else:
        b_gate = load_wide(p_gate + o_t * sg_t, o_t < T, K)
    return b_gate


@triton.jit
def load_bias(p_bias, K: tl.constexpr, CHANNEL: tl.constexpr, PRESENT: tl.constexpr):
    """The gate's bias in a shape that can be added to `load_gates`, 0 where there is none."""
    bias = 0.0
    if PRESENT:
        bias = tl.load(p_bias + tl.arange(0, K) if CHANNEL else p_bias).to(tl.float32)
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
def see_tokens(
    b_x, b_dots, b_scale, b_gate, b_above, b_is_q, p_q, p_k, sq_t, sk_t, p_ancestors, length, o_x, rate,
    K: tl.constexpr, T: tl.constexpr, BX: tl.constexpr, BT: tl.constexpr, E: tl.constexpr, CHANNEL: tl.constexpr,
    TREE: tl.constexpr,
):  # fmt: skip
    """How the rows of a step see each other and what came before. b_dots: their products with each other, `[BX, BX]`,
    times both scales b_scale; b_gate: of the rows, by channel of the tokens.

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
            b_x_end = b_x * exp(b_path)
        else:
            b_decay = exp(b_path)
    elif CHANNEL:
        b_gate = tl.maximum(b_gate, STRONGEST)
        b_paths = channel_paths(b_gate, p_ancestors, T, TREE)
        b_twice = tl.reshape(tl.broadcast_to(b_paths[None, :, :], [2, BT, K]), [BX, K // (4 * E), 4 * E])
        b_path = flat(b_twice)
        b_x_end = b_x * exp(b_path)
        b_pairs = channel_pairs(b_gate, b_paths, p_q, p_k, sq_t, sk_t, length, o_x, T, TREE)
        b_pairs = b_pairs * b_scale[:, None] * b_scale[None, :]
        # A query sees its own token's key as it is.
        b_scores = tl.where(b_seen, tl.where(o_t[:, None] == o_t[None, :], b_dots, b_pairs), 0.0)
    else:
        b_path, b_x_end = head_path(b_above, tl.maximum(b_gate * rate, STRONGEST), T), b_x
        b_between = exp(tl.where(b_seen, b_path[:, None] - b_path[None, :], float("-inf")))
        b_scores = b_dots * b_between
        b_decay = exp(b_path)
    return b_scores, b_path, b_x_end, b_decay
