"""What all functions refuse of a number."""

from __future__ import annotations

import math

from replayssm_flashinfer.refusals import refuse


def check_scale(scale: float | None) -> None:
    """A factor on q.

    Raises:
        RefusedError: no finite number.
    """
    if scale is not None and not (isinstance(scale, (int, float)) and math.isfinite(scale)):
        refuse(f"scale={scale!r} must be a finite number, or None for K ** -0.5")


def check_whole(least: int | None = None, **given: object) -> None:
    """Whole numbers by name, `least` or more.

    Raises:
        RefusedError: something else, or less.
    """
    for name, number in given.items():
        if isinstance(number, bool) or not isinstance(number, int):
            refuse(f"{name}={number!r} must be a whole number")
        if least is not None and number < least:
            refuse(f"{name}={number} must be at least {least}")
