"""Tiny random models of every served family: two to four layers, attention among them, K = 16."""

from __future__ import annotations

import importlib
import inspect
from contextlib import contextmanager
from functools import cache

import torch
from transformers import DynamicCache

import replayssm_transformers
from replayssm import ReplayConfig
from replayssm_transformers.handle import ReplayHandle
from replayssm_transformers.operators import swap_state
from replayssm_transformers.table import FAMILIES, Family

# Tests run side by side, and these models are too small to gain from threads.
torch.set_num_threads(1)

VOCAB = 96
BY_NAME = {family.name: family for family in FAMILIES}

# A random model has flat logits; wide weights give a state that matters and tokens that vary.
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "max_position_embeddings": 512,
}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
GDN_DIMS = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_hidden_layers": 3,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
MAMBA_DIMS = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    "num_hidden_layers": 3,
}
KDA_DIMS = {
    "linear_head_dim": 16,
    "linear_num_heads": 2,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "dense"],
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "kv_lora_rank": 8,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
}
HYBRID = ["linear_attention", "full_attention", "linear_attention"]

CONFIGS: dict[str, dict] = {
    "Qwen3-Next": {**ATTENTION, **GDN_DIMS, **MOE, "head_dim": 8},
    "Qwen3.5": {**ATTENTION, **GDN_DIMS, "head_dim": 8},
    "Qwen3.5 MoE": {**ATTENTION, **GDN_DIMS, **MOE, "head_dim": 8},
    "OLMo-Hybrid": {**ATTENTION, **GDN_DIMS, "linear_num_key_heads": 4},
    "Nemotron-H": {
        **ATTENTION,
        "head_dim": 8,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "mlp"],
        "ssm_state_size": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "chunk_size": 16,
        "n_routed_experts": 4,
        "moe_intermediate_size": 16,
        "moe_shared_expert_intermediate_size": 16,
    },
    "Mamba2": {
        "num_heads": 8,
        "head_dim": 8,
        "state_size": 16,
        "n_groups": 2,
        "chunk_size": 16,
        "num_hidden_layers": 3,
    },
    "Bamba": {**ATTENTION, **MAMBA_DIMS, "attn_layer_indices": [1]},
    "Falcon-H1": {**ATTENTION, **MAMBA_DIMS, "mamba_d_ssm": 64, "head_dim": 8},
    "Granite-4 hybrid": {
        **ATTENTION,
        **MAMBA_DIMS,
        "layer_types": HYBRID,
        "num_local_experts": 4,
        "shared_intermediate_size": 16,
        "position_embedding_type": "rope",
    },
    "Zamba2": {
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention"],
        "mamba_d_state": 16,
        "mamba_ngroups": 2,
        "n_mamba_heads": 8,
        "chunk_size": 16,
        "adapter_rank": 4,
    },
    "Kimi-Linear": {**KDA_DIMS, "qk_rope_head_dim": 4, "num_local_experts": 4},
    "GLM-5-Next": {
        **KDA_DIMS,
        "qk_rope_head_dim": 0,
        "q_lora_rank": 8,
        "n_routed_experts": 4,
        "index_topk": 64,
        "index_head_dim": 8,
        "index_n_heads": 2,
        "index_kpool": 4,
        "hc_mult": 2,
    },
}


def config_of(family: Family, **changes):
    """The tiny configuration of a family."""
    module = importlib.import_module(f"transformers.models.{family.package}")
    values = {**COMMON, **CONFIGS[family.name], **changes}
    if family.name == "Mamba2":
        values.pop("max_position_embeddings")
    if family.name == "GLM-5-Next":
        special = {f"{kind}_token_id": VOCAB - 1 - i for i, kind in enumerate(("image", "video"))}
        vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32, "intermediate_size": 16}
        return module.Glm5NextConfig(text_config=values, vision_config=vision, **special)
    name = family.model.replace("ForCausalLM", "Config")
    if family.package.startswith("qwen3_5"):
        name = name.replace("Config", "TextConfig")
    return getattr(module, name)(**values)


@cache
def tiny(name: str, dtype: torch.dtype = torch.float32):
    """The tiny model of a family; one object for all tests, which must leave it disabled."""
    return build(name).to(dtype)


def build(name: str):
    """A new tiny model of a family in eval mode, always with the same weights."""
    family = BY_NAME[name]
    model_class = getattr(importlib.import_module(f"transformers.models.{family.package}"), family.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        model = model_class(config_of(family)).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def prompt(length: int = 12, rows: int = 1, seed: int = 0) -> torch.Tensor:
    """Random tokens `[rows, length]`, none of them a special one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCAB - 8, (rows, length), generator=generator)


LOGIT_TOLERANCE = 1e-4
"""Absolute, fp32 models against their unpatched selves.

One operator's sums of K = 16 products err by about 16 · 2⁻²⁴ ≈ 1e-6 relative either way; gated norms and three layers
of wide weights amplify that about tenfold, logits reach 5: 5e-5. Largest seen in the tests: 1e-5.
"""

KINDS = {"gdn": "Qwen3-Next", "mamba2": "Nemotron-H", "kda": "Kimi-Linear"}
"""One family for each recurrence, where a test does not need all twelve."""


@contextmanager
def enabled(model, **config):
    """Enable a model for the length of a block."""
    session = replayssm_transformers.enable(model, ReplayConfig(**config))
    try:
        yield session
    finally:
        replayssm_transformers.disable(model)


def cache_name(model) -> str:
    """How this release calls the cache in the model's forward and output."""
    parameters = inspect.signature(model.forward).parameters
    return next(name for name in ("cache", "past_key_values", "cache_params") if name in parameters)


def forward(model, ids, cache=None, **kwargs):
    """Logits and cache of one forward."""
    name = cache_name(model)
    with torch.no_grad():
        out = model(ids, use_cache=True, **{name: cache}, **kwargs)
    return out.logits, getattr(out, name)


def new_cache(model):
    """An empty dynamic cache for the model."""
    return DynamicCache(config=model.config.get_text_config(decoder=True))


def run(model, chunks, cache=None, start=0):
    """Feed token chunks one forward each, from position `start`: all logits `[B, sum T, vocab]`, and the cache."""
    logits = []
    positions = "position_ids" in inspect.signature(model.forward).parameters
    for chunk in chunks:
        # Given, because Bamba counts from 0 in each plain forward.
        where = {"position_ids": torch.arange(start, start + chunk.shape[1])[None].expand(len(chunk), -1)}
        out, cache = forward(model, chunk, cache, **(where if positions else {}))
        logits.append(out[:, -chunk.shape[1] :])
        start += chunk.shape[1]
    return torch.cat(logits, dim=1), cache


def states(cache) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Convolution and recurrent states of every state-space layer of a cache, in transformers' layout."""
    found = []
    for layer in cache.layers:
        if not getattr(layer, "is_recurrent_states_initialized", {}).get(0):
            continue
        recurrent = layer.recurrent_states[0]
        if isinstance(recurrent, ReplayHandle):
            recurrent = swap_state(layer.kind, recurrent.state())
        found.append((layer.conv_states[0], recurrent))
    return found


GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}
