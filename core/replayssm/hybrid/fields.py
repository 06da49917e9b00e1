"""Typed access to the fields of a `config.json`. Every error names the file and the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replayssm.errors import InputError

MAX_INTEGER = 2**31
"""No field of a real config is larger."""


class Fields:
    """A JSON object whose fields go by several names.

    Names are written `a|b.c`: the first that is present and not null counts; a dot steps into a nested object.
    """

    def __init__(self, source: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.source, self.values, self.prefix = source, values, prefix

    def find(self, names: str) -> Any | None:  # noqa: ANN401 - a JSON value may be anything
        """The value, or None when no name is present."""
        for name in names.split("|"):
            value: Any = self.values
            for key in name.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return None

    def integer(self, names: str, low: int = 1, high: int = MAX_INTEGER) -> int:
        """An integer from `low` to `high`.

        Raises:
            InputError: it is missing, not an integer, or out of range.
        """
        value = self._required(names)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(names, f"is {short(value)}; expected an integer of at least {low} and at most {high}")
        return value

    def strings(self, names: str) -> list[str]:
        """A list of strings.

        Raises:
            InputError: it is missing or something else.
        """
        value = self._required(names)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(names, f"is {short(value)}; expected a list of strings")
        return value

    def integers(self, names: str) -> list[int]:
        """A list of integers, none of them twice.

        Raises:
            InputError: it is missing or something else.
        """
        value = self._required(names)
        if not isinstance(value, list) or not all(type(item) is int for item in value) or len(set(value)) < len(value):
            raise self.error(names, f"is {short(value)}; expected a list of integers, none of them twice")
        return value

    def error(self, names: str, problem: str) -> InputError:
        """An error about a field, to be raised."""
        spelled = " or ".join(self.prefix + name for name in names.split("|"))
        return InputError(f"{self.source}: field {spelled} {problem}")

    def _required(self, names: str) -> object:
        value = self.find(names)
        if value is None:
            raise self.error(names, "is missing")
        return value


def short(value: object) -> str:
    """A value as it stands in a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
