"""The valid name nearest to a misspelt one, for messages."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

CUTOFF = 0.75


def nearest(name: str, valid: Collection[str]) -> str | None:
    """The valid name that `name` was probably meant to be, upper or lower case aside; None when nothing is near."""
    folded = {candidate.casefold(): candidate for candidate in valid}
    close = get_close_matches(name.casefold(), folded, n=1, cutoff=CUTOFF)
    return folded[close[0]] if close else None


def unknown(name: str, valid: Collection[str], where: str) -> str:
    """A message for a name that is not valid."""
    close = nearest(name, valid)
    hint = f"did you mean {close!r}?" if close else f"expected one of {', '.join(sorted(valid))}"
    return f"{where} has no field {name!r}; {hint}"
