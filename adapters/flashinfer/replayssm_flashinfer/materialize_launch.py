"""The launch behind `replayssm_materialize`: which folds are wanted, then all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from replayssm.kernels.arguments import OPTIONS
from replayssm_flashinfer.kernels.materialize import choose_kernel, materialize_kernel
from replayssm_flashinfer.mamba_checks import STATES
from replayssm_flashinfer.mamba_step import STOCHASTIC
from replayssm_flashinfer.quantised import ROWS, window_of

REQUESTS = 256
"""Entries of the active requests that a program of `choose_kernel` looks at."""


def launch_materialize(
    tables: Sequence[Tensor],
    src_slots: Tensor,
    dst_slots: Tensor,
    metadata: Sequence[Tensor],
    rand_seed: Tensor | None,
    dtypes: Sequence[torch.dtype],
    numbers: Sequence[int],
) -> None:
    """Fold prefixes of all layers' rings into other slots, without a look at the host.

    Args:
        tables: pointers and slot strides of states, x, B, Δ, pointers of A, pointers and slot strides of scales.
        src_slots, dst_slots: `[L, B]` int32.
        metadata: `ring_start`, `replay_prefix_len`, `active_request_indices`, `[B]` int32 each.
        dtypes: of state, x and B, A.
        numbers: P, N, H, H / G, window, ring rows, slot of padding, Philox rounds.
    """
    dim, dstate, num_heads, heads_per_group, max_window, ring_buffer_len, pad_slot_id, philox_rounds = numbers
    state_dtype, input_dtype, rate_dtype = dtypes
    ring_start = metadata[0]
    layers, batch = src_slots.shape
    device = src_slots.device
    rows = torch.empty(4, layers * batch, dtype=torch.int32, device=device)
    choose_kernel[(layers, triton.cdiv(batch, REQUESTS))](
        src_slots.contiguous(),
        dst_slots.contiguous(),
        *(x.contiguous() for x in metadata),
        *rows,
        batch,
        pad_slot_id,
        R=ring_buffer_len,
        # More records than the ring has rows are no prefix of it.
        WINDOW=min(max_window, ring_buffer_len),
        BR=REQUESTS,
        num_warps=1,
    )
    like = [
        torch.empty(1, dtype=dtype, device=device) for dtype in (state_dtype, input_dtype, torch.float32, rate_dtype)
    ]
    fmt = STATES[state_dtype]
    materialize_kernel[(triton.cdiv(dim, ROWS), num_heads, layers * batch)](
        *rows,
        rows[2],
        ring_start if rand_seed is None else rand_seed,
        *tables,
        *like,
        batch,
        **window_of(max_window, ring_buffer_len),
        H=num_heads,
        G=num_heads // heads_per_group,
        V=dim,
        K=dstate,
        BV=ROWS,
        # As `kernels.arguments.window_sizes` chooses it: the same sums in the same order as a step's fold.
        E=min(16 // state_dtype.itemsize, dstate // 4),
        FORMAT=fmt,
        SR=rand_seed is not None and philox_rounds > 0 and state_dtype in STOCHASTIC,
        DOT="tf32x3" if input_dtype.itemsize == 4 else "tf32",
        num_warps=1,
        **OPTIONS,
    )
