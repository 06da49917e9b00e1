"""What only one of the two modes refuses, from a configuration and the LLM arguments that it goes with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from replayssm import InputError, UnsupportedError
from replayssm_trtllm.config import ReplaySSMConfig
from replayssm_trtllm.llm_checks import section
from replayssm_trtllm.llm_fields import KV_CACHE, PHILOX_ROUNDS, STATE_ROUNDING
from replayssm_trtllm.speculation import DYNAMIC_FIELDS, tokens_per_step

GDN_LONGEST_STEP = 8
"""T that TensorRT-LLM's own GDN replay serves at most; above it falls back to snapshots."""

OLDEST_SM = 80
"""Compute capability from which TensorRT-LLM's own replay runs; below it keeps snapshots."""


def check_native(
    config: ReplaySSMConfig, speculative: Mapping[str, Any] | None, given: Mapping[str, Any], sm: int | None
) -> None:
    """Check that TensorRT-LLM's own replay would run, rather than fall back to snapshots without an error.

    Raises:
        InputError, UnsupportedError: the reason, and what would work.
    """
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
    sm = visible_sm() if sm is None else sm
    if sm is not None and sm < OLDEST_SM:
        raise UnsupportedError(
            f"SM {sm}: TensorRT-LLM's own replay runs from SM {OLDEST_SM} and keeps snapshots below, without an error; use "
            "mode='plugin' with backend='torch'"
        )
    if config.stochastic_rounding:
        _check_rounding(sm)
    else:
        _check_no_rounding(given)


def check_plugin(config: ReplaySSMConfig, speculative: Mapping[str, Any] | None, given: Mapping[str, Any]) -> None:
    """Check that the plugin has something to replay, and is what replays it.

    Raises:
        InputError, UnsupportedError: the reason, and what would work.
    """
    if speculative is None and not config.decode:
        raise UnsupportedError("nothing to replay: neither speculation nor decode=True; set one of them")
    if given.get("torch_compile_config") is not None:
        raise UnsupportedError("torch_compile_config: a compiled model does not call the plugin; leave it out")
    _check_no_rounding(given)
    config.resolved_window(tokens_per_step(speculative))


def visible_sm() -> int | None:
    """Compute capability of the visible GPU as one number, None without one."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def _check_rounding(sm: int | None) -> None:
    if sm is None:
        raise InputError(
            "stochastic_rounding natively depends on the GPU and none is visible; pass sm= (--sm), e.g. 100"
        )
    if not 100 <= sm < 120:
        raise UnsupportedError(
            f"SM {sm}: TensorRT-LLM's own replay rounds stochastically on 100 ≤ SM < 120 and keeps snapshots elsewhere, "
            "without an error; set stochastic_rounding=False, or mode='plugin', which rounds on every GPU"
        )


def _check_no_rounding(given: Mapping[str, Any]) -> None:
    """Rounding that `ReplaySSMConfig` does not know of is neither checked against the GPU nor the plugin's."""
    for name, default in ((STATE_ROUNDING, False), (PHILOX_ROUNDS, 10)):
        if section(given, KV_CACHE).get(name) not in (None, default):
            raise UnsupportedError(
                f"{KV_CACHE}.{name} is TensorRT-LLM's own; set it in ReplaySSMConfig instead, as "
                f"{name.removeprefix('mamba_ssm_')}"
            )
