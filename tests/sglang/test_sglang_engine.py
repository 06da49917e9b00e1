"""The real engine on a CPU, its Triton kernels interpreted, with tiny random models: tokens are those of SGLang alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from engine_process import converse, installed, model_path, tokens_until_tie

pytestmark = [
    pytest.mark.skipif(not installed(), reason="needs the engine: ci/engines/sglang.sh"),
    pytest.mark.timeout(1200),
]

PROMPTS = [[5, 6, 7, 8, 9, 33, 21, 60], [10, 11, 12, 40]]
LONG = [(37 * i + 11) % 250 + 2 for i in range(60)]
TOKENS = 24
TIE = 0.004
"""Two logits of fp16 that differ by less than this may come in either order: their spacing there is 2⁻⁸."""

OTHERS = ("falcon_h1", "granite")
"""Models that have Mamba-2 layers, too: beside attention in every layer, and as Nemotron-H's."""

NO_BUFFER = {"disable_radix_cache": False, "mamba_radix_cache_strategy": "no_buffer"}
EXTRA_BUFFER = {"disable_radix_cache": False, "mamba_radix_cache_strategy": "extra_buffer", "mamba_track_interval": 64}
TRITON = {"attention_backend": "triton"}
CORES = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
"""A core a rank."""
NEXTN = {**TRITON, "speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4}


def ngram(breadth):
    return {
        **TRITON,
        "speculative_algorithm": "NGRAM",
        "speculative_num_draft_tokens": 4,
        "speculative_ngram_min_bfs_breadth": 1,
        "speculative_ngram_max_bfs_breadth": breadth,
    }


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return lambda kind: model_path(root, kind)


def attention(kind):
    """The faster one. Latent attention with the dimensions that SGLang's kernels know is none of torch's."""
    return "triton" if kind == "kda" else "torch_native"


@cache
def plain(path: Path, attention: str = "torch_native"):
    """Answers of SGLang without the plugin, asked twice."""
    turns = [{"prompts": PROMPTS, "tokens": TOKENS}, {"again": True, "tokens": TOKENS}]
    return converse(path, {"attention_backend": attention}, turns)


def same_tokens(ours, theirs):
    """Equal, up to the first tie of the ordinary decode."""
    assert tokens_until_tie(ours, theirs, TIE) >= TOKENS, "ties everywhere: nothing was compared"


@pytest.mark.parametrize(
    "kind", ["gdn", "mamba2", "kda", *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)]
)
def test_standard_decode(models, kind):
    path = models(kind)
    engine = {"attention_backend": attention(kind)}
    (answers,) = converse(path, engine, [{"prompts": PROMPTS, "tokens": TOKENS}], {"window": 4})
    same_tokens(answers, plain(path, attention(kind))[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gdn", "mamba2", "kda", *OTHERS])
def test_standard_decode_through_the_kernels(models, kind):
    path = models(kind)
    config, engine = {"window": 4, "backend": "triton"}, {"attention_backend": attention(kind)}
    (answers,) = converse(path, engine, [{"prompts": PROMPTS, "tokens": TOKENS}], config)
    same_tokens(answers, plain(path, attention(kind))[0])


def two_turns(path, engine, prompt, tokens, config):
    """Cached tokens of a second turn, whose answer must be what it is without a cache; of two requests at once."""
    turns = [
        {"prompts": [prompt, prompt], "tokens": tokens},
        {"follow": [77, 78, 79], "tokens": 10},
        {"flush": True},
        {"again": True, "tokens": 10},
    ]
    _, cached, _, uncached = converse(path, engine, turns, config)
    assert uncached[0]["cached_tokens"] == 0
    assert [answer["tokens"] for answer in cached] == [answer["tokens"] for answer in uncached]
    assert cached[0]["cached_tokens"] == cached[1]["cached_tokens"]
    return cached[0]["cached_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [9, 10])
@pytest.mark.parametrize("kind", ["gdn", "mamba2", *OTHERS])
def test_prefix_of_a_request_that_ended_with_records(models, kind, tokens):
    assert two_turns(models(kind), NO_BUFFER, PROMPTS[0], tokens, {"window": 4}) == len(PROMPTS[0]) + tokens - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "strategy", "overlap"),
    [
        ("gdn", "extra_buffer", True),
        ("gdn", "extra_buffer", False),
        ("gdn", "extra_buffer_lazy", True),
        ("mamba2", "extra_buffer", True),
        ("falcon_h1", "extra_buffer", True),
        ("granite", "extra_buffer", True),
    ],
)
def test_prefix_tracked_while_decoding(models, kind, strategy, overlap):
    engine = {**EXTRA_BUFFER, "mamba_radix_cache_strategy": strategy, "disable_overlap_schedule": not overlap}
    assert two_turns(models(kind), engine, LONG, 12, {"window": 5}) == 64


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gdn", "mamba2"])
def test_prefix_after_speculation(models, kind):
    assert two_turns(models(kind), {**NO_BUFFER, **ngram(1)}, PROMPTS[0], 12, {"window": 8}) > 0
    assert two_turns(models(kind), {**EXTRA_BUFFER, **ngram(1)}, LONG, 12, {"window": 8}) == 64


@pytest.mark.slow
def test_prefix_of_kda(models):
    """Against SGLang's own answers from its cache: without one it answers a prompt of more than a chunk with NaN here."""
    turns = [{"prompts": [PROMPTS[0]], "tokens": 10}, {"follow": [77, 78, 79], "tokens": 10}]
    engine, path = {**TRITON, **NO_BUFFER}, models("kda")
    (_, alone), (_, cached) = converse(path, engine, turns), converse(path, engine, turns, {"window": 4})
    assert cached[0]["cached_tokens"] == alone[0]["cached_tokens"] == len(PROMPTS[0]) + 9
    assert cached[0]["tokens"] == alone[0]["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("breadth", [1, 3])
@pytest.mark.parametrize("kind", ["gdn", "mamba2", "kda", *OTHERS])
def test_ngram(models, kind, breadth):
    path = models(kind)
    turns = [{"prompts": PROMPTS, "tokens": TOKENS}, {"again": True, "tokens": TOKENS}]
    first, second = converse(path, ngram(breadth), turns, {"window": 6})
    # Several tokens at once round unlike one; in these models by more than a tie.
    alone = converse(path, ngram(breadth), turns) if kind in OTHERS else plain(path, "triton")
    same_tokens(first, alone[0])
    same_tokens(second, alone[1])
    # The second time around the drafts are right: several tokens a step.
    assert all(answer["spec_verify_ct"] < TOKENS // 2 for answer in second)


@pytest.mark.slow
@pytest.mark.parametrize("topk", [1, 2])
def test_nextn(models, topk):
    path = models("gdn")
    engine = {**NEXTN, "speculative_eagle_topk": topk}
    (answers,) = converse(path, engine, [{"prompts": PROMPTS, "tokens": TOKENS}], {"window": 6})
    same_tokens(answers, plain(path, "triton")[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gdn", "mamba2", *OTHERS])
def test_prompts_in_chunks(models, kind):
    path, turn = models(kind), {"prompts": [LONG, PROMPTS[0]], "tokens": TOKENS}
    engine = {"chunked_prefill_size": 16}
    (alone,) = converse(path, engine, [turn])
    (answers,) = converse(path, engine, [turn], {"window": 5})
    same_tokens(answers, alone)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gdn", "mamba2", "kda"])
def test_two_ranks(models, kind):
    """Heads split over two processes."""
    path, turn = models(kind), {"prompts": PROMPTS, "tokens": TOKENS}
    engine = {"attention_backend": attention(kind), "tp_size": 2}
    (alone,) = converse(path, engine, [turn], **CORES)
    (answers,) = converse(path, engine, [turn], {"window": 5}, **CORES)
    same_tokens(answers, alone)


@pytest.mark.slow
def test_requests_that_are_retracted_and_come_back(models):
    path = models("gdn")
    turn = {"prompts": [*PROMPTS, *[[p + 1 for p in prompt] for prompt in PROMPTS]], "tokens": TOKENS}
    (alone,) = converse(path, {}, [turn])
    forced = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "5"}
    (answers,) = converse(path, {}, [turn], {"window": 5}, **forced)
    same_tokens(answers, alone)
    assert sum(answer["num_retractions"] for answer in answers) > 0
