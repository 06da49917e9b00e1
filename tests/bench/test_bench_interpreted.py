"""The benchmark end to end on small layers, under Triton's interpreter and with a clock that only counts.

Each part runs in a process of its own, since the interpreter is chosen when kernels are defined.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("interpreted_bench.py")


@pytest.mark.parametrize("layer", ["mamba2", "gdn", "kda"])
@pytest.mark.parametrize("part", ["ordinary", "wrong", "full", "red", "tuned"])
def test_parts(part, layer):
    _run(part, layer)


def test_ceilings():
    _run("ceilings", "mamba2")


def _run(part: str, layer: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run(
        [sys.executable, str(SCRIPT), part, layer],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
