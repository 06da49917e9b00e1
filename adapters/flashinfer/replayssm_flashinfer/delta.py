"""Gated DeltaNet and KDA in the style of `checkpointing_ssu`, which FlashInfer lacks: standard decode and drafts, any GPU.

Rings are the core's own, with raw values and β beside the corrections, so that a fold solves for the corrections again from
the checkpoint it folds into. `allocate_delta_rings` makes them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm import LayerKind
from replayssm_flashinfer.copy_checks import check_copy_tensors
from replayssm_flashinfer.delta_checks import check_rings, check_state, check_step
from replayssm_flashinfer.delta_step import RINGS, DeltaMemory, delta_layout
from replayssm_flashinfer.mamba_checks import check_pool, check_seed
from replayssm_flashinfer.number_checks import check_lower_bound, check_scale, check_whole
from replayssm_flashinfer.ops import delta_replay_op
from replayssm_flashinfer.tensor_checks import check_tensors


def allocate_delta_rings(
    state: Tensor, key_heads: int, ring_buffer_len: int, dtype: torch.dtype, *, channel_decay: bool = False
) -> dict[str, Tensor]:
    """Rings for a state pool, by argument name; with the cursors `ring_start` and `prev_num_accepted_tokens`.

    Args:
        state: `[S, HV, V, K]`.
        key_heads: H. ring_buffer_len: L = W + T. dtype: of activations.
        channel_decay: KDA's gates, one a channel.

    Raises:
        RefusedError: L below 2, or no such state. InputError: dimensions that no layer has.
    """
    check_pool("state", state, "S, HV, V, K")
    check_whole(1, key_heads=key_heads)
    # A record and a new token.
    check_whole(2, ring_buffer_len=ring_buffer_len)
    kind = LayerKind.KDA if channel_decay else LayerKind.GDN
    layout = delta_layout(kind, tuple(state.shape), key_heads, ring_buffer_len, 1, ("fp32", False, None), dtype)
    specs = {spec.name: spec for spec in layout.buffers}
    rings = {
        name: torch.zeros(len(state), *specs[buffer].shape, dtype=specs[buffer].dtype, device=state.device)
        for name, buffer in RINGS.items()
    }
    for name in ("ring_start", "prev_num_accepted_tokens"):
        rings[name] = torch.zeros(len(state), dtype=torch.int32, device=state.device)
    return rings


def gated_delta_rule_replay(
    state: Tensor,
    k_cache: Tensor,
    k_scale_cache: Tensor,
    u_cache: Tensor,
    v_cache: Tensor,
    beta_cache: Tensor,
    g_cache: Tensor,
    ring_start: Tensor,
    prev_num_accepted_tokens: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    scale: float | None = None,
    state_batch_indices: Tensor | None = None,
    pad_slot_id: int = -1,
    state_scale: Tensor | None = None,
    rand_seed: Tensor | None = None,
    philox_rounds: int = 10,
    *,
    read_copy: Tensor | None = None,
    read_copy_block_scale: Tensor | None = None,
    read_copy_scale: Tensor | None = None,
) -> Tensor:
    """A GDN or KDA step on a checkpoint and rings of inputs; cursors, folds and padding as in `checkpointing_ssu`.

    Args:
        state: `[S, HV, V, K]` fp32, bf16, fp16 or fp8 e4m3; K 16 to 256.
        k_cache … g_cache: rings of L rows as of `allocate_delta_rings`; W = L − T. `g_cache [S, HV, L, K]` makes it KDA.
        ring_start, prev_num_accepted_tokens: `[S]` int32, any stride.
        q, k: `[B, T, H, K]`. v, out: `[B, T, HV, V]`.
        a: logits of the decay `[B, T, HV]`, KDA `[B, T, HV, K]`. b: logits of β `[B, T, HV]`. Without `A_log` the log decay
            and β themselves.
        A_log: `[HV]`. dt_bias: `[HV]`, KDA `[HV, K]`. lower_bound: Kimi's bounded gate, below 0.
        scale: on q; K ** −0.5 where None.
        state_scale: `[S, HV, V]` fp32, for fp8.
        rand_seed: one int64 on the device; rounds fp16 and fp8 states stochastically. philox_rounds: without effect.
        read_copy, read_copy_block_scale, read_copy_scale: as of `checkpointing_ssu`.

    Returns:
        out.

    Raises:
        RefusedError: an argument out of contract; nothing was written.
    """
    check_tensors([("v", v), ("out", out)])
    check_scale(scale)
    check_state(state, state_scale)
    copy = (read_copy, read_copy_block_scale, read_copy_scale)
    check_copy_tensors(copy, state.device)
    memory = DeltaMemory(state, k_cache, k_scale_cache, u_cache, v_cache, beta_cache, g_cache, state_scale, copy)
    check_rings(memory, (ring_start, prev_num_accepted_tokens), v.dtype)
    check_step(memory, (q, k, v, a, b), out, A_log, dt_bias, state_batch_indices)
    check_lower_bound(lower_bound, raw=A_log is not None)
    check_seed(rand_seed, philox_rounds, state.device)
    check_whole(pad_slot_id=pad_slot_id)
    delta_replay_op(
        state, k_cache, k_scale_cache, u_cache, v_cache, beta_cache, g_cache, ring_start, prev_num_accepted_tokens,
        q, k, v, a, b, out, A_log, dt_bias, lower_bound, use_qk_l2norm_in_kernel,
        k.shape[-1] ** -0.5 if scale is None else scale, state_batch_indices, pad_slot_id, state_scale, rand_seed,
        read_copy, read_copy_block_scale, read_copy_scale,
    )  # fmt: skip
    return out


kda_replay = gated_delta_rule_replay
"""The same function: rings whose gates have channels make it KDA."""
