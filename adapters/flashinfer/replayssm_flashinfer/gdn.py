"""FlashInfer's Gated DeltaNet functions on rings of corrections, with its signatures, over our kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from replayssm.inputs import TokenInputs
from replayssm_flashinfer.gdn_checks import check_cursors, check_flags, check_output, check_tokens
from replayssm_flashinfer.gdn_prefix import gdn_prefix_materialize
from replayssm_flashinfer.mamba_checks import check_seed
from replayssm_flashinfer.number_checks import check_scale, check_whole
from replayssm_flashinfer.ops import ucache_step_op
from replayssm_flashinfer.plan import RingCursors
from replayssm_flashinfer.refusals import refuse
from replayssm_flashinfer.tensor_checks import check_slots, check_tensors, required
from replayssm_flashinfer.ucache import WINDOW, UCache
from replayssm_flashinfer.ucache_checks import check_ucache

__all__ = ["gated_delta_rule_mtp_ucache", "gated_delta_rule_mtp_ucache_flush", "gdn_prefix_materialize"]


def gated_delta_rule_mtp_ucache_flush(
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
    b: Tensor | None = None,
    initial_state_source: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    output_state_indices: Tensor | None = None,
    intermediate_states_buffer: Tensor | None = None,
    accepted_steps: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    disable_state_update: bool = False,
    use_qk_l2norm_in_kernel: bool = True,
    scale: float | None = None,
    output: Tensor | None = None,
    disable_output: bool = False,
    recovery_steps: int = 0,
    k_cache: Tensor | None = None,
    u_cache: Tensor | None = None,
    g_cache: Tensor | None = None,
    hist_len: Tensor | None = None,
    cache_base: Tensor | None = None,
    flush_min: int | None = None,
    restart_hist_on_flush: bool = True,
    pdl_trigger: bool = False,
    backend: str = "auto",
    stochastic_rounding: str | None = None,
    rand_seed: Tensor | None = None,
    philox_rounds: int = 10,
    *,
    v_cache: Tensor | None = None,
    beta_cache: Tensor | None = None,
    read_copy: Tensor | None = None,
    read_copy_block_scale: Tensor | None = None,
    read_copy_scale: Tensor | None = None,
) -> Tensor:
    """A GDN step on a checkpoint and a ring of corrections: T new tokens a row, a fold where `hist_len ≥ flush_min`.

    New records go to ring rows `(cache_base + hist_len + t) % R`. After acceptance the caller moves the cursors: folded,
    `cache_base += hist_len` (modulo R) and `hist_len = accepted`; else `hist_len += accepted`.

    Args:
        A_log: `[HV]`. a, b: `[B, T, HV]` logits of decay and β. dt_bias: `[HV]`.
        q, k: `[B, T, H, K]`. v: `[B, T, HV, V]`; bf16, fp16 or fp32; K 16 to 256, T 1 to 16.
        initial_state_source: `[S, HV, V, K]` fp32, bf16 or fp16; slot stride free, as of all rings.
        initial_state_indices: `[B]` slots, row b's own where None; −1, a slot out of range, and the later of two rows with
            one slot are padding: they change no memory, and their outputs are zeros.
        k_cache: `[S, H, R, K]` normalised keys. u_cache: `[S, HV, R, V]`. g_cache: `[S, HV, R]` fp32, log decay from the
            checkpoint on. R is 32 in FlashInfer; any R that holds a window and T serves.
        hist_len: `[B]` int32, 0 to 16. cache_base: `[B]` int32, row 0 where None.
        flush_min: 1 to 17 − T, which is the default.
        restart_hist_on_flush: move the cursors of rows that folded, padding like others, in place, with nothing accepted;
            reads them on the host first, except while a CUDA graph is captured.
        scale: on q, K ** −0.5 where None. output: `[B, T, HV, V]`, new where None.
        stochastic_rounding: None, "none", or "philox" with `rand_seed`, for an fp16 state.
        disable_state_update, pdl_trigger, backend, philox_rounds: FlashInfer's; without effect.
        v_cache, beta_cache: `[S, HV, R, V]` in the dtype of v and `[S, HV, R]` fp32, values and β of the records, written
            beside u; with them a fold solves for the corrections from the state, and does not add u_cache. Both or neither.
        read_copy, read_copy_block_scale, read_copy_scale: a low-precision copy of the state that steps without a fold read
            in its place, and folds rewrite, as of `checkpointing_ssu`, with (P, N) = (V, K). Needs v_cache and beta_cache.

    Returns:
        Outputs `[B, T, HV, V]`.

    Raises:
        RefusedError: an argument out of contract. UnsupportedError: a flag that FlashInfer's function does not serve either.
    """
    check_flags(
        softplus_beta, softplus_threshold, recovery_steps, disable_output,
        output_state_indices=output_state_indices, intermediate_states_buffer=intermediate_states_buffer,
        accepted_steps=accepted_steps, ssm_state_indices=ssm_state_indices,
    )  # fmt: skip
    if backend not in ("auto", "umma", "hmma"):
        refuse(f"backend={backend!r} must be 'auto', 'umma' or 'hmma'")
    check_tensors((("A_log", A_log), ("dt_bias", dt_bias)))
    hist_len = required("hist_len", hist_len)
    tokens = check_tokens(A_log, a, dt_bias, q, k, v, b)
    copy = (read_copy, read_copy_block_scale, read_copy_scale)
    memory = check_ucache(tokens, initial_state_source, k_cache, u_cache, g_cache, (v_cache, beta_cache), copy)
    draft = tokens.draft
    if flush_min is None:
        flush_min = WINDOW - draft + 1
    check_whole(flush_min=flush_min)
    if not 1 <= flush_min <= WINDOW - draft + 1:
        refuse(f"flush_min={flush_min} must be in [1, {WINDOW - draft + 1}] for T={draft}: a row must append or fold")
    if memory.rows < WINDOW + draft:
        refuse(f"rings of {memory.rows} rows; T={draft} needs at least {WINDOW + draft}")
    if restart_hist_on_flush and cache_base is None:
        refuse(
            "restart_hist_on_flush=True moves cursors in place and needs a caller-owned cache_base; keep an int32 [B] "
            "tensor, or pass restart_hist_on_flush=False and move them yourself"
        )
    base = torch.zeros_like(hist_len) if cache_base is None else cache_base
    check_cursors(hist_len, base, tokens, WINDOW, memory.rows, in_place=restart_hist_on_flush)
    out = _step(
        memory, tokens, RingCursors(initial_state_indices, base, hist_len, by_row=True), WINDOW,
        flush_min - 1 + draft, use_qk_l2norm_in_kernel, scale,
        _seed(stochastic_rounding, rand_seed, philox_rounds, memory), output, A_log, dt_bias,
    )  # fmt: skip
    if restart_hist_on_flush:
        folded = hist_len >= flush_min
        base.copy_((base + hist_len.clamp(0, WINDOW) * folded) % memory.rows)
        hist_len.masked_fill_(folded, 0)
    return out


def gated_delta_rule_mtp_ucache(
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
    b: Tensor | None = None,
    initial_state_source: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    output_state_indices: Tensor | None = None,
    intermediate_states_buffer: Tensor | None = None,
    accepted_steps: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    disable_state_update: bool = False,
    use_qk_l2norm_in_kernel: bool = True,
    scale: float | None = None,
    output: Tensor | None = None,
    disable_output: bool = False,
    recovery_steps: int = 0,
    k_cache: Tensor | None = None,
    u_cache: Tensor | None = None,
    g_cache: Tensor | None = None,
    hist_len: Tensor | None = None,
    use_pdl: bool = False,
) -> Tensor:
    """A GDN step that never folds, on a flat ring: history in rows `[0, hist_len)`, new records from `hist_len` on.

    Args as of `gated_delta_rule_mtp_ucache_flush`; `hist_len + T` must not be above the ring's rows. As in FlashInfer the
    activations are bf16; the state may be fp32, bf16 or fp16. `use_pdl` is without effect.

    Returns:
        Outputs `[B, T, HV, V]`.

    Raises:
        RefusedError: an argument out of contract. UnsupportedError: a flag that FlashInfer's function does not serve either.
    """
    check_flags(
        softplus_beta, softplus_threshold, recovery_steps, disable_output,
        output_state_indices=output_state_indices, intermediate_states_buffer=intermediate_states_buffer,
        accepted_steps=accepted_steps, ssm_state_indices=ssm_state_indices,
    )  # fmt: skip
    for name, tensor in (("q", q), ("k", k), ("v", v), ("a", a), ("b", b)):
        dtype = required(name, tensor).dtype
        if dtype != torch.bfloat16:
            refuse(f"{name}.dtype={dtype}: this function is bf16-only; the flush function takes others")
    check_tensors((("A_log", A_log), ("dt_bias", dt_bias)))
    hist_len = required("hist_len", hist_len)
    tokens = check_tokens(A_log, a, dt_bias, q, k, v, b)
    memory = check_ucache(tokens, initial_state_source, k_cache, u_cache, g_cache)
    least = 2 * tokens.draft
    if memory.rows < least:
        refuse(f"rings of {memory.rows} rows; T={tokens.draft} needs at least {least}")
    base = torch.zeros_like(hist_len)
    check_cursors(hist_len, base, tokens, memory.rows, memory.rows, in_place=False)
    return _step(
        memory, tokens, RingCursors(initial_state_indices, base, hist_len, by_row=True),
        memory.rows - tokens.draft, 2 * memory.rows, use_qk_l2norm_in_kernel, scale, None, output, A_log, dt_bias,
    )  # fmt: skip


def _seed(mode: str | None, seed: Tensor | None, rounds: int, memory: UCache) -> Tensor | None:
    if mode not in (None, "none", "philox"):
        refuse(f"stochastic_rounding={mode!r} is not served; 'philox' is")
    if mode != "philox":
        return None
    if seed is None:
        refuse("stochastic_rounding='philox' needs rand_seed, one int64 on the device")
    dtype = memory.state.dtype
    if dtype != torch.float16:
        refuse(f"stochastic_rounding='philox' is for an fp16 state; this one is {dtype}")
    check_seed(seed, rounds, memory.state.device)
    return seed


def _step(
    memory: UCache, tokens: TokenInputs, cursors: RingCursors, window: int, limit: int, l2norm: bool,
    scale: float | None, seed: Tensor | None, output: Tensor | None, A_log: Tensor, dt_bias: Tensor,
) -> Tensor:  # fmt: skip
    check_scale(scale)
    check_slots("initial_state_indices", cursors.slots, tokens.batch, memory.state)
    check_output("output", output, tokens.v)
    into = output
    if into is None or not into.is_contiguous():
        into = torch.empty_like(tokens.v, memory_format=torch.contiguous_format)
    ucache_step_op(
        memory.state, memory.k, memory.u, memory.g, into, cursors.slots, cursors.start, cursors.live, tokens.q, tokens.k,
        tokens.v, tokens.gate, tokens.beta, A_log, dt_bias, window, limit, l2norm,
        1.0 / math.sqrt(tokens.k.shape[-1]) if scale is None else scale,
        seed, memory.v, memory.beta, *memory.read_copy,
    )  # fmt: skip
    return into if output is None or into is output else output.copy_(into)
