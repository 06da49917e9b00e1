"""Tokens of packed batches to rows, and outputs of rows to tokens: copies, and no arithmetic."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def move_token(p_source, p_target, N: tl.constexpr, BLOCK: tl.constexpr):
    """N neighbouring numbers."""
    for start in tl.static_range(0, N, BLOCK):
        o = start + tl.arange(0, BLOCK)
        tl.store(p_target + o, tl.load(p_source + o, mask=o < N), mask=o < N)


@triton.jit
def token_of_row(p_packed, tokens, T: tl.constexpr):
    """Of program (row, token): whether the row has the token, and where it is in the packed batch."""
    i_row, i_token = tl.program_id(0), tl.program_id(1)
    first = tl.load(p_packed + i_row)
    token = first + i_token
    there = (token < tl.load(p_packed + i_row + 1)) & (first >= 0) & (token < tokens)
    return there, token.to(tl.int64), (i_row * T + i_token).to(tl.int64)


@triton.jit(do_not_specialize=["tokens"])
def spread_kernel(
    p_packed, v, gate, k, q, z, v_rows, gate_rows, k_rows, q_rows, z_rows, s_v, s_gate, s_k, s_q, s_z, tokens,
    T: tl.constexpr, N: tl.constexpr, H: tl.constexpr, M: tl.constexpr, HAS_Z: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Tokens of a packed batch to rows; what a row lacks stays as it is. Grid: (rows, T)."""
    there, token, row = token_of_row(p_packed, tokens, T)
    if there:
        move_token(v + token * s_v, v_rows + row * N, N, BLOCK)
        move_token(gate + token * s_gate, gate_rows + row * H, H, BLOCK)
        move_token(k + token * s_k, k_rows + row * M, M, BLOCK)
        move_token(q + token * s_q, q_rows + row * M, M, BLOCK)
        if HAS_Z:
            move_token(z + token * s_z, z_rows + row * N, N, BLOCK)


@triton.jit(do_not_specialize=["tokens"])
def gather_kernel(p_packed, rows, out, s_out, tokens, T: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    """Outputs of rows back to their tokens. Grid: (rows, T)."""
    there, token, row = token_of_row(p_packed, tokens, T)
    if there:
        move_token(rows + row * N, out + token * s_out, N, BLOCK)
