"""Whole lives and captured steps with fused kernels, where there is a GPU: small, and in the engine's exact layouts."""

from __future__ import annotations

import engine_steps
import fixed_step
import pytest
import torch
from engine_layouts import FORMATS, EngineLife, operand_of
from lives import Life
from test_trtllm_layouts import an_engine_life
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
    fields = {"window": window, "backend": backend}
    operand = operand_of(backend)
    a_whole_life(Life(monkeypatch, "C", kind, drafts=drafts, fields=fields, dtype=torch.float32, operand=operand))


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_life_in_the_engines_layouts(monkeypatch, kind, name):
    an_engine_life(EngineLife(monkeypatch, kind, FORMATS[name], "triton"))


@pytest.mark.parametrize("kind", KINDS)
def test_captured_steps_are_the_eager_ones(kind):
    fixed_step.check(kind, fixed_step.Setting(), "triton", torch.device("cuda"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", engine_steps.CAPTURED)
def test_captured_steps_in_the_engines_layouts(kind, name):
    engine_steps.check(kind, FORMATS[name], "triton", torch.device("cuda"))
