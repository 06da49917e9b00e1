"""Teacher-forced quality: how far a precision policy's next-token distributions lie from those of the fp32 recurrence.

The text is fed as decode steps, not as a prefill: what is measured is the state that decoding keeps. Tokens that share a
window go through few verify steps, in the pattern 1, W − 1, 1, W − 1, …: the single token arrives at a full ring and
flushes, the others (in pieces of at most `MAX_DRAFT`) read what non-flush steps read. The result is that of W steps of
one token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, cycle

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from replayssm import InputError, PrecisionPolicy, ReplayConfig
from replayssm.layout import MAX_DRAFT
from replayssm_transformers.session import disable, enable
from replayssm_transformers.stepping import Stepper

PREFILL = 64
MIN_LENGTH = PREFILL + 2
CHUNK = 512

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Divergence:
    """KL(fp32 recurrence ‖ policy) of the next token, in nats.

    Attributes:
        position: `[P]` tokens seen before the prediction.
        kl: `[P]` mean over the sequences.
        same_top: share of positions at which both prefer the same token.
    """

    position: Tensor
    kl: Tensor
    same_top: float

    @property
    def mean(self) -> float:
        """Mean over all positions."""
        return float(self.kl.mean())

    def by_length(self, bins: int) -> tuple[Tensor, Tensor]:
        """Mean KL in equal bins: `[bins]` middle positions and `[bins]` values."""
        parts = torch.chunk(torch.arange(len(self.kl)), bins)
        middle = torch.stack([self.position[part].double().mean() for part in parts])
        return middle, torch.stack([self.kl[part].mean() for part in parts])

    def slope(self, bins: int = 16) -> tuple[float, float]:
        """Least-squares slope of the binned KL per 1,000 tokens, and its standard error."""
        x, y = self.by_length(bins)
        x = x / 1000.0
        centred = x - x.mean()
        slope = float((centred * y).sum() / (centred * centred).sum())
        residual = y - y.mean() - slope * centred
        variance = float((residual * residual).sum()) / max(len(x) - 2, 1)
        return slope, (variance / float((centred * centred).sum())) ** 0.5


def reference_logits(model: nn.Module, tokens: Tensor, progress: Progress | None = None) -> Tensor:
    """Next-token logits of the ordinary fp32 recurrence.

    Args:
        model: a causal language model, ReplaySSM not enabled.
        tokens: `[B, L]`.
        progress: called with the tokens done after each chunk.

    Returns:
        `[B, L − PREFILL, vocabulary]` fp32 on the CPU: predictions after tokens PREFILL − 1 … L − 2, and L − 1.
    """
    stepper = Stepper(model)
    pieces = [stepper.step(tokens[:, :PREFILL])[:, -1:]]
    for start in range(PREFILL, tokens.shape[1], CHUNK):
        pieces.append(stepper.step(tokens[:, start : start + CHUNK]))
        if progress is not None:
            progress(min(CHUNK, tokens.shape[1] - start))
    return torch.cat([piece.float().cpu() for piece in pieces], dim=1)[:, :-1]


def policy_divergence(
    model: nn.Module,
    tokens: Tensor,
    reference: Tensor,
    policy: PrecisionPolicy,
    window: int = 16,
    progress: Progress | None = None,
) -> Divergence:
    """Teacher-force `tokens [B, L]` through ReplaySSM with a policy and compare with `reference_logits`.

    Raises:
        InputError: fewer than two tokens after the prefill.
    """
    if tokens.shape[1] < MIN_LENGTH:
        raise InputError(f"the text holds {tokens.shape[1]} tokens; KL over length needs at least {MIN_LENGTH}")
    enable(model, ReplayConfig(window=window, max_draft=max(_step_lengths(window)), precision=policy))
    kl, agree, seen = [], 0, 0
    try:
        for start, logits in _forced_steps(model, tokens, window):
            # float64: the KL of an exact policy is far below what fp32 log-probabilities resolve.
            truth = F.log_softmax(reference[:, start : start + logits.shape[1]].double(), dim=-1)
            mine = F.log_softmax(logits[:, : truth.shape[1]].cpu().double(), dim=-1)
            kl.append((truth.exp() * (truth - mine)).sum(-1).mean(0))
            agree += int((truth.argmax(-1) == mine.argmax(-1)).sum())
            seen += truth.shape[0] * truth.shape[1]
            if progress is not None:
                progress(truth.shape[1])
    finally:
        disable(model)
    values = torch.cat(kl)
    return Divergence(torch.arange(PREFILL, PREFILL + len(values)), values, agree / seen)


def _forced_steps(model: nn.Module, tokens: Tensor, window: int) -> Iterator[tuple[int, Tensor]]:
    """Offset into the reference and logits `[B, t, vocabulary]` of each step."""
    stepper = Stepper(model)
    yield 0, stepper.step(tokens[:, :PREFILL])[:, -1:]
    start = PREFILL
    lengths = _step_lengths(window)
    # The last tokens of the prefill are records already: fill the window first, or the long steps would be those that flush.
    fill = _pieces(window - min(PREFILL, max(lengths)))
    for length in chain(fill, cycle(lengths)):
        if start >= tokens.shape[1] - 1:
            return
        yield start - PREFILL + 1, stepper.step(tokens[:, start : start + length])
        start += length


def _step_lengths(window: int) -> list[int]:
    """Tokens of the steps that share a window: 1, then the other W − 1 in pieces that a verify step takes."""
    return [1, *_pieces(window - 1)]


def _pieces(count: int) -> list[int]:
    return [min(MAX_DRAFT, count - done) for done in range(0, count, MAX_DRAFT)]
