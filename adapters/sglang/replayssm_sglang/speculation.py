"""Acceptance: cursors move by what was accepted, the convolution goes back to the same token. All on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm.cursors import PAD_SLOT
from replayssm_sglang.calls import Foreign
from replayssm_sglang.session import Session
from replayssm_sglang.steps import real_slots


def note_acceptance(
    session: Session,
    target_worker: Foreign,  # noqa: ARG001  SGLang passes it by name
    batch: Foreign,  # noqa: ARG001  SGLang passes it by name
    accept_lens: Tensor,
    accept_index: Tensor,
    draft_token_num: int,
    *_args: Foreign,
    **_kwargs: Foreign,
) -> None:
    """Before `commit_mamba_states_after_verify`: which tokens were accepted, as a path of each row.

    Args:
        accept_lens: `[B]` tokens accepted, the bonus token included.
        accept_index: `[B, ≥ depth]` their places in the flattened batch of B·T, −1 past the last.
    """
    session.path = accepted_path(accept_lens, accept_index, draft_token_num) if session.tree else None


def accepted_path(accept_lens: Tensor, accept_index: Tensor, draft: int) -> Tensor:
    """`[B, P]` token numbers within each row from the root down, −1 past the last."""
    start = torch.arange(len(accept_lens), device=accept_index.device)[:, None] * draft
    depth = torch.arange(accept_index.shape[1], device=accept_index.device)
    taken = (depth < accept_lens[:, None]) & (accept_index >= 0)
    return torch.where(taken, accept_index - start, -1)


def commit(
    session: Session,
    backend: Foreign,
    last_correct_step_indices: Tensor,
    mamba_track_indices: Tensor | None,
    mamba_steps_to_track: Tensor | None,
    model: Foreign,  # noqa: ARG001  SGLang passes it by name
    **_options: Foreign,
) -> None:
    """In place of `update_mamba_state_after_mtp_verify`, which copies a state snapshot of each row.

    Args:
        last_correct_step_indices: `[B]` last accepted token of each row.
        mamba_track_indices: `[B]` slots for the prefix cache, or None.
        mamba_steps_to_track: `[B]` token whose state goes there, −1 for none.
    """
    linear, layers = backend.linear_attn_backend, session.layers
    last = last_correct_step_indices.long()
    slots = real_slots(linear.forward_metadata.mamba_cache_indices[: len(last)])
    if mamba_track_indices is None or mamba_steps_to_track is None:
        _accept(session, linear, slots, last)
        return
    before = layers.cursors.read("committed", slots)
    _accept(session, linear, slots, last)
    steps = mamba_steps_to_track.long()
    target = torch.where((steps >= 0) & (slots != PAD_SLOT), mamba_track_indices[: len(last)].long(), PAD_SLOT)
    layers.materialise(slots, target, before + depth_of(steps, session.path))
    _roll_back(linear, target, steps)


def _accept(session: Session, linear: Foreign, slots: Tensor, last: Tensor) -> None:
    """Rows `slots [B]` go on from token `last [B]` of their verify step."""
    if session.path is None:
        session.layers.commit(slots, last + 1)
    else:
        session.layers.commit_path(slots, session.path)
    _roll_back(linear, slots, last)


def depth_of(steps: Tensor, path: Tensor | None) -> Tensor:
    """Tokens accepted up to and with token `steps [B]`, by its place in the path; chains are their own path."""
    if path is None:
        return steps + 1
    return (path == steps[:, None]).int().argmax(-1) + 1


def _roll_back(linear: Foreign, slots: Tensor, steps: Tensor) -> None:
    """Convolution states of `slots [B]` as they were after token `steps [B]` of the verify step."""
    from sglang.kernels.ops.mamba import mamba_state_scatter_triton as scatter

    cache = linear.req_to_token_pool.get_speculative_mamba2_params_all_layers()
    for states, windows in zip(cache.conv, cache.intermediate_conv_window, strict=True):
        scatter.fused_conv_window_scatter_with_mask(states, windows, slots, torch.where(slots < 0, -1, steps))
