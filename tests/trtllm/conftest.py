"""The small engine, installed with the plugin's models registered."""

from __future__ import annotations

import importlib

import pytest
from small_engine import installed


@pytest.fixture
def engine(monkeypatch):
    installed.install(monkeypatch, "C")
    return importlib.import_module("replayssm_trtllm.models").REGISTERED
