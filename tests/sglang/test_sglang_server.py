"""The real server: the flag works, its help shows it, metrics are on the page, and what cannot be served does not start."""

from __future__ import annotations

import json
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor

import bench_client
import pytest
from engine_process import environment, installed, model_path
from server_process import SERVER, ask, page, serving

pytestmark = [
    pytest.mark.skipif(not installed(), reason="needs the engine: ci/engines/sglang.sh"),
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

SETTINGS = shlex.split(
    "--load-format dummy --device cpu --dtype float16 --skip-tokenizer-init --attention-backend torch_native "
    "--sampling-backend pytorch --disable-cuda-graph --max-running-requests 4 --max-total-tokens 1024 --context-length 256 "
    "--chunked-prefill-size -1 --random-seed 1 --mem-fraction-static 0.4 --skip-server-warmup --log-level info"
)


def test_flag_log_line_metrics_and_cancelled_requests(tmp_path):
    log = tmp_path / "log.txt"
    flags = ("--replayssm", "exact", "--replayssm-window", "8", "--enable-metrics")
    prompts = [[(7 * i + 3 * j) % 250 + 2 for i in range(6 + j)] for j in range(4)]
    with serving(model_path(tmp_path, "gdn"), log, [*SETTINGS, *flags], environment(None)) as port:
        quiet = [ask(port, prompt, 16) for prompt in prompts]
        with ThreadPoolExecutor(8) as pool:
            gone = [pool.submit(ask, port, prompt, 100, timeout=2.0) for prompt in prompts]
            busy = list(pool.map(lambda prompt: ask(port, prompt, 16), prompts))
        assert all(isinstance(one.exception(), TimeoutError) for one in gone)
        assert busy == quiet
        # A slot that a cancelled request kept would be missing now.
        assert [ask(port, prompt, 16) for prompt in prompts] == quiet
        metrics = page(port, "metrics")
    for name in ("flush_total", "state_bytes_written_total", "state_bytes_saved_total", "ring_fill_ratio", "info"):
        assert f"replayssm_{name}{{" in metrics
    (line,) = [line for line in log.read_text().splitlines() if "replayssm: " in line]
    assert "2 gdn layers, standard decode, window 8, fp32 checkpoint, no read copy" in line


@pytest.mark.skipif(not bench_client.importable(), reason="SGLang's client imports datasets")
@pytest.mark.parametrize("kind", ["gdn", "mamba2"])
def test_sglangs_client_beside_cancelled_requests(tmp_path, kind):
    """Its answers are a quiet server's. SGLang ends a server whose idle pools lack a slot."""
    log, tokenizer = tmp_path / "log.txt", bench_client.write_tokenizer(tmp_path / "tokenizer", 256)
    flags = [flag for flag in SETTINGS if flag != "--skip-tokenizer-init"]
    flags += ["--tokenizer-path", str(tokenizer), "--replayssm", "exact", "--replayssm-window", "4"]
    prompts = [[(7 * i + 3 * j) % 250 + 2 for i in range(6 + j)] for j in range(4)]
    with serving(model_path(tmp_path, kind), log, flags, environment(None)) as port:
        quiet = {len(prompt): ask(port, prompt, 10) for prompt in prompts}
        begun = len(log.read_text(encoding="utf-8"))
        with ThreadPoolExecutor(2) as others:
            client = others.submit(bench_client.answers, port, tokenizer, 3 * prompts, 10, 8, environment(None))
            gone = bench_client.cancel_beside(client, lambda: ask(port, prompts[0], 200, timeout=3.0), others, 1)
        assert sorted(client.result()) == sorted(3 * list(quiet.items()))
        assert {len(prompt): ask(port, prompt, 10) for prompt in prompts} == quiet
        assert bench_client.complaints(log.read_text(encoding="utf-8")[begun:]) == []
    assert gone > 4


def test_help_shows_the_flags():
    done = subprocess.run([*SERVER, "--help"], env=environment(None), capture_output=True, text=True, timeout=200)
    assert "--replayssm-window W" in done.stdout


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--replayssm", "--enable-linear-replayssm"], "--enable-linear-replayssm is SGLang's own ReplaySSM"),
        (["--replayssm-config", '{"window"'], "config is not valid JSON"),
        (["--replayssm", "dual-nvfp4-fp8"], "a checkpoint of fp8 is not served"),
        (
            shlex.split(
                "--replayssm --replayssm-window 3 --speculative-algorithm NGRAM --speculative-num-draft-tokens 4"
            ),
            "--replayssm-window 3 is below the 4 tokens",
        ),
    ],
)
def test_what_cannot_be_served_does_not_start(tmp_path, flags, reason):
    command = [*SERVER, "--model-path", str(model_path(tmp_path, "gdn")), *SETTINGS, *flags]
    done = subprocess.run(command, env=environment(None), capture_output=True, text=True, timeout=200)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("replayssm: ")
    assert reason in last
    assert "Load weight" not in done.stderr + done.stdout


def test_a_geometry_that_the_kernels_do_not_serve_does_not_start(tmp_path):
    path = model_path(tmp_path, "gdn")
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**config, "linear_key_head_dim": 48}), encoding="utf-8")
    flags = ["--replayssm-config", '{"backend": "triton"}']
    command = [*SERVER, "--model-path", str(path), *SETTINGS, *flags]
    done = subprocess.run(command, env=environment(None), capture_output=True, text=True, timeout=200)
    assert done.returncode != 0
    assert "replayssm: backend 'triton' does not serve K = 48; it serves" in done.stderr
    assert "Load weight" not in done.stderr + done.stdout


def test_a_model_without_recurrent_layers_does_not_start(tmp_path):
    path = tmp_path / "llama"
    path.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-06, "torch_dtype": "float16",
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    command = [*SERVER, "--model-path", str(path), *SETTINGS, "--replayssm"]
    done = subprocess.run(command, env=environment(None), capture_output=True, text=True, timeout=200)
    assert done.returncode != 0
    assert "replayssm: LlamaForCausalLM has no recurrent layers; start without --replayssm" in done.stderr
