"""The three small hybrid models: their configurations and a start with long and short memories."""

import math

import torch
from torch import nn
from transformers import (
    KimiLinearConfig,
    KimiLinearForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

LAYERS = ("mamba2", "gdn", "kda")
SHORT_MEMORY = (2.0, 16.0)
STEP = 1.0
GATES = ("A_log", "dt_bias", "in_proj_a.weight", "f_a_proj.weight", "f_b_proj.weight")
HIDDEN = 256
RECURRENT, ATTENTION = "linear_attention", "full_attention"

# One period in the trained context for every rotated pair: no phase is new beyond it.
ROPE_THETA = 2000.0


def build_model(
    layer: str, special: dict[str, int], vocab_size: int, seed: int, long_memory: tuple[float, float]
) -> PreTrainedModel:
    """Return a fresh fp32 model of kind `layer`; `special` holds the bos, eos and pad token ids.

    `long_memory` is the range of decay times, in tokens, of the half of the heads that remember long.
    """
    torch.manual_seed(seed)
    common = dict(vocab_size=vocab_size, hidden_size=HIDDEN, initializer_range=0.04, **special)
    model = {"mamba2": _nemotron_h, "gdn": _qwen3_5, "kda": _kimi_linear}[layer](common)
    for module in model.modules():
        if hasattr(module, "A_log"):
            start_memories(module, long_memory)
    return model


def _nemotron_h(common: dict) -> PreTrainedModel:
    config = NemotronHConfig(
        **common,
        layers_block_type=[RECURRENT, "mlp", RECURRENT, ATTENTION, RECURRENT, "mlp"],
        intermediate_size=320,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=131072,
        ssm_state_size=128,
        mamba_num_heads=8,
        mamba_head_dim=64,
        n_groups=2,
        # The class clamps the step to time_step_min in prefill and not in decode: keep the clamp out of reach.
        time_step_min=1e-6,
    )
    return NemotronHForCausalLM(config)


def _qwen3_5(common: dict) -> PreTrainedModel:
    config = Qwen3_5TextConfig(
        **common,
        layer_types=[RECURRENT, RECURRENT, ATTENTION, RECURRENT],
        num_hidden_layers=4,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA, "partial_rotary_factor": 0.25},
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        tie_word_embeddings=True,
    )
    return Qwen3_5ForCausalLM(config)


def _kimi_linear(common: dict) -> PreTrainedModel:
    config = KimiLinearConfig(
        **common,
        layer_types=[RECURRENT, RECURRENT, ATTENTION, RECURRENT],
        mlp_layer_types=["dense"] * 4,
        num_hidden_layers=4,
        intermediate_size=208,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=32,
        v_head_dim=64,
        max_position_embeddings=131072,
        linear_head_dim=128,
        linear_num_heads=2,
    )
    return KimiLinearForCausalLM(config)


@torch.no_grad()
def start_memories(module: nn.Module, long_memory: tuple[float, float]) -> None:
    """Set the decay times 1/(A·dt) of a recurrent layer: the first half of its heads long, the others short.

    `A_log` holds one entry a head; `dt_bias` one a head, or one a key channel (KDA). A head's fastest entry starts
    at dt = STEP and A makes up the rest: dt, which follows the input, can then speed a long memory up by a small
    factor only, and (Mamba-2) does not have to be small, and the head write little, for the memory to be long.
    Neighbouring channels have similar times.
    """
    heads = module.A_log.numel()
    gates = module.dt_bias.view(heads, -1)
    halves = (
        _spread(*long_memory, heads - heads // 2, gates.shape[1]),
        _spread(*SHORT_MEMORY, heads // 2, gates.shape[1]),
    )
    times = torch.cat(halves)
    fastest = times.amin(1, keepdim=True)
    module.A_log.copy_(-(STEP * fastest).log().view_as(module.A_log))
    steps = STEP * fastest / times
    # Inverse of softplus.
    gates.copy_(steps + torch.log(-torch.expm1(-steps)))


def _spread(low: float, high: float, heads: int, channels: int) -> torch.Tensor:
    """Return `[heads, channels]` from `low` to `high`, evenly in the logarithm, rising along both."""
    times = torch.logspace(math.log10(low), math.log10(high), heads * channels)
    return times.view(channels, heads).t()


def parameter_groups(model: PreTrainedModel, weight_decay: float, gate_rate: float) -> list[dict]:
    """Split parameters for AdamW: gates, norms and biases are never decayed; gates learn `gate_rate` as fast.

    The projection of the input to a decay gate is part of the gate, where it is a matrix of its own (GDN, KDA).
    """
    matrices, vectors, gates = [], [], []
    for name, parameter in model.named_parameters():
        if name.endswith(GATES):
            gates.append(parameter)
        else:
            (vectors if parameter.ndim < 2 else matrices).append(parameter)
    return [
        {"params": matrices, "weight_decay": weight_decay, "rate": 1.0},
        {"params": vectors, "weight_decay": 0.0, "rate": 1.0},
        {"params": gates, "weight_decay": 0.0, "rate": gate_rate},
    ]


def stored_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the state dict as stored: matrices in bf16, gates and vectors in fp32, tied weights once."""
    tied = set(model.all_tied_weights_keys) if model.config.tie_word_embeddings else set()
    stored = {}
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        small = tensor.ndim < 2 or name.endswith(("A_log", "dt_bias"))
        dtype = torch.float32 if small else torch.bfloat16
        stored[name] = tensor.detach().to("cpu", dtype).contiguous()
    return stored
