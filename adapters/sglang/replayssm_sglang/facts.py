"""What the model's recurrent layers are, from SGLang's own description of their cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from replayssm import LayerKind, PrecisionPolicy, Recurrence, UnsupportedError
from replayssm.precision import PRESETS
from replayssm_sglang.calls import Foreign

MAMBA2_CONFIGS = ("FalconH1Config", "GraniteMoeHybridConfig", "Mamba2Config", "NemotronHConfig")
"""Model configurations whose mixer is SGLang's `MambaMixer2`."""

_PAST_THE_DISPATCHER = "call a kernel of their own"
_SIDE_STATES = "stand beside other states that follow the drafts, which is not served"
NOT_SERVED = {
    "JetNemotronConfig": _PAST_THE_DISPATCHER,
    "JetVLMConfig": _PAST_THE_DISPATCHER,
    "Qwen4ExpConfig": _SIDE_STATES,
    "Qwen4ExpTextConfig": _SIDE_STATES,
}
"""Model configurations with GDN layers that are not served, and why."""

_HEADS = ("linear_num_value_heads", "linear_num_key_heads", "mamba_num_heads", "mamba_n_heads", "num_heads")
"""Where configurations keep how many heads their recurrent layers have."""

STATE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Checkpoints that SGLang's prefill kernels can write: format → dtype of its pool."""

SERVED_PRESETS = tuple(name for name, policy in PRESETS.items() if policy.checkpoint in STATE_DTYPES)
"""Presets with such checkpoints."""


@dataclass(frozen=True)
class ModelFacts:
    """Recurrent layers of a model, on one rank.

    Attributes:
        recurrence: their geometry after the tensor-parallel split.
        activation: dtype that the model computes in.
    """

    recurrence: Recurrence
    activation: torch.dtype


def layer_kind(model_config: Foreign, hybrid_arch: Foreign) -> LayerKind:
    """Which layers a model has.

    Args:
        model_config: SGLang's `ModelConfig`.
        hybrid_arch: the module `sglang.srt.configs.hybrid_arch`.

    Raises:
        UnsupportedError: none that are served.
    """
    config = hybrid_arch.mambaish_config(model_config)
    if config is None:
        architecture = ", ".join(model_config.hf_config.architectures or ["this model"])
        raise UnsupportedError(f"{architecture} has no recurrent layers; start without --replayssm")
    name = type(config).__name__
    if name in NOT_SERVED:
        raise UnsupportedError(f"the GDN layers of {name} {NOT_SERVED[name]}; start without --replayssm")
    if hybrid_arch.hybrid_gdn_config(model_config) is not None:
        return LayerKind.GDN
    if _is_kda(model_config, hybrid_arch):
        return LayerKind.KDA
    if name in MAMBA2_CONFIGS:
        return LayerKind.MAMBA2
    raise UnsupportedError(
        f"the recurrent layers of {name} are not served; Mamba-2 ({', '.join(MAMBA2_CONFIGS)}), GDN and KDA are"
    )


def state_dtype(policy: PrecisionPolicy) -> torch.dtype:
    """Dtype of SGLang's pool for a precision policy.

    Raises:
        UnsupportedError: SGLang's prefill cannot write the policy's checkpoints.
    """
    if policy.checkpoint not in STATE_DTYPES:
        raise UnsupportedError(
            f"a checkpoint of {policy.checkpoint} is not served: SGLang's prefill writes states of "
            f"{', '.join(STATE_DTYPES)}; use the preset {', '.join(SERVED_PRESETS[:-1])} or {SERVED_PRESETS[-1]}"
        )
    return STATE_DTYPES[policy.checkpoint]


def check_split(config: Foreign, ranks: int) -> None:
    """That the heads of a model's recurrent layers split over `ranks`.

    Args:
        config: of the model, as `hybrid_arch.mambaish_config` gives it.

    Raises:
        UnsupportedError: some do not.
    """
    inner = getattr(config, "linear_attn_config", None) or {}
    found = [(name, inner.get(name, getattr(config, name, None))) for name in _HEADS]
    for name, heads in found:
        if isinstance(heads, int) and heads % ranks:
            raise UnsupportedError(f"{name} {heads} of {type(config).__name__} does not split over --tp-size {ranks}")


def cache_params(config: Foreign) -> Foreign:
    """SGLang's parameters of the states of one rank.

    Raises:
        UnsupportedError: heads that do not split, which SGLang only asserts.
    """
    try:
        return config.mamba2_cache_params
    except AssertionError as error:
        raise UnsupportedError(
            f"the heads of the recurrent layers do not split over --tp-size ({error}); use one that divides them"
        ) from None


def read_facts(kind: LayerKind, cache_params: Foreign, activation: torch.dtype) -> ModelFacts:
    """Geometry of one rank from SGLang's cache parameters.

    Mamba-2 and GDN convolve x, B and C (v, k and q) as one vector, whose width gives the groups that this rank holds, those
    repeated for the split included.

    Raises:
        UnsupportedError: heads that the groups of the rank do not divide.
    """
    heads, value_dim, key_dim = cache_params.shape.temporal
    if kind is LayerKind.KDA:
        groups = cache_params.shape.num_k_heads_per_tp
    else:
        width = cache_params.shape.conv[0][0]
        groups = (width - heads * value_dim) // (2 * key_dim)
    if groups < 1 or heads % groups:
        raise UnsupportedError(
            f"this rank holds {heads} heads and {groups} groups of {kind}, which do not divide; use another --tp-size"
        )
    return ModelFacts(Recurrence(kind, heads, groups, value_dim, key_dim), activation)


def _is_kda(model_config: Foreign, hybrid_arch: Foreign) -> bool:
    # 0.5.16 has Kimi-Linear only; later releases have one function for all models of this layer.
    find = getattr(hybrid_arch, "hybrid_kda_config", None) or hybrid_arch.kimi_linear_config
    return find(model_config) is not None
