"""The bundled trained models: the same tokens as the ordinary recurrence, and the quality that dual precision promises."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from replayssm import PrecisionPolicy, ReplayConfig
from replayssm_transformers import disable, enable
from replayssm_transformers.bundled import NAMES, heldout_text, model_path
from replayssm_transformers.evaluate import policy_divergence, reference_logits
from replayssm_transformers.stepping import Stepper

PROMPT = 128
GREEDY = 600
LENGTH = 8192
NEAR_TIE = 1e-3
"""Logit gap below which fp32 rounding may choose another token; a flip at a larger gap is an error."""

WINDOWS_AND_DRAFTS = {
    # Every window and draft length with some model, and the common ones with all.
    "mamba2": [(1, 1), (16, 1), (32, 1), (16, 2), (16, 4), (16, 7), (5, 4)],
    "gdn": [(1, 1), (5, 1), (16, 1), (16, 3), (16, 4), (16, 6), (32, 8)],
    "kda": [(5, 1), (16, 1), (32, 1), (16, 4), (16, 5), (16, 8), (1, 4)],
}

every_model = pytest.mark.parametrize("name", NAMES)


@cache
def load(name):
    path = model_path(name)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(path)


@cache
def greedy(name):
    """Prompt and greedy continuation of the ordinary recurrence, `[1, PROMPT + GREEDY]`, and the gaps of its choices."""
    model, tokenizer = load(name)
    prompt = tokenizer(heldout_text("code")[:2000], return_tensors="pt")["input_ids"][:, :PROMPT]
    stepper = Stepper(model)
    logits = stepper.step(prompt)[:, -1]
    tokens, gaps = [], []
    for _ in range(GREEDY):
        best = logits.topk(2).values[0]
        gaps.append(float(best[0] - best[1]))
        tokens.append(logits.argmax(-1, keepdim=True))
        logits = stepper.step(tokens[-1])[:, -1]
    return torch.cat([prompt, *tokens], dim=1), gaps


def first_flip(name, window, draft):
    """First position at which ReplaySSM prefers another token than the ordinary run, fed with that run; None for none.

    While no token differs, feeding the ordinary run is greedy decoding with every draft accepted.
    """
    model, _ = load(name)
    tokens, _ = greedy(name)
    enable(model, ReplayConfig(window=window, max_draft=draft))
    try:
        stepper = Stepper(model)
        chosen = [stepper.step(tokens[:, :PROMPT])[:, -1:].argmax(-1)]
        for start in range(PROMPT, tokens.shape[1] - 1, draft):
            chosen.append(stepper.step(tokens[:, start : min(start + draft, tokens.shape[1] - 1)]).argmax(-1))
    finally:
        disable(model)
    differs = (torch.cat(chosen, dim=1) != tokens[:, PROMPT:])[0].nonzero()
    return int(differs[0]) if len(differs) else None


@pytest.mark.parametrize(
    ("name", "window", "draft"), [(name, *both) for name, all_of in WINDOWS_AND_DRAFTS.items() for both in all_of]
)
def test_window_and_draft_change_no_token(name, window, draft):
    flip = first_flip(name, window, draft)
    gap = None if flip is None else greedy(name)[1][flip]
    assert flip is None or gap < NEAR_TIE, f"token {flip} of {GREEDY} differs; the two best logits are {gap} apart"


@every_model
@pytest.mark.parametrize("drafts", [3, 7])
def test_looked_up_drafts_change_no_token(name, drafts):
    model, _ = load(name)
    tokens, gaps = greedy(name)
    session = enable(model, ReplayConfig(window=16, max_draft=drafts + 1))
    try:
        prompt = tokens[:, :PROMPT]
        mine = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=GREEDY,
            min_new_tokens=GREEDY,
            do_sample=False,
            prompt_lookup_num_tokens=drafts,
        )
    finally:
        disable(model)
    totals = session.totals()
    assert totals["accepted"] > totals["steps"], "no draft was accepted"
    assert totals["rolled_back"] > 0, "no draft was rejected"
    differs = (mine[:, : tokens.shape[1]] != tokens)[0].nonzero()
    assert not len(differs) or gaps[int(differs[0]) - PROMPT] < NEAR_TIE


@every_model
def test_read_copy_is_far_closer_than_the_shared_state_and_does_not_drift(name):
    """Flat over length, where the shared state of the same format rises, and at the end is 20 times as far off."""
    model, tokenizer = load(name)
    tokens = tokenizer(heldout_text("bible"), return_tensors="pt")["input_ids"][:, :LENGTH]
    assert tokens.shape[1] == LENGTH
    reference = reference_logits(model, tokens)
    dual, shared = (
        policy_divergence(model, tokens, reference, PrecisionPolicy.preset(f"{kind}-nvfp4"))
        for kind in ("dual", "shared")
    )
    slope, error = dual.slope()
    told = f"KL of the read copy changes by {slope:.2e} ± {error:.2e} per 1,000 tokens, mean {dual.mean:.2e}"
    assert abs(slope) <= 3 * error, told
    # The scatter is small enough to see a drift of half the mean over the text, and the fitted one is far below that.
    assert 3 * error * LENGTH / 1000 <= 0.5 * dual.mean, told
    assert abs(slope) * LENGTH / 1000 <= 0.2 * dual.mean, told
    slope, error = shared.slope()
    assert slope > 3 * error, "this text does not show the drift of a shared state, so it cannot show its absence"
    assert bool((dual.by_length(8)[1] < shared.by_length(8)[1]).all())
    ends = [float(x.kl[-LENGTH // 4 :].mean()) for x in (dual, shared)]
    assert ends[0] <= ends[1] / 20


@every_model
def test_stochastic_fp16_recurrence_keeps_the_quality(name):
    """TARGETS, quality: an fp16 checkpoint with stochastic rounding is within 1.2 times of the fp32 one."""
    model, tokenizer = load(name)
    tokens = tokenizer(heldout_text("code"), return_tensors="pt")["input_ids"][:, :2048]
    reference = reference_logits(model, tokens)
    fp32 = policy_divergence(model, tokens, reference, PrecisionPolicy.preset("dual-nvfp4"))
    fp16 = policy_divergence(model, tokens, reference, PrecisionPolicy.preset("dual-nvfp4-fp16"))
    assert fp16.mean <= 1.2 * fp32.mean
