"""Checks of the TensorRT-LLM adapter for `replayssm doctor`. A failed probe is a value, never an exception."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

Report = list[tuple[str, bool, str]]


def report() -> Report:
    """`(name, ok, detail)`: configuration, the installed generation, and what the plugin would do or why not."""
    lines = [_configuration()]
    try:
        absent = find_spec("tensorrt_llm") is None
    except (ImportError, ValueError) as error:
        return [*lines, ("engine", False, f"tensorrt_llm cannot be looked up: {error}")]
    if absent:
        return [*lines, ("engine", False, "tensorrt_llm is not installed; YAML can be written, nothing can be served")]
    try:
        compat = importlib.import_module("replayssm_trtllm.compat")
        found = compat.examine()
    except Exception as error:
        # Whatever breaks an import is what the report is for.
        return [*lines, ("engine", False, f"{type(error).__name__}: {error}")]
    lines.append(("engine", True, f"tensorrt_llm {_version()}, generation {found.generation or 'unknown'}"))
    lines += [(f"surface {name}", ok, detail) for name, ok, detail in found.lines]
    lines.append(("plugin", found.ok, found.summary))
    return lines


def _configuration() -> tuple[str, bool, str]:
    try:
        importlib.import_module("replayssm_trtllm.yaml_text")
    except Exception as error:
        return "configuration", False, f"{error}; pip install 'replayssm[trtllm]'"
    return "configuration", True, "YAML, environment and LLM arguments can be written"


def _version() -> str:
    try:
        return version("tensorrt_llm")
    except PackageNotFoundError:
        return "of unknown version"
