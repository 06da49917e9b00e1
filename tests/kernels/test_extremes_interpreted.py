"""Unusual numbers and shapes through the fused step, under Triton's interpreter, beside float64."""

from __future__ import annotations

from pathlib import Path

import pytest

from interpreting import interpret

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("interpreted_extremes.py")


@pytest.mark.parametrize("what", ["lengths", "strong", "overflow", "queries"])
@pytest.mark.parametrize("kind", ["mamba2", "gdn", "kda"])
def test_extremes(kind, what):
    interpret(SCRIPT, kind, what)
