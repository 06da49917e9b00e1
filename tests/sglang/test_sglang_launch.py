"""Flags and environment: what was asked for, or one line that says why not."""

from __future__ import annotations

import argparse
import json

import pytest

from replayssm import ReplayConfig
from replayssm.config import ENVIRONMENT
from replayssm_sglang import launch, plugin


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)


def parse(*argv):
    parser = argparse.ArgumentParser()
    launch.add_flags(lambda p: p.add_argument("--model-path"), parser)
    return parser.parse_args(argv)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--replayssm"], ReplayConfig()),
        (["--replayssm", "dual-nvfp4"], ReplayConfig(preset="dual-nvfp4")),
        (["--replayssm", "--replayssm-config", '{"preset": "fp16-sr"}'], ReplayConfig(preset="fp16-sr")),
        (["--replayssm", "exact", "--replayssm-window", "32"], ReplayConfig(window=32)),
        (["--replayssm-config", '{"window": 8, "seed": 3}'], ReplayConfig(window=8, seed=3)),
        (["--replayssm-config", '{"window": 8}', "--replayssm", "fp16-sr"], ReplayConfig(window=8, preset="fp16-sr")),
        (["--replayssm-config", '{"window": 8}', "--replayssm-window", "9"], ReplayConfig(window=9)),
    ],
)
def test_flags(argv, expected):
    assert launch.requested(parse(*argv)) == expected


def test_nothing_asked_for():
    assert launch.requested(parse("--model-path", "m")) is None
    assert launch.active_config() is None


def test_environment_and_flags_over_it(monkeypatch, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"window": 5, "preset": "fp16-sr"}', encoding="utf-8")
    monkeypatch.setenv(ENVIRONMENT, str(path))
    assert launch.active_config() == ReplayConfig(window=5, preset="fp16-sr")
    assert launch.requested(parse("--replayssm-window", "6")) == ReplayConfig(window=6, preset="fp16-sr")
    assert launch.requested(parse("--replayssm")) == ReplayConfig(window=5, preset="fp16-sr")


def test_processes_that_are_started_inherit_every_field(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "")
    asked = parse(
        "--replayssm-config", '{"window": 8, "flush": {"stagger": true}, "precision": {"checkpoint": "bf16"}}'
    )
    taken = plugin.take_flags(lambda cls, args: (cls, args), object, asked)
    assert taken == (object, asked)
    assert launch.active_config() == launch.requested(asked)


def test_a_conflict_is_refused_before_sglang_looks(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "")
    asked = parse("--replayssm")
    asked.enable_linear_replayssm = True
    with pytest.raises(SystemExit, match="--enable-linear-replayssm is SGLang's own"):
        plugin.take_flags(lambda cls, args: (cls, args), object, asked)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--replayssm-window", "8"], "needs --replayssm"),
        (["--replayssm-config", '{"window"'], "not valid JSON"),
        (["--replayssm-config", ""], "neither a JSON object nor a readable file"),
        (["--replayssm-config", "no/such/file"], "neither a JSON object nor a readable file"),
        (["--replayssm-config", '{"widow": 3}'], "unknown field 'widow'"),
        (["--replayssm-config", '{"window": 0}'], "from 1 to 256"),
    ],
)
def test_what_is_wrong_is_one_line(argv, reason):
    with pytest.raises(SystemExit) as refusal:
        launch.requested(parse(*argv))
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_help_names_the_presets_that_are_served():
    parser = argparse.ArgumentParser()
    launch.add_flags(lambda _: None, parser)
    text = "".join(parser.format_help().split())
    assert "exact,fp16-sr,dual-nvfp4,dual-nvfp4-fp16,dual-fp8(default:exact)" in text


@pytest.mark.parametrize("argv", [["--replayssm", "exakt"], ["--replayssm", "exact", "--replayssm-window", "300"]])
def test_typos_are_argparse_errors(argv, capsys):
    with pytest.raises(SystemExit) as refusal:
        parse(*argv)
    assert refusal.value.code == 2
    assert "invalid choice" in (text := capsys.readouterr().err) or "from 1 to 256" in text


def test_a_malformed_environment_ends_the_process(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, json.dumps({"preset": "exakt"}))
    with pytest.raises(SystemExit, match="exakt"):
        launch.active_config()
