"""How engines' delta-rule updates (GDN, KDA) are called, by convention: processed or raw gates, slots or snapshots.

A layout of "VK" holds a state as `[V, K]`, one of "KV" as its transpose; engines have changed theirs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from replayssm.bench.conventional import Ordinary, Prepared
from replayssm.bench.peers_snapshots import snapshot_arguments
from replayssm.errors import UnsupportedError
from replayssm.inputs import RawGate

Function = Callable[..., Any]


def processed(function: Function, step: Ordinary, start: Tensor, variant: str) -> Prepared:
    """Processed gates, one token; the final state is a new tensor."""
    state, arguments = _laid(start, variant), _processed(function, step, variant)
    final = [state]

    def run() -> Tensor:
        out, final[0] = function(initial_state=state, output_final_state=True, **arguments)
        return out  # type: ignore[no-any-return]

    return Prepared(run, lambda: _laid(final[0], variant))


def processed_slots(function: Function, step: Ordinary, start: Tensor, variant: str) -> Prepared:
    """Processed gates, a slot of a pool for each token, the first of a row's slots also read."""
    batch, draft = step.inputs.batch, step.inputs.draft
    pool, index = _pool(start, draft, variant)
    arguments = {
        name: _packed(x) if isinstance(x, Tensor) else x for name, x in _processed(function, step, variant).items()
    }
    arguments |= {
        "initial_state": pool,
        "inplace_final_state": True,
        "cu_seqlens": _ends(batch, draft, pool.device),
        "ssm_state_indices": index,
    }
    return _through_pool(function, arguments, step, pool, index, variant)


def sigmoid_slots(function: Function, step: Ordinary, start: Tensor, variant: str) -> Prepared:
    """Raw gates, a slot of a pool for each token, the first of a row's slots also read."""
    batch, draft = step.inputs.batch, step.inputs.draft
    pool, index = _pool(start, draft, variant)
    arguments = _raw(function, step)
    arguments |= {"initial_state": pool, "inplace_final_state": True, "ssm_state_indices": index}
    if draft > 1:
        arguments["num_accepted_tokens"] = torch.ones(batch, dtype=torch.int32, device=pool.device)
    return _through_pool(function, arguments, step, pool, index, variant)


def sigmoid_snapshots(function: Function, step: Ordinary, start: Tensor, variant: str) -> Prepared:
    """Raw gates; drafts leave the state and write a buffer `[B, T, H, V, K]`."""
    batch, draft = step.inputs.batch, step.inputs.draft
    state = _laid(start, variant)
    index = torch.arange(batch, dtype=torch.int32, device=state.device)
    buffer, kept = snapshot_arguments(state, index, draft)
    arguments = _raw(function, step) | kept
    arguments |= {
        "softplus_beta": 1.0,
        "softplus_threshold": 20.0,
        "initial_state_source": state,
        "initial_state_indices": index,
    }

    def run() -> Tensor:
        out = function(**arguments)
        return out.reshape(step.inputs.v.shape)  # type: ignore[no-any-return]

    return Prepared(run, lambda: _laid(buffer[:, -1] if draft > 1 else state, variant))


def flashinfer_one(function: Function, step: Ordinary, start: Tensor, variant: str) -> Prepared:
    """Raw gates, one token, a state for each row."""
    assert not variant
    state, out = start.clone(), torch.empty_like(step.inputs.v)
    arguments = _by_rows(step)

    def run() -> Tensor:
        function(state=state, output=out, **arguments)
        return out

    return Prepared(run, lambda: state)


def flashinfer_drafts(function: Function, step: Ordinary, start: Tensor, variant: str) -> Prepared:
    """Raw gates; drafts leave the state and write a buffer."""
    assert not variant
    state, out = start.clone(), torch.empty_like(step.inputs.v)
    batch, draft = step.inputs.batch, step.inputs.draft
    if draft == 1:
        raise UnsupportedError("is for drafts")
    buffer = state.new_empty(batch, draft, *state.shape[1:])
    index = torch.arange(batch, dtype=torch.int32, device=state.device)
    arguments = _by_rows(step)

    def run() -> Tensor:
        function(
            initial_state=state,
            initial_state_indices=index,
            output=out,
            intermediate_states_buffer=buffer,
            disable_state_update=True,
            **arguments,
        )
        return out

    return Prepared(run, lambda: buffer[:, -1])


def _laid(state: Tensor, variant: str) -> Tensor:
    """`[…, V, K]` → a copy in the layout, and back."""
    return state.transpose(-1, -2).contiguous() if variant == "KV" else state.clone()


def _through_pool(
    function: Function, arguments: dict[str, Any], step: Ordinary, pool: Tensor, index: Tensor, variant: str
) -> Prepared:
    """A step that leaves its states in the slots `index` of a pool."""
    last = index.reshape(step.inputs.batch, step.inputs.draft)[:, -1].long()

    def run() -> Tensor:
        out, _ = function(**arguments)
        return out.reshape(step.inputs.v.shape)  # type: ignore[no-any-return]

    return Prepared(run, lambda: _laid(pool[last], variant))


def _pool(start: Tensor, draft: int, variant: str) -> tuple[Tensor, Tensor]:
    """A pool with T slots a row and the rows' slot numbers, `[B]` for one token, `[B, T]` for drafts.

    Slot 0 is left out: it stands for padding in some versions.
    """
    batch, state = len(start), _laid(start, variant)
    pool = torch.empty(1 + batch * draft, *state.shape[1:], dtype=state.dtype, device=state.device)
    pool[0] = 0.0
    pool[1::draft] = state
    index = torch.arange(1, 1 + batch * draft, dtype=torch.int32, device=state.device)
    return pool, index.reshape(batch, draft) if draft > 1 else index


def _packed(x: Tensor) -> Tensor:
    """`[B, T, …]` → `[1, B·T, …]`."""
    return x.flatten(0, 1)[None]


def _ends(batch: int, draft: int, device: torch.device) -> Tensor:
    return draft * torch.arange(batch + 1, dtype=torch.int32, device=device)


def _processed(function: Function, step: Ordinary, variant: str) -> dict[str, Any]:
    """q, k and v as they are; log decays and β in fp32, computed ahead."""
    inputs = step.inputs
    rows = torch.arange(inputs.batch, device=inputs.v.device)
    ready = inputs.process(step.recurrence, rows, torch.float32)
    arguments = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "g": ready.gate,
        "beta": ready.beta,
        "scale": inputs.scale,
        "use_qk_l2norm_in_kernel": inputs.qk_l2norm,
    }
    parameters = inspect.signature(function).parameters
    if "state_v_first" in parameters:
        arguments["state_v_first"] = variant == "VK"
    elif variant == "VK":
        raise UnsupportedError("holds states as [K, V] alone")
    return arguments


def _raw(function: Function, step: Ordinary) -> dict[str, Any]:
    """Packed tokens with raw gates, as `fused_sigmoid_gating_delta_rule_update` has them."""
    inputs, raw = step.inputs, step.inputs.raw or RawGate()
    assert inputs.beta is not None
    arguments: dict[str, Any] = {
        "q": _packed(inputs.q),
        "k": _packed(inputs.k),
        "v": _packed(inputs.v),
        "a": inputs.gate.flatten(0, 1).flatten(1),
        "b": inputs.beta.flatten(0, 1),
        "A_log": raw.A_log,
        "dt_bias": None if raw.dt_bias is None else raw.dt_bias.flatten(),
        "scale": inputs.scale,
        "use_qk_l2norm_in_kernel": inputs.qk_l2norm,
        "cu_seqlens": _ends(inputs.batch, inputs.draft, inputs.v.device),
    }
    parameters = inspect.signature(function).parameters
    if step.recurrence.channel_decay:
        if "is_kda" not in parameters:
            raise UnsupportedError("serves no decay per channel")
        arguments["is_kda"] = True
    if raw.lower_bound is not None:
        if "lower_bound" not in parameters:
            raise UnsupportedError("serves no bounded gate")
        arguments["lower_bound"] = raw.lower_bound
    return arguments


def _by_rows(step: Ordinary) -> dict[str, Any]:
    """Tokens by row, raw gates."""
    inputs, raw = step.inputs, step.inputs.raw or RawGate()
    return {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "a": inputs.gate,
        "b": inputs.beta,
        "A_log": raw.A_log,
        "dt_bias": raw.dt_bias,
        "scale": inputs.scale,
        "use_qk_l2norm": inputs.qk_l2norm,
    }
