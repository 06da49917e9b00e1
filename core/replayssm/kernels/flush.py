"""States from one place to another, with a slot's records folded on the way: everything that writes a state outside a step.

A flush reads a slot's checkpoint, folds its records and writes the same slot; materialise writes another one. `state` writes
to a tensor of its own and `load` reads from one, without records.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.copies import head_pointers, store_state
from replayssm.kernels.fold import fold_columns, fold_values, load_window
from replayssm.kernels.matrix import bounded, load_tile, tile_values
from replayssm.kernels.records import fold_records, store_records
from replayssm.kernels.ring import history_rows, load_values
from replayssm.kernels.tile import load_stored, tile_rows


@triton.jit(do_not_specialize=["slots"])
def fold_kernel(
    p_source, p_target, p_origin, p_count, p_flushes, p_seed, A,
    source_state, source_scale, target_state, target_scale, target_copy, target_block_scale, target_copy_scale,
    key_ring, key_scale_ring, value_ring, raw_value_ring, beta_ring, gate_ring,
    s_source, s_source_scale, s_target, s_target_scale, s_copy, s_copy_block_scale, s_copy_scale,
    s_key, s_key_scale, s_value, s_raw, s_beta, s_gate,
    slots,
    H: tl.constexpr, G: tl.constexpr, V: tl.constexpr, K: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr, EK: tl.constexpr, FROM_ROWS: tl.constexpr, TO_ROWS: tl.constexpr,
    SOURCE_FORMAT: tl.constexpr, FORMAT: tl.constexpr, SR: tl.constexpr, COPY: tl.constexpr,
    DELTA: tl.constexpr, CHANNEL: tl.constexpr, EXACT: tl.constexpr, ALIGN: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Fold `count` records of each source and write the target, with its read copy. Grid: (⌈V / BV⌉, H, rows).

    FROM_ROWS, TO_ROWS: source (without records), or target, is a tensor by row of the batch in place of a slot's
    checkpoint. A row whose slot is out of range is left out.
    """
    i_tile, i_head, i_row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    source, target = i_row.to(tl.int64), i_row.to(tl.int64)
    if not FROM_ROWS:
        source = tl.load(p_source + i_row).to(tl.int64)
        if (source < 0) | (source >= slots):
            return
    if not TO_ROWS:
        target = tl.load(p_target + i_row).to(tl.int64)
        if (target < 0) | (target >= slots):
            return
    first = i_tile * BV
    o_v = first + tile_rows(BV)
    p_from = source_state + source * s_source + i_head * V * K
    p_from_scale, p_from_block = source_scale + source * s_source_scale + i_head * V, target_block_scale
    if SOURCE_FORMAT == "nvfp4":
        p_from, p_from_block, p_from_scale = head_pointers(
            target_copy, target_block_scale, target_copy_scale, source, s_copy, s_copy_block_scale, s_copy_scale,
            i_head, V, K, SOURCE_FORMAT,
        )  # fmt: skip
    p_to = target_state + target * s_target + i_head * V * K
    p_to_scale = target_scale + target * s_target_scale + i_head * V
    p_copy, p_block_scale, p_copy_scale = head_pointers(
        target_copy, target_block_scale, target_copy_scale, target, s_copy, s_copy_block_scale, s_copy_scale, i_head, V, K,
        COPY,
    )  # fmt: skip
    flushes, seed, count = tl.load(p_flushes + i_row), tl.load(p_seed), 0
    if not FROM_ROWS:
        count = tl.load(p_count + i_row)
    SCALED: tl.constexpr = SOURCE_FORMAT == "fp8"
    if count == 0:
        for i in tl.static_range(K // C):
            b_stored = load_tile(p_from, p_from_block, p_from_scale, o_v, i * C, V, K, C, E, SOURCE_FORMAT)
            b_s = bounded(tile_values(b_stored, p_from_scale, o_v, V, SCALED))
            store_state(
                b_s, p_to, p_to_scale, p_copy, p_block_scale, p_copy_scale, seed, target, flushes, i_head, o_v, i * C,
                V, K, E, FORMAT, SR, COPY,
            )  # fmt: skip
    else:
        i_group = i_head // (H // G)
        p_value = value_ring + source * s_value + i_head * R * V
        if EXACT:
            p_value = raw_value_ring + source * s_raw + i_head * R * V
        p_key, p_unit = key_ring + source * s_key + i_group * R * K, key_scale_ring + source * s_key_scale + i_group * R
        p_beta = beta_ring + source * s_beta + i_head * R
        p_gate = gate_ring + source * s_gate + i_head * R * (K if CHANNEL else 1)
        origin, o_j = tl.load(p_origin + i_row), tl.arange(0, J)
        o_hist, b_live = history_rows(origin, count, o_j, R), o_j < count
        if CHANNEL:
            b_records = fold_records(
                p_from, p_from_block, p_from_scale, o_v, p_value, p_key, p_unit, p_beta, p_gate, origin, count,
                V, K, R, SOURCE_FORMAT, EXACT, ALIGN,
            )  # fmt: skip
            store_records(
                b_records, p_to, p_to_scale, p_copy, p_block_scale, p_copy_scale, seed, target, flushes, i_head, o_v,
                V, K, E, FORMAT, SR, COPY, ALIGN,
            )  # fmt: skip
        else:
            rate = 1.0
            if not DELTA:
                rate = tl.load(A + i_head).to(tl.float32)
            b_weight, whole, b_seen_weight, b_beta, b_inverse = load_window(
                p_key, p_unit, p_beta, p_gate, rate, origin, count, o_j, K, R, EK, DELTA, EXACT, DOT
            )
            p_keys = p_key + o_hist * K
            b_value = load_values(p_value, origin, count, first, V, V, R, J, BV)
            b_u = fold_values(
                p_from, p_from_block, p_from_scale, o_v, b_value, p_keys, b_live, b_seen_weight, b_beta, b_inverse, b_weight,
                V, K, E, SOURCE_FORMAT, EXACT, DOT,
            )  # fmt: skip
            for i in tl.static_range(K // C):
                b_stored = load_tile(p_from, p_from_block, p_from_scale, o_v, i * C, V, K, C, E, SOURCE_FORMAT)
                b_keys = load_stored(p_keys + i * C, b_live, C, E)
                b_s = fold_columns(tile_values(b_stored, p_from_scale, o_v, V, SCALED), b_u, b_keys, whole, DOT)
                store_state(
                    b_s, p_to, p_to_scale, p_copy, p_block_scale, p_copy_scale, seed, target, flushes, i_head, o_v, i * C,
                    V, K, E, FORMAT, SR, COPY,
                )  # fmt: skip
