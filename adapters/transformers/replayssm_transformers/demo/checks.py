"""What is refused before a model is loaded."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from replayssm import InputError, ReplayConfig
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
        if args.plot.suffix.lower() != ".png":
            raise InputError(f"--plot={str(args.plot)!r} must end in .png")
        check_writable("--plot", args.plot)
    if args.json is not None:
        check_writable("--json", args.json)


def check_device(name: str) -> None:
    """A device that computes.

    Raises:
        InputError: torch does not know it, it is not there, or it holds no data.
    """
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError):
        cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        raise InputError(f"--device={name!r} cannot be used here; expected {', '.join(['cpu', *cuda])}") from None


def check_writable(option: str, path: Path) -> None:
    """A file that can be written; an existing one is left as it is.

    Raises:
        InputError: a directory, a directory that is missing, or no permission.
    """
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        expected = "a file in a directory that exists and is writable"
        raise InputError(f"{option}={str(path)!r} cannot be written: {error.strerror}; expected {expected}") from None
    if not existed:
        path.unlink()


def read_prompt(path: Path) -> str:
    """The text of `--prompt-file`.

    Raises:
        InputError: it cannot be read, is not UTF-8, or is empty.
    """
    where = f"--prompt-file={str(path)!r}"
    if not path.is_file():
        raise InputError(f"{where} is not a file; expected a file of UTF-8 text")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror}; expected a file of UTF-8 text") from None
    except UnicodeDecodeError:
        raise InputError(f"{where} is not UTF-8; expected a file of UTF-8 text") from None
    if not text.strip():
        raise InputError(f"{where} is empty; expected some text")
    return text
