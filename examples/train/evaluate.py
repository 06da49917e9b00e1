"""What the trained models are worth: held-out loss, loss by position, memory, samples, draft acceptance."""

import argparse
import itertools
import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from tokens import token_stream
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

POSITION_EDGES = (0, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
OWN_PROMPT = 'def count_words(path):\n    """Return how often each word occurs in the file."""\n'


@torch.no_grad()
def token_losses(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Return the loss in nats of each predicted token, `[rows, length]`, for ids `[rows, length + 1]`.

    Logits are made 4096 positions at a time.
    """
    hidden = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    head = model.get_output_embeddings()
    losses = []
    for states, targets in zip(hidden.split(4096, 1), ids[:, 1:].split(4096, 1), strict=True):
        losses.append(F.cross_entropy(head(states).float().transpose(1, 2), targets, reduction="none"))
    return torch.cat(losses, 1)


def windows(stream: torch.Tensor, length: int, limit: int) -> torch.Tensor:
    """Cut `[tokens]` into at most `limit` rows of `length + 1` that start `length` apart."""
    rows = min(limit, (stream.numel() - 1) // length)
    return torch.stack([stream[row * length : row * length + length + 1] for row in range(rows)])


def held_out_loss(
    model: PreTrainedModel, stream: torch.Tensor, bytes_per_token: float, length: int, limit: int
) -> dict[str, float]:
    """Return mean loss over windows of `length`, in nats per token and bits per byte."""
    rows = windows(stream, length, limit).to(model.device)
    losses = [token_losses(model, row[None]) for row in rows]
    nats = torch.cat(losses).mean().item()
    return {
        "nats_per_token": round(nats, 4),
        "bits_per_byte": round(nats / math.log(2) / bytes_per_token, 4),
        "tokens": rows.numel() - len(rows),
    }


def loss_by_position(model: PreTrainedModel, stream: torch.Tensor, length: int, limit: int) -> dict[str, float]:
    """Return mean loss in each range of positions, from windows of `length` read from an empty state."""
    rows = windows(stream, length, limit).to(model.device)
    losses = torch.cat([token_losses(model, row[None]) for row in rows])
    result = {}
    for low, high in itertools.pairwise(POSITION_EDGES):
        if high <= length:
            result[f"{low}-{high}"] = round(losses[:, low:high].mean().item(), 4)
    return result


def cost_of_length(model: PreTrainedModel, stream: torch.Tensor, length: int, long: int) -> list[float]:
    """Return, per half window, the loss in one window of `long` minus that of the same tokens read afresh.

    Afresh means from an empty state and windows of `length`, of which only the second half counts.
    A model that long contexts do not harm gives values at or below 0.
    """
    half, ids = length // 2, stream[: long + 1].to(model.device)
    whole = token_losses(model, ids[None])[0]
    return [
        round(
            (whole[at : at + half] - token_losses(model, ids[None, at - half : at + half + 1])[0, half:]).mean().item(),
            4,
        )
        for at in range(half, long, half)
    ]


def gate_source(mixer: nn.Module) -> tuple[nn.Module, str]:
    """Return the submodule whose output decides the decay of `mixer`, and the kind of layer."""
    if hasattr(mixer, "forget_gate"):
        return mixer.forget_gate, "kda"
    if hasattr(mixer, "in_proj_a"):
        return mixer.in_proj_a, "gdn"
    return mixer.in_proj, "mamba2"


def log_decay(mixer: nn.Module, output: torch.Tensor) -> torch.Tensor:
    """Turn the gate source's output `[1, tokens, ...]` into log decays `[tokens, heads, channels]` ≤ 0."""
    kind = gate_source(mixer)[1]
    if kind == "kda":
        return output[0].float()
    heads = mixer.A_log.numel()
    steps = F.softplus(output[0, :, -heads:].float() + mixer.dt_bias.float())
    return (-mixer.A_log.float().exp() * steps)[..., None]


def tokens_to_forget(decay: torch.Tensor) -> torch.Tensor:
    """Return `[heads, channels]`: the median number of tokens until a state entry fell to 1/e.

    Starts are taken in the first half of the text; a start that never gets there counts as the second half.
    """
    tokens = decay.shape[0]
    total = -decay.double().cumsum(0).flatten(1).t().contiguous()  # [heads * channels, tokens], rising
    start = total[:, : tokens // 2].contiguous()
    reached = torch.searchsorted(total, start + 1.0) - torch.arange(tokens // 2, device=total.device)
    median = reached.clamp(max=tokens // 2).float().median(dim=1).values
    return median.view(decay.shape[1:])


@torch.no_grad()
def memory(model: PreTrainedModel, ids: torch.Tensor) -> dict[str, list]:
    """Return per recurrent layer and head the decay times in tokens over text `ids` `[tokens]`.

    A head with one decay gives one number, a head with a decay per channel its 10, 50, 90 % quantiles.
    """
    mixers = {name: module for name, module in model.named_modules() if hasattr(module, "conv1d")}
    times: dict[str, torch.Tensor] = {}

    def keep(name: str, output: torch.Tensor) -> None:
        times[name] = tokens_to_forget(log_decay(mixers[name], output))

    hooks = [
        gate_source(mixer)[0].register_forward_hook(lambda _module, _inputs, output, name=name: keep(name, output))
        for name, mixer in mixers.items()
    ]
    model.base_model(input_ids=ids[None].to(model.device), use_cache=False)
    for hook in hooks:
        hook.remove()
    levels = torch.tensor([0.1, 0.5, 0.9])
    return {
        name: [
            round(head.item()) if head.numel() == 1 else [round(x) for x in head.cpu().quantile(levels).tolist()]
            for head in heads
        ]
        for name, heads in times.items()
    }


def greedy(model: PreTrainedModel, prompts: torch.Tensor, count: int) -> torch.Tensor:
    """Return `[rows, prompt + count]`: equally long prompts `[rows, prompt]` continued greedily."""
    return model.generate(
        prompts.to(model.device),
        attention_mask=torch.ones_like(prompts).to(model.device),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
    )


def lookup_drafts(tokens: list[int], start: int, draft: int = 4, match: int = 2) -> dict[str, float]:
    """Replay prompt-lookup drafting over a greedy run: `tokens[start:]` is what the model chose.

    Each step copies `draft` tokens from after the latest earlier occurrence of the last `match` tokens;
    the agreeing ones are accepted and the model adds one of its own.
    """
    latest: dict[tuple[int, ...], int] = {}
    seen, position = match, start
    steps = proposed = accepted = 0
    while position < len(tokens):
        while seen < position:
            latest[tuple(tokens[seen - match : seen])] = seen
            seen += 1
        source = latest.get(tuple(tokens[position - match : position]))
        copied = tokens[source : min(source + draft, position)] if source is not None else []
        agreed = 0
        while agreed < len(copied) and tokens[position + agreed : position + agreed + 1] == [copied[agreed]]:
            agreed += 1
        steps, proposed, accepted = steps + 1, proposed + len(copied), accepted + agreed
        position += agreed + 1
    return {"steps": steps, "proposed": proposed, "accepted": accepted, "chosen": len(tokens) - start}


def draft_report(model: PreTrainedModel, stream: torch.Tensor, prompt: int, count: int, rows: int) -> dict:
    """Return summed draft counts over `rows` greedy runs that continue held-out text."""
    starts = [(stream.numel() - prompt) * row // rows for row in range(rows)]
    runs = greedy(model, torch.stack([stream[at : at + prompt] for at in starts]), count)
    parts = [lookup_drafts(run, prompt) for run in runs.tolist()]
    total = {key: sum(part[key] for part in parts) for key in parts[0]}
    total["acceptance"] = round(total["accepted"] / max(1, total["proposed"]), 3)
    total["tokens_per_step"] = round(total["chosen"] / total["steps"], 3)
    return total


def samples(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, streams: dict[str, torch.Tensor], count: int
) -> dict[str, dict[str, str]]:
    """Continue the opening of each held-out text and one prompt of our own."""
    prompts = {domain: stream[1:129] for domain, stream in streams.items()}
    prompts["own"] = torch.tensor(tokenizer.encode(OWN_PROMPT))
    result = {}
    for name, prompt in prompts.items():
        run = greedy(model, prompt[None], count)[0, prompt.numel() :]
        result[name] = {"prompt": tokenizer.decode(prompt), "continuation": tokenizer.decode(run)}
    return result


def full_report(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    files: list[Path],
    length: int,
    long: int,
    reading: Callable[[], AbstractContextManager] = nullcontext,
) -> dict:
    """Return everything above for held-out `files`; `length` and `long` are the window sizes.

    Texts are read without a cache in the context `reading()`, which may put a faster, equal recurrence in place.
    """
    model.eval()
    streams = {file.stem.split("-")[-1]: token_stream(tokenizer, file) for file in files}
    sizes = {file.stem.split("-")[-1]: file.stat().st_size for file in files}
    parts = ("loss", "loss_by_position", "cost_of_length", "memory_tokens", "drafts")
    report: dict = {"window": length} | {part: {} for part in parts}
    for domain, stream in streams.items():
        density = sizes[domain] / stream.numel()
        with reading():
            report["loss"][domain] = held_out_loss(model, stream, density, length, limit=10**6)
            report["loss_by_position"][domain] = loss_by_position(model, stream, long, limit=6)
            report["cost_of_length"][domain] = cost_of_length(model, stream, length, long)
            report["memory_tokens"][domain] = memory(model, stream[: min(long, 16384)])
        report["drafts"][domain] = draft_report(model, stream, prompt=min(1024, long // 2), count=256, rows=8)
        print(json.dumps({domain: {part: report[part][domain] for part in parts}}), flush=True)
    report["samples"] = samples(model, tokenizer, streams, 200)
    return report


def main() -> None:
    """Evaluate a saved model directory and print the report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--heldout", type=Path, nargs="+", required=True)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--long", type=int, default=32768)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(device)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    report = full_report(model, tokenizer, args.heldout, args.length, args.long)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
