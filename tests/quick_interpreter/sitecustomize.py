"""Triton's interpreter without work that has no effect, for processes that start with this folder on PYTHONPATH."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from triton.runtime import interpreter


class _Kept:
    """A patch that stays after its launch."""

    def restore(self) -> None:
        """Nothing: the next launch needs it too."""


_patch_lang, _languages = interpreter._patch_lang, (interpreter.tl, interpreter.tl.core)
_patched: set[int] = set()
_seen: set[Callable] = set()


def _patch_once(fn: Callable) -> _Kept:
    # Triton searches its language for what to patch in every call of a device function.
    if fn not in _seen:
        _seen.add(fn)
        names = {id(value) for value in fn.__globals__.values() if any(value is language for language in _languages)}
        if not names <= _patched:
            _patch_lang(fn)
            _patched.update(names)
    return _Kept()


interpreter._patch_lang = _patch_once
# It computes every integer operation in 64 bits too, for an assertion that it makes in debug mode only, and this is not.
_builder = interpreter.interpreter_builder
_builder.options = replace(_builder.options, sanitize_overflow=False)
