"""Checks of the transformers adapter for `replayssm doctor`. A failed probe is a value, never an exception."""

from __future__ import annotations

import importlib

Report = list[tuple[str, bool, str]]


def report() -> Report:
    """`(name, ok, detail)` for the installed transformers, its cache, and each served family."""
    try:
        transformers = importlib.import_module("transformers")
        surface = importlib.import_module("replayssm_transformers.surface")
        table = importlib.import_module("replayssm_transformers.table")
    except Exception as error:
        # Whatever breaks an import is what the report is for.
        return [("transformers", False, f"cannot be imported: {error}")]
    lines: Report = [("transformers", True, transformers.__version__)]
    ok, reason = surface.check_cache_surface()
    lines.append(("transformers cache and generation", ok, reason or "as expected"))
    for family in table.FAMILIES:
        ok, reason = surface.check_surface(family)
        lines.append((f"transformers {family.name}", ok, reason or f"{family.kind}, {family.model}"))
    return lines
