"""The YAML of `trtllm-serve --config`: written from a configuration, and read back under the same rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from replayssm import InputError
from replayssm_trtllm.arguments import check_complete, llm_arguments
from replayssm_trtllm.config import NATIVE, ReplaySSMConfig
from replayssm_trtllm.llm_checks import check_arguments, check_names, overrides, section
from replayssm_trtllm.llm_fields import (
    ENV_GDN_REPLAY,
    ENV_MAMBA_REPLAY,
    ENV_OVERRIDES,
    KV_CACHE,
    MODEL_KWARGS,
    NESTED,
    PHILOX_ROUNDS,
    REPLAY_KEY,
    STATE_DTYPE,
    STATE_ROUNDING,
)
from replayssm_trtllm.nearest import nearest
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
    model_kwargs = section(given, MODEL_KWARGS)
    places: dict[str | None, Mapping[str, Any]] = {None: model_kwargs, NESTED: section(model_kwargs, NESTED)}
    found = {nested: place[REPLAY_KEY] for nested, place in places.items() if _has_replay(place)}
    unread = [name for name, value in model_kwargs.items() if isinstance(value, Mapping) and REPLAY_KEY in value]
    if unread not in ([], [NESTED]):
        raise InputError(
            f"{MODEL_KWARGS}.{unread[0]} holds {REPLAY_KEY!r}, and ranks look in {NESTED} only; move it there"
        )
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


def _has_replay(place: Mapping[str, Any]) -> bool:
    for name in place:
        if name != REPLAY_KEY and nearest(name, (REPLAY_KEY,)):
            raise InputError(f"{MODEL_KWARGS} has {name!r}; did you mean {REPLAY_KEY!r}?")
    return REPLAY_KEY in place


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
