"""Runs a script under Triton's interpreter, in a process of its own: the interpreter is chosen when kernels are defined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

QUICK = Path(__file__).with_name("quick_interpreter")


def interpret(script: Path, *arguments: str) -> None:
    """Passes if the script does; what it printed is the failure's message."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(QUICK)}
    command = [sys.executable, str(script), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
