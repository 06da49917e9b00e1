"""What is refused, and how: FlashInfer asserts, so callers that catch `AssertionError` or `ValueError` keep working."""

from __future__ import annotations

from typing import NoReturn

from replayssm import InputError


class RefusedError(InputError, AssertionError):
    """An argument that FlashInfer's contract does not allow; names it, what was given and what is allowed."""


def refuse(message: str) -> NoReturn:
    """Refuse.

    Raises:
        RefusedError: with `message`.
    """
    raise RefusedError(message)
