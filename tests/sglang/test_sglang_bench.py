"""The benchmark of the engine, without the engine: jobs, processes, rows."""

from __future__ import annotations

import argparse
import io
import json
import random
import textwrap

import pytest
import torch

from replayssm import InputError, LayerKind, ReplayConfig
from replayssm.cli import main
from replayssm.hybrid import read_hybrid
from replayssm_sglang.bench import command, report, step, throughput
from replayssm_sglang.bench.capacity import most
from replayssm_sglang.bench.dummy import write_entry_point
from replayssm_sglang.bench.engines import MODES, OURS, replay_config, settings
from replayssm_sglang.bench.geometries import CONFIGS, PUBLISHED, write_model
from replayssm_sglang.bench.plot import panels
from replayssm_sglang.bench.processes import Job, measure
from replayssm_sglang.bench.protocol import ROW, heard
from replayssm_sglang.bench.step import prefill

MEASURING = """
    import json, os, sys, time
    from replayssm_sglang.bench.protocol import READY, ROW, say, wait_for_go

    plan = json.loads(sys.argv[1])
    print("starting")
    if plan.get("dies"):
        say(READY)
        sys.exit("gone")
    if plan.get("fails"):
        raise MemoryError("no memory")
    if plan.get("hangs"):
        time.sleep(60)
    say(READY)
    wait_for_go()
    ours = json.loads(os.environ.get("REPLAYSSM_CONFIG", "null"))
    for batch in plan["batches"]:
        us = 100.0 * batch / (1 if ours is None else 2)
        say(ROW, batch=batch, us=us, ours=ours, always=os.environ.get("REPLAYSSM_ALWAYS"))
"""


def parsed(*argv):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return parser.parse_args(argv)


@pytest.fixture
def site(tmp_path):
    (tmp_path / "measuring.py").write_text(textwrap.dedent(MEASURING), encoding="utf-8")
    return write_entry_point(tmp_path)


def test_processes_measure_in_order_and_failures_are_told(tmp_path, site):
    plans = [({"batches": [1, 4]}, None), ({"fails": True}, None), ({"batches": [4]}, {"preset": "exact"})]
    jobs = [Job("measuring", plan, config, {"model": "m", "mode": i}) for i, (plan, config) in enumerate(plans)]
    found = [(job.labels["mode"], row) for job, row in measure(jobs, tmp_path, 2, site)]
    assert [(mode, row.get("batch"), row.get("us")) for mode, row in found] == [
        (0, 1, 100.0),
        (0, 4, 400.0),
        (1, None, None),
        (2, 4, 200.0),
    ]
    assert found[2][1]["error"] == "MemoryError: no memory"
    # What is measured runs where a server would not.
    assert (found[3][1]["ours"], found[3][1]["always"]) == ({"preset": "exact"}, "1")


def test_a_process_that_hangs_is_ended_and_the_others_measure(tmp_path, site):
    jobs = [Job("measuring", plan, None, {"mode": i}) for i, plan in enumerate([{"hangs": 1}, {"batches": [2]}])]
    first, second = measure(jobs, tmp_path, 2, site, limit=10.0)
    assert first[1] == {"error": "starting"}
    assert second[1]["us"] == 200.0


def test_a_process_that_dies_once_it_is_ready_costs_its_own_rows(tmp_path, site):
    jobs = [Job("measuring", plan, None, {"mode": i}) for i, plan in enumerate([{"batches": [1]}, {"dies": 1}])]
    (first, one), (second, other) = measure(jobs, tmp_path, 2, site)
    assert (first.labels["mode"], one["us"]) == (0, 100.0)
    assert second.labels["mode"] == 1
    assert "gone" in other["error"]


def test_rows_are_compared_as_they_come(tmp_path):
    told = report.Report({})
    for mode, us in (("exact", 50.0), ("plain", 100.0), ("sglang-replay", 80.0)):
        told.add({"model": "m", "mode": mode, "draft": 1}, {"batch": 8, "us": us})
    told.add({"model": "m", "mode": "exact", "draft": 1}, {"batch": 9, "us": 60.0})
    assert [row["ratio"] for row in told.rows] == [2.0, 1.0, 1.25, None]
    assert told.rows[0]["sglang_replay_us"] == 80.0
    told.write(tmp_path / "rows.json")
    assert len(json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]) == 4


def test_engines_that_hold_more_requests_are_better():
    told = report.Report({})
    for mode, requests in (("plain", 100), ("exact", 350)):
        told.add({"model": "m", "mode": mode, "draft": 4}, {"requests": requests, "tokens": 9})
    told.add({"model": "m", "mode": "plain", "draft": 4}, {"batch": 8, "us": 50.0})
    assert [row["ratio"] for row in told.rows] == [1.0, 3.5, 1.0]


class Batch(list):
    merge_batch = list.extend


class Runner:
    """Answers a prompt with its number."""

    passes = ()

    def extend(self, requests):
        self.passes = (*self.passes, len(requests))
        return torch.tensor(requests), None, Batch(requests)


@pytest.mark.parametrize(("most", "passes"), [(1, (1,) * 5), (2, (2, 2, 1)), (5, (5,)), (8, (5,))])
def test_prompts_go_in_passes_of_a_size_and_decode_together(most, passes):
    runner = Runner()
    tokens, together = prefill(runner, [3, 1, 4, 1, 5], most)
    assert runner.passes == passes
    assert tokens.tolist() == together == [3, 1, 4, 1, 5]


def test_the_largest_batch_comes_last(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))
    monkeypatch.setattr(step, "steps", lambda _runner, batch, _prompt, count: iter([batch / 1e6] * count))
    step.measure(None, {"batches": [64, 1, 512], "prompt": 9, "steps": 3}, 0.0)
    rows = [heard(line, ROW) for line in capsys.readouterr().out.splitlines()]
    assert [(row["batch"], round(row["us"])) for row in rows if row] == [(1, 1), (64, 64), (512, 512)]


def test_an_output_token_takes_the_median_of_its_times(monkeypatch):
    # A short run of a second, then a long one, three times; the first pair is to warm up.
    runs = iter([(9.0, 1.0), (1.0, 1.0), (3.0, 2.5), (1.0, 1.0), (9.0, 2.5), (1.0, 1.0), (2.0, 2.5)])
    monkeypatch.setattr(throughput, "seconds", lambda *_: next(runs))
    found = throughput.output_token(None, 4, 8, 10)
    assert found == {"us": 2e5, "times_us": [2e5, 8e5, 1e5], "tokens_per_second": 20.0, "accept_length": 2.5}


@pytest.mark.parametrize("seed", range(4))
def test_requests_that_fit_leave_room_for_their_tokens(seed):
    choose = random.Random(seed)
    memory, price, length = choose.randrange(10**6, 10**7), choose.randrange(100, 9_000), choose.randrange(1, 4_000)
    fitting = most({n: memory - price * n for n in (16, 64)}, length)
    assert fitting * (price + length) <= memory < (fitting + 1) * (price + length)


def test_curves_are_of_batches_in_order():
    rows = [
        {"model": "m", "mode": mode, "draft": draft, "batch": batch, "us": 1.0, "ratio": ratio}
        for mode, draft, batch, ratio in (
            ("exact", 4, 8, 3.0),
            ("exact", 1, 64, 1.2),
            ("exact", 1, 1, 1.0),
            ("plain", 1, 1, 1.0),
            ("dual-nvfp4", 1, 1, None),
        )
    ]
    assert panels(rows) == {("m", 1): {"exact": [(1, 1.0), (64, 1.2)]}}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_models_are_of_one_dtype(tmp_path, name, dtype):
    found = json.loads((write_model(name, tmp_path, dtype) / "config.json").read_text(encoding="utf-8"))
    assert set(dtypes(found)) == {dtype}


def dtypes(config):
    for key, value in config.items():
        if isinstance(value, dict):
            yield from dtypes(value)
        elif key in ("dtype", "torch_dtype"):
            yield value


@pytest.mark.parametrize("name", [name for name in CONFIGS if "mamba2" in name or "nemotron" in name])
def test_attention_comes_first_where_the_engine_asks_for_it(tmp_path, name):
    assert json.loads((write_model(name, tmp_path) / "config.json").read_text())["hybrid_override_pattern"][0] == "*"


@pytest.mark.parametrize(
    ("name", "kind", "layers", "heads"),
    [
        ("qwen3.5-4b", LayerKind.GDN, 24, 32),
        ("nemotron-3-nano-4b", LayerKind.MAMBA2, 21, 96),
        ("kimi-linear-cut", LayerKind.KDA, 6, 32),
        ("small-gdn", LayerKind.GDN, 3, 4),
        ("small-mamba2", LayerKind.MAMBA2, 4, 8),
        ("small-kda", LayerKind.KDA, 3, 4),
    ],
)
def test_models_are_what_they_are_called(tmp_path, name, kind, layers, heads):
    model = read_hybrid(write_model(name, tmp_path) / "config.json")
    assert (model.recurrence.kind, model.recurrent_layers, model.recurrence.heads) == (kind, layers, heads)


def test_every_published_model_is_measured_in_every_mode():
    jobs = {name: list(command._jobs(parsed("--draft", "1", "4"), "path", name)) for name in PUBLISHED}
    # SGLang's own replay has no Mamba-2, and no drafts of NGRAM.
    assert {name: len(found) for name, found in jobs.items()} == dict(zip(PUBLISHED, (7, 6, 7), strict=True))
    assert set(CONFIGS) > set(PUBLISHED)


@pytest.mark.parametrize("mode", MODES)
def test_engines_keep_the_states_that_a_mode_needs(mode):
    engine = settings("qwen", mode)
    if mode in OURS:
        half = ReplayConfig(**replay_config(mode)).policy.checkpoint == "fp16"
        assert engine["mamba_ssm_dtype"] == ("float16" if half else "float32")
    else:
        assert replay_config(mode) is None
    assert ("enable_linear_replayssm" in engine) == (mode == "sglang-replay")


@pytest.mark.parametrize(
    ("argv", "match"),
    [
        (["--model", "llama"], "--model llama is unknown; expected qwen3.5-4b"),
        (["--mode", "fast"], "--mode fast is unknown; expected plain, sglang-replay"),
        (["--batch", "0"], "--batch=0 must be at least 1"),
        (["--steps", "0"], "--steps=0 must be at least 1"),
        (["--limit", "-1"], "--limit=-1.0 must be above 0"),
        (["--concurrency"], "--concurrency takes all of the GPU's memory: --parallel must be 1"),
        (["--draft", "1", "4", "--accept-length", "5"], "--accept-length=5.0 must be from 1 to the draft length"),
    ],
)
def test_bad_arguments(argv, match, tmp_path):
    with pytest.raises(InputError, match=match):
        command.run(parsed("--logs", str(tmp_path), *argv))


def test_it_is_a_benchmark_beside_those_of_the_core(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "sglang", "--help"])
    assert "--accept-length" in capsys.readouterr().out
