"""The table against the configuration and model classes of the installed transformers."""

from __future__ import annotations

import json

import pytest
import torch

from replayssm.hybrid import FAMILIES, parse_hybrid

transformers = pytest.importorskip("transformers")

# Wrapped by others, or published with code of their own.
NOT_CLASSES = {"kimi_k25", "kimi_k3"}
NAMES = sorted(set(FAMILIES) - NOT_CLASSES)

L, F = "linear_attention", "full_attention"
_COMMON = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_QWEN = {
    **_COMMON, "layer_types": [L, F], "num_hidden_layers": 2, "head_dim": 16, "linear_num_value_heads": 4,
    "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 3,
    "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8,
}  # fmt: skip
_BAMBA = {
    **_COMMON, "num_hidden_layers": 2, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8,
    "mamba_d_conv": 3, "mamba_expand": 2, "mamba_d_ssm": 64,
}  # fmt: skip
_KIMI = {
    **_COMMON, "layer_types": [L, F], "num_hidden_layers": 2, "mlp_layer_types": ["dense"] * 2, "kv_lora_rank": 16,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16, "linear_head_dim": 16, "linear_num_heads": 2,
    "linear_conv_kernel_dim": 3,
}  # fmt: skip
_GLM = {
    **_KIMI, "layer_types": [L, "indexed_attention"], "qk_rope_head_dim": 0, "q_lora_rank": 16, "index_n_heads": 2,
    "index_head_dim": 16, "index_topk": 16,
}  # fmt: skip
TINY = {
    "bamba": _BAMBA | {"attn_layer_indices": [1]},
    "falcon_h1": _BAMBA,
    "glm5_next_text": _GLM,
    "granitemoehybrid": _BAMBA | {"layer_types": [L, F], "num_local_experts": 0, "shared_intermediate_size": 32},
    "kimi_linear": _KIMI,
    "mamba2": _COMMON | {
        "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 8, "conv_kernel": 3,
    },
    "nemotron_h": _COMMON | {
        "layers_block_type": [L, F, "mlp"], "head_dim": 16, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2,
        "ssm_state_size": 8, "conv_kernel": 3,
    },
    "olmo_hybrid": _COMMON | {"layer_types": [L, F], "num_hidden_layers": 2, "linear_conv_kernel_dim": 3},
    "qwen3_5_moe_text": _QWEN,
    "qwen3_5_text": _QWEN,
    "qwen3_next": _QWEN,
    "zamba2": _COMMON | {
        "layers_block_type": [L, "hybrid"], "num_hidden_layers": 2, "n_mamba_heads": 4, "mamba_ngroups": 2,
        "mamba_d_state": 8, "mamba_d_conv": 3,
    },
}  # fmt: skip


def _plain(config):
    return json.loads(config.to_json_string())


@pytest.mark.parametrize("name", NAMES)
def test_default_config_is_read(name):
    config = transformers.AutoConfig.for_model(name)
    model = parse_hybrid(_plain(config))
    text = config.get_text_config()
    kinds = list(text.layer_types)
    assert model.layers == len(kinds)
    assert model.recurrent_layers == sum(kind in (L, "hybrid") for kind in kinds)
    assert model.attention_layers == sum(kind in (F, "indexed_attention", "hybrid") for kind in kinds)


@pytest.mark.parametrize("name", TINY)
def test_states_of_a_real_cache(name):
    config = transformers.AutoConfig.for_model(name, **TINY[name])
    model = parse_hybrid(_plain(config))
    network = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        cache = network(torch.tensor([[3, 4, 5, 6, 7]]), use_cache=True)
    cache = getattr(cache, "past_key_values", None) or cache.cache_params
    layers = [layer for layer in cache.layers if getattr(layer, "recurrent_states", None)]
    assert len(layers) == model.recurrent_layers
    r = model.recurrence
    for layer in layers:
        heads, *matrix = layer.recurrent_states[0].shape[1:]
        assert heads == r.heads
        # The delta-rule classes keep the transpose, K × V.
        assert matrix == ([r.key_dim, r.value_dim] if r.delta_rule else [r.value_dim, r.key_dim])
        assert tuple(layer.conv_states[0].shape[1:]) == (model.conv_channels, model.conv_kernel)


@pytest.mark.parametrize("name", sorted(set(TINY) - {"mamba2"}))
def test_keys_and_values_of_a_real_cache(name):
    config = transformers.AutoConfig.for_model(name, **TINY[name])
    model = parse_hybrid(_plain(config) | {"dtype": "float32"})
    network = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        cache = network(torch.tensor([[3, 4, 5, 6, 7]]), use_cache=True).past_key_values
    layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    assert len(layers) == model.attention_layers
    for layer in layers:
        assert (layer.keys.nbytes + layer.values.nbytes) / 5 == model.kv_token_bytes


def test_every_text_class_has_a_tiny_model():
    wrappers = {"glm5_next", "qwen3_5", "qwen3_5_moe"}
    assert set(TINY) == set(NAMES) - wrappers
