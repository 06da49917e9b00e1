"""The launch behind `replayssm_materialize`: which folds are wanted, then all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from replayssm.kernels import arguments
from replayssm.kernels.arguments import OPTIONS, row_slices
from replayssm_flashinfer import quantised
from replayssm_flashinfer.kernels.materialize import choose_kernel, materialize_kernel
from replayssm_flashinfer.mamba_checks import STATES
from replayssm_flashinfer.mamba_step import STOCHASTIC

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
    layers, batch = src_slots.shape
    rows = _choose(src_slots, dst_slots, metadata, numbers)
    dense = [table.contiguous() for table in tables]
    # All layers in one launch, but for a grid that would be too large.
    some = max(1, arguments.GRID_ROWS // batch)
    for first in range(0, layers, some):
        of = slice(first, first + some)
        for requests in row_slices(batch):
            _fold([table[of] for table in dense], rows[:, of, requests], metadata[0], rand_seed, dtypes, numbers)


def _choose(src_slots: Tensor, dst_slots: Tensor, metadata: Sequence[Tensor], numbers: Sequence[int]) -> Tensor:
    """Source, target, start and count of each wanted fold, `[4, L, B]` int32; the slot −1 elsewhere."""
    window, ring_rows, pad = numbers[4:7]
    layers, batch = src_slots.shape
    rows = torch.empty(4, layers, batch, dtype=torch.int32, device=src_slots.device)
    choose_kernel[(layers, triton.cdiv(batch, REQUESTS))](
        src_slots.contiguous(),
        dst_slots.contiguous(),
        *(x.contiguous() for x in metadata),
        *rows,
        batch,
        pad,
        R=ring_rows,
        # More records than the ring has rows are no prefix of it.
        WINDOW=min(window, ring_rows),
        BR=REQUESTS,
        num_warps=1,
    )
    return rows


def _fold(
    tables: Sequence[Tensor],
    rows: Tensor,
    ring_start: Tensor,
    rand_seed: Tensor | None,
    dtypes: Sequence[torch.dtype],
    numbers: Sequence[int],
) -> None:
    """One launch; rows `[4, layers, B]` as of `_choose`."""
    dim, dstate, heads, heads_per_group, window, ring_rows, _, philox_rounds = numbers
    state_dtype, input_dtype, rate_dtype = dtypes
    layers, batch = rows.shape[1:]
    kinds = (state_dtype, input_dtype, torch.float32, rate_dtype)
    materialize_kernel[(triton.cdiv(dim, quantised.ROWS), heads, layers * batch)](
        *rows,
        rows[2],
        ring_start if rand_seed is None else rand_seed,
        *tables,
        *(torch.empty(1, dtype=dtype, device=rows.device) for dtype in kinds),
        batch,
        **quantised.window_of(window, ring_rows),
        H=heads,
        G=heads // heads_per_group,
        V=dim,
        K=dstate,
        BV=quantised.ROWS,
        # As `kernels.arguments.window_sizes` chooses it: the same sums in the same order as a step's fold.
        E=min(16 // state_dtype.itemsize, dstate // 4),
        FORMAT=STATES[state_dtype],
        SR=rand_seed is not None and philox_rounds > 0 and state_dtype in STOCHASTIC,
        DOT="tf32x3" if input_dtype.itemsize == 4 else "tf32",
        num_warps=1,
        **OPTIONS,
    )
