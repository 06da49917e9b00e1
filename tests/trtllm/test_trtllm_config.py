"""`ReplaySSMConfig`: what it becomes in TensorRT-LLM's arguments, and everything that it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from replayssm import InputError, UnsupportedError
from replayssm_trtllm import ReplaySSMConfig
from replayssm_trtllm.llm_fields import ENV_CONFIG, KV_CACHE_FIELDS, STATE_DTYPES, TOP_LEVEL

MTP = {"decoding_type": "MTP", "max_draft_len": 3}


def test_importing_the_configuration_loads_no_engine():
    script = "import sys, replayssm_trtllm.yaml_text; assert 'tensorrt_llm' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_native_is_what_the_engine_has():
    config = ReplaySSMConfig(checkpoint_dtype="float16", stochastic_rounding=True, philox_rounds=5)
    assert config.resolved_mode == "native"
    assert config.to_llm_kwargs(MTP, sm=100) == {
        "kv_cache_config": {
            "use_kv_cache_manager_v2": True,
            "mamba_ssm_cache_dtype": "float16",
            "mamba_ssm_stochastic_rounding": True,
            "mamba_ssm_philox_rounds": 5,
        },
        "env_overrides": {"TRTLLM_USE_MAMBA_REPLAY": "1", "TRTLLM_USE_GDN_REPLAY": "1"},
        "speculative_config": MTP,
    }
    assert ReplaySSMConfig().to_env(MTP) == {"TRTLLM_USE_MAMBA_REPLAY": "1", "TRTLLM_USE_GDN_REPLAY": "1"}


def test_plugin_carries_plain_data_to_the_ranks():
    config = ReplaySSMConfig(
        window=16, decode=True, read_copy="nvfp4", checkpoint_dtype="float16", stochastic_rounding=True
    )
    arguments = config.to_llm_kwargs(MTP)
    carried = arguments["model_kwargs"]["replay_ssm"]
    assert carried == json.loads(json.dumps(carried))
    assert ReplaySSMConfig(**carried).precision("float16").read_copy == "nvfp4"
    assert carried["window"] == 16
    assert arguments["kv_cache_config"] == {"use_kv_cache_manager_v2": True, "mamba_ssm_cache_dtype": "float16"}
    in_a_shell = ReplaySSMConfig(window=16, decode=True, read_copy="nvfp4")
    assert json.loads(in_a_shell.to_env()[ENV_CONFIG]) == in_a_shell.to_llm_kwargs()["model_kwargs"]["replay_ssm"]


def test_nested_configurations_get_it_where_the_text_model_is():
    arguments = ReplaySSMConfig(decode=True).to_llm_kwargs(nested="text_config")
    assert set(arguments["model_kwargs"]) == {"text_config"}


@pytest.mark.parametrize(("tokens", "native", "plugin"), [(1, 16, 16), (4, 16, 16), (12, 16, 24), (20, 20, 40)])
def test_automatic_windows(tokens, native, plugin):
    assert ReplaySSMConfig(mode="native").resolved_window(tokens) == native
    assert ReplaySSMConfig(mode="plugin").resolved_window(tokens) == plugin


def test_graphs_stay_on_with_fused_operators_only():
    assert "cuda_graph_config" not in ReplaySSMConfig(decode=True, backend="triton").to_llm_kwargs()
    assert ReplaySSMConfig(decode=True, backend="torch").to_llm_kwargs()["cuda_graph_config"] is None


def test_other_arguments_are_merged_and_auto_is_no_contradiction():
    llm = {"max_batch_size": 8, "kv_cache_config": {"dtype": "fp8", "use_kv_cache_manager_v2": "auto"}}
    merged = ReplaySSMConfig(decode=True).to_llm_kwargs(llm=llm)
    assert merged["max_batch_size"] == 8
    assert merged["kv_cache_config"] == {"dtype": "fp8", "use_kv_cache_manager_v2": True}
    assert llm["kv_cache_config"]["use_kv_cache_manager_v2"] == "auto"


def test_recorded_names_and_dtypes_cover_what_is_written():
    for kwargs, speculative in (({}, MTP), ({"decode": True, "backend": "torch"}, None)):
        arguments = ReplaySSMConfig(checkpoint_dtype="float32", **kwargs).to_llm_kwargs(speculative)
        assert set(arguments) <= TOP_LEVEL
        assert set(arguments["kv_cache_config"]) <= KV_CACHE_FIELDS
    assert set(STATE_DTYPES) == set(ReplaySSMConfig.model_fields["checkpoint_dtype"].annotation.__args__)


BAD_FIELDS = [
    ({"windw": 8}, "did you mean 'window'"),
    ({"banana": 8}, "expected one of"),
    ({"window": 0}, "window"),
    ({"window": 257}, "window"),
    ({"window": True}, "window"),
    ({"window": "16"}, "window"),
    ({"read_copy": "int4"}, "read_copy"),
    ({"checkpoint_dtype": "float8"}, "checkpoint_dtype"),
    ({"stochastic_rounding": True}, "checkpoint_dtype='float16'"),
    ({"stochastic_rounding": 1}, "stochastic_rounding"),
    ({"mode": "native", "decode": True}, "mode='plugin'"),
    ({"mode": "native", "read_copy": "nvfp4"}, "mode='plugin'"),
    ({"mode": "native", "window": 32}, "mode='plugin'"),
    ({"decode": True, "philox_rounds": 5}, "philox_rounds"),
    ({"seed": -1}, "seed"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_FIELDS, ids=[str(fields) for fields, _ in BAD_FIELDS])
def test_bad_fields(fields, message):
    with pytest.raises(ValidationError, match=message):
        ReplaySSMConfig(**fields)
    with pytest.raises(InputError, match=message):
        ReplaySSMConfig.from_mapping(fields)


PLUGIN, NATIVE = {"decode": True}, {}
FP32, FP16_STATE = {"decode": True, "checkpoint_dtype": "float32"}, {"mamba_ssm_cache_dtype": "float16"}
REFUSED = [
    (NATIVE, None, {}, {}, "needs speculative decoding"),
    ({"mode": "plugin"}, None, {}, {}, "nothing to replay"),
    (NATIVE, MTP | {"draft_len_schedule": {4: 3}}, {}, {}, "draft length at run time"),
    (NATIVE, MTP | {"max_draft_len": 9}, {}, {}, "mode='plugin'"),
    ({"checkpoint_dtype": "float16", "stochastic_rounding": True}, MTP, {}, {"sm": 90}, "SM 90"),
    ({"checkpoint_dtype": "float16", "stochastic_rounding": True}, MTP, {}, {"sm": 120}, "SM 120"),
    (PLUGIN, MTP | {"use_dynamic_tree": True}, {}, {}, "tree"),
    (PLUGIN, MTP | {"eagle_choices": [[0]]}, {}, {}, "tree"),
    (PLUGIN, MTP | {"decoding_type": "NGram"}, {}, {}, "one of MTP"),
    (PLUGIN, None, {"max_beam_width": 4}, {}, "max_beam_width=4"),
    (PLUGIN, None, {"kv_connector_config": {"connector_module": "m"}}, {}, "connector"),
    (PLUGIN, None, {"kv_cache_config": {"use_kv_cache_manager_v2": False}}, {}, "V1 manager"),
    (PLUGIN, None, {"cache_transceiver_config": {"backend": "UCX"}}, {}, "backend: NIXL"),
    (PLUGIN, None, {"cache_transceiver_config": {"backend": "NIXL", "transceiver_runtime": "CPP"}}, {}, "PYTHON"),
    (PLUGIN, None, {"cache_transceiver_config": {"backend": "NIXL"}}, {}, "transceiver_runtime: PYTHON"),
    (PLUGIN, None, {"backend": "_autodeploy"}, {}, "'pytorch'"),
    (PLUGIN, None, {"torch_compile_config": {}}, {}, "torch_compile_config"),
    (PLUGIN, None, {"env_overrides": {"TRTLLM_USE_PY_MAMBA": "1"}}, {}, "unset it"),
    (PLUGIN, None, {"env_overrides": {"TLLM_MAMBA_MANAGER_PREFERENCE": "CPP"}}, {}, "unset it"),
    (PLUGIN, MTP, {"env_overrides": {"TRTLLM_MAMBA2_MTP_USE_CUSTOM_OP": "1"}}, {}, "unset it"),
    (PLUGIN, None, {"kv_cache_config": {"mamba_ssm_stochastic_rounding": True}}, {}, "ReplaySSMConfig instead"),
]


@pytest.mark.parametrize(("fields", "speculative", "llm", "extra", "message"), REFUSED, ids=[r[-1] for r in REFUSED])
def test_refusals_before_a_model_loads(fields, speculative, llm, extra, message):
    with pytest.raises(UnsupportedError, match=message):
        ReplaySSMConfig(**fields).to_llm_kwargs(speculative, llm, **extra)


CONTRADICTED = [
    ({"window": 3, "decode": True}, MTP, {}, "better 8"),
    (PLUGIN, {"decoding_type": "MTP"}, {}, "draft length"),
    (PLUGIN, {"decoding_type": "MTP", "max_draft_len": 0}, {}, "at least 1"),
    (PLUGIN, {"max_draft_len": 3}, {}, "decoding_type"),
    (PLUGIN, [3], {}, "mapping"),
    (PLUGIN, None, {"kv_cache_confg": {}}, "did you mean 'kv_cache_config'"),
    (PLUGIN, None, {"kv_cache_config": {"mamba_ssm_cache_dtpe": "auto"}}, "did you mean 'mamba_ssm_cache_dtype'"),
    (PLUGIN, None, {"kv_cache_config": 4}, "expected a mapping"),
    (FP32, None, {"kv_cache_config": FP16_STATE}, "contradicts"),
    (PLUGIN | {"backend": "torch"}, None, {"cuda_graph_config": {"max_batch_size": 8}}, "contradicts"),
    (PLUGIN, MTP, {"speculative_config": MTP | {"max_draft_len": 2}}, "given twice"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "speculative", "llm", "message"), CONTRADICTED, ids=[c[-1] for c in CONTRADICTED])
def test_contradictions_and_typos(fields, speculative, llm, message):
    with pytest.raises(InputError, match=message):
        ReplaySSMConfig(**fields).to_llm_kwargs(speculative, llm)


def test_native_rounding_needs_to_know_the_gpu(monkeypatch):
    config = ReplaySSMConfig(checkpoint_dtype="float16", stochastic_rounding=True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="sm="):
        config.to_llm_kwargs(MTP)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (10, 0))
    assert config.to_llm_kwargs(MTP)["kv_cache_config"]["mamba_ssm_stochastic_rounding"] is True


def test_environment_of_the_process_counts(monkeypatch):
    monkeypatch.setenv("TRTLLM_USE_PY_MAMBA", "1")
    with pytest.raises(UnsupportedError, match="TRTLLM_USE_PY_MAMBA"):
        ReplaySSMConfig(decode=True).to_llm_kwargs()


@pytest.mark.parametrize("kind", ["Eagle3", "Eagle", "DFlash", "PARD", "SA", "MTP"])
def test_drafters_that_report_acceptance_on_the_device(kind):
    assert ReplaySSMConfig(decode=True).to_llm_kwargs({"decoding_type": kind, "max_draft_len": 2})
