"""The trained models that ship with the transformers adapter, in the form that SGLang loads, and tokens of their text."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from replayssm_transformers.bundled import heldout_text, model_path

BLOCKS = {"linear_attention": "mamba", "full_attention": "attention"}
"""Nemotron-H's layers as its checkpoints call them."""
LATENT, POSITION = 256, 32
"""Kimi-Linear's latent and its positions as SGLang's Triton attention can decode them; the trained latent has 64 numbers."""


def gdn_config(config: dict) -> dict:
    """Qwen3.5: every third layer is attention, which the newer form lists layer by layer."""
    return {**config, "full_attention_interval": config["layer_types"].index("full_attention") + 1}


def mamba2_config(config: dict) -> dict:
    """Nemotron-H; the limits of the step are those that SGLang takes when none are given."""
    kept = {name: value for name, value in config.items() if name not in ("time_step_limit", "mtp_layers_block_type")}
    kept["layers_block_type"] = [BLOCKS.get(block, block) for block in config["layers_block_type"]]
    return {**kept, "mamba_n_groups": config["n_groups"]}


def kda_config(config: dict) -> dict:
    """Kimi-Linear: layers are counted from one, and a model without experts has none in its configuration."""
    kinds = list(enumerate(config["layer_types"], 1))
    linear = {
        "kda_layers": [i for i, kind in kinds if kind == "linear_attention"],
        "full_attn_layers": [i for i, kind in kinds if kind == "full_attention"],
        "num_heads": config["linear_num_heads"],
        "head_dim": config["linear_head_dim"],
        "short_conv_kernel_size": config["linear_conv_kernel_dim"],
    }
    return {**config, "linear_attn_config": linear, "mla_use_nope": True, "num_experts": None, "kv_lora_rank": LATENT}


def kda_tensor(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Kimi-Linear: a convolution each for q, k and v; the gate's tensors beside the others; a wider latent.

    The latent is repeated, so its mean square stays what it was, and only the first of the repeats is read.
    """
    if ".conv1d." in name:
        return {
            name.replace("conv1d", f"{which}_conv1d"): part for which, part in zip("qkv", tensor.chunk(3), strict=True)
        }
    if ".kv_a_layernorm." in name:
        tensor = tensor.repeat(LATENT // len(tensor))
    elif ".kv_b_proj." in name:
        tensor = functional.pad(tensor, (0, LATENT - tensor.shape[1]))
    elif ".kv_a_proj_with_mqa." in name:
        latent, position = tensor.split([len(tensor) - POSITION, POSITION])
        tensor = torch.cat([latent.repeat(LATENT // len(latent), 1), position])
    return {name.replace(".forget_gate.", "."): tensor}


CONFIGS = {"gdn": gdn_config, "mamba2": mamba2_config, "kda": kda_config}


def write_model(folder: Path, kind: str) -> Path:
    """A trained model as SGLang loads it, in `folder`."""
    source = model_path(kind)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(source / "model.safetensors")
    if kind == "kda":
        tensors = {name: part for pair in tensors.items() for name, part in kda_tensor(*pair).items()}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind](config)), encoding="utf-8")
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", {"format": "pt"})
    return folder


@cache
def text_tokens(text: str, count: int) -> list[int]:
    """The first `count` tokens of the held-out "bible" or "code"; all three models have one tokenizer."""
    tokenizer = Tokenizer.from_file(str(model_path("gdn") / "tokenizer.json"))
    return tokenizer.encode(heldout_text(text)[: 8 * count]).ids[:count]
