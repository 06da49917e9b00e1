"""From what rows of a step read of state and history to outputs and new records."""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.matrix import saturate
from replayssm.kernels.primitives import sigmoid
from replayssm.kernels.ring import wrap
from replayssm.kernels.tile import from_tile, load_value, tile_rows, to_tile, value_columns, value_rows


@triton.jit
def load_new(
    p_v, sv_t, first, end, length, T: tl.constexpr, BT: tl.constexpr, X: tl.constexpr, BV: tl.constexpr
):  # fmt: skip
    """Values of the step `[BV, X]` as stored, each in the columns of its token; rows of V from `first` to `end`."""
    if T == 1:
        b_stored = load_value(p_v, first, tl.where(length > 0, end, 0), BV, X)
    else:
        o_v, o_column = first + value_rows(BV), value_columns(X)
        # Whatever is in the place of tokens past a row's length.
        m_v = (o_v < end) & (o_column % BT < length) & (o_column < 2 * BT)
        b_stored = to_tile(tl.load(p_v + o_column % BT * sv_t + o_v, mask=m_v, other=0.0))
    return b_stored


@triton.jit
def draft_reach(b_scores, b_step, X: tl.constexpr):
    """What each value of a draft adds to each row, without a delta rule: `[X, BX]`, with rows of zeros from BX on."""
    BX: tl.constexpr = b_scores.shape[0]
    b_reach = tl.trans(b_scores * b_step[None, :])
    if X > BX:
        # Not joined: Triton 3.6 joins wrongly what a product has left twice in a thread.
        b_first = (tl.arange(0, X // BX) == 0)[:, None, None]
        b_reach = tl.reshape(tl.where(b_first, b_reach[None, :, :], 0.0), [X, BX])
    return b_reach


@triton.jit
def finish_tile(
    b_read, b_stored, b_scores, b_inner, b_step, p_z, p_skip, p_out, p_value, p_raw, sz_t, s_skip, first, new, length, o_x,
    H: tl.constexpr, V: tl.constexpr, R: tl.constexpr, T: tl.constexpr, BT: tl.constexpr,
    DELTA: tl.constexpr, SKIP: tl.constexpr, HAS_Z: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Rows `first` on of V: outputs from what was read, `[BV, BX]`; appends values from ring row `new` on.

    U = β (V − R) (I + A)^-T for keys, O = R + U Wᵀ for queries. b_stored: of `load_new`; b_scores is W; b_inner: the
    inverse, or `draft_reach`.
    """
    BV: tl.constexpr = b_read.shape[0]
    BX: tl.constexpr = b_read.shape[1]
    X: tl.constexpr = b_stored.shape[1]
    b_v = b_stored.to(tl.float32)
    b_u, b_own = b_v, b_v
    if not DELTA and T > 1:
        b_read = tl.dot(b_v, b_inner, b_read, input_precision=DOT)
        if SKIP and X > BX:
            b_is_own = tl.where(tl.arange(0, X)[:, None] + BT == o_x[None, :], 1.0, 0.0)
            b_own = tl.dot(b_v, b_is_own, input_precision=DOT)
    elif not DELTA:
        # One value, in all columns.
        b_read += b_v * tl.sum(tl.where((o_x == 0)[None, :], b_scores * b_step[None, :], 0.0), axis=1)[None, :]
    elif BX >= 16:
        b_u = tl.dot((b_v - b_read) * b_step[None, :], tl.trans(b_inner), input_precision=DOT)
        b_read = tl.dot(b_u, tl.trans(b_scores), b_read, input_precision=DOT)
    else:
        # Too few rows for tensor cores: a token's u needs what its key reads, and adds to what later rows read.
        for t in tl.static_range(T):
            b_is = (o_x == t)[None, :]
            b_u = tl.where(b_is, (b_v - b_read) * b_step[None, :], b_u)
            b_one = tl.sum(tl.where(b_is, b_u, 0.0), axis=1)
            b_read += b_one[:, None] * tl.sum(tl.where(b_is, b_scores, 0.0), axis=1)[None, :]
    if SKIP:
        o_row = first + tile_rows(BV)
        b_read += tl.load(p_skip + o_row * s_skip, mask=o_row < V, other=0.0).to(tl.float32)[:, None] * b_own
    o_v, o_column = first + value_rows(BV), value_columns(X)
    o_t = o_column % BT
    m_new = (o_column < BT) & (o_t < length) & (o_v < V)
    p_new = wrap(new + o_t, R) * V + o_v
    b_record = b_stored
    if DELTA:
        # Beyond fp16 it would be infinite, and all that reads it.
        b_record = saturate(b_u, 65504.0) if p_value.dtype.element_ty == tl.float16 else b_u
    tl.store(p_value + p_new, from_tile(b_record.to(p_value.dtype.element_ty)), mask=m_new)
    if DELTA:
        tl.store(p_raw + p_new, from_tile(b_stored), mask=m_new)
    o_column = value_columns(BX)
    o_t = o_column % BT
    m_out = (o_column >= BT) & (o_t < T) & (o_v < V)
    if HAS_Z:
        b_z = to_tile(tl.load(p_z + o_t * sz_t + o_v, mask=m_out, other=0.0)).to(tl.float32)
        b_read = b_read * b_z * sigmoid(b_z)
    # Tokens past a row's length come out as zeros.
    b_out = tl.where(o_t < length, from_tile(b_read), 0.0)
    tl.store(p_out + o_t * H * V + o_v, b_out.to(p_out.dtype.element_ty), mask=m_out)


@triton.jit
def store_zeros(p_out, count, H: tl.constexpr, V: tl.constexpr, T: tl.constexpr, ROWS: tl.constexpr):
    """Outputs of a row of padding: `count` numbers of each token from `p_out` on, at most ROWS."""
    o_v = tl.arange(0, 1 << (ROWS - 1).bit_length())
    for t in tl.static_range(T):
        tl.store(p_out + t * H * V + o_v, tl.zeros(o_v.shape, dtype=p_out.dtype.element_ty), mask=o_v < count)
