"""Checks of the SGLang adapter for `replayssm doctor`. A failed probe is a value, never an exception."""

from __future__ import annotations

import importlib

Report = list[tuple[str, bool, str]]

MODULES = ("launch", "arguments", "facts", "install")


def report() -> Report:
    """`(name, ok, detail)` for what is served here, the installed SGLang and each symbol of it that differs."""
    try:
        surface = importlib.import_module("replayssm_sglang.surface")
        for name in MODULES:
            importlib.import_module(f"replayssm_sglang.{name}")
        lines: Report = importlib.import_module("replayssm_sglang.served").report()
    except Exception as error:
        # Whatever breaks an import is what the report is for.
        return [("adapter", False, f"cannot be imported: {type(error).__name__}: {error}")]
    version = surface.version()
    if version == "absent":
        return [*lines, ("sglang", False, "is not installed")]
    try:
        importlib.import_module("sglang.srt.server_args")
    except Exception as error:
        # Once: every symbol would fail with it.
        return [*lines, ("sglang", False, f"{version} cannot be imported: {type(error).__name__}: {error}")]
    verdicts = list(surface.report())
    wrong = [(symbol.path, False, reason) for symbol, (ok, reason) in verdicts if not ok]
    return [
        *lines,
        ("sglang", True, f"{version}; the adapter was run with {' and '.join(surface.RAN)}"),
        ("surface", not wrong, f"{len(verdicts) - len(wrong)} of {len(verdicts)} symbols as expected"),
        *wrong,
    ]
