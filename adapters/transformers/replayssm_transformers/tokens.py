"""Cutting and joining `TokenInputs` along their tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from replayssm import TokenInputs


def slice_tokens(inputs: TokenInputs, start: int, stop: int | None = None) -> TokenInputs:
    """Tokens `start` up to `stop` of every row, as views."""
    cut: dict[str, Any] = {name: x[:, start:stop] for name, x in inputs.tensors().items()}
    return replace(inputs, **cut)


def join_tokens(first: TokenInputs, second: TokenInputs) -> TokenInputs:
    """`second` after `first`, row by row. `first` must have no output gate z: its outputs were used before."""
    left, right = first.tensors(), second.tensors()
    if "z" in right:
        left["z"] = torch.zeros_like(first.v)
    joined: dict[str, Any] = {name: torch.cat((left[name], x), dim=1) for name, x in right.items()}
    return replace(second, **joined)
