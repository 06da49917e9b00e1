"""Cutting and joining `TokenInputs` along their tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from replayssm import TokenInputs

FIELDS = ("q", "k", "v", "gate", "beta", "z")


def slice_tokens(inputs: TokenInputs, start: int, stop: int | None = None) -> TokenInputs:
    """Tokens `start` up to `stop` of every row, as views."""
    return replace(inputs, **{name: x[:, start:stop] for name, x in _tensors(inputs).items()})


def join_tokens(first: TokenInputs, second: TokenInputs) -> TokenInputs:
    """`second` after `first`, row by row. `first` must have no output gate z: its outputs were used before."""
    left, right = _tensors(first), _tensors(second)
    if "z" in right:
        left["z"] = torch.zeros_like(first.v)
    joined: dict[str, Any] = {name: torch.cat((left[name], x), dim=1) for name, x in right.items()}
    return replace(second, **joined)


def _tensors(inputs: TokenInputs) -> dict[str, Any]:
    found = {name: getattr(inputs, name) for name in FIELDS}
    return {name: x for name, x in found.items() if x is not None}
