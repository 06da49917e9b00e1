"""The YAML of `trtllm-serve --config`: written from a configuration, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from replayssm import InputError
from replayssm_trtllm.arguments import llm_arguments
from replayssm_trtllm.config import NATIVE, PLUGIN, ReplaySSMConfig
from replayssm_trtllm.llm_checks import check_arguments, check_names, section
from replayssm_trtllm.llm_fields import (
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
)
from replayssm_trtllm.nearest import nearest
from replayssm_trtllm.speculation import check_speculation, tokens_per_step


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


def read(source: str) -> ReplaySSMConfig:
    """See `ReplaySSMConfig.from_yaml`."""
    arguments = _parse(source)
    check_names(arguments)
    check_arguments(arguments)
    speculative = arguments.get(SPECULATIVE)
    check_speculation(speculative)
    carried = _carried(section(arguments, MODEL_KWARGS))
    if carried is None:
        return _native(arguments)
    config = ReplaySSMConfig.from_mapping({**carried, "mode": carried.get("mode", PLUGIN)})
    config.resolved_window(tokens_per_step(speculative))
    return config


def _parse(source: str) -> dict[str, Any]:
    text = source
    if "\n" not in source and ":" not in source:
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"{source!r} is neither YAML nor a readable file: {error}") from None
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InputError(f"the YAML holds a {type(values).__name__}; expected a mapping of LLM arguments")
    return values


def _carried(model_kwargs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The plugin's configuration in `model_kwargs`, at the top or in one nested configuration."""
    places = [model_kwargs, *(value for value in model_kwargs.values() if isinstance(value, Mapping))]
    for place in places:
        close = [name for name in place if name != REPLAY_KEY and nearest(str(name), [REPLAY_KEY])]
        if close:
            raise InputError(f"{MODEL_KWARGS} has {close[0]!r}; did you mean {REPLAY_KEY!r}?")
    found = [place[REPLAY_KEY] for place in places if REPLAY_KEY in place]
    if len(found) > 1:
        raise InputError(f"{MODEL_KWARGS} holds {REPLAY_KEY!r} {len(found)} times; expected it once")
    if found and not isinstance(found[0], Mapping):
        raise InputError(f"{MODEL_KWARGS}.{REPLAY_KEY} is a {type(found[0]).__name__}; expected a mapping")
    return found[0] if found else None


def _native(arguments: Mapping[str, Any]) -> ReplaySSMConfig:
    environment = section(arguments, ENV_OVERRIDES)
    if not any(str(environment.get(name)) == "1" for name in (ENV_MAMBA_REPLAY, ENV_GDN_REPLAY)):
        raise InputError(
            f"no ReplaySSM in this YAML: neither {MODEL_KWARGS}.{REPLAY_KEY} (plugin) nor {ENV_MAMBA_REPLAY} or "
            f"{ENV_GDN_REPLAY} in {ENV_OVERRIDES} (native); `replayssm trtllm yaml` writes one"
        )
    cache = section(arguments, KV_CACHE)
    return ReplaySSMConfig.from_mapping(
        {
            "mode": NATIVE,
            "checkpoint_dtype": cache.get(STATE_DTYPE, "auto"),
            "stochastic_rounding": cache.get(STATE_ROUNDING, False),
            "philox_rounds": cache.get(PHILOX_ROUNDS, 10),
        }
    )
