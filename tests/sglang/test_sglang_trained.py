"""The trained models in the real engine on a CPU: tokens of held-out text are those of SGLang alone and of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from engine_process import converse, installed, tokens_until_tie
from test_sglang_engine import attention, ngram
from trained_models import text_tokens, write_model
from transformers import AutoModelForCausalLM

from replayssm import ReplayConfig
from replayssm_transformers import disable, enable
from replayssm_transformers.bundled import model_path

pytestmark = [
    pytest.mark.skipif(not installed(), reason="needs the engine: ci/engines/sglang.sh"),
    pytest.mark.timeout(1200),
]

TOKENS = 64
WINDOW = 16


@dataclass(frozen=True)
class Numbers:
    """What a model is computed in, and how its prompts are made.

    Attributes:
        tie: two logits closer than this may come in either order.
        dual_tie: the same with a read copy, where a last bit may round a number of the state to the other side.
        prompt: tokens; interpreted, SGLang's prefill of KDA is right within one of its blocks of 16 only.
    """

    dtype: str
    tie: float
    dual_tie: float
    prompt: int


NUMBERS = {
    "gdn": Numbers("float16", 0.02, 0.1, 48),  # SGLang's prefill refuses float32
    "mamba2": Numbers("float32", 1e-4, 1e-3, 48),
    "kda": Numbers("float32", 1e-4, 1e-3, 16),
}
every_model = pytest.mark.parametrize("kind", NUMBERS)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("trained")
    return cache(lambda kind: write_model(root / kind, kind))


def prose(kind):
    return text_tokens("bible", NUMBERS[kind].prompt)


def repetitive(kind):
    """A phrase again and again: what follows can be looked up."""
    return (text_tokens("code", 8) * 8)[: NUMBERS[kind].prompt]


def ask(path, prompt, config=None, **engine):
    """The engine's answer."""
    numbers = NUMBERS[path.name]
    engine = {"load_format": "auto", "dtype": numbers.dtype, "attention_backend": attention(path.name), **engine}
    turn = {"prompts": [prompt], "tokens": TOKENS}
    return converse(path, engine, [turn], config, SGLANG_MAMBA_CONV_DTYPE=numbers.dtype)[0][0]


@cache
def plain(path: Path, make_prompt: Callable[[str], list[int]]):
    """The answer of SGLang without the plugin."""
    return ask(path, make_prompt(path.name))


@cache
def exact(path: Path):
    """The answer to prose with the plugin."""
    return ask(path, prose(path.name), {"window": WINDOW})


@cache
def transformers_model(kind):
    """In fp32; an end of text ends nothing."""
    model = AutoModelForCausalLM.from_pretrained(model_path(kind), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


def transformers_answer(kind, prompt):
    """Greedy tokens of the model in transformers, and by how much each was preferred to the next best."""
    model, tokens = transformers_model(kind), torch.tensor([prompt])
    options = {"max_new_tokens": TOKENS, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    found = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
    best = torch.stack(found.logits)[:, 0].topk(2).values
    return {"tokens": found.sequences[0, len(prompt) :].tolist(), "margins": (best[:, 0] - best[:, 1]).tolist()}


def same_tokens(mine, other, tie):
    """Equal, up to the first tie of the other; at least half of them."""
    compared = tokens_until_tie([mine], [other], tie)
    assert compared >= TOKENS // 2, f"a tie at token {compared}: too little was compared"


@pytest.mark.slow
@every_model
@pytest.mark.parametrize("make_prompt", [prose, repetitive])
def test_sglang_alone_decodes_the_tokens_of_transformers(models, kind, make_prompt):
    """So the conversion is right."""
    answer = plain(models(kind), make_prompt)
    same_tokens(answer, transformers_answer(kind, make_prompt(kind)), NUMBERS[kind].tie)


@pytest.mark.parametrize("kind", ["gdn", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("mamba2", "kda"))])
def test_the_engine_gives_the_tokens_of_transformers(models, kind):
    same_tokens(exact(models(kind)), transformers_answer(kind, prose(kind)), NUMBERS[kind].tie)


@pytest.mark.slow
@every_model
def test_standard_decode(models, kind):
    same_tokens(exact(models(kind)), plain(models(kind), prose), NUMBERS[kind].tie)


@pytest.mark.slow
@every_model
def test_ngram(models, kind):
    answer = ask(models(kind), repetitive(kind), {"window": WINDOW}, **ngram(1))
    same_tokens(answer, plain(models(kind), repetitive), NUMBERS[kind].tie)
    assert answer["spec_verify_ct"] < TOKENS - 5, "no draft was accepted"


@pytest.mark.slow
@every_model
def test_dual_precision_gives_the_tokens_of_the_transformers_adapter(models, kind):
    config = {"preset": "dual-nvfp4", "window": WINDOW}
    answer = ask(models(kind), prose(kind), config)
    session = enable(transformers_model(kind), ReplayConfig(**config))
    try:
        other = transformers_answer(kind, prose(kind))
    finally:
        disable(transformers_model(kind))
    assert session.totals()["steps"] > 0
    same_tokens(answer, other, NUMBERS[kind].dual_tie)
