"""Recall of key–value pairs after thousands of tokens of other pairs, as token numbers.

A sequence tells PAIRS pairs of a key and a value, goes on with distractors, and then asks for every key: the key comes
again, and the value is what should follow. Distractors are pairs, too, of keys of their own that take the same values, in
blocks a b a b: the second time their values can be recalled, so a model that is trained on them keeps writing and reading
its state all the time, and what it was told first has to survive that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

START, KEYS, VALUES, OTHERS = 0, range(1, 129), range(129, 193), range(193, 257)
VOCABULARY = 257
BLOCK = 8
"""Tokens of a distractor block."""


@dataclass(frozen=True)
class Recall:
    """A batch of sequences.

    Attributes:
        tokens: `[B, L]`, the start token, pairs, distractors, questions and answers.
        asked: `[Q]` positions of the keys in the questions; the answer is the token after each.
        repeats: `[D]` positions of distractor keys that come a second time.
    """

    tokens: Tensor
    asked: Tensor
    repeats: Tensor

    @property
    def answers(self) -> Tensor:
        """`[B, Q]` the values that were told."""
        return self.tokens[:, self.asked + 1]


def draw(batch: int, pairs: int, distractors: int, generator: torch.Generator) -> Recall:
    """Fresh sequences, with as many distractor tokens as whole blocks hold; on the generator's device."""
    device = generator.device
    keys = _distinct(KEYS, (batch, pairs), generator)
    values = _any(VALUES, (batch, pairs), generator)
    told = torch.stack([keys, values], dim=-1).flatten(1)
    blocks = distractors // BLOCK
    others = _any(OTHERS, (batch, blocks, 2), generator)
    # The two keys of a block differ, or its second half would have two answers.
    others[..., 1] = torch.where(others[..., 0] == others[..., 1], _next(others[..., 1]), others[..., 1])
    half = torch.stack([others, _any(VALUES, (batch, blocks, 2), generator)], dim=-1).flatten(2)
    noise = torch.cat([half, half], dim=-1).flatten(1)
    order = torch.rand(batch, pairs, generator=generator, device=device).argsort(dim=-1)
    questions = told.unflatten(1, (pairs, 2)).gather(1, order[..., None].expand(-1, -1, 2)).flatten(1)
    start = torch.full((batch, 1), START, device=device)
    first = 1 + 2 * pairs
    block_starts = first + BLOCK * torch.arange(blocks, device=device)[:, None]
    return Recall(
        tokens=torch.cat([start, told, noise, questions], dim=1),
        asked=first + BLOCK * blocks + 2 * torch.arange(pairs, device=device),
        repeats=(block_starts + torch.tensor([4, 6], device=device)).flatten(),
    )


def _any(tokens: range, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(tokens.start, tokens.stop, shape, generator=generator, device=generator.device)


def _distinct(tokens: range, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    order = torch.rand(shape[0], len(tokens), generator=generator, device=generator.device).argsort(dim=-1)
    return tokens.start + order[:, : shape[1]]


def _next(others: Tensor) -> Tensor:
    return OTHERS.start + (others - OTHERS.start + 1) % len(OTHERS)
