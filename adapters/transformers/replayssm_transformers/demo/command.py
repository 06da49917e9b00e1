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
from transformers.utils import logging as transformers_logging

from replayssm import PRESETS, ReplayConfig, __version__
from replayssm_transformers.arguments import read_text
from replayssm_transformers.bundled import NAMES
from replayssm_transformers.demo.checks import check_arguments
from replayssm_transformers.demo.measure import (
    DRAFTS,
    ModelReport,
    decode_greedy,
    decode_with_drafts,
    measure_quality,
)
from replayssm_transformers.demo.report import as_data, print_report
from replayssm_transformers.demo.subject import Request, Subject, Texts, load_subject
from replayssm_transformers.plot import plot_kl
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
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        default=192,
        help="tokens of the prompt (default: %(default)s)",
    )
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
    check_arguments(args)
    texts = _texts(args)
    # The models are small: a second thread spends more on waiting than it computes, far more on a busy machine.
    torch.set_num_threads(args.threads)
    logging.getLogger("replayssm_transformers").setLevel(logging.WARNING)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    console = Console()
    started = time.perf_counter()
    request = Request(args.prompt_tokens, args.length, args.device)
    subjects = [load_subject(name, texts, request) for name in args.model or NAMES]
    reports = []
    for subject in subjects:
        if subject.shortage:
            console.print(subject.shortage, markup=False, soft_wrap=True)
        reports.append(_measure(console, args, subject))
        console.print(f"[bold]{reports[-1].name}[/bold]  {reports[-1].layers[0]}")
        console.print(reports[-1].decoding.text.strip()[:240], style="dim", markup=False)
    print_report(console, reports, _text_name(texts))
    if args.length:
        plot_kl({report.name: report.quality for report in reports}, args.plot)
        console.print(f"plot: {args.plot}")
    seconds = time.perf_counter() - started
    if args.json is not None:
        args.json.write_text(json.dumps(_data(args, texts, reports, seconds), indent=1), encoding="utf-8")
        console.print(f"json: {args.json}")
    console.print(f"{seconds:.0f} s on {args.device}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    return 0


def _measure(console: Console, args: argparse.Namespace, subject: Subject) -> ModelReport:
    name, model, tokens = subject.name, subject.model, subject.quality
    presets = _presets(args)
    config = ReplayConfig(window=args.window, max_draft=DRAFTS + 1)
    length = 0 if tokens is None else tokens.shape[1]
    total = 2 * args.tokens + length
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{name}: greedy decoding", total=total)
        decoding = decode_greedy(model, subject.tokenizer, subject.prompt, args.tokens, config)
        bar.update(task, advance=args.tokens, description=f"{name}: drafts")
        speculation = decode_with_drafts(model, subject.drafts_prompt, args.tokens, config)
        bar.update(task, advance=args.tokens, description=f"{name}: KL over length")
        quality = {}
        if tokens is not None:
            quality = measure_quality(
                model, tokens, presets, args.window, lambda n: bar.advance(task, n * (1 + len(presets)))
            )
        bar.update(task, completed=total, description=name)
    return ModelReport(
        name=name,
        layers=describe_layers(model, config),
        prompt_tokens=subject.prompt.shape[1],
        drafts_prompt_tokens=subject.drafts_prompt.shape[1],
        quality_tokens=length,
        decoding=decoding,
        speculation=speculation,
        quality=quality,
    )


def _presets(args: argparse.Namespace) -> list[str]:
    return list(dict.fromkeys(args.preset or PRESETS_SHOWN))


def describe_layers(model: Any, config: ReplayConfig) -> list[str]:  # noqa: ANN401
    """The session's lines on what runs."""
    session = enable(model, config)
    disable(model)
    return session.layers


def _texts(args: argparse.Namespace) -> Texts:
    if args.prompt_file is None:
        return Texts.bundled()
    text = read_text("--prompt-file", args.prompt_file)
    return Texts(text, text, f"--prompt-file={str(args.prompt_file)!r}", heldout=False)


def _text_name(texts: Texts) -> str:
    return "held-out tokens" if texts.heldout else "tokens of the prompt file"


def _data(args: argparse.Namespace, texts: Texts, reports: list[ModelReport], seconds: float) -> dict[str, Any]:
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
            "text": "held-out" if texts.heldout else str(args.prompt_file),
            "prompt_tokens_asked": args.prompt_tokens,
            "length_asked": args.length,
            "seconds": round(seconds, 1),
        },
        "models": [as_data(report) for report in reports],
    }
