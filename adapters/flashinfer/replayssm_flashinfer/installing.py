"""Putting our functions where a process looks for FlashInfer's, and back.

A function is replaced in the module that defines it, in the packages that export it, and wherever a module of the process
has bound it to a name of its own, as vLLM does. What binds it later gets ours from FlashInfer's own module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from replayssm import UnsupportedError
from replayssm_flashinfer.surface import SYMBOLS, Symbol, check, find

_OWN = __name__.partition(".")[0]


@dataclass(frozen=True)
class Bound:
    """A module's name that now is ours, and what it was."""

    module: ModuleType
    name: str
    original: Callable[..., Any]
    ours: Callable[..., Any]

    @property
    def label(self) -> str:
        """Module and name."""
        return f"{self.module.__name__}.{self.name}"


@dataclass(frozen=True)
class Installed:
    """What `install` did.

    Attributes:
        bound: names that are ours, in every module.
        left: functions that stay FlashInfer's, and why.
    """

    bound: tuple[str, ...]
    left: dict[str, str]


_bound: list[Bound] = []
_left: dict[str, str] = {}


def install() -> Installed:
    """Put ours behind FlashInfer's names in this process; again, it also finds what was bound since.

    Objects that keep the function otherwise (a closure, a `functools.partial`, an instance's attribute) keep FlashInfer's:
    install before they are made.

    Raises:
        UnsupportedError: FlashInfer is not installed, its `checkpointing_ssu` has another contract, or a module does not let
            its names be replaced; nothing is replaced.
    """
    known = {id(entry.ours): entry.original for entry in _bound}
    wanted: list[tuple[Symbol, Callable[..., Any]]] = []
    left: dict[str, str] = {}
    for symbol in SYMBOLS:
        found, reason = find(symbol)
        found = known.get(id(found), found)
        ok = found is not None
        if found is not None:
            ok, reason = check(symbol, found)
        if symbol.required and not ok:
            raise UnsupportedError(f"nothing is installed: {reason}")
        if ok and found is not None:
            wanted.append((symbol, found))
        else:
            left[symbol.label] = reason
    before = len(_bound)
    try:
        for symbol, original in wanted:
            _bind(original, symbol.ours)
    except Exception as error:  # whatever a module that is not a plain one raises
        stuck = _give_back(before)
        kept = f"; still ours, and not given back: {', '.join(stuck)}" if stuck else ""
        raise UnsupportedError(f"nothing is installed: {type(error).__name__}: {error}{kept}") from error
    _left.clear()
    _left.update(left)
    return installed()


def installed() -> Installed:
    """What is ours at the moment."""
    return Installed(tuple(entry.label for entry in _bound), dict(_left))


def uninstall() -> None:
    """Give every name back that `install` replaced and that is still ours; twice is once.

    What a module bound to a name of its own after `install` came from FlashInfer's module as ours, and stays.

    Raises:
        UnsupportedError: a module does not take a name back; all others are given back.
    """
    stuck = _give_back(0)
    _left.clear()
    if stuck:
        raise UnsupportedError(f"still ours, for their modules do not take them back: {', '.join(stuck)}")


def _give_back(first: int) -> list[str]:
    """Names that were bound since; those that a module does not take back stay in the record, and are named."""
    stuck = []
    for entry in reversed(_bound[first:]):
        if vars(entry.module).get(entry.name) is entry.ours:
            try:
                setattr(entry.module, entry.name, entry.original)
            except Exception:  # whatever a module that is not a plain one raises
                stuck.append(entry)
    _bound[first:] = reversed(stuck)
    return [entry.label for entry in stuck]


def _bind(original: Callable[..., Any], ours: Callable[..., Any]) -> None:
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or name.partition(".")[0] == _OWN:
            continue
        for attribute, value in list(vars(module).items()):
            if value is original:
                setattr(module, attribute, ours)
                _bound.append(Bound(module, attribute, original, ours))
