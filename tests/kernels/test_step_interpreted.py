"""The fused step under Triton's interpreter agrees with the torch backend: three layers, three modes, every checkpoint.

Run in a process of its own, since the interpreter is chosen when kernels are defined. The whole kit runs on a GPU
(tests/conformance/test_backends_gpu.py); the interpreter is too slow for it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SCRIPT = os.path.join(os.path.dirname(__file__), "interpreted_step.py")


@pytest.mark.parametrize("mode", ["standard", "draft", "tree"])
@pytest.mark.parametrize("kind", ["mamba2", "gdn", "kda"])
def test_step_agrees_with_the_torch_backend(kind, mode):
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run(
        [sys.executable, SCRIPT, kind, mode], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
