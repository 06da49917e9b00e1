"""Prefixes of FlashInfer's GDN rings written to other slots, with its signature, over our kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm_flashinfer.ops import ucache_fold_op
from replayssm_flashinfer.refusals import refuse
from replayssm_flashinfer.tensor_checks import check_device, check_tensors
from replayssm_flashinfer.ucache import WINDOW
from replayssm_flashinfer.ucache_checks import check_ucache


def gdn_prefix_materialize(
    state: Tensor,
    src_slots: Tensor,
    dst_slots: Tensor,
    k_cache: Tensor,
    u_cache: Tensor,
    g_cache: Tensor,
    cache_base: Tensor,
    count: Tensor,
    active_request_indices: Tensor | None = None,
    num_active: Tensor | None = None,
    *,
    min_blocks_per_mp: int = 8,
    v_cache: Tensor | None = None,
    beta_cache: Tensor | None = None,
    read_copy: Tensor | None = None,
    read_copy_block_scale: Tensor | None = None,
    read_copy_scale: Tensor | None = None,
) -> Tensor:
    """Write the states of `src_slots` after `count` records to `dst_slots`; source and rings are only read.

    Args:
        state, k_cache, u_cache, g_cache: as of `gated_delta_rule_mtp_ucache_flush`, and so are v_cache, beta_cache and the
            read copy, which a target gets with its state.
        src_slots, dst_slots, cache_base, count: `[B]` int32. A request with a slot below 0, or a count below 0 or above
            16, is left out; 0 copies the state, also into its own slot, which makes a loaded state's read copy.
        active_request_indices: `[B]` int32, the requests that are meant, −1 elsewhere; all where None.
        num_active: `[1]` int32, how many of those entries count, without them how many of the requests with a count of 0 and
            more; all where None.
        min_blocks_per_mp: FlashInfer's tuning; without effect.

    Returns:
        state.

    Raises:
        RefusedError: an argument out of contract; nothing was written.
    """
    requests = (("src_slots", src_slots), ("dst_slots", dst_slots), ("cache_base", cache_base), ("count", count))
    check_tensors((("state", state), *requests))
    check_tensors((("active_request_indices", active_request_indices), ("num_active", num_active)), optional=True)
    copy = (read_copy, read_copy_block_scale, read_copy_scale)
    memory = check_ucache(None, state, k_cache, u_cache, g_cache, (v_cache, beta_cache), copy)
    if memory.rows < WINDOW:
        refuse(f"rings of {memory.rows} rows; expected at least {WINDOW}")
    batch = len(src_slots) if src_slots.dim() == 1 else -1
    if batch < 0:
        refuse(f"src_slots is {tuple(src_slots.shape)}; expected [B] int32")
    for name, tensor in requests:
        if not (tensor.dtype == torch.int32 and tuple(tensor.shape) == (batch,)):
            refuse(f"{name} is {tuple(tensor.shape)} {tensor.dtype}; expected ({batch},) int32")
        check_device(state.device, [(name, tensor)])
    check_device(state.device, [("active_request_indices", active_request_indices), ("num_active", num_active)])
    if num_active is not None and not (num_active.dtype == torch.int32 and num_active.numel() == 1):
        refuse(f"num_active is {tuple(num_active.shape)} {num_active.dtype}; expected one int32")
    wanted = (count >= 0) & (count <= WINDOW) & (src_slots >= 0) & (dst_slots >= 0)
    if active_request_indices is None:
        if num_active is not None:
            wanted = wanted & ((count >= 0).cumsum(0) <= num_active)
    else:
        if not (active_request_indices.dtype == torch.int32 and tuple(active_request_indices.shape) == (batch,)):
            refuse(f"active_request_indices must be ({batch},) int32")
        wanted = wanted & _active(active_request_indices, num_active)
    source, target = (torch.where(wanted, x, -1) for x in (src_slots, dst_slots))
    origin, wanted_count = cache_base % memory.rows, torch.where(wanted, count, 0)
    ucache_fold_op(state, k_cache, u_cache, g_cache, source, target, origin, wanted_count, v_cache, beta_cache, *copy)
    return state


def _active(indices: Tensor, number: Tensor | None) -> Tensor:
    """`[B]` bool, whether each request is listed among the first `number`."""
    batch, place = len(indices), torch.arange(len(indices), device=indices.device)
    listed = (indices >= 0) & (indices < batch)
    if number is not None:
        listed = listed & (place < number)
    return ((indices[None, :] == place[:, None]) & listed[None, :]).any(1)
