"""Arguments that commands have in common: devices, pictures to write, texts to read."""

from __future__ import annotations

from pathlib import Path

import torch

from replayssm import InputError
from replayssm.records import check_writable


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


def check_plot(path: Path) -> None:
    """A picture that can be written.

    Raises:
        InputError: not a .png, or it cannot be written.
    """
    if path.suffix.lower() != ".png":
        raise InputError(f"--plot={str(path)!r} must end in .png")
    check_writable("--plot", path)


def read_text(option: str, path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: it cannot be read, is not UTF-8, or is empty.
    """
    where = f"{option}={str(path)!r}"
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
