"""The `replayssm eval reads` command."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from replayssm import InputError
from replayssm.cli.table import aligned
from replayssm.lists import names, numbers
from replayssm.records import check_writable, circumstances, installed, write_json
from replayssm_transformers.arguments import check_device, read_text
from replayssm_transformers.bundled import heldout_text, model_path
from replayssm_transformers.evaluate import PREFILL
from replayssm_transformers.loading import encode, load_hybrid, load_tokenizer
from replayssm_transformers.reads.capture import FOLLOWING, readings
from replayssm_transformers.reads.measure import ReadError, read_errors

HELP = "Read error of low-precision copies under several scalings, on a model's own states and queries."
FORMATS = ("nvfp4", "fp8")
MOST = 2**20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--model", required=True, help="directory of a hybrid model, or a bundled model's name")
    parser.add_argument("--text", type=Path, metavar="FILE", help="UTF-8 text (default: the bundled held-out text)")
    parser.add_argument(
        "--formats", nargs="+", default=list(FORMATS), metavar="NAME", help="nvfp4, fp8 (default: both)"
    )
    parser.add_argument(
        "--positions", nargs="+", default=["1024", "4096", "8176"], metavar="N", help="tokens read before each look"
    )
    parser.add_argument("--rows", type=int, default=4, metavar="N", help="pieces of the text side by side (default: 4)")
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument("--ref", metavar="TEXT", help="git ref to record, where this is no repository")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    formats, positions = names("--formats", args.formats, FORMATS), numbers("--positions", args.positions, MOST)
    if not 1 <= args.rows <= 256:
        raise InputError(f"--rows={args.rows} must be from 1 to 256")
    if positions[0] < PREFILL or any(later - at < FOLLOWING for at, later in pairwise(positions)):
        raise InputError(f"--positions={positions} must rise by at least {FOLLOWING}, from {PREFILL} on")
    check_device(args.device)
    if args.json is not None:
        check_writable("--json", args.json)
    length = max(positions) + FOLLOWING
    logging.getLogger("replayssm_transformers").setLevel(logging.WARNING)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    path = model_path(args.model)
    model = load_hybrid(path, args.device)
    found = read_errors(readings(model, _tokens(args, path, length).to(args.device), positions), formats)
    title = f"{path.resolve().name}: {args.rows} rows, after {', '.join(f'{at:,}' for at in positions)} tokens"
    sys.stdout.write("\n".join([title, *_table(found)]) + "\n")
    if args.json is not None:
        write_json(args.json, {"meta": _meta(args, path, positions), "rows": [asdict(error) for error in found]})
    return 0


def _tokens(args: argparse.Namespace, path: Path, length: int) -> torch.Tensor:
    text = heldout_text("bible") if args.text is None else read_text("--text", args.text)
    tokens = encode(load_tokenizer(path), text, args.rows * length, f"the tokenizer in {path}")
    if tokens.shape[1] < args.rows * length:
        raise InputError(f"the text holds {tokens.shape[1]:,} tokens; --rows={args.rows} of {length:,} need more")
    return tokens.reshape(args.rows, length)


def _table(found: list[ReadError]) -> list[str]:
    header = ("format", "scaling", "‖ΔS q‖ / ‖S q‖", "/ block", "‖ΔS k‖ / ‖S k‖", "worst head", "more bytes")
    plain = {error.format: error.query for error in found if error.scaling == "block"}
    body = [
        [
            *(error.format, error.scaling, f"{error.query:.4f}", f"{error.query / plain[error.format]:.3f}"),
            *(f"{error.key:.4f}", f"{error.worst:.4f}", f"{error.extra:.1%}"),
        ]
        for error in found
    ]
    return aligned(header, body, left=2)


def _meta(args: argparse.Namespace, path: Path, positions: list[int]) -> dict[str, Any]:
    meta = circumstances(torch.device(args.device), args.ref)
    meta["versions"]["transformers"] = installed("transformers")
    text = "the held-out text" if args.text is None else str(args.text)
    return meta | {"model": path.resolve().name, "text": text, "rows": args.rows, "positions": positions}
