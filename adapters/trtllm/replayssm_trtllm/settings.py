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
    found = _of_the_model(pretrained)
    text = os.environ.get(ENV_CONFIG)
    if text:
        found[ENV_CONFIG] = _parse(text)
    configs = {where: ReplaySSMConfig.from_ranks(value, where) for where, value in found.items()}
    if len(set(configs.values())) > 1:
        raise InputError(f"{' and '.join(configs)} hold different configurations; keep one of them")
    return next(iter(configs.values()), None)


def from_the_environment_alone(pretrained: Any) -> bool:  # noqa: ANN401  a Hugging Face configuration
    """Whether a model carries no configuration itself: what the environment holds is for every model of the process."""
    return not _of_the_model(pretrained)


def text_config(pretrained: Any) -> Any:  # noqa: ANN401
    """The configuration that describes the recurrent layers: the nested one of a composite model."""
    nested = getattr(pretrained, NESTED, None)
    # TensorRT-LLM puts `model_kwargs.text_config` on a flat configuration as it is: a mapping that describes no layers.
    return pretrained if nested is None or isinstance(nested, Mapping) else nested


def _of_the_model(pretrained: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        f"model_kwargs ({where})": value
        for where, holder in (("top", pretrained), (NESTED, getattr(pretrained, NESTED, None)))
        if (value := _carried(holder)) is not None
    }


def _carried(holder: Any) -> Any:  # noqa: ANN401
    if isinstance(holder, Mapping):
        return holder.get(REPLAY_KEY)
    return getattr(holder, REPLAY_KEY, None)


def _parse(text: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{ENV_CONFIG} is not JSON: {error}") from None
