"""The operators of transformers' mixers, converted: arguments to `TokenInputs`, results back.

A `Call` is one call of an operator. GDN and KDA keep their state `[B, H, K, V]` in transformers and `[B, H, V, K]` in the
core; Mamba-2 has `[B, H, V, K]` in both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from replayssm import LayerKind, RawGate, Recurrence, TokenInputs, UnsupportedError
from replayssm.inputs import activate_gate

Operator = Callable[..., Any]
Arguments = dict[str, Any]
NO_LIMIT = (0.0, float("inf"))


@dataclass(frozen=True)
class Call:
    """One operator call.

    Attributes:
        recurrence: geometry, as the tensors have it.
        inputs: `[B, T, …]` tokens as this operator takes them.
        drafts: the same tokens as the operator of single tokens would take them (see `scan_call`).
        decay_rates: `[H]` for Mamba-2.
        prefill: runs the original operator on the first n tokens, from a state `[B, H, V, K]` or None, and returns
            outputs `[B, n, H, V]` and the final state `[B, H, V, K]`.
        answer: packs outputs `[B, T, H, V]` and the new state's handle as the operator returns them.
    """

    recurrence: Recurrence
    inputs: TokenInputs
    drafts: TokenInputs
    decay_rates: Tensor | None
    prefill: Callable[[int, Tensor | None], tuple[Tensor, Tensor]]
    answer: Callable[[Tensor, object], Any]


def convert(kind: LayerKind, original: Operator, args: tuple[Any, ...], kwargs: Arguments) -> Call:
    """A call of one of `surface.OPERATORS[kind]` → `Call`.

    Raises:
        UnsupportedError: packed sequences.
    """
    values = _bind(original, args, kwargs)
    if values.get("cu_seqlens") is not None or values.get("seq_idx") is not None:
        raise UnsupportedError(
            "packed sequences (cu_seqlens, seq_idx) are not served with a cache; pad the batch instead"
        )
    if kind is not LayerKind.MAMBA2:
        return _delta_call(kind, original, values)
    return _scan_call(original, values) if "chunk_size" in values else _step_call(values)


def swap_state(kind: LayerKind, state: Tensor) -> Tensor:
    """transformers' state layout → the core's, and back: the same exchange."""
    return state if kind is LayerKind.MAMBA2 else state.transpose(-1, -2)


def _delta_call(kind: LayerKind, original: Operator, values: Arguments) -> Call:
    key, value = values["key"], values["value"]
    inputs = TokenInputs(
        q=values["query"],
        k=key,
        v=value,
        gate=values["g"],
        beta=values["beta"],
        qk_l2norm=values["use_qk_l2norm_in_kernel"],
        scale=key.shape[-1] ** -0.5,
    )

    def prefill(count: int, state: Tensor | None) -> tuple[Tensor, Tensor]:
        head = {name: values[name][:, :count] for name in ("query", "key", "value", "g", "beta")}
        start = None if state is None else swap_state(kind, state).contiguous()
        out, final = original(**{**values, **head, "initial_state": start, "output_final_state": True})
        return out, swap_state(kind, final)

    recurrence = Recurrence(kind, value.shape[2], key.shape[2], value.shape[3], key.shape[3])
    return Call(recurrence, inputs, inputs, None, prefill, lambda out, handle: (out, handle))


def _scan_call(original: Operator, values: Arguments) -> Call:
    """`mamba2_chunk_scan`. It bounds Δ by the layer's dt_limit, the operator of single tokens does not.

    A draft must come out as it would have come out alone, so tokens that continue a decode leave the limit out.
    """
    x, limits = values["hidden_states"], values.get("dt_limit", NO_LIMIT)
    recurrence = Recurrence(LayerKind.MAMBA2, x.shape[2], values["B"].shape[2], x.shape[3], values["B"].shape[3])

    def prefill(count: int, state: Tensor | None) -> tuple[Tensor, Tensor]:
        head = {name: values[name][:, :count] for name in ("hidden_states", "dt", "B", "C")}
        out, final = original(**{**values, **head, "initial_states": state, "return_final_states": True})
        return out, final

    def answer(out: Tensor, handle: object) -> Any:  # noqa: ANN401  a pair or one tensor, as the caller asked
        return (out, handle) if values["return_final_states"] else out

    inputs, drafts = (_mamba_inputs(recurrence, values, bounds) for bounds in (limits, NO_LIMIT))
    return Call(recurrence, inputs, drafts, values["A"], prefill, answer)


def _step_call(values: Arguments) -> Call:
    """`mamba2_selective_state_update`: no token axis, and per-head weights repeated over V (A over V and K)."""
    token: Arguments = {name: values[name][:, None] for name in ("hidden_states", "B", "C")}
    token |= {"dt": values["dt"][:, None, :, 0], "dt_softplus": values["dt_softplus"], "D": values["D"]}
    token["dt_bias"] = None if values["dt_bias"] is None else values["dt_bias"][:, 0]
    token["z"] = None if values["z"] is None else values["z"][:, None]
    x, B = token["hidden_states"], token["B"]
    recurrence = Recurrence(LayerKind.MAMBA2, x.shape[2], B.shape[2], x.shape[3], B.shape[3])
    inputs = _mamba_inputs(recurrence, token, NO_LIMIT)
    return Call(recurrence, inputs, inputs, values["A"][:, 0, 0], _no_prefill, lambda out, _: out[:, 0])


def _mamba_inputs(recurrence: Recurrence, values: Arguments, limits: tuple[float, float]) -> TokenInputs:
    """Δ is processed here, in fp32: tokens that await acceptance may come from both operators, with unlike limits."""
    if not values["dt_softplus"]:
        raise UnsupportedError("Mamba-2 without the softplus of dt (dt_softplus=False) is not served")
    raw = RawGate(dt_bias=values["dt_bias"], dt_limit=limits)
    delta = activate_gate(recurrence, values["dt"].to(torch.float32), raw)
    return TokenInputs(
        q=values["C"], k=values["B"], v=values["hidden_states"], gate=delta, D=values["D"], z=values.get("z")
    )


def _no_prefill(count: int, state: Tensor | None) -> tuple[Tensor, Tensor]:  # noqa: ARG001  signature of Call.prefill
    raise UnsupportedError("the operator of single tokens was called on a cache without a state; run the prompt first")


def _bind(original: Operator, args: tuple[Any, ...], kwargs: Arguments) -> Arguments:
    signature = _signature(original)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    values = dict(bound.arguments)
    return {**values, **values.pop("kwargs", {})}


@lru_cache(maxsize=128)
def _signature(original: Operator) -> inspect.Signature:
    return inspect.signature(original)
