"""The cursor kernels under Triton's interpreter agree with the torch arithmetic, bit for bit, under every policy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SCRIPT = os.path.join(os.path.dirname(__file__), "interpreted_cursors.py")


@pytest.mark.parametrize("case", ["overflow", "staggered", "budget", "boundary", "all", "corners"])
def test_cursor_kernels_agree_with_torch(case):
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run(
        [sys.executable, SCRIPT, case], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
