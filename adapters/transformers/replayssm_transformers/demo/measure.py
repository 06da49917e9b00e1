"""What the demo measures of one model. Everything is computed here and now; nothing is looked up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from replayssm import PrecisionPolicy, ReplayConfig
from replayssm_transformers.divergence import Divergence
from replayssm_transformers.evaluate import Comparison
from replayssm_transformers.session import Session, disable, enable

DRAFTS = 4


@dataclass(frozen=True)
class Decoding:
    """Greedy decoding beside the ordinary recurrence.

    Attributes:
        text: what was generated.
        same: tokens equal to the ordinary recurrence's, up to the first difference; `of` is how many there are.
        read, written, ordinary: state bytes per token and layer.
    """

    text: str
    same: int
    of: int
    read: float
    written: float
    ordinary: float


@dataclass(frozen=True)
class Speculation:
    """Prompt-lookup decoding: drafts proposed, accepted and rolled back, and tokens per model call."""

    same: int
    of: int
    proposed: int
    accepted: int
    rolled_back: int
    tokens_per_step: float


@dataclass(frozen=True)
class ModelReport:
    """All measurements of one model.

    Attributes:
        prompt_tokens, drafts_prompt_tokens, quality_tokens: what was read, as far as the text goes.
        quality: KL over length by preset.
    """

    name: str
    layers: list[str]
    prompt_tokens: int
    drafts_prompt_tokens: int
    quality_tokens: int
    decoding: Decoding
    speculation: Speculation
    quality: dict[str, Divergence] = field(default_factory=dict)


def decode_greedy(model: Any, tokenizer: Any, prompt: Tensor, count: int, config: ReplayConfig) -> Decoding:  # noqa: ANN401
    """Generate `count` tokens from `prompt [1, L]` both ways."""
    ordinary = _generate(model, prompt, count)
    mine, session = _enabled(model, prompt, count, config)
    totals = session.totals()
    steps = max(totals["steps"], 1)
    return Decoding(
        text=tokenizer.decode(mine),
        same=_common(ordinary, mine),
        of=len(ordinary),
        read=totals["bytes_read"] / steps,
        written=totals["bytes_written"] / steps,
        ordinary=totals["ordinary_bytes"] / steps,
    )


def decode_with_drafts(model: Any, prompt: Tensor, count: int, config: ReplayConfig) -> Speculation:  # noqa: ANN401
    """Generate with drafts that are looked up in the text so far; rejected ones are rolled back by the cursor."""
    ordinary = _generate(model, prompt, count)
    mine, session = _enabled(model, prompt, count, config, prompt_lookup_num_tokens=DRAFTS)
    totals, layers = session.totals(), len(session.layer_indices)
    # The first token of each step is the one sampled before; only what follows it is a draft.
    proposed = (totals["drafted"] - totals["steps"]) // layers
    rolled_back = totals["rolled_back"] // layers
    return Speculation(
        same=_common(ordinary, mine),
        of=len(ordinary),
        proposed=proposed,
        accepted=proposed - rolled_back,
        rolled_back=rolled_back,
        tokens_per_step=totals["accepted"] / max(totals["steps"], 1),
    )


def measure_quality(
    model: Any,  # noqa: ANN401
    tokens: Tensor,
    presets: Sequence[str],
    window: int,
    progress: Callable[[int], None],
) -> dict[str, Divergence]:
    """KL to the fp32 recurrence over `tokens [B, L]` for each preset; `progress` is told of the predictions done."""
    comparison = Comparison(model, tokens, {name: PrecisionPolicy.preset(name) for name in presets}, window)
    for count in comparison.run():
        progress(count)
    return comparison.results()


def _enabled(
    model: Any,  # noqa: ANN401
    prompt: Tensor,
    count: int,
    config: ReplayConfig,
    **options: int,
) -> tuple[list[int], Session]:
    session = enable(model, config)
    try:
        return _generate(model, prompt, count, **options), session
    finally:
        disable(model)


def _generate(model: Any, prompt: Tensor, count: int, **options: int) -> list[int]:  # noqa: ANN401
    with torch.no_grad():
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            **options,
        )
    new: list[int] = out[0, prompt.shape[1] :].tolist()
    return new[:count]


def _common(left: list[int], right: list[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
