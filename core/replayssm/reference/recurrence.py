"""The ordinary recurrence in float64, one token after another. Every other result in the project is judged by it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from replayssm.inputs import ProcessedInputs, TokenInputs
from replayssm.recurrence import LayerKind, Recurrence


class Token(NamedTuple):
    """One token of n rows, keys and queries repeated for every head of their group.

    k, q `[n, H, K]`; v `[n, H, V]`; decay `[n, H, 1]` or `[n, H, K]`, in (0, 1]; weight `[n, H]`, β or Δ.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    weight: Tensor


def log_decay(recurrence: Recurrence, gate: Tensor, A: Tensor | None) -> Tensor:
    """Processed gate `[..., H]` or `[..., H, K]` → log decay with K last: `[..., H, 1]` or `[..., H, K]`."""
    if recurrence.channel_decay:
        return gate
    if recurrence.kind is not LayerKind.MAMBA2:
        return gate[..., None]
    if A is None:
        raise ValueError("A [H] is required for Mamba-2: the ring stores Δ, the decay is exp(A Δ)")
    return (gate * A.to(gate.dtype))[..., None]


def token_at(recurrence: Recurrence, inputs: ProcessedInputs, t: int, A: Tensor | None) -> Token:
    """Token t of all rows."""
    repeat = recurrence.heads_per_group
    weight = inputs.gate[:, t] if inputs.beta is None else inputs.beta[:, t]
    return Token(
        q=inputs.q[:, t].repeat_interleave(repeat, dim=1),
        k=(inputs.k[:, t] * inputs.k_scale[:, t, :, None]).repeat_interleave(repeat, dim=1),
        v=inputs.v[:, t],
        decay=log_decay(recurrence, inputs.gate[:, t], A).exp(),
        weight=weight,
    )


def write(recurrence: Recurrence, state: Tensor, token: Token) -> tuple[Tensor, Tensor]:
    """S a + u kᵀ: `state [n, H, V, K]` → the next state, and u `[n, H, V]`."""
    decayed = state * token.decay[:, :, None, :]
    value = token.v
    if recurrence.delta_rule:
        value = value - torch.einsum("nhvk,nhk->nhv", decayed, token.k)
    u = token.weight[..., None] * value
    return decayed + u[..., :, None] * token.k[..., None, :], u


def read(state: Tensor, token: Token) -> Tensor:
    """S q: `[n, H, V]`."""
    return torch.einsum("nhvk,nhk->nhv", state, token.q)


def run_recurrence(
    recurrence: Recurrence, state: Tensor, inputs: TokenInputs, A: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run T tokens of B rows through the ordinary recurrence in float64.

    Args:
        state: `[B, H, V, K]`, any float dtype.
        inputs: `[B, T, …]`.
        A: `[H]`, negative, Mamba-2 only.

    Returns:
        outputs `[B, T, H, V]` and final states `[B, H, V, K]`, both float64.
    """
    rows = torch.arange(inputs.batch, device=state.device)
    processed = inputs.process(recurrence, rows, torch.float64)
    state = state.double()
    outputs = []
    for t in range(inputs.draft):
        token = token_at(recurrence, processed, t, A)
        state, _ = write(recurrence, state, token)
        outputs.append(read(state, token))
    return inputs.finish(torch.stack(outputs, dim=1), rows), state
