"""Whole lives and captured steps with fused kernels, where there is a GPU."""

from __future__ import annotations

import fixed_step
import pytest
import torch
from lives import Life
from test_trtllm_lives import KINDS, a_whole_life

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture
def cuda():
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("drafts", "window"), [(None, 5), (3, 9)])
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_a_whole_life(monkeypatch, kind, drafts, window, backend):
    # Products of the fused kernels round their operands to TF32, whose mantissa is float16's.
    operand = torch.float16 if backend == "triton" else None
    fields = {"window": window, "backend": backend}
    a_whole_life(Life(monkeypatch, "C", kind, drafts=drafts, fields=fields, dtype=torch.float32, operand=operand))


@pytest.mark.parametrize("kind", KINDS)
def test_captured_steps_are_the_eager_ones(kind):
    fixed_step.check(kind, "triton", torch.device("cuda"))
