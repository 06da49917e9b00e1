"""The Gated DeltaNet mixer: ordinary decode, verification, and the generation rows of mixed batches.

Ordinary decode calls an operator that is a global of the mixer's module; it is replaced once, and falls through for
every mixer that the plugin does not serve. Verification is a method of the instance. In a mixed batch without drafts the
engine runs context and generation rows through one chunked operator that reads and writes the state: generation rows are
taken out and decoded like all others, or their rings would be passed over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from replayssm import RawGate, TokenInputs, UnsupportedError
from replayssm_trtllm.router import Router, deliver

OPERATOR = "fused_sigmoid_gating_delta_rule_update"
DECODE, EXTEND, VERIFY = "forward_decode", "forward_extend", "_replay_verify_recurrent"
MIXED_ARGUMENTS = (
    *("mixed_qkv", "a", "b", "has_initial_states", "cache_indices", "query_start_loc", "query_start_loc_long"),
    *("batch_size", "num_prefill_tokens", "num_decode_tokens", "state_indices_p", "state_indices_d"),
    *("num_prefill", "num_decodes"),
)
"""What the engine hands to `forward_extend` by name, and a split of its batch has to know."""

_ACTIVE: list[tuple[Any, Router]] = []
"""Mixers whose decode runs now, innermost last."""


def reroute(mixer: Any, router: Router) -> None:  # noqa: ANN401  the engine's module
    """Bring one mixer's decode, verification and mixed batches to the router."""
    decode, extend = getattr(mixer, DECODE), getattr(mixer, EXTEND)
    setattr(mixer, DECODE, functools.partial(_decode, mixer, router, decode))
    setattr(mixer, EXTEND, functools.partial(_extend, mixer, extend))
    setattr(mixer, VERIFY, functools.partial(_verify, mixer, router))


def replace_operator(module: Any) -> None:  # noqa: ANN401  the mixer's module
    """Replace the module's decode operator, once."""
    original = getattr(module, OPERATOR)
    if isinstance(original, _Operator):
        return
    setattr(module, OPERATOR, _Operator(original))


class _Operator:
    """The module's decode operator: the router's where one of its mixers decodes, else the engine's."""

    def __init__(self, original: Callable[..., Tensor]) -> None:
        self.original = original
        functools.update_wrapper(self, original)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401
        if not _ACTIVE:
            return self.original(*args, **kwargs)
        if args:
            raise UnsupportedError(f"{OPERATOR} is called by position; the plugin knows its arguments by name")
        return _standard(*_ACTIVE[-1], **kwargs)


def _decode(mixer: Any, router: Router, original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401
    _ACTIVE.append((mixer, router))
    try:
        return original(*args, **kwargs)
    finally:
        _ACTIVE.pop()


def _standard(
    mixer: Any,  # noqa: ANN401
    router: Router,
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_indices: Tensor,
    output: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    scale: float | None = None,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    **rest: Any,  # noqa: ANN401
) -> Tensor:
    """One token a row: q, k `[1, B, G, K]`, v `[1, B, H, V]`, a, b `[B, H]` → `[1, B, H, V]`."""
    unknown = sorted(set(rest) - {"A_log", "dt_bias", "initial_state_source", "cu_seqlens"})
    if unknown:
        raise UnsupportedError(f"{OPERATOR} gets {', '.join(unknown)}, which the plugin does not know")
    if (softplus_beta, softplus_threshold, use_qk_l2norm_in_kernel) != (1.0, 20.0, True):
        raise UnsupportedError(f"{OPERATOR} with another gate or without normalised keys is not served")
    rows = v.shape[1]
    query, key, value = (t.reshape(rows, 1, *t.shape[2:]) for t in (q, k, v))
    inputs = gdn_inputs(mixer, query, key, value, a.reshape(rows, 1, -1), b.reshape(rows, 1, -1), scale)
    result = router.step(int(mixer.layer_idx), inputs, initial_state_indices[:rows], standard=True)
    return deliver(result, output, v.shape)


def _verify(
    mixer: Any,  # noqa: ANN401
    router: Router,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    ssm_states: Tensor,  # noqa: ARG001  known by layer
    state_indices_d: Tensor,
    num_decodes: int,
    draft_token_num: int,  # noqa: ARG001  the shapes say it
    replay_metadata: Any,  # noqa: ANN401, ARG001
    layer_cache: Any,  # noqa: ANN401, ARG001
    replay_work_items: Tensor | None = None,  # noqa: ARG001
    replay_n_writes: Tensor | None = None,  # noqa: ARG001
    output_d: Tensor | None = None,
    **_: Any,  # noqa: ANN401  packed copies of what is given, and launch options
) -> Tensor:
    """T tokens a row: query, key `[B, T, G, K]`, value `[B, T, H, V]`, a, b `[B, T, H]` → `[B, T, H, V]`."""
    inputs = gdn_inputs(mixer, query, key, value, a, b)
    result = router.step(int(mixer.layer_idx), inputs, state_indices_d[:num_decodes], standard=False)
    return deliver(result, output_d, value.shape)


def gdn_inputs(
    mixer: Any,  # noqa: ANN401
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    scale: float | None = None,
) -> TokenInputs:
    """A mixer's projections as the core takes them: gates raw, keys not yet normalised."""
    return TokenInputs(
        q=q,
        k=k,
        v=v,
        gate=a,
        beta=b,
        raw=RawGate(dt_bias=mixer.dt_bias, A_log=mixer.A_log),
        qk_l2norm=True,
        scale=k.shape[-1] ** -0.5 if scale is None else scale,
    )


def _extend(mixer: Any, original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401
    """A batch with contexts; see the module."""
    if kwargs.get("is_target_verify") or not kwargs.get("num_decodes"):
        return original(*args, **kwargs)
    missing = [name for name in MIXED_ARGUMENTS if name not in kwargs]
    if missing:
        raise UnsupportedError(f"{EXTEND} does not get {', '.join(missing)}; its batch cannot be split")
    output = kwargs.get("output")
    tokens = kwargs["num_prefill_tokens"]
    contexts, rows = _split(kwargs, tokens)
    if output is not None:
        contexts["output"], rows["output"] = output[:, :tokens], output[:, tokens:]
    first = original(*args, **contexts)
    second = getattr(mixer, DECODE)(*args, **rows)
    return torch.cat((first, second), dim=1) if output is None else output


def _split(kwargs: Mapping[str, Any], tokens: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the context rows alone, and those of the generation rows alone."""
    count, rest = kwargs["num_prefill"], kwargs["state_indices_d"]
    starts, long_starts = kwargs["query_start_loc"], kwargs["query_start_loc_long"]
    packed = {name: kwargs[name] for name in ("mixed_qkv", "a", "b")}
    contexts = {
        **kwargs,
        **{name: value[:tokens] for name, value in packed.items()},
        "cache_indices": kwargs["state_indices_p"],
        "query_start_loc": starts[: count + 1],
        "query_start_loc_long": long_starts[: count + 1],
        "batch_size": count,
        "num_decode_tokens": 0,
        "num_decodes": 0,
        "state_indices_d": rest[:0],
    }
    rows = {
        **kwargs,
        **{name: value[tokens:] for name, value in packed.items()},
        "cache_indices": rest,
        "query_start_loc": None,
        "query_start_loc_long": long_starts[count:] - long_starts[count],
        "batch_size": len(rest),
        "num_prefill_tokens": 0,
        "num_prefill": 0,
    }
    return contexts, rows
