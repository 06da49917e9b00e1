"""Where SGLang alone was measured to be faster, and what a server does that never leaves that range."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from replayssm import LayerKind, PrecisionPolicy, ReplayConfig
from replayssm.config import ENVIRONMENT
from replayssm_sglang import arguments, install, measured, plugin
from replayssm_sglang.bench.geometries import CONFIGS
from replayssm_sglang.measured import LOSSES, Loss

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "sglang-h200.json"
KINDS = {"qwen3.5-4b": LayerKind.GDN, "nemotron-3-nano-4b": LayerKind.MAMBA2, "kimi-linear-cut": LayerKind.KDA}
LOSS = Loss("NVIDIA Some", LayerKind.KDA, "dual-nvfp4", 8, 0.9, "a-model")


@pytest.fixture(autouse=True)
def one_loss(monkeypatch):
    monkeypatch.setattr(measured, "LOSSES", (LOSS,))
    monkeypatch.delenv(measured.ALWAYS, raising=False)


def losses(found):
    """Of a results file: for each model and mode the batches, from the smallest, at which SGLang alone was faster."""
    rows = [row for row in found["rows"] if row["draft"] == 1 and row["mode"] not in ("plain", "sglang-replay")]
    for model, mode in sorted({(row["model"], row["mode"]) for row in rows}):
        curve = sorted((row["batch"], row["ratio"]) for row in rows if (row["model"], row["mode"]) == (model, mode))
        first_gain = next((i for i, (_, ratio) in enumerate(curve) if ratio >= 1.0), len(curve))
        if first_gain:
            worst = min(ratio for _, ratio in curve[:first_gain])
            yield Loss(found["meta"]["device"], KINDS[model], mode, curve[first_gain - 1][0], worst, model)


def test_the_table_is_what_was_measured():
    told = list(losses(json.loads(RESULTS.read_text(encoding="utf-8"))))
    assert sorted(LOSSES, key=repr) == sorted(told, key=repr)
    assert {loss.model for loss in LOSSES} <= set(CONFIGS)


def reason(requests=8, draft=1, device=LOSS.device, kind=LOSS.kind, **config):
    chosen = ReplayConfig(**{"preset": LOSS.preset, **config})
    return measured.reason_to_stay_off(chosen, requests, draft, device, lambda: kind)


@pytest.mark.parametrize("requests", [1, 8])
def test_a_server_that_stays_in_the_range_is_told_why(requests):
    assert reason(requests) == (
        "off: with up to 8 at once, dual-nvfp4 was measured at 0.900 times the speed of SGLang alone (a-model, NVIDIA "
        f"Some), and --max-running-requests {requests} allows no more; REPLAYSSM_ALWAYS=1 starts it all the same"
    )


@pytest.mark.parametrize(
    "other",
    [
        {"requests": 0},
        {"requests": 9},
        {"draft": 4},
        {"device": "NVIDIA Other"},
        {"kind": LayerKind.GDN},
        {"preset": "exact"},
        {"window": 32},
        {"precision": PrecisionPolicy.preset("dual-nvfp4")},
    ],
)
def test_what_was_not_measured_says_nothing(other):
    assert reason(**other) is None


def test_who_wants_it_all_the_same_has_it(monkeypatch):
    monkeypatch.setenv(measured.ALWAYS, "1")
    assert reason() is None


def test_layers_are_asked_for_only_where_it_matters():
    def never():
        raise AssertionError

    assert measured.reason_to_stay_off(ReplayConfig(preset="dual-nvfp4"), 9, 1, LOSS.device, never) is None


@pytest.mark.parametrize(("requests", "installed"), [(8, False), (9, True)])
def test_a_scheduler_there_starts_without_us_and_says_so(monkeypatch, caplog, requests, installed):
    done = []
    monkeypatch.setenv(ENVIRONMENT, '{"preset": "dual-nvfp4"}')
    monkeypatch.setattr(plugin, "require_surface", lambda: None)
    monkeypatch.setattr(plugin.surface, "resolved", lambda args: args)
    monkeypatch.setattr(measured, "device_name", lambda: LOSS.device)
    monkeypatch.setattr(arguments, "served_kind", lambda _args: LOSS.kind)
    monkeypatch.setattr(install, "install", lambda config, args: done.append((config.preset, args)))
    args = SimpleNamespace(max_running_requests=requests)
    plugin.start_scheduler(None, args)
    assert done == ([("dual-nvfp4", args)] if installed else [])
    assert ("replayssm: off: with up to 8 at once" in caplog.text) != installed
