"""Answers of a model to the questions of the recall task, with the ordinary recurrence and with precision policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from replayssm import PrecisionPolicy
from replayssm_transformers.evaluate import CHUNK, forced_steps, measuring_config, share_weights
from replayssm_transformers.recall.score import Score
from replayssm_transformers.recall.task import Recall
from replayssm_transformers.session import disable, enable
from replayssm_transformers.stepping import Stepper

REFERENCE = "fp32 recurrence"
Progress = Callable[[str], None]


def scores(
    model: nn.Module,
    recall: Recall,
    policies: Mapping[str, PrecisionPolicy],
    window: int = 16,
    backend: str = "auto",
    progress: Progress = lambda _: None,
) -> dict[str, Score]:
    """Score of the ordinary recurrence, under REFERENCE, and of each policy.

    The tokens are fed as decode steps (see `evaluate`), right answers included: questions do not depend on each other's
    answers, only on the state.

    Raises:
        InputError, UnsupportedError: a policy that is not served; see `enable`.
    """
    answers = recall.answers.cpu()
    reference = _answers(model, recall, [(s, min(s + CHUNK, _end(recall))) for s in range(0, _end(recall), CHUNK)])
    found = {REFERENCE: Score.of(reference, answers, reference)}
    progress(REFERENCE)
    for name, policy in policies.items():
        twin = share_weights(model)
        enable(twin, measuring_config(policy, window, backend))
        try:
            given = _answers(twin, recall, list(forced_steps(recall.tokens.shape[1], window)))
        finally:
            disable(twin)
        found[name] = Score.of(given, answers, reference)
        progress(name)
    return found


def _end(recall: Recall) -> int:
    # What follows the last answer is not asked.
    return recall.tokens.shape[1] - 1


def _answers(model: nn.Module, recall: Recall, steps: list[tuple[int, int]]) -> Tensor:
    """`[B, Q]` most likely tokens after each question, on the CPU."""
    stepper, found = Stepper(model), []
    for start, stop in steps:
        logits = stepper.step(recall.tokens[:, start:stop])
        asked = recall.asked[(recall.asked >= start) & (recall.asked < stop)] - start
        found.append(logits[:, asked].argmax(-1).cpu())
    return torch.cat(found, dim=1)
