"""The trained models on a GPU: the triton backend decodes the tokens of the torch backend."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from replayssm import ReplayConfig
from replayssm_transformers import disable, enable
from replayssm_transformers.bundled import NAMES, heldout_text, model_path

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PROMPT, GREEDY = 128, 256
# Reading rounds the state to TF32, so two logits this close may change places.
NEAR_TIE = 0.05


def continuation(model, prompt, backend, drafts):
    """Greedy tokens and the logits they were chosen by."""
    enable(model, ReplayConfig(window=16, max_draft=max(drafts, 0) + 1, backend=backend))
    try:
        options = {"prompt_lookup_num_tokens": drafts} if drafts else {}
        found = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=GREEDY,
            min_new_tokens=GREEDY,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            **options,
        )
    finally:
        disable(model)
    return found.sequences[0, prompt.shape[1] :], torch.stack(found.logits)[:, 0]


@pytest.mark.parametrize("drafts", [0, 3, 7])
@pytest.mark.parametrize("name", NAMES)
def test_triton_decodes_the_tokens_of_torch(name, drafts):
    path = model_path(name)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().cuda()
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompt = tokenizer(heldout_text("code")[:2000], return_tensors="pt")["input_ids"][:, :PROMPT].cuda()
    theirs, logits = continuation(model, prompt, "torch", drafts)
    mine, _ = continuation(model, prompt, "triton", drafts)
    differs = (mine != theirs).nonzero()
    if len(differs):
        first = int(differs[0])
        best = logits[first].topk(2).values
        gap = float(best[0] - best[1])
        assert gap < NEAR_TIE, f"token {first} of {GREEDY} differs; the two best logits are {gap} apart"
