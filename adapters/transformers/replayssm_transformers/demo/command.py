"""The `replayssm demo` command."""

from __future__ import annotations

import argparse
import json
import logging
import platform
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from replayssm import PRESETS, InputError, ReplayConfig, __version__
from replayssm_transformers.bundled import NAMES, heldout_text, model_path
from replayssm_transformers.demo.measure import (
    DRAFTS,
    ModelReport,
    decode_greedy,
    decode_with_drafts,
    encode,
    measure_quality,
)
from replayssm_transformers.demo.plot import plot_quality
from replayssm_transformers.demo.report import as_data, print_report
from replayssm_transformers.guards import check_model
from replayssm_transformers.session import disable, enable

HELP = "Decode real text with small trained hybrid models, ordinarily and with ReplaySSM, and show what changes."
PRESETS_SHOWN = ("exact", "shared-nvfp4", "dual-nvfp4")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--model",
        action="append",
        help=f"bundled model ({', '.join(NAMES)}) or a Hugging Face model directory; may be repeated (default: all bundled)",
    )
    parser.add_argument(
        "--prompt-file", type=Path, help="text to start from and to measure on (default: held-out text)"
    )
    parser.add_argument(
        "--preset",
        action="append",
        choices=sorted(PRESETS),
        help=f"precision policy whose KL is shown; may be repeated (default: {', '.join(PRESETS_SHOWN)})",
    )
    parser.add_argument("--window", type=int, default=16, help="records between two flushes (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=192, help="tokens of the prompt (default: %(default)s)")
    parser.add_argument(
        "--length", type=int, default=2048, help="tokens of the KL measurement, 0 for none (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="torch device (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    parser.add_argument(
        "--plot", type=Path, default=Path("replayssm-demo.png"), help="PNG of KL over length (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure every model, print the tables, write the files."""
    _check(args)
    # The models are small: a second thread spends more on waiting than it computes, far more on a busy machine.
    torch.set_num_threads(args.threads)
    logging.getLogger("replayssm_transformers").setLevel(logging.WARNING)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    console = Console()
    started = time.perf_counter()
    reports = []
    for name in args.model or NAMES:
        reports.append(_measure(console, args, name))
        console.print(f"[bold]{reports[-1].name}[/bold]  {reports[-1].layers[0]}")
        console.print(reports[-1].decoding.text.strip()[:240], style="dim", markup=False)
    print_report(console, reports, args.length)
    if args.length:
        plot_quality(reports, args.plot)
        console.print(f"plot: {args.plot}")
    seconds = time.perf_counter() - started
    if args.json is not None:
        args.json.write_text(json.dumps(_data(args, reports, seconds), indent=1), encoding="utf-8")
        console.print(f"json: {args.json}")
    console.print(f"{seconds:.0f} s on {args.device}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Everything that can be wrong with the arguments, before a model is loaded."""
    for name, low in (("tokens", 1), ("prompt_tokens", 1), ("length", 0), ("threads", 1)):
        if getattr(args, name) < low:
            raise InputError(f"--{name.replace('_', '-')}={getattr(args, name)} must be at least {low}")
    ReplayConfig(window=args.window)
    for name in args.model or ():
        model_path(name)
    if args.prompt_file is not None and not args.prompt_file.is_file():
        raise InputError(f"--prompt-file {args.prompt_file} is not a readable file")


def _measure(console: Console, args: argparse.Namespace, name: str) -> ModelReport:
    path = model_path(name)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(args.device).eval()
    check_model(model)
    presets = args.preset or PRESETS_SHOWN
    prose, code = _texts(args)
    config = ReplayConfig(window=args.window, max_draft=DRAFTS + 1)
    total = 2 * args.tokens + args.length * (1 + len(presets))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{path.name}: greedy decoding", total=total)
        prompt = encode(tokenizer, prose, args.prompt_tokens, "the prompt").to(args.device)
        decoding = decode_greedy(model, tokenizer, prompt, args.tokens, config)
        bar.update(task, advance=args.tokens, description=f"{path.name}: drafts")
        prompt = encode(tokenizer, code, args.prompt_tokens, "the prompt").to(args.device)
        speculation = decode_with_drafts(model, prompt, args.tokens, config)
        bar.update(task, advance=args.tokens, description=f"{path.name}: KL over length")
        quality = {}
        if args.length:
            tokens = encode(tokenizer, prose, args.length, "the text").to(args.device)
            quality = measure_quality(model, tokens, presets, args.window, lambda n: bar.advance(task, n))
        bar.update(task, completed=total, description=path.name)
    lines = describe_layers(model, config)
    return ModelReport(path.name, lines, decoding, speculation, quality)


def describe_layers(model: Any, config: ReplayConfig) -> list[str]:  # noqa: ANN401
    """The session's lines on what runs."""
    session = enable(model, config)
    disable(model)
    return session.layers


def _texts(args: argparse.Namespace) -> tuple[str, str]:
    """Text for greedy decoding and KL, and text for drafts."""
    if args.prompt_file is None:
        return heldout_text("bible"), heldout_text("code")
    text = args.prompt_file.read_text(encoding="utf-8", errors="replace")
    return text, text


def _data(args: argparse.Namespace, reports: list[ModelReport], seconds: float) -> dict[str, Any]:
    import transformers

    return {
        "meta": {
            "replayssm": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "device": args.device,
            "threads": torch.get_num_threads(),
            "window": args.window,
            "length": args.length,
            "seconds": round(seconds, 1),
        },
        "models": [as_data(report) for report in reports],
    }
