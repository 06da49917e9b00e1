"""`replayssm bench precision`: which policies are measured, what they are called, and the table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from interpreting import interpret
from replayssm import PRESETS, InputError
from replayssm.bench.conventional import Kind
from replayssm.bench.precision import parts_of, policy_name, policy_scenarios
from replayssm.bench.results import Row
from replayssm.bench.run import ordinary_kind
from replayssm.bench.settings import selection
from replayssm.capability import CAPABILITIES
from replayssm.cli import main
from replayssm.cli.precision_text import side_by_side

CUDA = torch.device("cuda")


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_have_names_in_the_benchmark(name):
    checkpoint, copy = parts_of(PRESETS[name])
    assert policy_name(checkpoint, None if copy == "none" else copy) == name


def test_policies_that_kernels_do_not_serve_are_left_out_with_the_reason(monkeypatch):
    row = dataclasses.replace(CAPABILITIES["triton"], checkpoints=("fp32",))
    monkeypatch.setitem(CAPABILITIES, "triton", row)
    chosen = selection({"geometry": ["super,kimi"], "batch": ["32"], "draft": ["1,4"]})
    scenarios, refused = policy_scenarios(chosen, ["exact", "dual-nvfp4", "shared-nvfp4"], CUDA)
    assert len(scenarios) == 2 * 2 * 2
    assert {(s.checkpoint, s.read_copy) for s in scenarios} == {("fp32", None), ("fp32", "nvfp4")}
    assert "does not serve checkpoint nvfp4" in refused["shared-nvfp4"]
    with pytest.raises(InputError, match=r"nothing to measure: .*nvfp4"):
        policy_scenarios(chosen, ["shared-nvfp4"], CUDA)


@pytest.mark.parametrize("draft", ["1", "4"])
def test_every_policy_stands_beside_the_same_ordinary_decode(draft):
    chosen = selection({"geometry": ["super"], "batch": ["32"], "draft": [draft]})
    scenarios, refused = policy_scenarios(chosen, list(PRESETS), CUDA)
    assert len(scenarios) == len(PRESETS) - len(refused)
    assert {s.checkpoint for s in scenarios} > {"fp32", "fp16-sr", "fp8-sr"}
    assert {ordinary_kind(s) for s in scenarios} == {Kind(scenarios[0].geometry, "fp32", int(draft))}


def test_table():
    def row(policy, batch, us):
        checkpoint, copy = parts_of(PRESETS[policy])
        copy = None if copy == "none" else copy
        return Row("gdn", "qwen122b", checkpoint, copy, batch, 1, "staggered", us, 100.0, round(100 / us, 3), 0.9)

    rows = [row("exact", 32, 50.0), row("exact", 256, 80.0), row("dual-nvfp4", 32, 20.0)]
    quality = [
        {"geometry": "qwen122b", "policy": name, "state_error": 1e-7, "output_error": error}
        for name, error in (("exact", 2e-3), ("dual-nvfp4", 0.08))
    ]
    lines = side_by_side(rows, quality)
    assert lines[0].split("  ")[0] == ""
    assert "µs at 32 (×)" in lines[0]
    assert "µs at 256 (×)" in lines[0]
    assert "50.0 (2.00×)" in lines[1]
    assert "80.0 (1.25×)" in lines[1]
    assert lines[2].split() == ["qwen122b", "1", "dual-nvfp4", "20.0", "(5.00×)", "1.0e-07", "8.0e-02"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [(["--policies", "fp4"], "--policies='fp4' is unknown"), (["--geometry", "huge"], "--geometry")],
)
def test_what_the_command_refuses(argv, said, capsys):
    assert main(["bench", "precision", *argv]) == 2
    assert said in capsys.readouterr().err


def test_quality_through_the_kernels():
    pytest.importorskip("triton")
    interpret(Path(__file__).with_name("interpreted_bench.py"), "quality", "gdn")
