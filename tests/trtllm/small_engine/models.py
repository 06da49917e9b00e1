"""Toy models of the served architectures: an embedding, mixers with residuals, and a worker that reports acceptance."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from small_engine.base import Mapping

REGISTRY = {}


def register_auto_model(name):
    def decorate(cls):
        REGISTRY[name] = cls
        return cls

    return decorate


def pretrained(kind, *, dtype, layers=3, heads=4, groups=2, head_dim=8, key_dim=16, **extra):
    """A configuration with the names of both kinds' models."""
    geometry = {
        "mamba_num_heads": heads, "mamba_head_dim": head_dim, "n_groups": groups, "ssm_state_size": key_dim,
        "conv_kernel": 3,
        "linear_num_value_heads": heads, "linear_num_key_heads": groups, "linear_value_head_dim": head_dim,
        "linear_key_head_dim": key_dim, "linear_conv_kernel_dim": 3,
    }  # fmt: skip
    name = "NemotronHForCausalLM" if kind == "mamba2" else "Qwen3NextForCausalLM"
    mask = [layer % 2 == 0 for layer in range(2 * layers - 1)]
    return SimpleNamespace(
        architectures=[name], hidden_size=12, vocab_size=29, torch_dtype=dtype, recurrent_mask=mask, **geometry, **extra
    )


def model_config(config, *, mapping=None, spec_config=None, ssm_dtype=None):
    quantization = SimpleNamespace(mamba_ssm_cache_dtype=ssm_dtype)
    return SimpleNamespace(
        pretrained_config=config, mapping=mapping or Mapping(), spec_config=spec_config, quant_config=quantization
    )


def make_model_class(name, mixer_class):
    """A model class of one mixer; layers that are not recurrent pass their input on."""

    def __init__(self, model_config):
        nn.Module.__init__(self)
        config = model_config.pretrained_config
        self.model_config, self.config = model_config, config
        self.embed = nn.Parameter(torch.randn(config.vocab_size, config.hidden_size).to(config.torch_dtype))
        mixers = {str(i): mixer_class(config, i) for i, recurrent in enumerate(config.recurrent_mask) if recurrent}
        self.mixers = nn.ModuleDict(mixers)
        self.worker = None

    def forward(self, attn_metadata, input_ids=None, position_ids=None, spec_metadata=None, **kwargs):
        del position_ids, kwargs
        hidden = self.embed[input_ids]
        for mixer in self.mixers.values():
            hidden = hidden + mixer(
                torch.tanh(hidden), attn_metadata, attn_metadata.mamba_metadata, spec_metadata=spec_metadata
            )
        if self.worker is not None and spec_metadata is not None:
            self.worker(attn_metadata)
        return hidden

    return type(name, (nn.Module,), {"__init__": __init__, "forward": forward})
