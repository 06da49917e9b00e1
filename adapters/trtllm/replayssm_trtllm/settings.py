"""How a rank finds the configuration: on the model's configuration, or in the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from replayssm import InputError
from replayssm_trtllm.config import ReplaySSMConfig
from replayssm_trtllm.llm_fields import ENV_CONFIG, NESTED, REPLAY_KEY


def read_settings(pretrained: Any) -> ReplaySSMConfig | None:  # noqa: ANN401  a Hugging Face configuration
    """The plugin's configuration for a model, None without one.

    Raises:
        InputError: not a mapping, bad fields, or two places that differ.
    """
    found = {
        f"model_kwargs ({where})": value
        for where, holder in (("top", pretrained), (NESTED, getattr(pretrained, NESTED, None)))
        if (value := _carried(holder)) is not None
    }
    text = os.environ.get(ENV_CONFIG)
    if text:
        found[ENV_CONFIG] = _parse(text)
    configs = {where: ReplaySSMConfig.from_ranks(value, where) for where, value in found.items()}
    if len(set(configs.values())) > 1:
        raise InputError(f"{' and '.join(configs)} hold different configurations; keep one of them")
    return next(iter(configs.values()), None)


def text_config(pretrained: Any) -> Any:  # noqa: ANN401
    """The configuration that describes the recurrent layers: the nested one of a composite model."""
    return getattr(pretrained, NESTED, None) or pretrained


def _carried(holder: Any) -> Any:  # noqa: ANN401
    if isinstance(holder, Mapping):
        return holder.get(REPLAY_KEY)
    return getattr(holder, REPLAY_KEY, None)


def _parse(text: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{ENV_CONFIG} is not JSON: {error}") from None
