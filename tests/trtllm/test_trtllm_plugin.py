"""Configuration on its way to a rank, models that cannot be served, and managers that the engine makes."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from types import SimpleNamespace

import pytest
import torch
from lives import Life
from ranks import CARRIED, config, select
from small_engine import base, earlier, installed, models

from replayssm import InputError, UnsupportedError
from replayssm_trtllm import ReplaySSMConfig
from replayssm_trtllm.command import PLUGIN_DIRECTORY
from replayssm_trtllm.llm_fields import ENV_CONFIG
from replayssm_trtllm.settings import read_settings
from replayssm_trtllm.surface import GDN_MODULE


def test_settings_come_from_the_model_or_the_environment(monkeypatch):
    assert read_settings(config(carried=None)) is None
    assert read_settings(config()).window == 6
    assert read_settings(SimpleNamespace(text_config=config())).window == 6
    assert read_settings(SimpleNamespace(text_config={"replay_ssm": CARRIED})).window == 6
    monkeypatch.setenv(ENV_CONFIG, json.dumps(CARRIED))
    assert read_settings(config(carried=None)).window == 6
    assert read_settings(config()).window == 6
    monkeypatch.setenv(ENV_CONFIG, json.dumps(CARRIED | {"window": 7}))
    with pytest.raises(InputError, match="different configurations"):
        read_settings(config())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "expected a mapping"),
        ('{"windw": 3}', "did you mean 'window'"),
        ('{"mode": "native"}', "mode='native'"),
    ],
)
def test_a_bad_environment_is_refused(monkeypatch, text, message):
    monkeypatch.setenv(ENV_CONFIG, text)
    with pytest.raises(InputError, match=message):
        read_settings(config(carried=None))


def test_to_llm_kwargs_registers_where_the_engine_is(monkeypatch):
    installed.install(monkeypatch, "C")
    ReplaySSMConfig(decode=True).to_llm_kwargs()
    assert "replayssm_trtllm.models" in sys.modules
    assert len(models.REGISTRY) == 4


def test_native_mode_registers_nothing(monkeypatch):
    installed.install(monkeypatch, "C")
    ReplaySSMConfig().to_llm_kwargs({"decoding_type": "MTP", "max_draft_len": 3})
    assert "replayssm_trtllm.models" not in sys.modules


def test_an_engine_that_does_not_match_is_refused_before_a_model_loads(monkeypatch):
    installed.install(monkeypatch, "A")
    with pytest.raises(UnsupportedError, match="generation A"):
        ReplaySSMConfig(decode=True).to_llm_kwargs()


def test_the_custom_module_directory_registers(monkeypatch):
    installed.install(monkeypatch, "C")
    runpy.run_path(str(PLUGIN_DIRECTORY / "__init__.py"))
    assert len(models.REGISTRY) == 4


@pytest.mark.parametrize(
    "name",
    ["TRTLLM_USE_PY_MAMBA", "TRTLLM_MAMBA2_MTP_USE_CUSTOM_OP", "TRTLLM_USE_MAMBA_REPLAY", "TRTLLM_USE_GDN_REPLAY"],
)
def test_a_rank_looks_at_its_environment(monkeypatch, engine, name):
    monkeypatch.setenv(name, "1")
    made = config()
    with pytest.raises(UnsupportedError, match=f"{name}=1"):
        engine[made.architectures[0]](models.model_config(made))


def test_a_rank_compares_the_state_with_the_configuration(monkeypatch):
    with pytest.raises(
        InputError, match=r"checkpoint_dtype='float16', and the recurrent state is float32; set kv_cache"
    ):
        Life(monkeypatch, "C", "mamba2", fields={"window": 6, "checkpoint_dtype": "float16"})
    assert ReplaySSMConfig(checkpoint_dtype="float16").precision("float16")
    with pytest.raises(InputError, match="is float64"):
        ReplaySSMConfig().precision("float64")


BAD_MODELS = [
    ({"carried": None}, {}, UnsupportedError, "no configuration reached this rank.*--nested text_config"),
    ({"groups": 2}, {"mapping": base.Mapping(tp_size=4)}, UnsupportedError, "n_groups=2 is not divisible by TP=4"),
    ({}, {"spec_config": SimpleNamespace(tokens_per_gen_step=7)}, InputError, "below the 7 tokens"),
    ({}, {"spec_config": SimpleNamespace(tokens_per_gen_step=4, use_dynamic_tree=True)}, UnsupportedError, "tree"),
    ({}, {"spec_config": SimpleNamespace(tokens_per_gen_step=4, is_linear_tree=False)}, UnsupportedError, "tree"),
    ({"carried": CARRIED | {"decode": False}}, {}, UnsupportedError, "nothing to replay"),
    ({"carried": CARRIED | {"window": "many"}}, {}, InputError, "window"),
    ({"carried": 3}, {}, InputError, "expected a mapping"),
    ({"layers": 0}, {}, UnsupportedError, "no Mamba2Mixer layers"),
]


@pytest.mark.parametrize(("made", "more", "kind", "message"), BAD_MODELS, ids=[bad[-1] for bad in BAD_MODELS])
def test_models_that_cannot_be_served_are_refused_at_construction(engine, made, more, kind, message):
    with pytest.raises(kind, match=message):
        engine["NemotronHForCausalLM"](models.model_config(config(**made), **more))


def test_attention_data_parallel_ranks_hold_all_groups(engine):
    mapping = base.Mapping(tp_size=4, enable_attention_dp=True)
    assert engine["NemotronHForCausalLM"](models.model_config(config(), mapping=mapping))
    assert engine["NemotronHForCausalLM"].get_preferred_kv_cache_manager_version() == "V2"


def manager_arguments(**more):
    mask = [True, False, True]
    return (16, 3, 4, 2, 8, 2, mask, torch.float32, torch.float32, None, None), {
        "max_batch_size": 3,
        "mapping": base.Mapping(),
    } | more


@pytest.mark.parametrize("variant", installed.SERVED)
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_beam_width": 2}, "max_beam_width=2"),
        ({"kv_connector_manager": object()}, "connector"),
        ({"mamba_ssm_stochastic_rounding": True}, "ReplaySSMConfig instead"),
        ({"spec_config": SimpleNamespace(tokens_per_gen_step=3, eagle_choices=[[0]])}, "tree"),
    ],
)
def test_managers_refuse_what_a_ring_cannot_follow(monkeypatch, variant, more, message):
    installed.install(monkeypatch, variant)
    importlib.import_module("replayssm_trtllm.models")
    cls = select(models.model_config(config()), None)
    arguments, keywords = manager_arguments(**more)
    with pytest.raises(UnsupportedError, match=message):
        cls(*arguments, **keywords)


@pytest.mark.parametrize("variant", installed.SERVED)
def test_a_rank_without_recurrent_layers_serves_nothing_and_fails_nothing(monkeypatch, variant):
    installed.install(monkeypatch, variant)
    importlib.import_module("replayssm_trtllm.models")
    cls = select(models.model_config(config()), None)
    arguments, keywords = manager_arguments()
    manager = cls(*arguments[:6], [False, False], *arguments[7:], **keywords)
    state = manager.replayssm_state()
    assert state.layers is None
    state.begin(0, None)
    state.finish(torch.zeros(0))
    state.reset_slots(torch.tensor([0]), [0])
    manager.on_state_transfer_complete([3])
    assert manager.get_replay_state_update_metadata() is None
    manager.shutdown()


def test_a_strategy_that_the_engine_chose_gives_way(monkeypatch):
    installed.install(monkeypatch, "B")
    importlib.import_module("replayssm_trtllm.models")
    cls = select(models.model_config(config()), None)
    arguments, keywords = manager_arguments(state_update_strategy=earlier.Plain())
    assert cls(*arguments, **keywords).strategy.key == "replayssm"


def test_a_pipeline_rank_may_have_no_recurrent_layer(engine):
    mapping = base.Mapping(pp_size=2)
    assert engine["NemotronHForCausalLM"](models.model_config(config(layers=0), mapping=mapping))


def test_registered_classes_are_found_by_module_and_name(engine):
    for cls in engine.values():
        assert getattr(sys.modules[cls.__module__], cls.__name__) is cls


def test_a_recurrent_layer_of_a_drafter_is_refused(monkeypatch):
    life = Life(monkeypatch, "C", "mamba2", fields={"window": 5})
    life.state.begin(0, None)
    with pytest.raises(UnsupportedError, match="layer 77 is not of this cache"):
        life.state.step(77, None, torch.zeros(1), standard=True)


@pytest.mark.parametrize("state", [None, "auto", "float16", torch.bfloat16])
def test_estimates_know_dtypes_by_name(monkeypatch, state):
    life = Life(monkeypatch, "C", "mamba2", fields={"window": 5, "read_copy": "nvfp4"}, dtype=torch.float32)
    made = models.model_config(life.config.pretrained_config, ssm_dtype=state)
    made.pretrained_config.torch_dtype = "float32"
    estimate = type(life.manager)._extra_state_bytes_per_rank(made, made.mapping)
    assert estimate == life.manager.scratch_seen


def test_an_estimate_without_a_resolved_dtype_takes_the_configured_one(monkeypatch):
    fields = {"window": 5, "read_copy": "nvfp4", "checkpoint_dtype": "float16"}
    life = Life(monkeypatch, "C", "mamba2", fields=fields, dtype=torch.float32, ssm=torch.float16)
    made = models.model_config(life.config.pretrained_config, ssm_dtype=None)
    assert type(life.manager)._extra_state_bytes_per_rank(made, made.mapping) == life.manager.scratch_seen


def test_a_layer_of_the_cache_without_a_mixer_is_refused(monkeypatch):
    life = Life(monkeypatch, "C", "mamba2", fields={"window": 5})
    life.model.replayssm_router._constants.pop(0)
    with pytest.raises(UnsupportedError, match=r"recurrent layers \[0\]"):
        life.prefill(1, 3)


def test_gdn_operators_of_other_models_stay_the_engines(monkeypatch):
    life = Life(monkeypatch, "C", "gdn", fields={"window": 5})
    life.prefill(1, 3)
    module = importlib.import_module(GDN_MODULE)
    foreign = module.Qwen3NextGatedDeltaNet(life.config.pretrained_config, 0)
    states, zeros = torch.zeros(2, 4, 8, 16), torch.zeros(1, 4)
    keys, values = torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 4, 8)
    out = module.fused_sigmoid_gating_delta_rule_update(
        A_log=foreign.A_log.detach(), a=zeros, dt_bias=foreign.dt_bias.detach(), softplus_beta=1.0,
        softplus_threshold=20.0, q=keys, k=keys, v=values, b=zeros, initial_state_source=states,
        initial_state_indices=torch.tensor([1]), use_qk_l2norm_in_kernel=True, cu_seqlens=torch.tensor([0, 1]),
    )  # fmt: skip
    assert out.shape == values.shape


def test_replay_metadata_opens_the_engines_path_for_gdn_alone(monkeypatch):
    life = Life(monkeypatch, "C", "gdn", drafts=2, fields={"window": 6})
    metadata = life.manager.get_replay_state_update_metadata()
    assert life.manager.use_replay_state_update
    assert (metadata.replay_step_width, metadata.replay_history_size) == (3, 6)
    life = Life(monkeypatch, "C", "mamba2", drafts=2, fields={"window": 6})
    assert not life.manager.use_replay_state_update
    assert life.manager.get_replay_state_update_metadata() is None
