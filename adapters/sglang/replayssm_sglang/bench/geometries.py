"""Configurations of published geometries, whole or cut down, for engines that make up their weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Config = dict[str, Any]

_COMMON: Config = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
}
_FULL_ATTENTION_EVERY = 4


def gdn(
    hidden: int, width: int, layers: int, heads: tuple[int, int], linear: tuple[int, int], vocabulary: int
) -> Config:
    """Qwen3.5: `heads` of attention and of its keys, `linear` value and key heads of GDN; every fourth layer attends."""
    every = _FULL_ATTENTION_EVERY
    rotary = {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25}
    text = {
        **_COMMON,
        "model_type": "qwen3_5_text",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 256,
        "attn_output_gate": True,
        "full_attention_interval": every,
        "layer_types": ["linear_attention" if i % every else "full_attention" for i in range(1, layers + 1)],
        "linear_conv_kernel_dim": 4,
        "linear_num_value_heads": linear[0],
        "linear_num_key_heads": linear[1],
        "linear_value_head_dim": 128,
        "linear_key_head_dim": 128,
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": True,
        "rope_parameters": rotary,
        **rotary,
    }
    del text["rope_type"]
    # The engine asks for a vision tower, which no request here needs: one layer of it.
    vision = {
        "model_type": "qwen3_5",
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": hidden,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [],
        "hidden_act": "gelu_pytorch_tanh",
    }
    marks = {name: 16 + i for i, name in enumerate(("image", "video", "vision_start", "vision_end"))}
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": vision,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        **{f"{name}_token_id": token for name, token in marks.items()},
    }


def mamba2(
    hidden: int, width: int, pattern: str, heads: tuple[int, int], ssm: tuple[int, int, int], vocabulary: int
) -> Config:
    """Nemotron-H: `heads` of attention and of its keys, `ssm` heads, head dimension and groups of Mamba-2."""
    return {
        **_COMMON,
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": len(pattern),
        "hybrid_override_pattern": pattern,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 128,
        "attention_head_dim": 128,
        "mamba_num_heads": ssm[0],
        "mamba_head_dim": ssm[1],
        "n_groups": ssm[2],
        "mamba_n_groups": ssm[2],
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "expand": 2,
        "chunk_size": 128,
        "use_bias": False,
        "mlp_bias": False,
        "use_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_hidden_act": "silu",
        "mlp_hidden_act": "relu2",
        "residual_in_fp32": False,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": [0.0, 1e30],
        "time_step_min": 0.001,
        "time_step_max": 0.1,
        "time_step_floor": 1e-4,
        "rescale_prenorm_residual": True,
        "tie_word_embeddings": False,
    }


def kda(
    hidden: int, width: int, layers: int, heads: int, experts: int, vocabulary: int, *, routed: bool = True
) -> Config:
    """Kimi-Linear: every fourth layer is latent attention, the others KDA with as many heads.

    Without routing every layer is dense: a choice of experts turns a rounding error into another token.
    """
    attends = [i for i in range(1, layers + 1) if i % _FULL_ATTENTION_EVERY == 0]
    return {
        **_COMMON,
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 128,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "num_experts": experts,
        "num_experts_per_token": min(8, experts // 2),
        "num_shared_experts": 1,
        "moe_intermediate_size": width // 9 if hidden > 1024 else 256,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1 if routed else layers,
        "routed_scaling_factor": 1.0,
        "use_grouped_topk": True,
        "num_expert_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
        "linear_attn_config": {
            "full_attn_layers": attends,
            "kda_layers": [i for i in range(1, layers + 1) if i not in attends],
            "head_dim": 128,
            "num_heads": heads,
            "short_conv_kernel_size": 4,
        },
    }


# Nemotron-3-Nano-4B's 21 Mamba-2, 4 attention and 17 dense layers, its first attention moved to the front: the Triton
# attention of SGLang 0.5.16 asks layer 0 for the size of its values.
_NANO_4B = "*M-M-M-MM-M-M-M-M*-M-M-M*-M-M-MM*-MMM-M-M-"

CONFIGS: dict[str, Callable[[], Config]] = {
    # Vocabularies are cut: the output projection is no part of what is measured.
    "qwen3.5-4b": lambda: gdn(2560, 9216, 32, (16, 4), (32, 16), 32768),
    "nemotron-3-nano-4b": lambda: mamba2(3136, 12544, _NANO_4B, (40, 8), (96, 80, 8), 32768),
    # Kimi-Linear-48B with 8 of its 27 layers and 16 of its 256 experts.
    "kimi-linear-cut": lambda: kda(2304, 9216, 8, 32, 16, 32768),
    "small-gdn": lambda: gdn(512, 1024, 4, (4, 2), (4, 2), 2048),
    "small-mamba2": lambda: mamba2(512, 1024, "*M-M-M-M", (4, 2), (8, 64, 2), 2048),
    "small-kda": lambda: kda(512, 1024, 4, 4, 8, 2048, routed=False),
}
"""Name → configuration; the small ones are for tests."""

PUBLISHED = tuple(name for name in CONFIGS if not name.startswith("small"))
"""What is measured."""


def write_model(name: str, folder: Path, dtype: str = "bfloat16") -> Path:
    """Write the configuration of a model to a folder of its own in `folder`; the engine makes up the weights.

    Args:
        name: one of `CONFIGS`.
        folder: where its folder goes.
        dtype: of the weights; what the engine is started with, for Kimi-Linear reads both.
    """
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(_typed(CONFIGS[name](), dtype), indent=1), encoding="utf-8")
    return path


def _typed(config: Config, dtype: str) -> Config:
    """With `dtype` in the configuration and in those within it."""
    inner = {key: _typed(value, dtype) for key, value in config.items() if isinstance(value, dict)}
    named: Config = {key: dtype for key in ("dtype", "torch_dtype") if key in config}
    return {**config, **inner, **named}
