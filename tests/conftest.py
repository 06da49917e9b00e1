"""Shared settings: one thread a worker, and a fixed but visible seed for the fresh random inputs of each test."""

from __future__ import annotations

import os

import pytest
import torch

pytest_plugins = ["replayssm.conformance.plugin"]

# The tensors are small: more threads wait for each other, far more beside other workers.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seed torch from REPLAYSSM_TEST_SEED (or 0) and the test's name, so that a failure can be run again."""
    base = int(os.environ.get("REPLAYSSM_TEST_SEED", "0"))
    value = (base * 1_000_003 + sum(ord(c) * 31**i for i, c in enumerate(request.node.nodeid))) % 2**31
    torch.manual_seed(value)
    return value
