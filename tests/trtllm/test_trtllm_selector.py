"""The wrapped selector: which managers are extended, of which models, and what it refuses."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace

import pytest
from ranks import CARRIED, config, select
from small_engine import models

from replayssm import UnsupportedError
from replayssm_trtllm import compat, selector
from replayssm_trtllm.llm_fields import ENV_CONFIG
from replayssm_trtllm.surface import SELECTOR, SELECTOR_MODULE


@pytest.mark.usefixtures("engine")
def test_the_selector_is_wrapped_once_and_keeps_its_signature():
    wrapped = getattr(importlib.import_module(SELECTOR_MODULE), SELECTOR)
    selector.install(compat.probe())
    assert getattr(importlib.import_module(SELECTOR_MODULE), SELECTOR) is wrapped
    made = models.model_config(config())
    assert select(made, None) is select(made, kv_cache_config=None)
    assert select(made, None, False, None).__name__ == "ReplaySSMMambaHybridCacheManagerV2"
    assert issubclass(select(made, None), compat.probe().manager)


@pytest.mark.usefixtures("engine")
def test_models_without_a_configuration_get_the_engines_own_manager():
    assert select(models.model_config(config(carried=None)), None) is compat.probe().manager


@pytest.mark.usefixtures("engine")
def test_a_v1_manager_is_refused():
    with pytest.raises(UnsupportedError, match="use_kv_cache_manager_v2"):
        select(models.model_config(config()), SimpleNamespace(plain=True))


@pytest.mark.usefixtures("engine")
def test_a_model_without_recurrent_layers_is_refused():
    plain = SimpleNamespace(architectures=["LlamaForCausalLM"], replay_ssm=CARRIED)
    with pytest.raises(UnsupportedError, match="LlamaForCausalLM carries a ReplaySSM configuration"):
        select(models.model_config(plain), None)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("transceiver", "message"),
    [
        (SimpleNamespace(backend="UCX", transceiver_runtime="PYTHON"), "backend='UCX'"),
        (SimpleNamespace(backend="NIXL", transceiver_runtime="CPP"), "transceiver_runtime='CPP'"),
        (None, "backend=None"),
    ],
)
def test_other_transports_are_refused(transceiver, message):
    made = models.model_config(config())
    with pytest.raises(UnsupportedError, match=message):
        select(made, None, True, transceiver)
    with pytest.raises(UnsupportedError, match=message):
        select(made, None, is_disagg=True, cache_transceiver_config=transceiver)
    assert select(made, None, True, SimpleNamespace(backend="NIXL", transceiver_runtime="PYTHON"))


@pytest.mark.usefixtures("engine")
def test_the_manager_of_a_drafter_is_chosen_without_the_transceiver():
    """One-engine drafters with attention layers of their own: MTP has the model's configuration, Eagle3 one of its own."""
    made = models.model_config(config())
    assert select(made, None, is_disagg=True).__name__.startswith("ReplaySSM")


@pytest.mark.usefixtures("engine")
def test_the_environment_is_for_the_model_and_not_for_its_drafter(monkeypatch):
    monkeypatch.setenv(ENV_CONFIG, json.dumps(CARRIED))
    drafter = models.model_config(SimpleNamespace(architectures=["LlamaForCausalLMEagle3"]))
    with pytest.raises(UnsupportedError, match="LlamaForCausalLMEagle3 carries a ReplaySSM configuration"):
        select(drafter, None)
    assert select(models.model_config(config(carried=None)), None).__name__.startswith("ReplaySSM")
    assert select(drafter, None) is compat.probe().manager
    drafter.pretrained_config.replay_ssm = CARRIED
    with pytest.raises(UnsupportedError, match="LlamaForCausalLMEagle3 carries a ReplaySSM configuration"):
        select(drafter, None)


def test_a_flat_model_may_carry_the_nested_form(engine):
    """Some releases flatten a composite checkpoint; `model_kwargs.text_config` is then a plain mapping beside the fields."""
    made = config("gdn", carried=None, text_config={"replay_ssm": CARRIED})
    assert engine["Qwen3NextForCausalLM"](models.model_config(made))
    assert select(models.model_config(made), None).replayssm_config.window == 6


def test_composite_models_are_known_by_their_text_model(engine):
    inner = config("gdn")
    outer = SimpleNamespace(architectures=["Qwen3_5ForConditionalGeneration"], text_config=inner)
    assert select(models.model_config(outer), None).__name__.startswith("ReplaySSM")
    assert set(engine) >= set(inner.architectures)
