"""The cursor kernels under Triton's interpreter agree with the torch arithmetic, bit for bit, under every policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from interpreting import interpret

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("interpreted_cursors.py")


@pytest.mark.parametrize("case", ["overflow", "staggered", "budget", "boundary", "all", "corners"])
def test_cursor_kernels_agree_with_torch(case):
    interpret(SCRIPT, case)
