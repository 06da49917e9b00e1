"""The YAML of `trtllm-serve --config`: written from a configuration, and read back under the same rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from replayssm import InputError
from replayssm_trtllm.arguments import check_complete, llm_arguments
from replayssm_trtllm.config import NATIVE, ReplaySSMConfig
from replayssm_trtllm.llm_checks import carried_configs, check_arguments, check_names, overrides, section
from replayssm_trtllm.llm_fields import (
    ENV_GDN_REPLAY,
    ENV_MAMBA_REPLAY,
    ENV_OVERRIDES,
    KV_CACHE,
    MODEL_KWARGS,
    PHILOX_ROUNDS,
    REPLAY_KEY,
    STATE_DTYPE,
    STATE_ROUNDING,
)
from replayssm_trtllm.yaml_file import load


def write(
    config: ReplaySSMConfig,
    speculative: Mapping[str, Any] | None,
    llm: Mapping[str, Any] | None,
    *,
    sm: int | None,
    nested: str | None,
) -> str:
    """See `ReplaySSMConfig.to_yaml`."""
    arguments = llm_arguments(config, speculative, llm, sm=sm, nested=nested)
    if config.resolved_mode == NATIVE:
        notes = ["ReplaySSM by TensorRT-LLM itself (native)."]
    else:
        notes = [
            f"ReplaySSM by the plugin, backend {config.resolved_backend}. Serve it with",
            "  --custom_module_dirs $(replayssm trtllm path)",
        ]
        if not config.graphs:
            notes.append(f"Backend {config.resolved_backend} waits for the device, so CUDA graphs are off.")
    body: str = yaml.safe_dump(arguments, sort_keys=False)
    return "".join(f"# {line}\n" for line in notes) + body


def read(source: str | Path, *, sm: int | None) -> ReplaySSMConfig:
    """See `ReplaySSMConfig.from_yaml`."""
    given = load(source)
    check_names(given)
    found = carried_configs(given)
    if len(found) > 1:
        raise InputError(f"{MODEL_KWARGS} holds {REPLAY_KEY!r} {len(found)} times; expected it once")
    if not found:
        config, nested = _native(given), None
    else:
        nested, carried = found.popitem()
        config = ReplaySSMConfig.from_ranks(carried, f"{MODEL_KWARGS}.{REPLAY_KEY}")
    # What stands there is what was just read; all else must agree with it.
    others = {name: value for name, value in given.items() if name != MODEL_KWARGS}
    llm_arguments(config, None, others, sm=sm, nested=nested)
    check_complete(config, given)
    return config


def _native(arguments: Mapping[str, Any]) -> ReplaySSMConfig:
    check_arguments(arguments)
    environment = overrides(arguments)
    if not any(environment.get(name) == "1" for name in (ENV_MAMBA_REPLAY, ENV_GDN_REPLAY)):
        raise InputError(
            f"no ReplaySSM in this YAML: neither {MODEL_KWARGS}.{REPLAY_KEY} (plugin) nor {ENV_MAMBA_REPLAY} or "
            f"{ENV_GDN_REPLAY} in {ENV_OVERRIDES} (native); `replayssm trtllm yaml` writes one"
        )
    cache = section(arguments, KV_CACHE)
    found = {
        "mode": NATIVE,
        "checkpoint_dtype": cache.get(STATE_DTYPE),
        "stochastic_rounding": cache.get(STATE_ROUNDING),
        "philox_rounds": cache.get(PHILOX_ROUNDS),
    }
    return ReplaySSMConfig.from_mapping({name: value for name, value in found.items() if value is not None})
