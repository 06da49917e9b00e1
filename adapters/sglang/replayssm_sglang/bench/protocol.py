"""How a measuring process talks to the command: marked lines of JSON on its output, one line on its input."""

from __future__ import annotations

import json
import sys
from typing import Any

READY, ROW = "replayssm-bench-ready", "replayssm-bench-row"


def say(mark: str, **facts: object) -> None:
    """One line."""
    print(mark, json.dumps(facts), flush=True)


def heard(line: str, mark: str) -> dict[str, Any] | None:
    """The facts of a line with this mark, None for any other line."""
    return json.loads(line[len(mark) :]) if line.startswith(mark) else None


def wait_for_go() -> None:
    """Until the command sends a line."""
    sys.stdin.readline()
