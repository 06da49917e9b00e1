"""Lists on a command line: names or whole numbers, each checked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from replayssm.errors import InputError


def split(values: Sequence[str]) -> list[str]:
    """Values separated by commas, spaces or both; none twice."""
    return list(dict.fromkeys(part for value in values for part in value.split(",") if part))


def names(flag: str, values: Sequence[str], allowed: Collection[str]) -> list[str]:
    """Names of a list.

    Raises:
        InputError: one is not allowed, or there is none.
    """
    found = split(values)
    for name in found:
        if name not in allowed:
            raise InputError(f"{flag}={name!r} is unknown; expected some of {', '.join(allowed)}")
    if not found:
        raise InputError(f"{flag} is empty; expected some of {', '.join(allowed)}")
    return found


def numbers(flag: str, values: Sequence[str], high: int) -> list[int]:
    """Whole numbers of a list, from 1 to `high`.

    Raises:
        InputError: one is no such number, or there is none.
    """
    found = split(values)
    for text in found:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= high:
            raise InputError(f"{flag}={text!r} must be a whole number from 1 to {high}")
    if not found:
        raise InputError(f"{flag} is empty; expected whole numbers from 1 to {high}")
    return [int(text) for text in found]
