"""What the interpreter does not see: that a compiler accepts every kernel's types, for a GPU that is not here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("kind", ["mamba2", "gdn", "kda"])
def test_every_kernel_has_types(kind):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).parent / "typed.py"), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert int(done.stdout.split()[-3]) > 50, done.stdout
