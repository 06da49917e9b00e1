"""Train one small hybrid language model (Mamba-2, GDN or KDA layers beside attention).

The model is an ordinary transformers class; while it trains, its chunked delta rule and its attention
are replaced by the equal and faster ones of scan.py. Weights, recurrent state and loss are fp32; --tf32
lets matrix products round their operands to TF32 on a GPU. Measuring uses the class's own recurrence.

    python corpus.py --out corpus
    python tokens.py --text corpus/train-*.txt --out corpus/tokenizer
    python train.py --layer gdn --minutes 8 --text corpus/train-*.txt --heldout corpus/heldout-*.txt \
        --tokenizer corpus/tokenizer --out models/gdn
"""

import argparse
import json
import math
import platform
import shutil
import sys
import time
from pathlib import Path

import torch
import transformers
from evaluate import full_report, held_out_loss
from hybrids import LAYERS, build_model, parameter_groups, stored_tensors
from safetensors.torch import save_file
from scan import ATTENTION, fast_training, register_attention
from tokens import token_stream
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

WARM_UP = 0.03
FINAL_RATE = 0.01
SKIPPED_AT_MOST = 5


class Schedule:
    """Progress of a run in [0, 1], by steps or by minutes, and what follows from it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.began = time.monotonic()

    def progress(self, step: int) -> float:
        """Return the fraction of the run that is over before `step`."""
        if self.args.steps:
            return min(1.0, step / self.args.steps)
        return min(1.0, (time.monotonic() - self.began) / (60 * self.args.minutes))

    def learning_rate(self, progress: float) -> float:
        """Return the rate: linear warm-up, then a cosine down to 1 % of the peak."""
        if progress < WARM_UP:
            return self.args.lr * (progress + 1e-3) / (WARM_UP + 1e-3)
        cosine = 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))
        return self.args.lr * (FINAL_RATE + (1 - FINAL_RATE) * cosine)

    def shape(self, progress: float) -> tuple[int, int]:
        """Return (rows, length) of a batch: the last part of the run reads long rows, as many tokens."""
        if progress < 1 - self.args.long_fraction:
            return self.args.batch, self.args.seq_len
        rows = max(1, self.args.batch * self.args.seq_len // self.args.long_seq_len)
        return rows, self.args.long_seq_len


def draw_batch(stream: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    """Return `[rows, length + 1]` int64: cuts of `stream` `[tokens]` at random places."""
    starts = torch.randint(stream.numel() - length - 1, (rows, 1), device=stream.device)
    return stream[starts + torch.arange(length + 1, device=stream.device)]


def batch_loss(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Return the mean next-token loss of ids `[rows, length + 1]`."""
    hidden = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden)
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def save(model: PreTrainedModel, out: Path, tokenizer: Path | None = None) -> None:
    """Write a Hugging Face model directory, with the files of a `tokenizer` folder; it computes in fp32, as trained."""
    out.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.dtype = "float32"
    model.config.save_pretrained(out)
    for file in tokenizer.glob("tokenizer*.json") if tokenizer else ():
        shutil.copy(file, out)
    save_file(stored_tensors(model), out / "model.safetensors", metadata={"format": "pt"})


def train_step(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, ids: torch.Tensor, rate: float
) -> torch.Tensor | None:
    """Take one step at learning rate `rate`; return the detached loss.

    Where the loss or a gradient is not finite, leave the weights as they are and return None.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["rate"] * rate
    loss = batch_loss(model, ids)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    finite = bool(torch.isfinite(loss + norm))
    if finite:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach() if finite else None


def train(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, stream: torch.Tensor, args: argparse.Namespace
) -> dict:
    """Run the schedule over `stream` `[tokens]`; save and measure every --check-minutes; return the log."""
    heldout = {file.stem: token_stream(tokenizer, file) for file in args.heldout}
    groups = parameter_groups(model, args.weight_decay, args.gate_rate)
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=stream.is_cuda)
    log: dict = {"curve": [], "heldout_curve": [], "tokens_seen": 0, "steps": 0, "skipped_steps": 0}
    schedule, checked, losses = Schedule(args), time.monotonic(), []
    while (progress := schedule.progress(log["steps"])) < 1:
        ids = draw_batch(stream, *schedule.shape(progress))
        loss = train_step(model, optimizer, ids, schedule.learning_rate(progress))
        log["steps"] += 1
        log["tokens_seen"] += ids.numel() - len(ids)
        if loss is None:
            skip(model, log, args)
            continue
        losses.append(loss)
        if len(losses) == args.log_every:
            point = {
                "step": log["steps"],
                "seconds": round(time.monotonic() - schedule.began, 1),
                "length": ids.shape[1] - 1,
                "loss": round(torch.stack(losses).mean().item(), 4),
            }
            note(args, log["curve"], point)
            losses.clear()
        if time.monotonic() - checked > 60 * args.check_minutes:
            note(args, log["heldout_curve"], {"step": log["steps"], **quick_check(model, heldout, args.seq_len)})
            save(model, args.out, args.tokenizer)
            checked = time.monotonic()
    log["train_seconds"] = round(time.monotonic() - schedule.began, 1)
    return log


def skip(model: PreTrainedModel, log: dict, args: argparse.Namespace) -> None:
    """Count a step that was not finite; above SKIPPED_AT_MOST of them keep the last good weights and stop."""
    log["skipped_steps"] += 1
    print(args.layer, json.dumps({"step": log["steps"], "skipped_steps": log["skipped_steps"]}), flush=True)
    if log["skipped_steps"] > SKIPPED_AT_MOST:
        save(model, args.out, args.tokenizer)
        raise SystemExit(
            f"--layer {args.layer}: loss or gradient not finite in {log['skipped_steps']} steps, the last of them "
            f"step {log['steps']} (at most {SKIPPED_AT_MOST} are skipped); the last good weights are in {args.out}"
        )


def note(args: argparse.Namespace, curve: list[dict], point: dict) -> None:
    """Append `point` to `curve` and print it."""
    curve.append(point)
    print(args.layer, json.dumps(point), flush=True)


def quick_check(model: PreTrainedModel, heldout: dict[str, torch.Tensor], length: int) -> dict[str, float]:
    """Return a small held-out loss per text, in nats per token, and leave the model in training mode."""
    model.eval()
    losses = {name: held_out_loss(model, stream, 1.0, length, limit=16) for name, stream in heldout.items()}
    model.train()
    return {name: loss["nats_per_token"] for name, loss in losses.items()}


def parse_arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", choices=LAYERS, required=True)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int)
    length.add_argument("--minutes", type=float)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--long-seq-len", type=int, default=8192)
    parser.add_argument("--long-fraction", type=float, default=0.3, help="last part of the run at --long-seq-len")
    parser.add_argument("--batch", type=int, default=24, help="rows of --seq-len tokens in a step")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--gate-rate", type=float, default=1.0, help="learning rate of the decay gates, as a factor")
    parser.add_argument(
        "--long-memory",
        type=float,
        nargs=2,
        default=(2048.0, 8192.0),
        help="decay times, in tokens, at which the long heads start",
    )
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--heldout", type=Path, nargs="+", required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--eval-length", type=int, default=8192)
    parser.add_argument("--eval-long", type=int, default=32768)
    parser.add_argument("--check-minutes", type=float, default=1.5)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def environment(args: argparse.Namespace) -> dict:
    """Return what a reader needs to repeat the run."""
    cuda = torch.cuda.is_available()
    return {
        "command": " ".join(["python", *sys.argv]),
        "layer": args.layer,
        "seed": args.seed,
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def main() -> None:
    """Train, save, then measure the model as it was stored."""
    args = parse_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    register_attention()
    model = build_model(args.layer, special, len(tokenizer), args.seed, tuple(args.long_memory)).to(device).train()
    model.set_attn_implementation(ATTENTION)
    stream = torch.cat([token_stream(tokenizer, file) for file in args.text]).to(device)
    facts = environment(args) | {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "train_tokens": stream.numel(),
    }
    print(json.dumps(facts), flush=True)
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    with fast_training():
        log = facts | train(model, tokenizer, stream, args)
    log["epochs"] = round(log["tokens_seen"] / stream.numel(), 2)
    if device == "cuda":
        log["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        torch.cuda.empty_cache()
    save(model, args.out, args.tokenizer)
    (args.out / "train-log.json").write_text(json.dumps(log, indent=1) + "\n")
    torch.set_float32_matmul_precision("highest")
    stored = AutoModelForCausalLM.from_pretrained(args.out, attn_implementation=ATTENTION).to(device)
    log["heldout"] = full_report(stored, tokenizer, args.heldout, args.eval_length, args.eval_long)
    (args.out / "train-log.json").write_text(json.dumps(log, indent=1) + "\n")


if __name__ == "__main__":
    main()
