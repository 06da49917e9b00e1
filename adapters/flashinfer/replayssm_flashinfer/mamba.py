"""`checkpointing_ssu` and its scratch, with FlashInfer's signatures and tensor contracts, over our kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm_flashinfer.copy_checks import check_copy_tensors
from replayssm_flashinfer.mamba_checks import (
    LONGEST,
    check_memory,
    check_rows,
    check_scratch,
    check_seed,
    check_split,
    check_tokens,
    check_window,
)
from replayssm_flashinfer.number_checks import check_whole
from replayssm_flashinfer.ops import checkpointing_ssu_op
from replayssm_flashinfer.refusals import refuse


def allocate_checkpointing_ssu_scratch(
    batch_size: int,
    num_heads: int,
    num_predicted_tokens: int,
    max_window: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scratch that FlashInfer's two-kernel path needs; ours takes it and leaves it alone.

    Returns:
        cb_scaled `[B, H, 32, 8]`, cumAdt_vec `[B, H, 16]` fp32, cb_old `[B, H, 32, ⌈W / 8⌉ · 4]`.

    Raises:
        RefusedError: a number out of range.
    """
    check_whole(1, batch_size=batch_size, num_heads=num_heads)
    longest = {"num_predicted_tokens": num_predicted_tokens, "max_window": max_window}
    check_whole(**longest)
    for name, given in longest.items():
        if not 0 < given <= LONGEST:
            refuse(f"{name}={given} must be in [1, {LONGEST}]")
    cb_scaled, cum_adt, cb_old = scratch_shapes(batch_size, num_heads, num_predicted_tokens, max_window).values()
    return (
        torch.empty(cb_scaled, dtype=dtype, device=device),
        torch.empty(cum_adt, dtype=torch.float32, device=device),
        torch.empty(cb_old, dtype=dtype, device=device),
    )


def scratch_shapes(batch: int, heads: int, draft: int, window: int) -> dict[str, tuple[int, ...]]:
    """Shapes of FlashInfer's scratch: tokens in blocks of 16, records in blocks of 8, two fragments of 32 lanes."""
    tokens, records = -(-draft // 16) * 16, -(-window // 8) * 8
    return {
        "cb_scaled": (batch, heads, 32, tokens // 2),
        "cumAdt_vec": (batch, heads, tokens),
        "cb_old": (batch, heads, 32, records // 2),
    }


def checkpointing_ssu(
    state: Tensor,
    x_cache: Tensor,
    B_cache: Tensor,
    dt_cache: Tensor,
    ring_start: Tensor,
    prev_num_accepted_tokens: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    out: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    pad_slot_id: int = -1,
    state_scale: Tensor | None = None,
    rand_seed: Tensor | None = None,
    philox_rounds: int = 10,
    d_split: int | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    enable_pdl: bool = False,
    cb_scaled: Tensor | None = None,
    cumAdt_vec: Tensor | None = None,
    cb_old: Tensor | None = None,
    precompute_heads_per_cta: int = 0,
    algorithm: str = "auto",
    *,
    long_window: bool = False,
    read_copy: Tensor | None = None,
    read_copy_block_scale: Tensor | None = None,
    read_copy_scale: Tensor | None = None,
) -> Tensor:
    """A Mamba-2 step on a checkpoint and a ring of inputs: T new tokens a row, a fold where the ring is full.

    The T new tokens go to ring rows `(ring_start + prev_num_accepted_tokens + i) % L`. A row with
    `prev_num_accepted_tokens + T > L − T` folds its `prev_num_accepted_tokens` records into `state`, never the new ones.
    Cursors are only read; after acceptance the caller moves them: folded, `ring_start += prev_num_accepted_tokens`
    (modulo L) and `prev_num_accepted_tokens = accepted`; else `prev_num_accepted_tokens += accepted`.

    Args:
        state: `[S, H, P, N]` fp32, bf16, fp16, int8 or fp8 e4m3; slot stride free. P any, N 16 to 256.
        x_cache: `[S, H, L, P]`. B_cache: `[S, G, L, N]`, both in the dtype of x: bf16, fp16 or fp32.
        dt_cache: `[S, H, L]` fp32, Δ after bias and softplus.
        ring_start: `[S]` int32, any stride. prev_num_accepted_tokens: `[S]` int32, any stride.
        x, out, z: `[B, T, H, P]`, or `[1, tokens, H, P]` with `cu_seqlens`.
        dt: as x, stride 0 in its last dimension. A: `[H, P, N]`, strides (1, 0, 0). D, dt_bias: `[H, P]`.
        B, C: `[B, T, G, N]`.
        dt_softplus: Δ = softplus(dt + dt_bias).
        state_batch_indices: `[B]` slots; rows of `pad_slot_id`, of a slot out of range, and the later of two rows with
            tokens of one slot are padding: they change nothing, and their outputs are zeros.
        state_scale: `[S, H, P]` fp32, for int8 and fp8.
        rand_seed: one int64 on the device; rounds fp16, int8 and fp8 states stochastically, by Philox with 10 rounds.
        cu_seqlens: `[B + 1]` int32, where rows start in a packed batch. max_seqlen: its T; of a longer row the first T
            tokens are served, and the outputs of the others are left as they are.
        long_window: allow W = L − T above 16.
        read_copy, read_copy_block_scale, read_copy_scale: a low-precision copy of the state that steps without a fold read
            in its place, and folds rewrite; fp8 `[S, H, P, N]` with scales `[S, H, P]`, or NVFP4 `[S, H, P, N / 2]` uint8
            with block scales `[S, H, P, N / 16]` e4m3 and scales `[S, H, ⌈P / 16⌉]`.
        philox_rounds, d_split, enable_pdl, cb_scaled, cumAdt_vec, cb_old, precompute_heads_per_cta, algorithm: FlashInfer's
            tuning. Checked as it does, and without effect.

    Returns:
        out.

    Raises:
        RefusedError: an argument out of contract; nothing was written.
    """
    check_memory(state, x_cache, B_cache, dt_cache, ring_start, prev_num_accepted_tokens, state_scale)
    batch, draft = check_rows(state, state_batch_indices, cu_seqlens, x, max_seqlen)
    window = check_window(x_cache.shape[2], draft, long_window=long_window)
    tokens = {"x": x, "out": out, "z": z, "dt": dt, "B": B, "C": C, "A": A, "D": D, "dt_bias": dt_bias}
    check_tokens(state, x_cache, B_cache.shape[1], tokens, *x.shape[:2])
    check_seed(rand_seed, philox_rounds, state.device)
    check_split(state.dtype, d_split)
    check_whole(pad_slot_id=pad_slot_id)
    check_copy_tensors((read_copy, read_copy_block_scale, read_copy_scale), state.device)
    scratch = {"cb_scaled": cb_scaled, "cumAdt_vec": cumAdt_vec, "cb_old": cb_old}
    check_scratch(scratch, algorithm, scratch_shapes(batch, state.shape[1], draft, window), state.device)
    checkpointing_ssu_op(
        state, x_cache, B_cache, dt_cache, ring_start, prev_num_accepted_tokens, x, dt, A, B, C, out, D, z, dt_bias,
        dt_softplus, state_batch_indices, pad_slot_id, state_scale, rand_seed, cu_seqlens, draft, read_copy,
        read_copy_block_scale, read_copy_scale,
    )  # fmt: skip
    return out
