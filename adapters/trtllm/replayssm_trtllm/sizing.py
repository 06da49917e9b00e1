"""Memory of the rings in TensorRT-LLM's estimate, which is made before a manager exists."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from replayssm import LayerKind
from replayssm_trtllm.config import ReplaySSMConfig
from replayssm_trtllm.kinds import geometry_of, layer_layout
from replayssm_trtllm.rings import scratch_bytes
from replayssm_trtllm.settings import read_settings, text_config
from replayssm_trtllm.state import tokens_of

if TYPE_CHECKING:
    from replayssm_trtllm.compat import Engine

DEFAULT_ACTIVATION = torch.bfloat16


def bytes_per_rank(
    engine: Engine,
    config: ReplaySSMConfig,
    kind: LayerKind,
    model_config: Any,  # noqa: ANN401  the engine's
    mapping: Any,  # noqa: ANN401
    *,
    spec_config: Any = None,  # noqa: ANN401
    is_draft: bool = False,
    use_separate_draft_kv_cache: bool = False,
    **_: Any,  # noqa: ANN401  what other estimates need
) -> int:
    """Bytes of one slot's rings and read copies in all recurrent layers of a rank."""
    if is_draft:
        return 0
    local = engine.local_layout(
        model_config,
        mapping,
        spec_config=spec_config,
        is_draft=False,
        use_separate_draft_kv_cache=use_separate_draft_kv_cache,
    )
    pretrained = text_config(model_config.pretrained_config)
    activation = _dtype(getattr(pretrained, "torch_dtype", None), DEFAULT_ACTIVATION)
    quantization = getattr(model_config, "quant_config", None)
    state_dtype = _dtype(
        getattr(quantization, "mamba_ssm_cache_dtype", None), _dtype(config.checkpoint_dtype, activation)
    )
    layout = layer_layout(
        config,
        geometry_of(kind, pretrained, engine.effective_tp(mapping)),
        slots=1,
        tokens=tokens_of(spec_config),
        state_dtype=state_dtype,
        activation=activation,
    )
    return int(local[1]) * scratch_bytes(layout)


def _dtype(given: torch.dtype | str | None, default: torch.dtype) -> torch.dtype:
    """A dtype that may be a name, or left open."""
    if given is None or given == "auto":
        return default
    named: torch.dtype = getattr(torch, given) if isinstance(given, str) else given
    return named


ESTIMATOR = "replayssm"


def register_estimate(engine: Engine, kind_of_model: Callable[[Any], LayerKind | None]) -> None:
    """Generation B: name the estimate to the engine, which adds it to every hybrid model's; 0 without a configuration."""
    if engine.register_estimator is not None:
        engine.register_estimator(ESTIMATOR, _estimate(engine, kind_of_model))


@functools.cache
def _estimate(engine: Engine, kind_of_model: Callable[[Any], LayerKind | None]) -> Callable[..., int]:
    def estimate(model_config: Any, params: Any, mapping: Any, **kwargs: Any) -> int:  # noqa: ANN401, ARG001
        config, kind = read_settings(model_config.pretrained_config), kind_of_model(model_config.pretrained_config)
        if config is None or kind is None:
            return 0
        return bytes_per_rank(engine, config, kind, model_config, mapping, **kwargs)

    return estimate
