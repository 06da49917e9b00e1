"""Published configs as files."""

from __future__ import annotations

import json

import pytest
from published import PUBLISHED


@pytest.fixture
def config(tmp_path):
    """Write a config (a published model's name, or a dict) and return its path."""

    def write(values):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(PUBLISHED[values] if isinstance(values, str) else values), encoding="utf-8")
        return path

    return write
