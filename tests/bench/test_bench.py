"""The benchmark's plain parts: settings, schedules of a round, bytes, results and tables, the command's refusals."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

from replayssm.bench.ceilings import Ceilings
from replayssm.bench.geometry import GEOMETRIES
from replayssm.bench.results import Results, Row, read_rows
from replayssm.bench.run import ordinary_state
from replayssm.bench.scenario import Scenario, step_bytes, step_counts
from replayssm.bench.settings import selection
from replayssm.bench.tables import markdown
from replayssm.bench.timing import Machine, round_of
from replayssm.cli import main
from replayssm.errors import InputError
from replayssm.records import git_ref
from replayssm.steady import steady_state
from replayssm.traffic import StateBytes

SUPER = GEOMETRIES["super"]
ROW = Row("mamba2", "super", "fp32", None, 256, 1, "staggered", 280.0, 560.0, 2.0, 0.9)
META = {
    "device": "NVIDIA H200",
    "versions": {"torch": "2.11.0", "driver": None},
    "git": "abc",
    "command": "replayssm bench kernels",
    "ceilings": {"read_gbps": 4597.0, "read_write_gbps": 4238.0, "fill_gbps": 4694.0},
}


def scenario(batch: int = 256, draft: int = 1, phase: str = "staggered", **changes: object) -> Scenario:
    return replace(Scenario(SUPER, "fp32", None, batch, draft, phase), **changes)


@pytest.mark.parametrize("batch", [1, 3, 32, 256])
@pytest.mark.parametrize("phase", ["staggered", "in-phase"])
@pytest.mark.parametrize("window", [1, 5, 16])
def test_a_round_of_standard_decode_is_a_window(batch, phase, window):
    """Over a round every row flushes once in W steps, from every phase equally often."""
    counts = step_counts(scenario(batch, phase=phase, window=window))
    committed = torch.stack([count for count, _ in counts])
    flush = torch.stack([flags for _, flags in counts])
    assert flush.double().mean() == pytest.approx(1 / window)
    assert torch.equal(flush, committed == window)
    assert torch.bincount(committed.flatten(), minlength=window + 1)[1:].unique().numel() == 1


@pytest.mark.parametrize(("draft", "batch"), [(2, 256), (4, 256), (8, 256), (4, 1)])
def test_steady_rounds_follow_the_stationary_distribution(draft, batch):
    found = step_counts(scenario(batch, draft, "steady"))
    assert len({int(count[0]) for count, _ in found}) > 1
    rate = torch.stack([flags for _, flags in found]).double().mean()
    assert float(rate) == pytest.approx(
        steady_state(scenario(batch, draft, "steady").layout, draft).flush_rate, rel=0.02
    )


def test_bytes_of_a_round():
    """(W − 1) of W rows read, one of W reads and writes; the floor of TARGETS' geometry."""
    wanted = scenario()
    cost = StateBytes.of(wanted.layout)
    moved = step_bytes(wanted)
    assert moved.quiet_read == pytest.approx(256 * (15 * cost.read_state + 120 * cost.output_record) / 16)
    flushed = 16 * (cost.checkpoint + cost.written_state + 16 * cost.fold_record)
    assert moved.rewritten == pytest.approx(flushed + 256 * cost.new_record)
    assert 255 < moved.floor_us(Ceilings(4597.0, 4238.0, 4694.0)) < 262


@pytest.mark.parametrize(
    ("checkpoint", "copy", "state"),
    [("fp32", None, "fp32"), ("bf16", None, "bf16"), ("fp16-sr", None, "fp16"), ("fp8-sr", None, "fp16"),
     ("nvfp4", None, "fp32"), ("fp16-sr", "nvfp4", "fp32")],
)  # fmt: skip
def test_what_a_row_is_compared_with(checkpoint, copy, state):
    assert ordinary_state(scenario(checkpoint=checkpoint, read_copy=copy)) == state


def test_rotation():
    machine = Machine(torch.device("cpu"), 50 << 20, None)
    assert machine.copies(4 << 20) == 64
    assert machine.copies(1 << 30) == 1
    assert round_of(1, 1) == 8
    assert round_of(16, 64) == 64
    assert round_of(3, 4) == 12


def test_default_selection_holds_every_geometry():
    scenarios = selection().scenarios()
    assert {s.geometry.name for s in scenarios} == set(GEOMETRIES)
    assert {(s.draft, s.phase) for s in scenarios} == {(1, "staggered"), (2, "steady"), (4, "steady"), (8, "steady")}
    assert {s.batch for s in selection(quick=True).scenarios()} == {256}


def test_lists_may_be_separated_by_commas():
    chosen = selection({"batch": ["1,8", "32"], "draft": ["1"], "geometry": ["super,kimi"], "checkpoint": ["fp16-sr"]})
    assert [(s.geometry.name, s.batch) for s in chosen.scenarios()] == [
        (name, batch) for name in ("super", "kimi") for batch in (1, 8, 32)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": ["mamba"]}, "--layer='mamba' is unknown; expected some of mamba2, gdn, kda"),
        ({"geometry": ["big"]}, "--geometry='big' is unknown; expected some of super, nano4b"),
        ({"batch": ["0"]}, "--batch='0' must be a whole number from 1 to 4096"),
        ({"batch": [","]}, "--batch is empty"),
        ({"draft": ["four"]}, "--draft='four' must be a whole number from 1 to 64"),
        ({"checkpoint": ["fp9"]}, "--checkpoint='fp9' is unknown; expected some of fp32, bf16"),
        ({"read_copy": ["fp4"]}, "--read-copy='fp4' is unknown; expected some of none, fp8, nvfp4"),
        ({"phase": ["mid"]}, "--phase='mid' is unknown"),
    ],
)
def test_bad_lists(arguments, message):
    with pytest.raises(InputError) as caught:
        selection(arguments)
    assert message in str(caught.value)


def test_bad_settings():
    with pytest.raises(InputError, match="--window=0 must be from 1 to 256"):
        selection(window=0)
    with pytest.raises(InputError, match=r"--acceptance=1\.5 must be from 0 to 1"):
        selection(acceptance=1.5)


@pytest.mark.parametrize("arguments", [{"layer": ["kda"], "geometry": ["super"]}, {"draft": ["4"], "phase": ["flush"]}])
def test_nothing_to_measure(arguments):
    with pytest.raises(InputError, match="nothing to measure"):
        selection(arguments).scenarios()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--batch", "x"], "--batch='x'"), (["--json", "/"], "--json=/ is a folder")],
)
def test_command_refuses_in_one_line(arguments, message, capsys):
    assert main(["bench", "kernels", *arguments]) == 2
    _one_line(message, capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--try", "value=3"], "value=3 of a launch shape must be a power of two"),
        (["--try", "value=128", "--geometry", "super"], "no launch shape to try suits"),
        (["--out", "/"], "--out=/ is a folder"),
    ],
)
def test_tune_refuses_in_one_line(arguments, message, capsys):
    """Before it asks for a GPU."""
    assert main(["tune", *arguments]) == 2
    _one_line(message, capsys)


def _one_line(message, capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing where there is no GPU")
def test_command_says_that_it_needs_a_gpu(capsys):
    assert main(["bench", "kernels"]) == 2
    assert "measuring needs a CUDA device" in capsys.readouterr().err


def test_results_survive_a_file(tmp_path):
    path = tmp_path / "folder" / "kernels.json"
    Results(META, [ROW]).write(path)
    assert read_rows(path) == (META, [ROW])
    facts = json.loads(path.read_text(encoding="utf-8"))
    assert list(facts) == ["meta", "rows"]
    assert facts["rows"] == [asdict(ROW)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"meta": {}, "rows": [{"us": 1}]}',
        '{"meta": {}, "rows": []}',
        json.dumps({"meta": META, "rows": []}),
        json.dumps({"meta": META, "rows": [{**asdict(ROW), "us": "fast"}]}),
        json.dumps({"meta": META, "rows": [{**asdict(ROW), "batch": None}]}),
    ],
)
def test_a_file_that_is_no_result(text, tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    assert main(["bench", "table", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_table_of_a_file(tmp_path, capsys):
    path = tmp_path / "kernels.json"
    rows = [
        ROW,
        replace(ROW, batch=1, us=4.0, ordinary_us=4.4, ratio=1.1),
        replace(ROW, phase="flush"),
        replace(ROW, draft=4, phase="steady", us=330.0, ratio=4.4, read_copy="nvfp4"),
    ]
    Results(META, rows).write(path)
    assert main(["bench", "table", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| layer | geometry | state | T | batch 1 | batch 256 |"
    assert lines[2] == "| mamba2 | super | fp32 | 1 | 4 µs (1.10×) | 280 µs (2.00×) |"
    assert lines[3] == "| mamba2 | super | fp32 + nvfp4 | 4 | – | 330 µs (4.40×) |"
    assert lines[5].startswith("NVIDIA H200; torch 2.11.0; git abc; `replayssm bench kernels`. Ceilings")
    assert markdown([(META, rows)]) == "\n".join(lines) + "\n"


def test_table_of_several_files(tmp_path, capsys):
    files = [tmp_path / "one.json", tmp_path / "drafts.json"]
    Results(META, [ROW]).write(files[0])
    Results({**META, "command": "another"}, [replace(ROW, draft=4, phase="steady", ratio=4.4)]).write(files[1])
    assert main(["bench", "table", *map(str, files)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[3:] for line in lines[2:4]] == [["1", "280 µs (2.00×) |"], ["4", "280 µs (4.40×) |"]]
    assert [line.partition("`")[2].partition("`")[0] for line in lines[5:]] == ["replayssm bench kernels", "another"]


def test_git_ref_is_a_commit_or_unknown():
    ref = git_ref()
    assert ref == "unknown" or len(ref.rstrip("+")) == 12
