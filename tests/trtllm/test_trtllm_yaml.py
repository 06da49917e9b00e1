"""The YAML for `trtllm-serve --config`, the command that prints it, and the doctor's lines."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from replayssm import InputError, UnsupportedError
from replayssm.cli import main
from replayssm_trtllm import ReplaySSMConfig, doctor
from replayssm_trtllm.command import PLUGIN_DIRECTORY

MTP = {"decoding_type": "MTP", "max_draft_len": 3}
DOCS = Path(__file__).parents[2] / "docs" / "engines"


@pytest.mark.parametrize(
    ("fields", "speculative", "nested"),
    [
        ({"checkpoint_dtype": "bfloat16"}, MTP, None),
        ({"window": 24, "decode": True, "read_copy": "nvfp4", "backend": "torch"}, MTP, None),
        ({"window": 24, "decode": True, "seed": 7, "backend": "triton"}, None, "text_config"),
    ],
)
def test_yaml_comes_back_as_it_was(fields, speculative, nested):
    config = ReplaySSMConfig(**fields)
    text = config.to_yaml(speculative, nested=nested)
    assert yaml.safe_load(text) == config.to_llm_kwargs(speculative, nested=nested)
    read = ReplaySSMConfig.from_yaml(text)
    assert read.resolved_mode == config.resolved_mode
    assert read.model_dump(exclude={"mode"}) == config.model_dump(exclude={"mode"})


@pytest.mark.parametrize("name", ["replay.yaml", "a: b.yaml"])
def test_yaml_from_a_file(tmp_path, name):
    file = tmp_path / name
    file.write_text(ReplaySSMConfig(decode=True).to_yaml(), encoding="utf-8")
    assert ReplaySSMConfig.from_yaml(str(file)).decode
    assert ReplaySSMConfig.from_yaml(file).decode


GOOD = ReplaySSMConfig(window=16, decode=True, read_copy="nvfp4").to_yaml(MTP)
TYPOS = [
    ("model_kwargs:", "model_kwarg:", "did you mean 'model_kwargs'"),
    ("replay_ssm:", "replayssm:", "did you mean 'replay_ssm'"),
    ("read_copy:", "read_cpy:", "did you mean 'read_copy'"),
    ("read_copy: nvfp4", "read_copy: nvfp3", "read_copy"),
    ("use_kv_cache_manager_v2:", "use_kv_cache_manger_v2:", "did you mean 'use_kv_cache_manager_v2'"),
    ("window: 16", "window: 3", "below the 4 tokens"),
    ("speculative_config:", "speculative_confg:", "did you mean 'speculative_config'"),
    ("max_draft_len: 3", "max_draft: 3", "did you mean 'max_draft_len'"),
    ("  max_draft_len: 3\n", "", "draft length"),
]


@pytest.mark.parametrize(("right", "wrong", "message"), TYPOS, ids=[wrong for _, wrong, _ in TYPOS])
def test_a_typo_names_the_nearest_key(right, wrong, message):
    assert right in GOOD
    with pytest.raises(InputError, match=message):
        ReplaySSMConfig.from_yaml(GOOD.replace(right, wrong))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\n", "not valid YAML"),
        ("- 1\n- 2\n", "expected a mapping"),
        ("max_batch_size: 8\n", "no ReplaySSM in this YAML"),
        ("no-such-file", "neither a YAML mapping nor a file"),
        (Path("no-such-file"), "not a readable file"),
        ("", "the YAML is empty"),
        ("# a comment\n", "the YAML is empty"),
        (None, "got NoneType"),
        (b"a: 1", "got bytes"),
        ("1: 2\n", "the key 1; expected names"),
        ("kv_cache_config: {1: 2}\n", "kv_cache_config has the key 1"),
        ("? [1, 2]\n: 3\n", "not valid YAML"),
        (GOOD + "model_kwargs: {}\n", "'model_kwargs' twice .line"),
        (GOOD.replace("read_copy:", "window: 8\n    read_copy:"), "'window' twice .line"),
        ("model_kwargs: {replay_ssm: 4}\n", "expected a mapping"),
        ("model_kwargs: {replay_ssm: {1: 2}}\n", "no field '1'"),
        ("model_kwargs: {replay_ssm: {}, text_config: {replay_ssm: {}}}\n", "2 times"),
        ("model_kwargs: {llm_config: {replay_ssm: {}}}\n", "ranks look in text_config only"),
    ],
)
def test_what_is_no_configuration(text, message):
    with pytest.raises(InputError, match=message):
        ReplaySSMConfig.from_yaml(text)


def test_yaml_with_what_is_not_served():
    with pytest.raises(UnsupportedError, match="max_beam_width"):
        ReplaySSMConfig.from_yaml(GOOD + "max_beam_width: 4\n")


def run(capsys, *arguments):
    status = main(["trtllm", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_command_prints_yaml_that_it_reads(capsys, tmp_path):
    status, out, _ = run(capsys, "yaml", "--window", "16", "--read-copy", "nvfp4")
    assert status == 0
    assert "custom_module_dirs" in out
    config = ReplaySSMConfig.from_yaml(out)
    assert (config.window, config.read_copy, config.decode) == (16, "nvfp4", True)
    (tmp_path / "y.yaml").write_text(out, encoding="utf-8")
    status, out, _ = run(capsys, "check", str(tmp_path / "y.yaml"))
    assert status == 0
    assert out.startswith("plugin: ")


def test_command_asks_for_speculation(capsys):
    status, out, _ = run(capsys, "yaml", "--draft", "3")
    assert status == 0
    assert yaml.safe_load(out)["speculative_config"] == MTP
    assert "native" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["yaml", "--window", "2", "--draft", "3", "--decode"], "below the 4 tokens"),
        (["yaml", "--window", "many"], "window"),
        (["yaml", "--mode", "native", "--read-copy", "nvfp4"], "mode='plugin'"),
        (["yaml", "--decoding-type", "Eagle3"], "without --draft"),
        (["yaml", "--draft", "3", "--stochastic-rounding", "--checkpoint-dtype", "float16", "--sm", "90"], "SM 90"),
        (["env", "--window", "2", "--draft", "3", "--decode"], "below the 4 tokens"),
        (["env", "--draft", "3", "--checkpoint-dtype", "float16"], "mamba_ssm_cache_dtype"),
        (["env", "--draft", "3", "--stochastic-rounding", "--checkpoint-dtype", "float16", "--sm", "90"], "SM 90"),
        (["check", "no-such-file"], "readable file"),
    ],
)
def test_command_refuses_in_one_line(capsys, arguments, message):
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1


def test_command_names_a_bad_value_once(capsys):
    _, _, err = run(capsys, "yaml", "--window", "many")
    assert err.count("window='many'") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["yaml", "foo.yaml"],
        ["path", "--window", "3"],
        ["schema", "--draft", "3"],
        ["check", "a.yaml", "--window", "3"],
        ["env", "--nested", "text_config"],
        ["yaml", "--nested", "llm_config"],
        ["check"],
        [],
    ],
)
def test_command_takes_no_argument_that_it_would_ignore(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        run(capsys, *arguments)
    assert stopped.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_command_checks_for_another_gpu(capsys, tmp_path):
    rounded = ["--draft", "3", "--stochastic-rounding", "--checkpoint-dtype", "float16", "--sm", "100"]
    _, out, _ = run(capsys, "yaml", *rounded)
    (tmp_path / "y.yaml").write_text(out, encoding="utf-8")
    assert run(capsys, "check", str(tmp_path / "y.yaml"), "--sm", "100")[0] == 0
    status, _, err = run(capsys, "check", str(tmp_path / "y.yaml"), "--sm", "90")
    assert (status, "SM 90" in err) == (2, True)


def test_command_may_be_cut_short():
    reader, writer = os.pipe()
    os.close(reader)
    script = "import sys; from replayssm.cli import main; sys.exit(main(['trtllm', 'schema']))"
    result = subprocess.run([sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")


def test_command_exports_environment(capsys):
    _, out, _ = run(capsys, "env", "--read-copy", "nvfp4")
    assert out.startswith("export TRTLLM_REPLAYSSM_CONFIG='{")


def test_path_is_a_package_alone_in_its_directory(capsys):
    status, out, _ = run(capsys, "path")
    assert status == 0
    assert Path(out.strip()) == PLUGIN_DIRECTORY
    assert (PLUGIN_DIRECTORY / "__init__.py").is_file()
    assert {path.name for path in PLUGIN_DIRECTORY.parent.iterdir()} - {"__pycache__"} == {PLUGIN_DIRECTORY.name}


def test_documented_schema_is_that_of_the_code(capsys):
    _, out, _ = run(capsys, "schema")
    assert json.loads((DOCS / "trtllm-schema.json").read_text(encoding="utf-8")) == json.loads(out)


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_llm") is not None, reason="TensorRT-LLM is installed")
def test_doctor_without_the_engine():
    lines = {name: (ok, detail) for name, ok, detail in doctor.report()}
    assert lines["configuration"][0]
    assert lines["engine"] == (False, "tensorrt_llm is not installed; YAML can be written, nothing can be served")
