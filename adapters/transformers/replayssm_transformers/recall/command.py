"""The `replayssm eval recall` command."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from replayssm import PRESETS, InputError
from replayssm.cli.table import aligned
from replayssm.config import BACKENDS
from replayssm.lists import names
from replayssm.records import check_writable, circumstances, installed, write_json
from replayssm_transformers.arguments import check_device
from replayssm_transformers.bundled import RECALL, model_path
from replayssm_transformers.loading import load_hybrid
from replayssm_transformers.recall.measure import scores
from replayssm_transformers.recall.score import Score
from replayssm_transformers.recall.task import BLOCK, KEYS, VOCABULARY, draw

HELP = "Recall of key–value pairs after thousands of other tokens: right answers of each preset, with intervals."
_NUMBERS = (
    ("rows", 64, 4096, "sequences"),
    ("pairs", 32, len(KEYS), "key–value pairs of a sequence, each asked for once"),
    ("distractors", 2048, 2**20, "tokens between the pairs and the questions"),
    ("window", 16, 64, "records between two flushes"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--model", required=True, help=f"{', '.join(RECALL)}, or a directory of a model of the task")
    parser.add_argument(
        "--presets",
        nargs="+",
        default=list(PRESETS),
        metavar="NAME",
        help=f"some of {', '.join(PRESETS)} (default: all)",
    )
    for name, default, _, text in _NUMBERS:
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the sequences")
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument("--backend", default="auto", metavar="NAME", help=f"{', '.join(BACKENDS)} (default: auto)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")
    parser.add_argument("--ref", metavar="TEXT", help="git ref to record, where this is no repository")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    presets = _check(args)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    logging.getLogger("replayssm_transformers").setLevel(logging.WARNING)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model = _load(model_path(args.model), args.device)
    recall = draw(args.rows, args.pairs, args.distractors, torch.Generator(args.device).manual_seed(args.seed))
    started = time.perf_counter()
    policies = {name: PRESETS[name] for name in presets}
    found = scores(model, recall, policies, args.window, args.backend, lambda name: _tell(f"{name}: done"))
    seconds = time.perf_counter() - started
    title = (
        f"{Path(args.model).name}: {args.rows} sequences of {args.pairs} pairs, asked for after "
        f"{args.distractors // BLOCK * BLOCK:,} other tokens; W = {args.window}, {args.device}"
    )
    sys.stdout.write("\n".join([title, *_table(found), "  interval: 95 %, Wilson"]) + "\n")
    if args.json is not None:
        facts = {
            "meta": _meta(args, model, seconds),
            "presets": {name: score.as_data() for name, score in found.items()},
        }
        write_json(args.json, facts)
    return 0


def _check(args: argparse.Namespace) -> list[str]:
    for name, _, high, _ in _NUMBERS:
        low = 0 if name == "distractors" else 1
        if not low <= getattr(args, name) <= high:
            raise InputError(f"--{name}={getattr(args, name)} must be from {low} to {high}")
    if args.threads is not None and not 1 <= args.threads <= (os.cpu_count() or 1):
        raise InputError(f"--threads={args.threads} must be from 1 to {os.cpu_count()}")
    if args.backend not in BACKENDS:
        raise InputError(f"--backend={args.backend!r} is unknown; expected one of {', '.join(BACKENDS)}")
    check_device(args.device)
    if args.json is not None:
        check_writable("--json", args.json)
    return names("--presets", args.presets, PRESETS)


def _load(path: Path, device: str) -> Any:  # noqa: ANN401  transformers is untyped
    model = load_hybrid(path, device)
    known = model.get_input_embeddings().num_embeddings
    if known != VOCABULARY:
        raise InputError(
            f"--model={str(path)!r} knows {known} tokens; the task has {VOCABULARY}, for a model that was trained on it"
        )
    return model


def _table(found: dict[str, Score]) -> list[str]:
    header = ("preset", "right", "interval", "of", "lost", "won")
    body = []
    for name, score in found.items():
        low, high = score.interval
        shares = (f"{score.accuracy:.2%}", f"{low:.2%} – {high:.2%}")
        body.append([name, *shares, f"{score.asked:,}", str(score.lost), str(score.won)])
    return aligned(header, body)


def _meta(args: argparse.Namespace, model: Any, seconds: float) -> dict[str, Any]:  # noqa: ANN401
    meta = circumstances(torch.device(args.device), args.ref)
    meta["versions"]["transformers"] = installed("transformers")
    given = {name: getattr(args, name) for name in ("rows", "pairs", "distractors", "window", "seed", "backend")}
    return (
        meta
        | given
        | {"model": Path(args.model).name, "model_class": type(model).__name__, "seconds": round(seconds, 1)}
    )


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
