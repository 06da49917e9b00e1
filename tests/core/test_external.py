"""Backends of adapters: found by entry point, and refused with the reason where they cannot be had."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
import torch

from replayssm import Recurrence, StateLayout, UnsupportedError, external

LAYOUT = StateLayout(Recurrence.mamba2(heads=2, head_dim=8, state_size=16, groups=1), 1, 4, 1)


@pytest.fixture
def points(monkeypatch):
    """The entry points that there are."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(
        external, "entry_points", lambda group, name: [p for p in found if (p.group, p.name) == (group, name)]
    )
    return found


@pytest.mark.usefixtures("points")
def test_a_backend_that_nobody_registers_is_refused():
    ok, reason = external.external_supports("other", LAYOUT, torch.device("cpu"))
    assert not ok
    assert "comes with an adapter that is not installed" in reason


def test_whatever_an_import_raises_is_a_reason(points, tmp_path, monkeypatch):
    (tmp_path / "broken_backend.py").write_text("raise AttributeError('module triton has no attribute jit')")
    monkeypatch.syspath_prepend(tmp_path)
    points.append(EntryPoint("other", "broken_backend", external.GROUP))
    ok, reason = external.external_supports("other", LAYOUT, torch.device("cpu"))
    assert not ok
    assert "cannot be imported: AttributeError: module triton has no attribute jit" in reason
    with pytest.raises(UnsupportedError, match="cannot be imported"):
        external.backend_module("other")


def test_a_module_says_what_it_serves(points, monkeypatch):
    module = ModuleType("small_backend")
    module.supports = lambda layout, device: (layout.window == 4, f"window {layout.window} on {device}")
    monkeypatch.setitem(sys.modules, "small_backend", module)
    points.append(EntryPoint("other", "small_backend", external.GROUP))
    assert external.external_supports("other", LAYOUT, torch.device("cpu")) == (True, "window 4 on cpu")
