"""Folding committed records into a state tile, as one window.

    S_h = S_0 e^{G_h} + Σ_j w_j u_j k_jᵀ,    U = β (V − S_0 K̂) (I + A)^-1    (delta rule),    u_j = x_j    (Mamba-2)

A tile goes through twice, C columns at a time, so that little of it is in registers at once: for what its records read
(EXACT), and for the sum, when caches have it. Records come newest first, so the delta rule's system, in which a record sees
the older ones, is upper triangular; its transpose is solved. For the delta rule this is the exact fold: u is computed from
the checkpoint, not taken from the ring. No operand is rounded below fp32 on its way into the state (split TF32).
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.matrix import LARGEST, load_tile, saturate
from replayssm.kernels.primitives import dot_exact, dot_stored, exp_exact, solve_unit_lower
from replayssm.kernels.ring import channel_decay, head_decay, history_rows, load_keys, load_units
from replayssm.kernels.tile import flat, load_rows


@triton.jit
def across_blocks(b_key, b_after, o_j, HALF: tl.constexpr):
    """Σ_k k_i k_j e^{after_i − after_j} `[J, J]` for records i and j in two neighbouring blocks of HALF, i the older.

    They meet at the boundary between the blocks, from which both exponents are at most 0; 0 for all other pairs.
    """
    J: tl.constexpr = b_after.shape[0]
    C: tl.constexpr = b_after.shape[1]
    b_pairs = tl.reshape(b_after, [J // (2 * HALF), 2 * HALF, C])
    b_boundary = tl.arange(0, 2 * HALF)[None, :, None] == HALF
    b_away = tl.reshape(b_pairs - tl.sum(tl.where(b_boundary, b_pairs, 0.0), axis=1)[:, None, :], [J, C])
    b_old = ((o_j // HALF) % 2 == 1)[:, None]
    b_met = b_key * tl.exp(-tl.abs(b_away))
    b_older, b_newer = tl.where(b_old, b_met, 0.0), tl.where(b_old, 0.0, b_met)
    b_same = (o_j // (2 * HALF))[:, None] == (o_j // (2 * HALF))[None, :]
    return tl.where(b_same, tl.dot(b_older, tl.trans(b_newer), input_precision="tf32x3"), 0.0)


@triton.jit
def channel_scores(p_keys, p_gates, b_live, o_j, K: tl.constexpr, J: tl.constexpr, E: tl.constexpr):
    """Σ_k k_i k_j e^{after_i − after_j} `[J, J]` for each record j and the older ones i, decay per channel.

    One pair of exponentials a record would overflow, so pairs go by the largest power of two that parts them. A loop over
    columns keeps registers few, and code short.
    """
    C: tl.constexpr = min(K, max(32, 4 * E))
    b_scores = tl.zeros([J, J], dtype=tl.float32)
    for i in range(K // C):
        b_key = flat(load_rows(p_keys + i * C, b_live, C, E))
        b_after, _ = channel_decay(p_gates + i * C, b_live, o_j, C, E)
        for level in tl.static_range((J - 1).bit_length()):
            b_scores += across_blocks(b_key, b_after, o_j, J >> (level + 1))
    return b_scores


@triton.jit
def load_window(
    p_key, p_key_scale, p_beta, p_gate, rate, origin, count, o_j,
    K: tl.constexpr, R: tl.constexpr, J: tl.constexpr, E: tl.constexpr, EK: tl.constexpr, DELTA: tl.constexpr,
    CHANNEL: tl.constexpr, EXACT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """What a head's tiles share in a fold.

    Returns:
        the records' weights `[J]` at the end of the history and the state's log decay; for EXACT their weights `[J]` as the
        checkpoint sees them, β `[J]` and the inverse `[J, J]` of the transposed system; by channel the keys `[J, K]` at
        the end, and as the checkpoint sees them.
    """
    b_unit = load_units(p_key_scale, p_gate, origin, count, o_j, R, DELTA)
    b_older = o_j[:, None] > o_j[None, :]
    b_weight, b_seen_weight, b_aged, b_seen, b_scores = b_unit, b_unit, b_unit, b_unit, b_unit
    if CHANNEL:
        b_key = load_keys(p_key, origin, count, o_j, K, R, E).to(tl.float32)
        o_row = history_rows(origin, count, o_j, R)
        b_after, whole = channel_decay(p_gate + o_row * K, o_j < count, o_j, K, E)
        b_aged = b_key * tl.exp(b_after)
        if EXACT:
            b_seen = b_key * tl.exp(whole - b_after)
            b_scores = channel_scores(p_key + o_row * K, p_gate + o_row * K, o_j < count, o_j, K, J, E)
    else:
        if EXACT:
            b_key = load_keys(p_key, origin, count, o_j, K, R, EK)
            b_pairs = dot_stored(b_key, tl.trans(b_key), DOT)
        b_after, whole = head_decay(p_gate, rate, origin, count, o_j, R)
        b_weight = b_unit * tl.exp(b_after)
        if EXACT:
            b_seen_weight = b_unit * tl.exp(whole - b_after)
            b_scores = b_pairs * tl.exp(tl.where(b_older, b_after[:, None] - b_after[None, :], float("-inf")))
    b_beta, b_inverse = b_weight, b_scores
    if EXACT:
        b_beta = tl.load(p_beta + history_rows(origin, count, o_j, R), mask=o_j < count, other=0.0)
        b_a = tl.where(b_older, b_scores * b_unit[:, None] * (b_unit * b_beta)[None, :], 0.0)
        b_inverse = solve_unit_lower(b_a, o_j, J)
    return b_weight, whole, b_seen_weight, b_beta, b_inverse, b_aged, b_seen


@triton.jit
def fold_values(
    p_state, p_scale, o_v, b_value, p_keys, b_live, b_seen_weight, b_beta, b_inverse, b_weight, b_seen,
    V: tl.constexpr, K: tl.constexpr, E: tl.constexpr, SCALED: tl.constexpr, CHANNEL: tl.constexpr, EXACT: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """w_j u_j `[BV, J]` of rows `o_v` of a stored state, from values `[BV, J]`.

    Values are those of the ring of raw values for EXACT, else of u (delta rule) or x (Mamba-2). p_keys: where the
    records' keys are, `[J]`. Its sums over k go by the same columns whatever else is stored, so that bits are the same.
    """
    C: tl.constexpr = K if CHANNEL else min(K, max(32, 4 * E))
    b_u = b_value
    if EXACT:
        b_read = tl.zeros_like(b_value)
        for i in tl.static_range(K // C):
            b_s = load_tile(p_state, p_scale, o_v, i * C, V, K, C, E, SCALED)
            b_keys = b_seen if CHANNEL else flat(load_rows(p_keys + i * C, b_live, C, E))
            b_read = dot_exact(b_s, tl.trans(b_keys), b_read, "tf32x3" if CHANNEL else DOT)
        b_right = b_beta[None, :] * (b_value - b_read * b_seen_weight[None, :])
        b_u = tl.dot(b_right, b_inverse, input_precision="tf32x3")
    return b_u * b_weight[None, :]


@triton.jit
def fold_columns(
    p_state, p_scale, o_v, column, b_values, p_keys, b_live, whole, b_aged,
    V: tl.constexpr, K: tl.constexpr, C: tl.constexpr, E: tl.constexpr, SCALED: tl.constexpr, CHANNEL: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """C columns from `column` on of rows `o_v`, at the end of the history: `[BV, C]`. b_values: of `fold_values`."""
    b_s = load_tile(p_state, p_scale, o_v, column, V, K, C, E, SCALED)
    # Keys that decay by channel are not exact in TF32, whatever the activations.
    b_keys = b_aged if CHANNEL else flat(load_rows(p_keys + column, b_live, C, E))
    return saturate(dot_exact(b_values, b_keys, b_s * exp_exact(whole), "tf32x3" if CHANNEL else DOT), LARGEST)
