"""The fused step under Triton's interpreter agrees with the torch backend: three layers, three modes, every checkpoint.

Run in a process of its own, since the interpreter is chosen when kernels are defined. The whole kit runs on a GPU
(tests/conformance/test_backends_gpu.py); the interpreter is too slow for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from interpreting import interpret

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("interpreted_step.py")
PRODUCTS = SCRIPT.with_name("interpreted_products.py")


@pytest.mark.parametrize("mode", ["standard", "draft", "tree"])
@pytest.mark.parametrize("kind", ["mamba2", "gdn", "kda"])
def test_step_agrees_with_the_torch_backend(kind, mode):
    interpret(SCRIPT, kind, mode)


@pytest.mark.parametrize("kind", ["mamba2", "gdn", "kda"])
def test_products_reach_outputs_alone(kind):
    interpret(PRODUCTS, kind)
