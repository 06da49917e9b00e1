"""Which layers of a model's cache hold a recurrent state."""

from __future__ import annotations

from typing import Any

from transformers import cache_utils

EMPTY_TYPES = ("moe", "mlp")
"""Layer types without a cache. transformers 5.17 gives them an empty layer of the recurrent class all the same."""


def recurrent_layers(model: Any) -> list[int]:  # noqa: ANN401  transformers is untyped
    """Numbers of the layers for which transformers itself keeps a recurrent state."""
    return [index for index, layer_type in _candidates(model) if layer_type not in EMPTY_TYPES]


def empty_layers(model: Any) -> list[int]:  # noqa: ANN401  transformers is untyped
    """Numbers of the layers whose cache is of the recurrent class and stays empty."""
    return [index for index, layer_type in _candidates(model) if layer_type in EMPTY_TYPES]


def _candidates(model: Any) -> list[tuple[int, str | None]]:  # noqa: ANN401  transformers is untyped
    config = model.config.get_text_config(decoder=True)
    layers = cache_utils.DynamicCache(config=config).layers
    types = getattr(config, "layer_types", None) or [None] * len(layers)
    mixin = cache_utils.LinearAttentionCacheLayerMixin
    return [(index, types[index]) for index, layer in enumerate(layers) if isinstance(layer, mixin)]
