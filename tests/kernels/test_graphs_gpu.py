"""A whole step of several layers in CUDA graphs, where there is a GPU."""

from __future__ import annotations

import pytest
import torch
from whole_step import commit_inside, commit_outside

from replayssm.recurrence import LayerKind

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("check", [commit_inside, commit_outside])
@pytest.mark.parametrize("kind", LayerKind)
def test_replays_are_the_eager_steps(kind, check):
    check(kind, torch.device("cuda"), steps=40)
