"""`replayssm eval state`: errors against float64, what the exact fold is worth in them, and what is refused."""

from __future__ import annotations

import argparse
import json
import re

import pytest

from replayssm import PRESETS, InputError, LayerKind, Recurrence
from replayssm.cli import eval_state
from replayssm.cli.eval_state import configure
from replayssm.drift.measure import Setup, drift, variants, with_products

WINDOW, STEPS = 8, 256


def recurrence_of(kind):
    return Recurrence(kind, heads=2, groups=1, value_dim=8, key_dim=32)


def parsed(*argv):
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(argv)


@pytest.mark.parametrize("kind", list(LayerKind))
def test_copies_leave_the_state_alone_and_only_the_exact_fold_does_that(kind, seed):
    recurrence = recurrence_of(kind)
    setup = Setup(recurrence, rows=2, window=WINDOW, seed=seed % 1000)
    chosen = {name: PRESETS[name] for name in ("exact", "fp16-sr", "dual-nvfp4", "shared-nvfp4")}
    found = {error.policy: error for error in drift(setup, variants(chosen, recurrence), [STEPS])}
    exact, dual = found["exact"], found["dual-nvfp4"]
    assert exact.state <= 1e-6
    assert dual.state <= 1.05 * exact.state
    assert exact.output < 5e-3 < dual.output < 0.2
    assert 1e-4 < found["fp16-sr"].state < 5e-3 < 0.05 < found["shared-nvfp4"].state
    if recurrence.delta_rule:
        assert found["dual-nvfp4, plain fold"].state > 1e3 * dual.state
    else:
        assert not [name for name in found if name.endswith("plain fold")]


def test_marks_are_whole_windows():
    setup = Setup(recurrence_of(LayerKind.GDN), window=WINDOW)
    with pytest.raises(InputError, match="multiples of the window, 8"):
        next(drift(setup, PRESETS, [12]))


def test_the_command_writes_a_table_and_json(tmp_path, capsys):
    sizes = ("--heads", "2", "--value-dim", "4", "--key-dim", "16", "--rows", "1")
    file = tmp_path / "state.json"
    args = parsed("--layer", "gdn,kda", "--presets", "exact,dual-fp8", "--steps", "16,32", *sizes, "--json", str(file))
    assert eval_state.run(args) == 0
    printed, facts = capsys.readouterr().out, json.loads(file.read_text())
    assert printed.count("dual-fp8, plain fold") == 4
    assert len(facts["rows"]) == 2 * 2 * 4
    assert {"device", "versions", "git", "command", "geometry"} <= facts["meta"].keys()


def test_products_by_name():
    one = {"exact": PRESETS["exact"]}
    assert with_products(one, []) == one
    found = with_products(one, ["tf32", "tf32x3"])
    assert {name: policy.dot for name, policy in found.items()} == {"exact, tf32": "tf32", "exact, tf32x3": "tf32x3"}


@pytest.mark.parametrize(
    ("argv", "match"),
    [
        (["--layer", "mamba"], "--layer='mamba' is unknown"),
        (["--presets", "nvfp4"], "--presets='nvfp4' is unknown"),
        (["--steps", "0"], "--steps='0' must be a whole number"),
        (["--heads", "0"], "--heads=0 must be at least 1"),
        (["--draft", "-1"], "--draft=-1 must be from 0 to 15, below --window"),
        (["--draft", "16"], "--draft=16 must be from 0 to 15, below --window"),
        (["--dot", "tf32"], "--dot and --fp32-outputs need --backend=triton; 'torch' has neither"),
        (["--fp32-outputs"], "--dot and --fp32-outputs need --backend=triton"),
        (["--dot", "ieee", "--backend", "triton"], "--dot='ieee' is unknown"),
        (["--device", "tpu9"], "--device='tpu9' cannot be used here"),
        (["--json", "nodir/x.json"], "--json='nodir/x.json' cannot be written: No such file or directory"),
        (["--json", "."], "--json='.' cannot be written: Is a directory"),
    ],
)
def test_what_the_command_refuses(argv, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(eval_state, "drift", _computed)
    with pytest.raises(InputError, match=re.escape(match)):
        eval_state.run(parsed(*argv))
    assert not list(tmp_path.iterdir())


def _computed(*_):
    raise AssertionError("something was computed before the arguments were checked")
