"""Checks of the FlashInfer adapter for `replayssm doctor`. A failed probe is a value, never an exception."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

Report = list[tuple[str, bool, str]]


def report() -> Report:
    """`(name, ok, detail)`: our functions, FlashInfer's that they can replace, and its kernels behind the core."""
    lines = [_own()]
    try:
        absent = find_spec("flashinfer") is None
    except (ImportError, ValueError) as error:
        return [*lines, ("engine", False, f"flashinfer cannot be looked up: {error}")]
    if absent:
        return [*lines, ("engine", False, "flashinfer is not installed; our functions serve without it")]
    lines.append(("engine", True, f"flashinfer {_version()}"))
    if not lines[0][1]:
        return lines
    surface = importlib.import_module("replayssm_flashinfer.surface")
    for symbol in surface.SYMBOLS:
        found, reason = surface.find(symbol)
        if found is not None:
            ok, reason = surface.check(symbol, found)
        else:
            # As `install` has it: without a function that it does not need, it works.
            ok, reason = not symbol.required, f"left alone: {reason}"
        lines.append((f"surface {symbol.name}", ok, reason or "ours can take its place"))
    ok, reason = importlib.import_module("replayssm_flashinfer.backend").machine_supports()
    lines.append(("backend", ok, reason or "backend='flashinfer' can be asked for"))
    return lines


def _own() -> tuple[str, bool, str]:
    try:
        importlib.import_module("replayssm_flashinfer.ops")
    except Exception as error:  # whatever breaks an import is what the report is for
        return "functions", False, f"{type(error).__name__}: {error}; pip install 'replayssm[triton]'"
    return "functions", True, "checkpointing_ssu, replayssm_materialize, GDN and KDA over our kernels"


def _version() -> str:
    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        return "of unknown version"
