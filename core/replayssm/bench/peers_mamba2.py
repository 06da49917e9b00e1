"""How engines' Mamba-2 state updates are called. All share one calling convention and differ in how drafts are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from replayssm.bench.conventional import Ordinary, Prepared
from replayssm.bench.peers_snapshots import snapshot_arguments
from replayssm.inputs import RawGate

Function = Callable[..., Any]


def in_place(function: Function, step: Ordinary, start: Tensor, variant: str) -> Prepared:
    """One token, a state for each row, a new output."""
    assert not variant
    state, arguments = start.clone(), _arguments(step)

    def run() -> Tensor:
        out: Tensor = function(state=state, **arguments)
        return out[:, None]

    return Prepared(run, lambda: state)


def snapshots(function: Function, step: Ordinary, start: Tensor, variant: str) -> Prepared:
    """Drafts leave the state and write a buffer `[B, T, H, V, K]`."""
    assert not variant
    state, arguments = start.clone(), _arguments(step)
    out = torch.empty_like(step.inputs.v)
    index = torch.arange(step.inputs.batch, dtype=torch.int32, device=state.device)
    draft = step.inputs.draft
    buffer, kept = snapshot_arguments(state, index, draft)
    arguments |= {"state_batch_indices": index, "out": out if draft > 1 else out[:, 0], **kept}

    def run() -> Tensor:
        function(state=state, **arguments)
        return out

    return Prepared(run, lambda: buffer[:, -1] if draft > 1 else state)


def snapshots_fp32_weights(function: Function, step: Ordinary, start: Tensor, variant: str) -> Prepared:
    """As `snapshots`, for a function that takes Δ in the dtype of its bias and of D, here fp32."""

    def call(**arguments: Any) -> None:  # noqa: ANN401 - passed on
        function(**{**arguments, "dt": dt})

    dt = _spread(step.inputs.gate.float(), step.recurrence.value_dim)
    dt = dt if step.inputs.draft > 1 else dt[:, 0]
    return snapshots(call, step, start, variant)


def slots(function: Function, step: Ordinary, start: Tensor, variant: str) -> Prepared:
    """Drafts read one slot of a pool and write another for each token; tokens of all rows are one packed sequence."""
    assert not variant
    batch, draft = step.inputs.batch, step.inputs.draft
    # Slot 0 stands for padding in some versions.
    own = torch.arange(1, batch + 1, dtype=torch.int32, device=start.device)
    arguments, out = _arguments(step), torch.empty_like(step.inputs.v)
    if draft == 1:
        pool = torch.cat((start[:1], start))
        arguments |= {"state_batch_indices": own, "out": out[:, 0]}
    else:
        pool = torch.cat((start[:1], start, start.new_empty(batch * draft, *start.shape[1:])))
        written = batch + 1 + torch.arange(batch * draft, dtype=torch.int32, device=start.device)
        arguments = {
            **arguments,
            **{name: arguments[name].flatten(0, 1) for name in ("x", "B", "C")},
            "dt": _spread(step.inputs.gate.flatten(0, 1), step.recurrence.value_dim),
            "out": out.flatten(0, 1),
            "state_batch_indices": own[:, None].expand(batch, draft).contiguous(),
            "dst_state_batch_indices": written.reshape(batch, draft),
            "num_accepted_tokens": torch.ones_like(own),
            "cu_seqlens": draft * torch.arange(batch + 1, dtype=torch.int32, device=start.device),
        }

    def run() -> Tensor:
        function(state=pool, **arguments)
        return out

    return Prepared(run, lambda: pool[draft + batch :: draft] if draft > 1 else pool[1:])


def _arguments(step: Ordinary) -> dict[str, Any]:
    """x, dt, A, B, C, D, dt_bias with a stride of 0 where one number serves a head; without T for one token."""
    inputs, raw, r = step.inputs, step.inputs.raw or RawGate(), step.recurrence
    assert step.A is not None
    assert inputs.D is not None
    assert raw.dt_bias is not None
    dt = _spread(inputs.gate, r.value_dim)
    tokens = {"x": inputs.v, "dt": dt, "B": inputs.k, "C": inputs.q}
    if inputs.draft == 1:
        tokens = {name: tensor[:, 0] for name, tensor in tokens.items()}
    return {
        **tokens,
        "A": step.A[:, None, None].expand(r.state_shape),
        "D": _spread(inputs.D, r.value_dim),
        "dt_bias": _spread(raw.dt_bias, r.value_dim),
        "dt_softplus": True,
    }


def _spread(x: Tensor, count: int) -> Tensor:
    """`[…]` → `[…, count]` without a copy."""
    return x[..., None].expand(*x.shape, count)
