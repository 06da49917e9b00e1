"""The three small hybrid models: their configurations and a start with slow decays."""

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
SLOWEST_STEP = 1e-3
FASTEST_STEP = {"mamba2": 1e-2, "gdn": 10**-1.5, "kda": 1e-1}
HIDDEN = 256
RECURRENT, ATTENTION = "linear_attention", "full_attention"

# One period in the trained context for every rotated pair: no phase is new beyond it.
ROPE_THETA = 2000.0


def build_model(layer: str, special: dict[str, int], vocab_size: int, seed: int) -> PreTrainedModel:
    """Return a fresh fp32 model of kind `layer`; `special` holds the bos, eos and pad token ids."""
    torch.manual_seed(seed)
    common = dict(vocab_size=vocab_size, hidden_size=HIDDEN, initializer_range=0.04, **special)
    model = {"mamba2": _nemotron_h, "gdn": _qwen3_5, "kda": _kimi_linear}[layer](common)
    for module in model.modules():
        if hasattr(module, "A_log"):
            _start_slow(module, FASTEST_STEP[layer])
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
def _start_slow(module: nn.Module, fastest: float) -> None:
    """Spread the decay time 1/(A·dt) of a recurrent layer's gates from about 1000 tokens down.

    `A_log` holds one entry a head; `dt_bias` one a head, or one a key channel (KDA). Every other head
    starts at A = 1; step sizes dt spread evenly in the logarithm from SLOWEST_STEP to `fastest`.
    """
    heads = module.A_log.numel()
    rates = [1.0 if head % 2 == 0 else 2.0 ** (1 + (head // 2) % 4) for head in range(heads)]
    module.A_log.copy_(torch.tensor(rates).log().view_as(module.A_log))
    gates = module.dt_bias.view(heads, -1)
    low, high = math.log(SLOWEST_STEP), math.log(fastest)
    if gates.shape[1] == 1:
        steps = torch.linspace(low, high, (heads + 1) // 2).exp().repeat_interleave(2)[:heads].view(heads, 1)
    else:
        steps = torch.empty_like(gates).uniform_(low, high).exp()
    # Inverse of softplus.
    gates.copy_(steps + torch.log(-torch.expm1(-steps)))


def parameter_groups(model: PreTrainedModel, weight_decay: float, gate_rate: float) -> list[dict]:
    """Split parameters for AdamW: gates, norms and biases are never decayed; gates learn `gate_rate` as fast."""
    matrices, vectors, gates = [], [], []
    for name, parameter in model.named_parameters():
        if name.endswith(("A_log", "dt_bias")):
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
