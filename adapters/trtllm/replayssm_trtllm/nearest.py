"""The valid name nearest to a misspelt one, for messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

CUTOFF = 0.75


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that `name` was probably meant to be, None when nothing is near."""
    close = get_close_matches(name, list(valid), n=1, cutoff=CUTOFF)
    return close[0] if close else None


def unknown(name: str, valid: Iterable[str], where: str) -> str:
    """A message for a name that is not valid."""
    names = list(valid)
    close = nearest(name, names)
    hint = f"did you mean {close!r}?" if close else f"expected one of {', '.join(sorted(names))}"
    return f"{where} has no field {name!r}; {hint}"
