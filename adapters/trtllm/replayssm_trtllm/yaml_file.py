"""A YAML of LLM arguments, from text or a file. A key that stands twice is refused: readers differ in which they take."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from replayssm import InputError
from replayssm_trtllm.llm_checks import mapping


# PyYAML is untyped here.
class _UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]
    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:  # noqa: ANN401
        seen: set[object] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise InputError(f"the YAML has {key.value!r} twice (line {key.start_mark.line + 1}); keep one of them")
            seen.add((key.tag, key.value))
        made: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return made


def load(source: str | Path) -> Mapping[str, Any]:
    """The arguments in a YAML.

    Args:
        source: a path, or text: a string is a path when it is one line that names a file or is no YAML mapping.

    Raises:
        InputError: not readable, not YAML, empty, no mapping, or a key that stands twice.
    """
    if not isinstance(source, str | Path):
        raise InputError(f"from_yaml takes a YAML text or a path, got {type(source).__name__}")
    values = _parse(_text(source))
    if values is None:
        raise InputError("the YAML is empty; `replayssm trtllm yaml` writes one")
    if isinstance(values, str):
        raise InputError(f"{values!r} is neither a YAML mapping nor a file that is there")
    return mapping(values, "the YAML")


def _text(source: str | Path) -> str:
    if isinstance(source, str) and not _names_a_file(source):
        return source
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{str(source)!r} is not a readable file: {error}") from None


def _names_a_file(text: str) -> bool:
    try:
        return "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):
        # Too long for a name, or with a NUL byte.
        return False


def _parse(text: str) -> Any:  # noqa: ANN401  whatever the YAML holds
    try:
        return yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}") from None
