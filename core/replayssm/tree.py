"""Draft trees as masks. A chain is the tree in which each token's parent is the one before it."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm.errors import InputError


def ancestor_mask(parents: Tensor) -> Tensor:
    """`[B, T]` parents in topological order (−1: the history) → `[B, T, T]` bool, entry (t, s): s is t or above t."""
    batch, draft = parents.shape
    mask = torch.eye(draft, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    row = torch.arange(batch, device=parents.device)
    for t in range(1, draft):
        parent = parents[:, t]
        above = mask[row, parent.clamp(min=0)] & (parent >= 0)[:, None]
        mask[:, t] |= above
    return mask


def check_path(path: Tensor, ancestors: Tensor, lengths: Tensor) -> Tensor:
    """Accepted paths `[n, P]`, −1 for padding at the end → number of tokens of each, `[n]` int32.

    Raises:
        InputError: a token past the row's length, or a path that is not a walk down from the history.
    """
    taken = path >= 0
    counts = taken.sum(-1).to(torch.int32)
    for i, tokens in enumerate(path.tolist()):
        walk = [token for token in tokens if token >= 0]
        if tokens[: len(walk)] != walk:
            raise InputError(f"path row {i} is {tokens}; padding (−1) belongs at the end")
        for depth, token in enumerate(walk):
            if token >= int(lengths[i]):
                raise InputError(f"path row {i} is {tokens}; the row has only {int(lengths[i])} tokens")
            above = ancestors[i, token].nonzero()[:, 0].tolist()
            if above != walk[: depth + 1]:
                raise InputError(f"path row {i} is {tokens}; token {token} continues {above[:-1]}, not {walk[:depth]}")
    return counts


def check_prefix(counts: Tensor, ancestors: Tensor | None, lengths: Tensor) -> None:
    """That the first `counts [n]` tokens of each row are a path; always so for a chain (`ancestors` None).

    Raises:
        InputError: they branch.
    """
    if ancestors is None:
        return
    token = torch.arange(ancestors.shape[-1], device=ancestors.device)
    check_path(torch.where(token < counts[:, None], token, -1), ancestors, lengths)
