"""The benchmark end to end on small layers, under Triton's interpreter and with a clock that only counts.

Each part runs in a process of its own, since the interpreter is chosen when kernels are defined.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from interpreting import interpret

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("interpreted_bench.py")


@pytest.mark.parametrize("layer", ["mamba2", "gdn", "kda"])
@pytest.mark.parametrize("part", ["ordinary", "wrong", "full", "red", "tuned"])
def test_parts(part, layer):
    interpret(SCRIPT, part, layer)


def test_ceilings():
    interpret(SCRIPT, "ceilings", "mamba2")
