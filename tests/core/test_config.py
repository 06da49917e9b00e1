"""The configuration object: fields, JSON, files, environment."""

from __future__ import annotations

import pytest

from replayssm import FlushPolicy, InputError, PrecisionPolicy, ReplayConfig
from replayssm.config import ENVIRONMENT


def test_defaults_are_valid_and_exact():
    config = ReplayConfig()
    assert (config.window, config.preset, config.policy) == (16, "exact", PrecisionPolicy())


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"windows": 8}, "config has unknown field 'windows'; expected some of window, max_draft"),
        ({1: 8, "windows": 8}, "config has unknown field 1, 'windows'"),
        ({"window": 0}, "window=0"),
        ({"window": -3}, "window=-3"),
        ({"window": 257}, "window=257"),
        ({"window": "16"}, "window='16'"),
        ({"window": True}, "window=True"),
        ({"window": 8.0}, "window=8.0"),
        ({"max_draft": 0}, "max_draft=0"),
        ({"max_draft": 65}, "max_draft=65"),
        ({"preset": "nvfp4"}, "preset='nvfp4'.*expected one of exact"),
        ({"backend": "cuda-c"}, "backend='cuda-c'"),
        ({"check_inputs": "sometimes"}, "check_inputs='sometimes'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**63}, "seed="),
        ({"flush": {"budget": 0}}, "budget=0"),
        ({"flush": {"budgets": 1}}, "flush has unknown field 'budgets'"),
        ({"flush": {"early": "half"}}, "early='half'"),
        ({"flush": {"stagger": "no"}}, "stagger='no' must be True or False"),
        ({"flush": "often"}, "flush='often' must be an object with some of stagger"),
        ({"precision": "bf16"}, "precision='bf16' must be an object with some of checkpoint, stochastic_rounding"),
        ({"flush": None}, "flush=None must be a FlushPolicy"),
        ({"precision": {"checkpoint": "int4"}}, "checkpoint='int4'"),
        ({"precision": {"exact_fold": "no"}}, "exact_fold='no' must be True or False"),
        ({"precision": {"bits": 4}}, "precision has unknown field 'bits'"),
    ],
)
def test_bad_fields(fields, match):
    with pytest.raises(InputError, match=match):
        ReplayConfig.from_dict(fields)


def test_text_that_is_none():
    with pytest.raises(InputError, match="config is a NoneType; expected JSON text or a path"):
        ReplayConfig.parse(None)


def test_config_is_frozen():
    with pytest.raises(AttributeError, match="window"):
        ReplayConfig().window = 3


def test_explicit_precision_goes_before_the_preset():
    policy = PrecisionPolicy("bf16")
    assert ReplayConfig(preset="dual-nvfp4", precision=policy).policy == policy
    assert ReplayConfig(preset="dual-nvfp4").policy.read_copy == "nvfp4"


def test_from_json_text_and_file(tmp_path):
    text = '{"window": 32, "preset": "dual-nvfp4", "flush": {"stagger": true, "boundary": 64}}'
    file = tmp_path / "replay.json"
    file.write_text(text, encoding="utf-8")
    expected = ReplayConfig(window=32, preset="dual-nvfp4", flush=FlushPolicy(stagger=True, boundary=64))
    assert ReplayConfig.parse(text) == expected
    assert ReplayConfig.parse(str(file)) == expected


@pytest.mark.parametrize("text", ["{", "[]", "nowhere.json", "", '{"window": 16,}', "{1: 2}"])
def test_text_that_is_no_config(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="config"):
        ReplayConfig.parse(text)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[1, 2]", b"", b"null"])
def test_file_that_is_no_config(content, tmp_path):
    file = tmp_path / "replay.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match="config"):
        ReplayConfig.parse(str(file))


def test_from_the_environment(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert ReplayConfig.from_environment() is None
    monkeypatch.setenv(ENVIRONMENT, '{"window": 5}')
    assert ReplayConfig.from_environment().window == 5
    monkeypatch.setenv(ENVIRONMENT, '{"window": 0}')
    with pytest.raises(InputError, match="window=0"):
        ReplayConfig.from_environment()
