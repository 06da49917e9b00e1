"""Teacher-forced quality: how far a precision policy's next-token distributions lie from those of the fp32 recurrence.

The text is fed as decode steps, not as a prefill: what is measured is the state that decoding keeps. Tokens that share a
window go through few verify steps, in the pattern 1, W − 1, 1, W − 1, …: the single token arrives at a full ring and
flushes, the others (in pieces of at most `MAX_DRAFT`) read what non-flush steps read. The result is that of W steps of
one token.

`compare` runs the reference and every policy side by side, each on a model of its own that shares the weights: however
long the text, the logits of one chunk are in memory, and whoever stops early has every policy up to there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain, cycle

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from replayssm import InputError, PrecisionPolicy, ReplayConfig
from replayssm.layout import MAX_DRAFT
from replayssm_transformers.divergence import Divergence
from replayssm_transformers.session import disable, enable
from replayssm_transformers.stepping import Stepper

PREFILL = 64
MIN_LENGTH = PREFILL + 2
CHUNK = 512
LOGITS = 2**28
"""Most fp32 logits of the reference that are kept at a time: 1 GiB."""

Progress = Callable[[int], None]


def reference_logits(model: nn.Module, tokens: Tensor, progress: Progress | None = None) -> Tensor:
    """Next-token logits of the ordinary fp32 recurrence, all of them: for short texts and small vocabularies.

    Args:
        model: a causal language model, ReplaySSM not enabled.
        tokens: `[B, L]`.
        progress: called with the tokens done after each chunk.

    Returns:
        `[B, L − PREFILL, vocabulary]` fp32 on the CPU: predictions after tokens PREFILL − 1 … L − 2.
    """
    reference = _Reference(model, tokens)
    pieces = []
    for start in range(PREFILL, tokens.shape[1], CHUNK):
        count = min(CHUNK, tokens.shape[1] - start)
        pieces.append(reference.take(count).cpu())
        if progress is not None:
            progress(count)
    return torch.cat(pieces, dim=1)


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
    _check_length(tokens)
    enable(model, measuring_config(policy, window))
    try:
        stepper, scores = Stepper(model), _Scores()
        for start, stop in forced_steps(tokens.shape[1], window):
            logits = stepper.step(tokens[:, start:stop])[:, -_predictions(start, stop) :]
            truth = reference[:, scores.count : scores.count + logits.shape[1]].to(logits.device)
            scores.add(_log_probabilities(truth), logits, tokens)
            if progress is not None:
                progress(logits.shape[1])
    finally:
        disable(model)
    return scores.divergence()


class Comparison:
    """The fp32 recurrence and policies, teacher-forced side by side.

    Args:
        model: a causal language model, ReplaySSM not enabled; it stays an ordinary one.
        tokens: `[R, L]`, on the model's device.
        policies: by the name that results have.

    Raises:
        InputError: fewer than two tokens after the prefill, or dimensions that a policy does not serve.
        UnsupportedError: the model, or a policy on its layers and device, is not served.
    """

    def __init__(
        self,
        model: nn.Module,
        tokens: Tensor,
        policies: Mapping[str, PrecisionPolicy],
        window: int = 16,
        backend: str = "auto",
    ) -> None:
        _check_length(tokens)
        self.model, self.tokens, self.window = model, tokens, window
        self.configs = {name: measuring_config(policy, window, backend) for name, policy in policies.items()}
        self._scores = {name: _Scores() for name in policies}
        self._ordinary = _Scores()

    def run(self) -> Iterator[int]:
        """Measure; after each step the predictions that are done. May be left at any of them."""
        with ExitStack() as stack:
            steppers = {}
            for name, config in self.configs.items():
                twin = share_weights(self.model)
                enable(twin, config)
                stack.callback(disable, twin)
                steppers[name] = Stepper(twin)
            reference = _Reference(self.model, self.tokens)
            for start, stop in forced_steps(self.tokens.shape[1], self.window):
                count = _predictions(start, stop)
                logits = reference.take(count)
                truth = _log_probabilities(logits)
                self._ordinary.add(truth, logits, self.tokens)
                for name, stepper in steppers.items():
                    mine = stepper.step(self.tokens[:, start:stop])[:, -count:]
                    self._scores[name].add(truth, mine, self.tokens)
                yield count

    def results(self) -> dict[str, Divergence]:
        """What is measured so far, by policy; empty before the first step."""
        done = self._done()
        return {name: scores.divergence(done) for name, scores in self._scores.items()} if done else {}

    def reference_cross_entropy(self) -> float:
        """Mean −log probability of the text's own tokens under the ordinary recurrence, so far."""
        return self._ordinary.divergence(self._done()).cross_entropy

    def _done(self) -> int:
        """Predictions that all have made: an interruption may come between two policies of a step."""
        return min(scores.count for scores in (self._ordinary, *self._scores.values()))


def share_weights(model: nn.Module) -> nn.Module:
    """A model of its own modules, hooks and sessions on the same parameters and buffers."""
    memo = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, memo)


def measuring_config(policy: PrecisionPolicy, window: int, backend: str = "auto") -> ReplayConfig:
    """What a policy is measured with: steps as long as the window's."""
    return ReplayConfig(window=window, max_draft=max(_step_lengths(window)), precision=policy, backend=backend)


def forced_steps(length: int, window: int) -> Iterator[tuple[int, int]]:
    """Start and stop of each step over a text, the prefill first; its last token is only predicted."""
    yield 0, PREFILL
    start, lengths = PREFILL, _step_lengths(window)
    # The last tokens of the prefill are records already: fill the window first, or the long steps would be those that flush.
    fill = _pieces(window - min(PREFILL, max(lengths)))
    for count in chain(fill, cycle(lengths)):
        if start >= length - 1:
            return
        yield start, min(start + count, length - 1)
        start += count


class _Reference:
    """Logits of the ordinary recurrence, a chunk at a time, handed out piece by piece."""

    def __init__(self, model: nn.Module, tokens: Tensor) -> None:
        self._stepper, self._tokens, self._fed = Stepper(model), tokens, PREFILL
        self._ready = self._stepper.step(tokens[:, :PREFILL])[:, -1:].float()
        rows, _, vocabulary = self._ready.shape
        self._chunk = max(MAX_DRAFT, min(CHUNK, LOGITS // (rows * vocabulary)))

    def take(self, count: int) -> Tensor:
        """The next `count` predictions, `[B, count, vocabulary]` fp32."""
        while self._ready.shape[1] < count:
            piece = self._tokens[:, self._fed : min(self._fed + self._chunk, self._tokens.shape[1] - 1)]
            self._fed += piece.shape[1]
            self._ready = torch.cat([self._ready, self._stepper.step(piece).float()], dim=1)
        taken, self._ready = self._ready[:, :count], self._ready[:, count:]
        return taken


class _Scores:
    """KL, agreement and cross-entropy of one policy, added up step by step on the device."""

    def __init__(self) -> None:
        self.count = 0
        self._pieces: list[Tensor] = []

    def add(self, truth: Tensor, logits: Tensor, tokens: Tensor) -> None:
        """The next predictions: log-probabilities of the reference, logits of the policy, and the whole text."""
        mine = _log_probabilities(logits)
        start = PREFILL + self.count
        targets = tokens[:, start : start + mine.shape[1], None].to(mine.device)
        kl = (truth.exp() * (truth - mine)).sum(-1)
        same = (truth.argmax(-1) == mine.argmax(-1)).double()
        surprise = -mine.gather(-1, targets).squeeze(-1)
        self._pieces.append(torch.stack([kl, same, surprise]))
        self.count += mine.shape[1]

    def divergence(self, count: int | None = None) -> Divergence:
        """Of all predictions, or of the first `count`."""
        whole = torch.cat(self._pieces, dim=2)
        self._pieces = [whole]
        kl, same, surprise = whole[:, :, :count].cpu()
        position = torch.arange(PREFILL, PREFILL + kl.shape[1])
        return Divergence(position, kl, float(same.mean()), float(surprise.mean()))


def _log_probabilities(logits: Tensor) -> Tensor:
    # float64: the KL of an exact policy is far below what fp32 log-probabilities resolve.
    return F.log_softmax(logits.double(), dim=-1)


def _check_length(tokens: Tensor) -> None:
    if tokens.shape[1] < MIN_LENGTH:
        raise InputError(f"the text holds {tokens.shape[1]} tokens; KL over length needs at least {MIN_LENGTH}")


def _predictions(start: int, stop: int) -> int:
    """How many of a step's logits count: of the prefill only the last."""
    return stop - start if start else 1


def _step_lengths(window: int) -> list[int]:
    """Tokens of the steps that share a window: 1, then the other W − 1 in pieces that a verify step takes."""
    return [1, *_pieces(window - 1)]


def _pieces(count: int) -> list[int]:
    return [min(MAX_DRAFT, count - done) for done in range(0, count, MAX_DRAFT)]
