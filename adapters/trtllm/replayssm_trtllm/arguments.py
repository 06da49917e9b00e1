"""From a `ReplaySSMConfig` to LLM arguments and environment variables, with every refusal that they allow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from replayssm import InputError, UnsupportedError
from replayssm_trtllm.llm_checks import check_arguments, check_environment, check_names, section
from replayssm_trtllm.llm_fields import (
    CUDA_GRAPHS,
    ENV_CONFIG,
    ENV_GDN_REPLAY,
    ENV_MAMBA_REPLAY,
    ENV_OVERRIDES,
    KV_CACHE,
    MODEL_KWARGS,
    PHILOX_ROUNDS,
    REPLAY_KEY,
    SPECULATIVE,
    STATE_DTYPE,
    STATE_ROUNDING,
    USE_V2,
)
from replayssm_trtllm.speculation import DYNAMIC_FIELDS, check_speculation, tokens_per_step

if TYPE_CHECKING:
    from replayssm_trtllm.config import ReplaySSMConfig

GDN_LONGEST_STEP = 8
"""T that TensorRT-LLM's own GDN replay serves at most; above it falls back to snapshots."""


def llm_arguments(
    config: ReplaySSMConfig,
    speculative: Mapping[str, Any] | None,
    llm: Mapping[str, Any] | None,
    *,
    sm: int | None,
    nested: str | None,
) -> dict[str, Any]:
    """See `ReplaySSMConfig.to_llm_kwargs`."""
    given = dict(llm or {})
    check_names(given)
    check_arguments(given)
    speculative = _speculation(speculative, given)
    check_speculation(speculative)
    plugin = config.resolved_mode == "plugin"
    check_environment(os.environ | _strings(section(given, ENV_OVERRIDES)), plugin)
    ours = _plugin(config, speculative, given, nested) if plugin else _native(config, speculative, sm)
    if speculative is not None:
        ours[SPECULATIVE] = dict(speculative)
    return _merged(given, ours, "")


def environment(config: ReplaySSMConfig) -> dict[str, str]:
    """See `ReplaySSMConfig.to_env`."""
    if config.resolved_mode == "native":
        return {ENV_MAMBA_REPLAY: "1", ENV_GDN_REPLAY: "1"}
    return {ENV_CONFIG: json.dumps(config.model_dump() | {"mode": "plugin"})}


def visible_sm() -> int | None:
    """Compute capability of the visible GPU as one number, None without one."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def _native(config: ReplaySSMConfig, speculative: Mapping[str, Any] | None, sm: int | None) -> dict[str, Any]:
    if speculative is None:
        raise UnsupportedError(
            "TensorRT-LLM's own replay needs speculative decoding; pass speculative=..., or set decode=True for the plugin"
        )
    dynamic = [name for name in DYNAMIC_FIELDS if speculative.get(name)]
    if dynamic:
        raise UnsupportedError(
            f"speculative_config.{dynamic[0]} changes the draft length at run time, which TensorRT-LLM's own replay "
            "refuses; leave it out, or use mode='plugin'"
        )
    tokens = tokens_per_step(speculative)
    config.resolved_window(tokens)
    if tokens > GDN_LONGEST_STEP:
        raise UnsupportedError(
            f"{tokens} tokens a step: TensorRT-LLM's own GDN replay serves up to {GDN_LONGEST_STEP} and keeps snapshots "
            "above, without an error; draft less, or use mode='plugin'"
        )
    cache: dict[str, Any] = {USE_V2: True}
    if config.checkpoint_dtype != "auto":
        cache[STATE_DTYPE] = config.checkpoint_dtype
    if config.stochastic_rounding:
        _check_rounding(visible_sm() if sm is None else sm)
        cache |= {STATE_ROUNDING: True, PHILOX_ROUNDS: config.philox_rounds}
    return {KV_CACHE: cache, ENV_OVERRIDES: environment(config)}


def _check_rounding(sm: int | None) -> None:
    if sm is None:
        raise InputError("stochastic_rounding natively depends on the GPU and none is visible; pass sm=, e.g. sm=100")
    if not 100 <= sm < 120:
        raise UnsupportedError(
            f"SM {sm}: TensorRT-LLM's own replay rounds stochastically on 100 ≤ SM < 120 and keeps snapshots elsewhere, "
            "without an error; set stochastic_rounding=False, or mode='plugin', which rounds on every GPU"
        )


def _plugin(
    config: ReplaySSMConfig, speculative: Mapping[str, Any] | None, given: Mapping[str, Any], nested: str | None
) -> dict[str, Any]:
    if speculative is None and not config.decode:
        raise UnsupportedError("nothing to replay: neither speculation nor decode=True; set one of them")
    if given.get("torch_compile_config") is not None:
        raise UnsupportedError("torch_compile_config: a compiled model does not call the plugin; leave it out")
    if section(given, KV_CACHE).get(STATE_ROUNDING):
        raise UnsupportedError(
            f"{KV_CACHE}.{STATE_ROUNDING} is TensorRT-LLM's own; set stochastic_rounding in ReplaySSMConfig instead"
        )
    cache: dict[str, Any] = {USE_V2: True}
    if config.checkpoint_dtype != "auto":
        cache[STATE_DTYPE] = config.checkpoint_dtype
    window = config.resolved_window(tokens_per_step(speculative))
    sent = config.model_dump() | {"mode": "plugin", "window": window, "backend": config.resolved_backend}
    carried: dict[str, Any] = {REPLAY_KEY: sent}
    ours: dict[str, Any] = {KV_CACHE: cache, MODEL_KWARGS: carried if nested is None else {nested: carried}}
    if not config.graphs:
        ours[CUDA_GRAPHS] = None
    return ours


def _speculation(speculative: Mapping[str, Any] | None, given: dict[str, Any]) -> Mapping[str, Any] | None:
    own = given.pop(SPECULATIVE, None)
    if own is not None and speculative is not None and own != speculative:
        raise InputError(f"{SPECULATIVE} is given twice and differs: {own!r} and {speculative!r}")
    return own if speculative is None else speculative


def _strings(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _merged(given: Mapping[str, Any], ours: Mapping[str, Any], where: str) -> dict[str, Any]:
    result = dict(given)
    for name, value in ours.items():
        path = f"{where}{name}"
        theirs = result.get(name)
        if isinstance(theirs, Mapping) and isinstance(value, Mapping):
            result[name] = _merged(theirs, value, f"{path}.")
        elif name in result and theirs != value and not _left_open(name, theirs):
            raise InputError(f"{path}={theirs!r} contradicts ReplaySSMConfig, which needs {value!r}; leave it out")
        else:
            result[name] = value
    return result


def _left_open(name: str, value: object) -> bool:
    """Whether a user's value only leaves the choice to TensorRT-LLM."""
    return value == "auto" and name in (USE_V2, STATE_DTYPE)
