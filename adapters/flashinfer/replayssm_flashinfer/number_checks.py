"""What all functions refuse of a number."""

from __future__ import annotations

import torch

from replayssm_flashinfer.refusals import refuse

LARGEST = torch.finfo(torch.float32).max


def check_scale(scale: float | None) -> None:
    """A factor on q.

    Raises:
        RefusedError: no finite number.
    """
    if scale is not None and not _within(scale, LARGEST):
        refuse(f"scale={scale!r} must be a finite number, or None for K ** -0.5")


def check_lower_bound(bound: float | None, *, raw: bool) -> None:
    """Kimi's bounded gate, of raw gates.

    Raises:
        RefusedError: no number below 0, or gates are not raw.
    """
    if bound is not None and not (_within(bound, LARGEST) and bound < 0 and raw):
        refuse(f"lower_bound={bound!r} must be below 0, with A_log")


def check_whole(least: int | None = None, **given: object) -> None:
    """Whole numbers of 64 bits by name, `least` or more.

    Raises:
        RefusedError: something else, or less.
    """
    for name, number in given.items():
        if isinstance(number, bool) or not isinstance(number, (int, torch.SymInt)):
            refuse(f"{name}={number!r} must be a whole number, an int")
        if not -(2**63) <= number < 2**63:
            refuse(f"{name}={number} must be a whole number of 64 bits")
        if least is not None and number < least:
            refuse(f"{name}={number} must be at least {least}")


def _within(number: object, most: float) -> bool:
    # Comparisons alone: torch.compile follows them for numbers that change.
    return isinstance(number, (int, float)) and not isinstance(number, bool) and -most <= number <= most
