"""Train a small model of one kind of recurrent layer to recall key–value pairs over thousands of tokens.

The task is `replayssm_transformers.recall.task`. The class wants an attention layer; its output projection is zero and
stays zero, so nothing but the recurrent state can hold the pairs. Distractors grow from none to --distractors.

    python recall.py --layer gdn --minutes 2 --out models/recall-gdn
"""

import argparse
import json
import time
from pathlib import Path

import torch
from hybrids import LAYERS, RECURRENT, parameter_groups, start_memories
from scan import ATTENTION, fast_training, register_attention
from torch.nn import functional as F
from transformers import (
    KimiLinearConfig,
    KimiLinearForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from replayssm_transformers.recall.task import BLOCK, START, VOCABULARY, Recall, draw
from train import Schedule, environment, save

LAYER_TYPES = ["full_attention", RECURRENT, RECURRENT]
LONG_MEMORY = (16384.0, 65536.0)
LR_REPEATS = 0.25
"""Weight of the distractors' own loss beside that of the questions."""


def build_model(layer: str, hidden: int, seed: int) -> PreTrainedModel:
    """Return a fresh model: one silent attention layer, then two recurrent ones."""
    torch.manual_seed(seed)
    special = {f"{name}_token_id": START for name in ("bos", "eos", "pad")}
    common = dict(vocab_size=VOCABULARY, hidden_size=hidden, max_position_embeddings=131072, **special)
    model = {"mamba2": _nemotron_h, "gdn": _qwen3_5, "kda": _kimi_linear}[layer](common)
    for name, parameter in model.named_parameters():
        if ".layers.0." in name and name.endswith("o_proj.weight"):
            torch.nn.init.zeros_(parameter)
            parameter.requires_grad_(False)
    for module in model.modules():
        if hasattr(module, "A_log"):
            start_memories(module, LONG_MEMORY)
        if hasattr(module, "conv1d"):
            start_within_reach(module)
    return model


@torch.no_grad()
def start_within_reach(mixer: torch.nn.Module) -> None:
    """Let a recurrent layer start with keys that look one token back, and queries equal to keys.

    A value is then written under the token before it and found again by that token; from a random start that alone
    takes longer to be found than all the rest.
    """
    if hasattr(mixer, "in_proj_qkv"):
        size = mixer.num_k_heads * mixer.head_k_dim
        projections, query, key = mixer.in_proj_qkv.weight, 0, size
    elif hasattr(mixer, "q_proj"):
        size = mixer.num_heads * mixer.head_dim
        mixer.q_proj.weight.copy_(mixer.k_proj.weight)
        projections, query, key = None, 0, size
    else:
        size, inner = mixer.n_groups * mixer.ssm_state_size, mixer.intermediate_size
        projections, query, key = mixer.in_proj.weight[inner:], inner + size, inner
    if projections is not None:
        projections[query : query + size] = projections[key : key + size]
    taps = mixer.conv1d.weight
    taps.zero_()
    taps[:, :, -1] = 1.0
    taps[key : key + size] = taps[key : key + size].roll(-1, dims=-1)


def _nemotron_h(common: dict) -> PreTrainedModel:
    return NemotronHForCausalLM(
        NemotronHConfig(
            **common,
            layers_block_type=LAYER_TYPES,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=16,
            ssm_state_size=64,
            mamba_num_heads=4,
            mamba_head_dim=64,
            n_groups=1,
            # As in hybrids.py: a reachable clamp would make prefill and decode disagree.
            time_step_min=1e-6,
        )
    )


def _qwen3_5(common: dict) -> PreTrainedModel:
    return Qwen3_5ForCausalLM(
        Qwen3_5TextConfig(
            **common,
            layer_types=LAYER_TYPES,
            num_hidden_layers=3,
            intermediate_size=64,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=16,
            linear_key_head_dim=64,
            linear_value_head_dim=64,
            linear_num_key_heads=1,
            linear_num_value_heads=2,
        )
    )


def _kimi_linear(common: dict) -> PreTrainedModel:
    return KimiLinearForCausalLM(
        KimiLinearConfig(
            **common,
            layer_types=LAYER_TYPES,
            mlp_layer_types=["dense"] * 3,
            num_hidden_layers=3,
            intermediate_size=64,
            num_attention_heads=1,
            num_key_value_heads=1,
            kv_lora_rank=16,
            qk_nope_head_dim=16,
            qk_rope_head_dim=16,
            v_head_dim=16,
            linear_head_dim=64,
            linear_num_heads=2,
        )
    )


def batch_loss(model: PreTrainedModel, recall: Recall) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss, and the share of questions answered right."""
    hidden = model.base_model(input_ids=recall.tokens[:, :-1], use_cache=False).last_hidden_state
    head = model.get_output_embeddings()
    logits = head(hidden[:, recall.asked]).float()
    loss = F.cross_entropy(logits.flatten(0, 1), recall.answers.flatten())
    if len(recall.repeats):
        others, targets = head(hidden[:, recall.repeats]).float(), recall.tokens[:, recall.repeats + 1]
        loss = loss + LR_REPEATS * F.cross_entropy(others.flatten(0, 1), targets.flatten())
    return loss, (logits.argmax(-1) == recall.answers).float().mean()


def train(model: PreTrainedModel, args: argparse.Namespace, device: str) -> dict:
    """Run the schedule, distractors growing with the square of its progress; return the log."""
    groups = parameter_groups(model, 0.0, args.gate_rate)
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=device == "cuda")
    generator, schedule = torch.Generator(device).manual_seed(args.seed), Schedule(args)
    log: dict = {"curve": [], "steps": 0}
    while (progress := schedule.progress(log["steps"])) < 1:
        length = int(args.distractors * min(1.0, progress / 0.8) ** 2) // BLOCK * BLOCK
        # As many tokens a step whatever their length.
        rows = max(4, args.tokens // (length + 4 * args.pairs))
        rate = schedule.learning_rate(progress)
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * rate
        loss, accuracy = batch_loss(model, draw(rows, args.pairs, length, generator))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if bool(torch.isfinite(loss + norm)):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log["steps"] += 1
        if log["steps"] % args.log_every == 0:
            point = {
                "step": log["steps"],
                "seconds": round(time.monotonic() - schedule.began, 1),
                "distractors": length,
                "loss": round(loss.item(), 4),
                "accuracy": round(accuracy.item(), 4),
            }
            log["curve"].append(point)
            print(args.layer, json.dumps(point), flush=True)
    log["train_seconds"] = round(time.monotonic() - schedule.began, 1)
    return log


def parse_arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", choices=LAYERS, required=True)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int)
    length.add_argument("--minutes", type=float)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--distractors", type=int, default=2048, help="tokens of distractors at the end of training")
    parser.add_argument("--tokens", type=int, default=32768, help="of a step")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--gate-rate", type=float, default=0.3, help="learning rate of the decay gates, as a factor")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    """Train, save, and write down how it went."""
    args = parse_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    register_attention()
    model = build_model(args.layer, args.hidden, args.seed).to(device).train()
    model.set_attn_implementation(ATTENTION)
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    facts = environment(args) | {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    with fast_training():
        log = facts | train(model, args, device)
    # Tokens are the task's numbers: no tokenizer.
    save(model, args.out)
    (args.out / "train-log.json").write_text(json.dumps(log, indent=1) + "\n")


if __name__ == "__main__":
    main()
