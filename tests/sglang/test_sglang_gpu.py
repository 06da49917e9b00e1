"""The real engine on a GPU, its CUDA graphs captured, with small random models: tokens are those of SGLang alone."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import cycle

import bench_client
import pytest
import torch
from engine_process import converse, environment, on_gpu, tokens_until_tie
from server_process import generate, page, serving


def installed():
    try:
        return bool(version("sglang"))
    except PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.skipif(not (torch.cuda.is_available() and installed()), reason="needs CUDA and SGLang"),
    pytest.mark.gpu,
    pytest.mark.timeout(600),
]

TOKENS = 48
TIE = 0.02
"""Two logits of fp16 closer than this may come in either order: a few of their spacings, 2⁻⁸, through four layers."""

PROMPTS = [
    [(7 * i * i + 5 * j + i) % 2000 + 3 for i in range(n)] for j, n in enumerate((1, 3, 17, 64, 65, 130, 200, 7))
]
ENGINE = {
    "device": "cuda",
    "enable_multimodal": False,
    "mm_attention_backend": "triton_attn",
    "moe_runner_backend": "triton",
    "grammar_backend": "none",
    "mamba_ssm_dtype": "float32",
    "disable_cuda_graph": False,
    "disable_prefill_cuda_graph": True,
    "disable_overlap_schedule": False,
    "cuda_graph_bs_decode": [1, 2, 4, 8, 12, 16],
    "max_running_requests": 16,
    "max_mamba_cache_size": 64,
    "max_total_tokens": 32768,
    "context_length": 4096,
    "mem_fraction_static": 0.85,
}
NGRAM = {
    "speculative_algorithm": "NGRAM",
    "speculative_num_draft_tokens": 4,
    "speculative_ngram_min_bfs_breadth": 1,
    "speculative_ngram_max_bfs_breadth": 1,
}
NEXTN = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
RADIX = {"disable_radix_cache": False, "mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True}
TRACKED = {"disable_radix_cache": False, "mamba_radix_cache_strategy": "extra_buffer", "mamba_track_interval": 128}
"""An interval of tokens that is no less than a chunk of Mamba-2."""

KINDS = ["gdn", "mamba2", "kda"]
DTYPE = "float16"


def settings(kind):
    # Nemotron-H replaces a backend that is named for both phases.
    if kind == "mamba2":
        both = {f"{phase}_attention_backend": "triton" for phase in ("prefill", "decode")}
        return {**ENGINE, "attention_backend": None, **both}
    return {**ENGINE, "attention_backend": "triton"}


WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


@pytest.fixture(scope="session")
def ports():
    """Engines that run at once use ranges of ports."""
    first = 11_000 + 3_000 * WORKER
    return cycle(range(first, first + 3_000, 1_000))


@pytest.fixture
def ask(tmp_path, ports):
    """What an engine of a layer answers: `ask(kind, turns, config, **engine)`."""
    from replayssm_sglang.bench.geometries import write_model

    def asked(kind, turns, config=None, **engine):
        path = write_model(f"small-{kind}", tmp_path, DTYPE)
        gpu = WORKER % torch.cuda.device_count()
        arguments = {**settings(kind), "dtype": DTYPE, "base_gpu_id": gpu, "port": next(ports), **engine}
        return converse(path, arguments, turns, config, on_gpu(tmp_path / "site"))

    return asked


def same_tokens(ours, theirs):
    """Equal, up to the first tie of the ordinary decode."""
    compared = tokens_until_tie(ours, theirs, TIE)
    assert compared >= TOKENS * len(ours) // 4, f"ties everywhere: only {compared} tokens were compared"


TURNS = [{"prompts": PROMPTS, "tokens": TOKENS}, {"again": True, "tokens": TOKENS}]


@pytest.mark.parametrize("kind", KINDS)
def test_standard_decode(ask, kind):
    plain, repeated = ask(kind, TURNS)
    ours, again = ask(kind, TURNS, {"window": 8})
    same_tokens(ours, plain)
    same_tokens(again, repeated)


@pytest.mark.parametrize("kind", KINDS)
def test_ngram(ask, kind):
    # SGLang drafts alone too: its latent attention of several tokens rounds unlike that of one, by more than a tie.
    plain, repeated = ask(kind, TURNS, **NGRAM)
    first, second = ask(kind, TURNS, {"window": 16}, **NGRAM)
    same_tokens(first, plain)
    same_tokens(second, repeated)
    # The second time around the drafts are right: several tokens a step.
    assert all(answer["spec_verify_ct"] < TOKENS for answer in second)


@pytest.mark.skipif(find_spec("deep_gemm") is None, reason="SGLang's NEXTN needs deep_gemm")
def test_nextn(ask):
    plain, _ = ask("gdn", TURNS)
    (drafted,) = ask("gdn", TURNS[:1], {"window": 16}, **NEXTN)
    same_tokens(drafted, plain)


@pytest.mark.parametrize("engine", [RADIX, TRACKED], ids=["no_buffer", "extra_buffer"])
@pytest.mark.parametrize("kind", KINDS)
def test_prefix_cache(ask, kind, engine):
    # The answer crosses the interval at which states are tracked.
    prompt = [(37 * i + 11) % 2000 + 3 for i in range(TRACKED["mamba_track_interval"] - 4)]
    turns = [
        {"prompts": [prompt], "tokens": 12},
        {"follow": [77, 78, 79], "tokens": TOKENS},
        {"flush": True},
        {"again": True, "tokens": TOKENS},
    ]
    _, cached, _, uncached = ask(kind, turns, {"window": 5}, **engine)
    assert uncached[0]["cached_tokens"] == 0
    assert cached[0]["cached_tokens"] > 0
    same_tokens(cached, uncached)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs of one host")
@pytest.mark.parametrize("kind", KINDS)
def test_two_gpus(ask, kind):
    both = {"tp_size": 2, "base_gpu_id": 0, "disable_custom_all_reduce": True}
    plain, repeated = ask(kind, TURNS, **both)
    ours, again = ask(kind, TURNS, {"window": 8}, **both)
    same_tokens(ours, plain)
    same_tokens(again, repeated)


def flags(kind):
    """The engine's settings as a command line."""
    values = {**settings(kind), "load_format": "dummy", "dtype": DTYPE, "sampling_backend": "pytorch"}
    words = ["--skip-tokenizer-init", "--skip-server-warmup", "--enable-metrics"]
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value not in (None, False):
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return words


def answer(port, prompt, tokens):
    found = generate(port, prompt, tokens, return_logprob=True, top_logprobs_num=2)
    margins = [first[0] - second[0] for first, second in found["meta_info"]["output_top_logprobs"]]
    return {"tokens": found["output_ids"], "margins": margins}


# Its command line cannot turn off the pictures of Qwen3.5, whose processor no folder here has.
@pytest.mark.parametrize("kind", ["mamba2", "kda"])
def test_a_server_under_load_answers_as_a_quiet_one(tmp_path, kind):
    """Hundreds of requests, some cancelled. SGLang itself ends a server whose idle pools lack a slot."""
    from replayssm_sglang.bench.geometries import write_model

    log, choose = tmp_path / "log.txt", random.Random(5)
    words = [*flags(kind), "--replayssm", "exact"]
    path, machine = write_model(f"small-{kind}", tmp_path, DTYPE), environment(None, on_gpu(tmp_path / "site"))
    with serving(path, log, words, machine) as port:
        quiet = [answer(port, prompt, TOKENS) for prompt in PROMPTS]
        with ThreadPoolExecutor(48) as clients:
            gone = [clients.submit(generate, port, PROMPTS[i % 8], 3000, 0.5) for i in range(40)]
            wanted = [choose.randrange(8) for _ in range(300)]
            busy = list(clients.map(lambda i: answer(port, PROMPTS[i], TOKENS), wanted))
        assert all(isinstance(one.exception(), TimeoutError) for one in gone)
        same_tokens(busy, [quiet[i] for i in wanted])
        same_tokens([answer(port, prompt, TOKENS) for prompt in PROMPTS], quiet)
        metrics = page(port, "metrics")
    assert "replayssm_flush_total{" in metrics
    assert f" {kind} layers, standard decode, window 16" in log.read_text(encoding="utf-8")


@pytest.mark.skipif(not bench_client.importable(), reason="SGLang's client imports datasets")
@pytest.mark.parametrize("kind", ["mamba2", "kda"])
def test_sglangs_client_beside_cancelled_requests(tmp_path, kind):
    """The 300 answers that `sglang.bench_serving` gets are those of a quiet server."""
    from replayssm_sglang.bench.geometries import write_model

    log, tokenizer = tmp_path / "log.txt", bench_client.write_tokenizer(tmp_path / "tokenizer", 2048)
    words = [word for word in flags(kind) if word != "--skip-tokenizer-init"]
    words += ["--tokenizer-path", str(tokenizer), "--replayssm", "exact"]
    path, machine = write_model(f"small-{kind}", tmp_path, DTYPE), environment(None, on_gpu(tmp_path / "site"))
    wanted = [prompt for prompt in PROMPTS if len(prompt) > 1]
    with serving(path, log, words, machine) as port:
        quiet = {len(prompt): answer(port, prompt, TOKENS) for prompt in wanted}
        begun = len(log.read_text(encoding="utf-8"))
        with ThreadPoolExecutor(9) as others:
            requests = [wanted[i % len(wanted)] for i in range(300)]
            client = others.submit(bench_client.answers, port, tokenizer, requests, TOKENS, 48, machine)
            gone = bench_client.cancel_beside(client, lambda: generate(port, wanted[-1], 3000, 0.5), others, 8)
        busy = client.result()
        same_tokens([{"tokens": tokens} for _, tokens in busy], [quiet[length] for length, _ in busy])
        same_tokens([answer(port, prompt, TOKENS) for prompt in wanted], list(quiet.values()))
        assert bench_client.complaints(log.read_text(encoding="utf-8")[begun:]) == []
    assert gone >= 40
