"""The `replayssm eval kl` command."""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from replayssm import PRESETS, InputError
from replayssm.config import BACKENDS
from replayssm_transformers.evaluate import Comparison
from replayssm_transformers.kl.report import Facts, describe, facts_of, status
from replayssm_transformers.kl.settings import DTYPES, LENGTH, MOST_ROWS, Settings, check_arguments, check_policies
from replayssm_transformers.kl.subject import Subject, load_subject
from replayssm_transformers.plot import plot_kl

HELP = "KL of the next token to the ordinary fp32 recurrence, teacher forced over a text, preset by preset."
INTERRUPTED = 130
SAVE_SECONDS = 5.0
"""The JSON file, and the line on how far it is, are rewritten this often."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--model", required=True, help="Hugging Face directory of a hybrid model, or a bundled model's name"
    )
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="UTF-8 text to read (default: the bundled held-out text)"
    )
    parser.add_argument(
        "--presets",
        nargs="+",
        default=["exact", "shared-nvfp4", "dual-nvfp4"],
        metavar="NAME",
        help=f"some of {', '.join(PRESETS)} (default: exact shared-nvfp4 dual-nvfp4)",
    )
    parser.add_argument(
        "--baseline", metavar="NAME", help="the preset that ratios are to (default: the first that starts with shared-)"
    )
    parser.add_argument(
        "--length", type=int, metavar="N", help=f"tokens of a row (default: {LENGTH:,}, or all that the text holds)"
    )
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help=f"pieces of the text that are read side by side (default: as many as it holds, at most {MOST_ROWS})",
    )
    parser.add_argument("--window", type=int, default=16, metavar="N", help="records between two flushes (default: 16)")
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument("--backend", default="auto", metavar="NAME", help=f"{', '.join(BACKENDS)} (default: auto)")
    parser.add_argument(
        "--dtype", default="float32", metavar="NAME", help=f"of the model: {', '.join(DTYPES)} (default: float32)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")
    parser.add_argument("--ref", metavar="TEXT", help="git ref to record, where this is no repository")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results here, again and again as they come"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="PNG of KL over length")


def run(args: argparse.Namespace) -> int:
    """Measure, report on stderr, print the table; 130 where it was interrupted, with all that was measured until then."""
    settings = check_arguments(args)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    logging.getLogger("replayssm_transformers").setLevel(logging.WARNING)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    subject = load_subject(settings)
    layers = check_policies(subject.model, settings)
    _tell(subject.note)
    for name, lines in layers.items():
        _tell(f"{name}: {'; '.join(lines)}")
    policies = {name: PRESETS[name] for name in settings.presets}
    comparison = Comparison(subject.model, subject.tokens, policies, settings.window, settings.backend)
    complete = _measure(settings, subject, comparison, facts_of(settings, subject, layers))
    quality = comparison.results()
    if quality:
        sys.stdout.write("\n".join(describe(settings, subject, comparison)) + "\n")
        if settings.plot is not None:
            plot_kl({subject.name: quality}, settings.plot)
            _tell(f"plot: {settings.plot}")
    if settings.json is not None:
        _tell(f"json: {settings.json}")
    return 0 if complete else INTERRUPTED


def _measure(settings: Settings, subject: Subject, comparison: Comparison, facts: Facts) -> bool:
    """Run to the end, or to an interruption: whether it is complete. The JSON file is up to date in either case."""
    started = saved = time.perf_counter()
    done, complete = 0, False
    try:
        for count in comparison.run():
            done += count
            if time.perf_counter() - saved >= SAVE_SECONDS:
                _check_finite(settings, comparison)
                _tell(status(subject, comparison, done, time.perf_counter() - started))
                facts.save(comparison, time.perf_counter() - started, complete=False)
                saved = time.perf_counter()
        _check_finite(settings, comparison)
        complete = True
    except KeyboardInterrupt:
        _tell(f"interrupted after {done:,} of {subject.predictions:,} predictions a row")
    except torch.OutOfMemoryError:
        raise InputError(
            f"{settings.device} has no memory left after {done:,} predictions; expected fewer --rows, a shorter --length, "
            "fewer --presets or --dtype=bfloat16"
        ) from None
    finally:
        facts.save(comparison, time.perf_counter() - started, complete=complete)
    return complete


def _check_finite(settings: Settings, comparison: Comparison) -> None:
    if not math.isfinite(comparison.reference_cross_entropy()):
        raise InputError(f"--dtype={settings.dtype!r}: the model's own logits are not finite; expected another dtype")
    for name, divergence in comparison.results().items():
        wrong = (~divergence.kl.isfinite()).nonzero()
        if len(wrong):
            where = int(divergence.position[wrong[0]])
            raise InputError(
                f"--presets={name!r}: logits are not finite after {where:,} tokens; expected other presets"
            )


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
