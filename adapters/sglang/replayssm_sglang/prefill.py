"""Prefill writes states in place: its slots start anew. And what decoding leaves for the prefix cache."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm.cursors import PAD_SLOT
from replayssm_sglang import surface
from replayssm_sglang.calls import Foreign, Original, bind
from replayssm_sglang.session import Session
from replayssm_sglang.steps import real_slots


def begin(session: Session, metadata: Foreign, backend: Foreign, forward_batch: Foreign) -> None:
    """After `_forward_metadata`, before the layers: slots that prefill reads are folded, slots that it writes are empty.

    A chunk continues from its slot's state, which holds all tokens so far once the ring is folded.
    """
    if backend.is_draft_worker or not is_prefill(forward_batch):
        return
    slots = real_slots(metadata.mamba_cache_indices)
    session.layers.flush(slots)
    session.layers.begin(slots, forward_batch.seq_lens)
    for name in (*surface.TRACKED, "track_ssm_recompute_dst"):
        written = getattr(metadata, name, None)
        if written is not None and len(written):
            session.layers.begin(written.long(), 0)


def around_delta(session: Session, original: Original, *args: Foreign, **kwargs: Foreign) -> Foreign:
    """Around `forward_extend` of the GDN and KDA backends: after prefill the layer's read copies, where there are any."""
    out = original(*args, **kwargs)
    call = bind(original, args, kwargs)
    _refresh(session, call["self"], call["layer"].layer_id, call["forward_batch"])
    return out


def around_mamba2(session: Session, original: Original, *args: Foreign, **kwargs: Foreign) -> Foreign:
    """Around `Mamba2AttnBackend.forward`: the same, and after a decode that SGLang tracks the states as they stand."""
    call = bind(original, args, kwargs)
    backend, layer_id, batch = call["self"], call["layer_id"], call["forward_batch"]
    metadata, mask = backend.forward_metadata, batch.mamba_track_mask
    _leave_rows_of_the_batch(metadata)
    out = original(*args, **kwargs)
    _refresh(session, backend, layer_id, batch)
    if mask is None or metadata.num_decodes == 0 or metadata.is_target_verify:
        return out
    if backend.req_to_token_pool.mamba_map[layer_id] == len(session.layers) - 1:
        rows = slice(-metadata.num_decodes, None)
        _publish(session, metadata.mamba_cache_indices[rows], mask[rows], metadata.mamba_track_indices[rows])
    return out


def _leave_rows_of_the_batch(metadata: Foreign) -> None:
    """In a CUDA graph SGLang 0.5.16 has tracked slots of its largest batch here, and takes the last for the first."""
    slots = getattr(metadata, "mamba_track_indices", None)
    if slots is not None:
        metadata.mamba_track_indices = slots[: metadata.num_prefills + metadata.num_decodes]


def around_tracking(session: Session, original: Original, *args: Foreign, **kwargs: Foreign) -> None:
    """Around `_track_mamba_state_decode`, which copies convolution and lagging states of tracked rows: then the true ones.

    They are there once the last layer has run.
    """
    original(*args, **kwargs)
    call = bind(original, args, kwargs)
    mask = call["forward_batch"].mamba_track_mask
    if mask is not None and session.layer_of(call["ssm_states"]) == len(session.layers) - 1:
        _publish(session, call["cache_indices"], mask, call["self"].forward_metadata.mamba_track_indices)


def is_prefill(forward_batch: Foreign) -> bool:
    """Whether a batch writes states from its tokens: prompts and their chunks, decoding rows beside them included."""
    mode = forward_batch.forward_mode
    return bool(mode.is_extend() and not mode.is_target_verify() and not mode.is_draft_extend_v2())


def _publish(session: Session, slots: Tensor, mask: Tensor, targets: Tensor) -> None:
    rows = min(len(slots), len(mask), len(targets))
    source = real_slots(slots[:rows])
    target = torch.where(mask[:rows].bool() & (source != PAD_SLOT), targets[:rows].long(), PAD_SLOT)
    session.layers.materialise(source, target)


def _refresh(session: Session, backend: Foreign, layer_id: int, forward_batch: Foreign) -> None:
    if session.config.policy.read_copy is None or not is_prefill(forward_batch):
        return
    index = backend.req_to_token_pool.mamba_map[layer_id]
    slots = real_slots(backend.forward_metadata.mamba_cache_indices)
    session.layers[index].refresh(slots[slots != PAD_SLOT])
