"""One set of rules: what `to_llm_kwargs` refuses, `from_yaml`, `check` and `to_env` refuse, too."""

from __future__ import annotations

import pytest
import yaml

from replayssm import InputError, UnsupportedError
from replayssm.layout import MAX_DRAFT
from replayssm_trtllm import ReplaySSMConfig
from replayssm_trtllm.speculation import tokens_per_step

MTP = {"decoding_type": "MTP", "max_draft_len": 3}
NATIVE_ENV = {"TRTLLM_USE_MAMBA_REPLAY": "1", "TRTLLM_USE_GDN_REPLAY": "1"}
REFUSED = (InputError, UnsupportedError)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in (*NATIVE_ENV, "TRTLLM_USE_PY_MAMBA", "TLLM_MAMBA_MANAGER_PREFERENCE"):
        monkeypatch.delenv(name, raising=False)


def plugin(replay=None, **others):
    """A YAML of the plugin as a person would write it."""
    fields = {"decode": True, "backend": "triton"} | (replay or {})
    return yaml.safe_dump({"model_kwargs": {"replay_ssm": fields}} | others)


def native(cache=None, **others):
    """A YAML of TensorRT-LLM's own replay as a person would write it."""
    return yaml.safe_dump({"kv_cache_config": cache or {}, "env_overrides": NATIVE_ENV} | others)


HALF = {"mamba_ssm_cache_dtype": "float16"}
ROUNDED = HALF | {"mamba_ssm_stochastic_rounding": True}
LONG = {"decoding_type": "MTP", "max_draft_len": 8}
WRITTEN = [
    (plugin({"checkpoint_dtype": "float32"}, kv_cache_config=HALF), "mamba_ssm_cache_dtype='float16' contradicts"),
    (plugin({"checkpoint_dtype": "float32"}), "kv_cache_config.mamba_ssm_cache_dtype is missing.*'float32'"),
    (plugin({"checkpoint_dtype": "float32"}, kv_cache_config={"mamba_ssm_cache_dtype": "auto"}), "missing or left open"),
    (plugin(torch_compile_config={}), "torch_compile_config"),
    (plugin(env_overrides={"TRTLLM_USE_PY_MAMBA": "1"}), "V1 manager"),
    (plugin(env_overrides={"TLLM_MAMBA_MANAGER_PREFERENCE": "CPP"}), "V1 manager"),
    (plugin(kv_cache_config={"use_kv_cache_manager_v2": False}), "V1 manager"),
    (plugin(env_overrides={"TRTLLM_MAMBA2_MTP_USE_CUSTOM_OP": "1"}), "reads no ring"),
    (plugin({"backend": "torch"}), "cuda_graph_config is missing.*None"),
    (plugin({"backend": "torch"}, cuda_graph_config={"max_batch_size": 8}), "cuda_graph_config=.*contradicts"),
    (plugin({"mode": "native", "decode": False}), "mode='native'"),
    (plugin({"philox_rounds": 5, "checkpoint_dtype": "float16", "stochastic_rounding": True}), "philox_rounds"),
    (plugin({"decode": False}), "nothing to replay"),
    (plugin(kv_cache_config=ROUNDED), "ReplaySSMConfig instead"),
    (plugin(env_overrides=NATIVE_ENV), "asks for TensorRT-LLM's own replay"),
    (plugin({"window": 3}, speculative_config=MTP), "below the 4 tokens"),
    (native(), "needs speculative decoding"),
    (native(speculative_config=LONG), "9 tokens a step"),
    (native(speculative_config=MTP | {"draft_len_schedule": {4: 3}}), "draft length at run time"),
    (native({"mamba_ssm_cache_dtype": "fp16"}, speculative_config=MTP), "mamba_ssm_cache_dtype='fp16'.*expected one of"),
    (native({"mamba_ssm_philox_rounds": 5}, speculative_config=MTP), "philox_rounds=5 needs stochastic_rounding"),
    (native(ROUNDED, speculative_config=MTP), "SM 90"),
    (native(torch_compile_config={}, max_beam_width=2, speculative_config=MTP), "max_beam_width=2"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRITTEN, ids=[message for _, message in WRITTEN])
def test_a_written_yaml_meets_the_rules_of_the_arguments(text, message):
    with pytest.raises(REFUSED, match=message):
        ReplaySSMConfig.from_yaml(text, sm=90)


SERVED = [
    plugin(),
    plugin({"decode": False}, speculative_config=MTP),
    plugin({"backend": "torch"}, cuda_graph_config=None),
    plugin({"checkpoint_dtype": "float16", "stochastic_rounding": True}, kv_cache_config=HALF),
    native(ROUNDED | {"mamba_ssm_philox_rounds": 5}, speculative_config=MTP),
    native(HALF, speculative_config=MTP, torch_compile_config={}),
    yaml.safe_dump({"env_overrides": {"TRTLLM_USE_MAMBA_REPLAY": "1"}, "speculative_config": MTP}),
]


@pytest.mark.parametrize("text", SERVED)
def test_a_written_yaml_that_is_served(text):
    config = ReplaySSMConfig.from_yaml(text, sm=100)
    assert config.resolved_mode == ("plugin" if "replay_ssm" in text else "native")
    assert config.decode == ("decode: true" in text)


def test_longest_steps_and_automatic_windows():
    for tokens in (1, 8, 9, 40, MAX_DRAFT):
        assert ReplaySSMConfig(mode="plugin").resolved_window(tokens) == max(16, 2 * tokens) <= 256
    for tokens in (MAX_DRAFT + 1, 129, 257):
        for window in ("auto", 256):
            with pytest.raises(InputError, match=f"{tokens} tokens a step.*{MAX_DRAFT}"):
                ReplaySSMConfig(mode="plugin", window=window).resolved_window(tokens)
    with pytest.raises(InputError, match="131 tokens a step"):
        ReplaySSMConfig(mode="plugin").to_llm_kwargs({"decoding_type": "MTP", "max_draft_len": 130})


@pytest.mark.parametrize(
    "cache", [{"mamba_ssm_stochastic_rounding": True}, ROUNDED, {"mamba_ssm_philox_rounds": 5}], ids=str
)
@pytest.mark.parametrize("fields", [{}, {"decode": True}, {"checkpoint_dtype": "float16"}], ids=str)
def test_rounding_beside_the_configuration_is_refused_in_every_mode(fields, cache):
    if cache is ROUNDED and fields.get("checkpoint_dtype") is None:
        cache = {"mamba_ssm_stochastic_rounding": True}
    with pytest.raises(UnsupportedError, match="ReplaySSMConfig instead"):
        ReplaySSMConfig(**fields).to_llm_kwargs(MTP, {"kv_cache_config": cache}, sm=100)


SPECULATIONS = [
    (MTP | {"max_draft_lne": 3}, "did you mean 'max_draft_len'"),
    (MTP | {"use_mtp_vanila": True}, "did you mean 'use_mtp_vanilla'"),
    (MTP | {"banana": 1}, "no field 'banana'; expected one of .*decoding_type"),
    (MTP | {1: 2}, "key 1.*expected names"),
    (MTP | {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers=2 contradicts max_draft_len=3"),
    ({"decoding_type": "Eagle3", "num_nextn_predict_layers": 2}, "num_nextn_predict_layers is MTP's"),
    (MTP | {"max_total_draft_tokens": 12}, "max_total_draft_tokens=12 .* tree"),
    (MTP | {"max_total_draft_tokens": 2}, "max_total_draft_tokens=2 .* max_draft_len=3"),
    (MTP | {"decoding_type": "mtp"}, "did you mean 'MTP'"),
    (MTP | {"decoding_type": "EAGLE3"}, "did you mean 'Eagle3'"),
    (MTP | {"decoding_type": 3}, "must be one of"),
    (MTP | {"decoding_type": "Medusa"}, "use one of"),
]


@pytest.mark.parametrize(("speculative", "message"), SPECULATIONS, ids=[message for _, message in SPECULATIONS])
def test_unknown_and_contradictory_speculation(speculative, message):
    with pytest.raises(REFUSED, match=message):
        ReplaySSMConfig(decode=True).to_llm_kwargs(speculative)
    with pytest.raises(REFUSED, match=message):
        ReplaySSMConfig.from_yaml(plugin(speculative_config=speculative))


def test_speculation_that_says_the_same_twice():
    for more in ({"num_nextn_predict_layers": 3}, {"max_total_draft_tokens": 3}, {"max_total_draft_tokens": None}):
        assert ReplaySSMConfig(decode=True).to_llm_kwargs(MTP | more)["speculative_config"] == MTP | more
    assert tokens_per_step({"decoding_type": "MTP", "num_nextn_predict_layers": 3}) == 4


def test_tokens_of_a_step_by_drafter():
    """A PARD step carries K accepted tokens and K masks, any other K drafts and the token that they follow."""
    for kind, tokens in (("MTP", 6), ("Eagle", 6), ("Eagle3", 6), ("DFlash", 6), ("SA", 6), ("PARD", 10)):
        assert tokens_per_step({"decoding_type": kind, "max_draft_len": 5}) == tokens


def test_a_cutoff_by_batch_is_a_draft_length_that_changes():
    with pytest.raises(UnsupportedError, match=r"max_concurrency.*draft length at run time"):
        ReplaySSMConfig().to_llm_kwargs(MTP | {"max_concurrency": 8})
    assert ReplaySSMConfig(decode=True).to_llm_kwargs(MTP | {"max_concurrency": 8})


@pytest.mark.parametrize("name", NATIVE_ENV)
@pytest.mark.parametrize("where", ["process", "arguments"])
def test_the_plugin_beside_the_native_switch_is_refused(monkeypatch, name, where):
    llm = {}
    if where == "process":
        monkeypatch.setenv(name, "1")
    else:
        llm = {"env_overrides": {name: "1"}}
    with pytest.raises(UnsupportedError, match=f"{name}=1 asks for TensorRT-LLM's own replay"):
        ReplaySSMConfig(decode=True).to_llm_kwargs(llm=llm)
    monkeypatch.setenv(name, "0")
    assert ReplaySSMConfig(decode=True).to_llm_kwargs()


LOST = [
    ({"checkpoint_dtype": "float16"}, MTP, "kv_cache_config.mamba_ssm_cache_dtype"),
    ({"checkpoint_dtype": "float32", "decode": True}, None, "kv_cache_config.mamba_ssm_cache_dtype"),
    ({"checkpoint_dtype": "float16", "stochastic_rounding": True}, MTP, "mamba_ssm_stochastic_rounding"),
    ({"decode": True, "backend": "torch"}, None, "cuda_graph_config"),
]


@pytest.mark.parametrize(("fields", "speculative", "message"), LOST, ids=[str(fields) for fields, _, _ in LOST])
def test_the_environment_refuses_what_it_cannot_carry(fields, speculative, message):
    with pytest.raises(UnsupportedError, match=f"{message}.*to_yaml"):
        ReplaySSMConfig(**fields).to_env(speculative, sm=100)


def test_the_environment_meets_the_rules_of_the_arguments():
    with pytest.raises(UnsupportedError, match="SM 90"):
        ReplaySSMConfig(checkpoint_dtype="float16", stochastic_rounding=True).to_env(MTP, sm=90)
    with pytest.raises(InputError, match="below the 4 tokens"):
        ReplaySSMConfig(window=3, decode=True).to_env(MTP)
    with pytest.raises(UnsupportedError, match="needs speculative decoding"):
        ReplaySSMConfig().to_env()


BAD_CALLS = [
    ({"llm": [1]}, "llm is a list; expected a mapping"),
    ({"llm": {1: 2}}, "llm has the key 1; expected names"),
    ({"llm": {"kv_cache_config": {1: 2}}}, "kv_cache_config has the key 1"),
    ({"llm": {"env_overrides": {"TRTLLM_X": 1}}}, "TRTLLM_X=1 is of type int.*'1'"),
    ({"speculative": "MTP"}, "speculative_config is a str; expected a mapping"),
    ({"nested": "llm_config"}, "nested='llm_config'.*'text_config'"),
    ({"sm": "90"}, "sm='90'"),
    ({"llm": {"max_beam_width": "1"}}, "max_beam_width='1'"),
    ({"llm": {"model_kwargs": {"replay_smm": {}}}}, "did you mean 'replay_ssm'"),
    ({"llm": {"model_kwargs": {"text_config": 3}}}, "text_config is a int"),
    ({"llm": {"model_kwargs": {"text_config": {"replay_ssm": {}}}}}, "model_kwargs.text_config.replay_ssm carries"),
    ({"llm": {"model_kwargs": {"replay_ssm": {}}}, "nested": "text_config"}, "model_kwargs.replay_ssm carries"),
]


@pytest.mark.parametrize(("call", "message"), BAD_CALLS, ids=[message for _, message in BAD_CALLS])
def test_calls_that_are_wrong(call, message):
    with pytest.raises(REFUSED, match=message):
        ReplaySSMConfig(decode=True).to_llm_kwargs(**call)


def test_a_gpu_that_the_engine_does_not_replay_on_is_refused():
    for sm in (75, 8):
        with pytest.raises(UnsupportedError, match=f"SM {sm}: .*from SM 80"):
            ReplaySSMConfig().to_llm_kwargs(MTP, sm=sm)
    assert ReplaySSMConfig().to_llm_kwargs(MTP, sm=80)
    assert ReplaySSMConfig(decode=True).to_llm_kwargs(MTP, sm=75)


def test_the_plugins_configuration_beside_a_native_one_is_refused():
    llm = {"model_kwargs": {"replay_ssm": {"decode": True}}}
    with pytest.raises(InputError, match=r"model_kwargs\.replay_ssm carries.*this configuration is native"):
        ReplaySSMConfig().to_llm_kwargs(MTP, llm)


@pytest.mark.parametrize("values", [None, [1], "window", {1: 2}])
def test_plain_data_that_is_no_mapping_of_names(values):
    with pytest.raises(InputError, match="ReplaySSMConfig"):
        ReplaySSMConfig.from_mapping(values)
