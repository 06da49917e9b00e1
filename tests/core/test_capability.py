"""The capability table: what it says is what runs, and a refusal names what would work."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from replayssm import (
    PRESETS,
    LayerKind,
    PrecisionPolicy,
    Recurrence,
    ReplayState,
    StateLayout,
    UnsupportedError,
    capability,
)
from replayssm.backends import load_backend
from replayssm.capability import CAPABILITIES, choose_backend, markdown_table, runs_triton, supports
from replayssm.config import BACKENDS

LAYOUT = StateLayout(Recurrence(LayerKind.GDN, 4, 2, 4, 16), 2)
CPU = torch.device("cpu")


def test_every_backend_has_its_row():
    assert {*CAPABILITIES, "auto"} == set(BACKENDS)
    assert all(name == row.backend == load_backend(name).name for name, row in CAPABILITIES.items())


def test_triton_is_refused_off_its_devices_and_sizes(monkeypatch):
    assert "does not serve device cpu" in supports("triton", LAYOUT, CPU)[1]
    odd = StateLayout(Recurrence(LayerKind.GDN, 4, 2, 4, 24), 2)
    assert "does not serve K = 24" in supports("triton", odd, torch.device("cuda"))[1]
    narrow = replace(
        LAYOUT, recurrence=replace(LAYOUT.recurrence, key_dim=16), precision=PrecisionPolicy(read_copy="nvfp4")
    )
    assert "K = 16 is below 64" in supports("triton", narrow, torch.device("cuda"))[1]
    monkeypatch.setitem(sys.modules, "replayssm.backends.fused", None)
    load_backend.cache_clear()
    with pytest.raises(UnsupportedError, match="needs Triton"):
        load_backend("triton")
    load_backend.cache_clear()


def test_unknown_things_are_refused_with_a_reason():
    assert supports("torch", LAYOUT, CPU) == (True, "")
    ok, reason = supports("cuda-c", LAYOUT, CPU)
    assert not ok
    assert "expected one of" in reason
    ok, reason = supports("torch", LAYOUT, torch.device("meta"))
    assert not ok
    assert "does not serve device meta; it serves cpu, cuda" in reason
    ok, reason = supports("torch", LAYOUT, CPU, "beam")
    assert not ok
    assert "decode mode beam" in reason


def test_automatic_choice_serves_every_preset_on_cpu():
    for policy in PRESETS.values():
        layout = StateLayout(LAYOUT.recurrence, 2, precision=policy)
        assert supports(choose_backend(layout, CPU), layout, CPU)[0]


def test_automatic_choice_on_cuda_is_the_fused_kernels(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert choose_backend(LAYOUT, cuda) == "triton"
    for policy in (PrecisionPolicy("nvfp4"), PrecisionPolicy(read_copy="nvfp4")):
        assert choose_backend(replace(LAYOUT, precision=policy), cuda) == "torch", "what they do not serve"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert choose_backend(LAYOUT, cuda) == "torch"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(capability, "find_spec", lambda _: None)
    assert choose_backend(LAYOUT, cuda) == "torch"
    assert not runs_triton(cuda)
    assert not runs_triton(CPU)


@pytest.mark.parametrize("kind", list(LayerKind))
def test_automatic_backend_of_a_state(kind):
    recurrence = Recurrence(kind, 4, 2, 4, 16)
    A = -torch.ones(4) if kind is LayerKind.MAMBA2 else None
    state = ReplayState(StateLayout(recurrence, 2, precision=PrecisionPolicy()), A=A)
    assert state.backend.name == choose_backend(state.layout, CPU)


def test_page_has_a_line_for_each_backend():
    lines = markdown_table().splitlines()
    assert len(lines) == 2 + len(CAPABILITIES)
    assert len({line.count("|") for line in lines}) == 1
    assert all(any(line.startswith(f"| {name} |") for line in lines) for name in CAPABILITIES)
