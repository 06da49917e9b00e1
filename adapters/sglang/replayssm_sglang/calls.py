"""Calls of SGLang's functions, by name whatever way they were made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

Foreign = Any
"""An object of SGLang, which has no types of its own."""

Original = Callable[..., Foreign]
"""The function that a hook stands around."""


def bind(original: Original, args: tuple[Foreign, ...], kwargs: dict[str, Foreign]) -> Mapping[str, Foreign]:
    """Arguments of a call by name, defaults included."""
    bound = _signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


@lru_cache(maxsize=64)
def _signature(original: Original) -> inspect.Signature:
    return inspect.signature(original)
