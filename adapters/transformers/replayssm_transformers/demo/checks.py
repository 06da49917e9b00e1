"""What is refused before a model is loaded."""

from __future__ import annotations

import argparse
import os

from replayssm import InputError, ReplayConfig
from replayssm.records import check_writable
from replayssm_transformers.arguments import check_device, check_plot
from replayssm_transformers.bundled import model_path
from replayssm_transformers.evaluate import MIN_LENGTH

MAX_TOKENS = 65_536
"""More is hours of a demo, and logits of so many positions no longer fit in memory."""


def check_arguments(args: argparse.Namespace) -> None:
    """Everything that can be wrong with the arguments.

    Raises:
        InputError: a value out of range, a device that is not there, no such model, or a file that cannot be written.
    """
    cores = os.cpu_count() or 1
    for name, high in (("tokens", MAX_TOKENS), ("prompt_tokens", MAX_TOKENS), ("threads", cores)):
        if not 1 <= getattr(args, name) <= high:
            raise InputError(f"--{name.replace('_', '-')}={getattr(args, name)} must be from 1 to {high}")
    if args.length != 0 and not MIN_LENGTH <= args.length <= MAX_TOKENS:
        raise InputError(f"--length={args.length} must be from {MIN_LENGTH} to {MAX_TOKENS}, or 0 for none")
    ReplayConfig(window=args.window)
    check_device(args.device)
    for name in args.model or ():
        model_path(name)
    if args.length:
        check_plot(args.plot)
    if args.json is not None:
        check_writable("--json", args.json)
