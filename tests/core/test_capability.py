"""The capability table: what it says is what runs, and a refusal names what would work."""

from __future__ import annotations

import pytest
import torch

from replayssm import PRESETS, LayerKind, PrecisionPolicy, Recurrence, ReplayState, StateLayout
from replayssm.backends import BACKENDS
from replayssm.capability import CAPABILITIES, choose_backend, markdown_table, supports

LAYOUT = StateLayout(Recurrence(LayerKind.GDN, 4, 2, 4, 16), 2)
CPU = torch.device("cpu")


def test_every_backend_has_its_row():
    assert set(CAPABILITIES) == set(BACKENDS)
    assert all(name == row.backend == BACKENDS[name].name for name, row in CAPABILITIES.items())


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
