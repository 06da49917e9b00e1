"""The steps as torch custom operators, so that `torch.compile` and export see one opaque call that mutates its arguments.

Public functions check and call these; a compiled graph keeps them whole. Fakes do nothing: every output is an argument.
"""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm.inputs import RawGate, TokenInputs
from replayssm_flashinfer.copy_checks import check_memory_copy
from replayssm_flashinfer.delta_step import DeltaMemory, step_delta
from replayssm_flashinfer.mamba_step import check_mamba_copy, gate_inputs, step_mamba
from replayssm_flashinfer.materialize_launch import launch_materialize
from replayssm_flashinfer.plan import RingCursors, plan_step
from replayssm_flashinfer.tensor_checks import check_words, running_on
from replayssm_flashinfer.ucache import UCache, fold_ucache, step_ucache


@torch.library.custom_op(
    "replayssm::checkpointing_ssu",
    mutates_args=(
        "state", "x_cache", "B_cache", "dt_cache", "out", "state_scale", "read_copy", "read_copy_block_scale",
        "read_copy_scale",
    ),
)  # fmt: skip
def checkpointing_ssu_op(
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
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    state_batch_indices: Tensor | None,
    pad_slot_id: int,
    state_scale: Tensor | None,
    rand_seed: Tensor | None,
    cu_seqlens: Tensor | None,
    draft: int,
    read_copy: Tensor | None,
    read_copy_block_scale: Tensor | None,
    read_copy_scale: Tensor | None,
) -> None:
    """`replayssm_flashinfer.checkpointing_ssu` after its checks; `draft` is T."""
    copy = (read_copy, read_copy_block_scale, read_copy_scale)
    check_words([("state", state)])
    check_mamba_copy(state, x_cache, B_cache, draft, copy)
    with running_on(state.device):
        gate, raw = gate_inputs(dt, dt_bias, softplus=dt_softplus)
        step_mamba(
            state,
            x_cache,
            B_cache,
            dt_cache,
            RingCursors(
                state_batch_indices, ring_start, prev_num_accepted_tokens, False, cu_seqlens, pad_slot_id, x.shape[1]
            ),
            TokenInputs(q=C, k=B, v=x, gate=gate, raw=raw, D=D, z=z),
            A[:, 0, 0],
            out,
            draft=draft,
            state_scale=state_scale,
            rand_seed=rand_seed,
            read_copy=copy,
        )


@torch.library.custom_op("replayssm::replayssm_materialize", mutates_args=("dependency_outputs",))
def materialize_op(
    tables: list[Tensor],
    src_slots: Tensor,
    dst_slots: Tensor,
    metadata: list[Tensor],
    rand_seed: Tensor | None,
    dependency_inputs: list[Tensor],  # noqa: ARG001  for the order of calls
    dependency_outputs: list[Tensor],  # noqa: ARG001
    state_dtype: torch.dtype,
    input_dtype: torch.dtype,
    rate_dtype: torch.dtype,
    numbers: list[int],
) -> None:
    """`replayssm_flashinfer.replayssm_materialize` after its checks; see `launch_materialize`."""
    with running_on(src_slots.device):
        launch_materialize(
            tables, src_slots, dst_slots, metadata, rand_seed, (state_dtype, input_dtype, rate_dtype), numbers
        )


@torch.library.custom_op(
    "replayssm::gdn_ucache_step",
    mutates_args=(
        "state", "k_cache", "u_cache", "g_cache", "out", "v_cache", "beta_cache", "read_copy", "read_copy_block_scale",
        "read_copy_scale",
    ),
)  # fmt: skip
def ucache_step_op(
    state: Tensor,
    k_cache: Tensor,
    u_cache: Tensor,
    g_cache: Tensor,
    out: Tensor,
    slots: Tensor | None,
    base: Tensor,
    length: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    window: int,
    limit: int,
    l2norm: bool,
    scale: float,
    rand_seed: Tensor | None,
    v_cache: Tensor | None,
    beta_cache: Tensor | None,
    read_copy: Tensor | None,
    read_copy_block_scale: Tensor | None,
    read_copy_scale: Tensor | None,
) -> None:
    """A GDN step on FlashInfer's rings; a row folds where its history and its new tokens are more than `limit`.

    window: the longest history, longer ones count as that.
    """
    copy, draft = (read_copy, read_copy_block_scale, read_copy_scale), k.shape[1]
    memory = UCache(state, k_cache, u_cache, g_cache, v_cache, beta_cache, copy)
    check_memory_copy(memory, draft)
    with running_on(state.device):
        plan = plan_step(
            RingCursors(slots, base, length, by_row=True),
            batch=k.shape[0],
            draft=draft,
            slots=len(state),
            rows=memory.rows,
            window=window,
            limit=limit,
        )
        raw = RawGate(A_log=A_log, dt_bias=dt_bias)
        inputs = TokenInputs(q=q, k=k, v=v, gate=a, beta=b, qk_l2norm=l2norm, raw=raw, scale=scale)
        step_ucache(memory, plan, inputs, rand_seed, out)


@torch.library.custom_op(
    "replayssm::gdn_ucache_fold", mutates_args=("state", "read_copy", "read_copy_block_scale", "read_copy_scale")
)
def ucache_fold_op(
    state: Tensor,
    k_cache: Tensor,
    u_cache: Tensor,
    g_cache: Tensor,
    source: Tensor,
    target: Tensor,
    base: Tensor,
    count: Tensor,
    v_cache: Tensor | None,
    beta_cache: Tensor | None,
    read_copy: Tensor | None,
    read_copy_block_scale: Tensor | None,
    read_copy_scale: Tensor | None,
) -> None:
    """Prefixes of FlashInfer's GDN rings folded into other slots; −1 is padding."""
    copy = (read_copy, read_copy_block_scale, read_copy_scale)
    memory = UCache(state, k_cache, u_cache, g_cache, v_cache, beta_cache, copy)
    check_memory_copy(memory, 1)
    with running_on(state.device):
        fold_ucache(memory, source, target, base, count)


@torch.library.custom_op(
    "replayssm::delta_replay",
    mutates_args=(
        "state", "k_cache", "k_scale_cache", "u_cache", "v_cache", "beta_cache", "g_cache", "out", "state_scale",
        "read_copy", "read_copy_block_scale", "read_copy_scale",
    ),
)  # fmt: skip
def delta_replay_op(
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
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    l2norm: bool,
    scale: float,
    state_batch_indices: Tensor | None,
    pad_slot_id: int,
    state_scale: Tensor | None,
    rand_seed: Tensor | None,
    read_copy: Tensor | None,
    read_copy_block_scale: Tensor | None,
    read_copy_scale: Tensor | None,
) -> None:
    """`replayssm_flashinfer.delta` after its checks."""
    copy = (read_copy, read_copy_block_scale, read_copy_scale)
    memory = DeltaMemory(state, k_cache, k_scale_cache, u_cache, v_cache, beta_cache, g_cache, state_scale, copy)
    check_words([("state", state)])
    check_memory_copy(memory, k.shape[1])
    with running_on(state.device):
        raw = None if A_log is None else RawGate(A_log=A_log, dt_bias=dt_bias, lower_bound=lower_bound)
        step_delta(
            memory,
            RingCursors(state_batch_indices, ring_start, prev_num_accepted_tokens, pad=pad_slot_id),
            TokenInputs(q=q, k=k, v=v, gate=a, beta=b, raw=raw, qk_l2norm=l2norm, scale=scale),
            rand_seed,
            out,
        )  # fmt: skip


def _nothing(*arguments: object) -> None:
    """What a fake has to do: nothing is returned, and shapes stay."""


for _op in (checkpointing_ssu_op, materialize_op, ucache_step_op, ucache_fold_op, delta_replay_op):
    _op.register_fake(_nothing)
