"""enable and disable, the surface of transformers that they rely on, and the doctor."""

from __future__ import annotations

import copy
import gc
import importlib
import logging

import pytest
import torch
from tiny_models import BY_NAME, GREEDY, build, cache_name, enabled, forward, prompt, run, tiny
from transformers.cache_utils import Cache

import replayssm_transformers
from replayssm import InputError, ReplayConfig, UnsupportedError
from replayssm_transformers import doctor, patch, surface
from replayssm_transformers.table import FAMILIES, mixers_of

QWEN = "Qwen3-Next"


def operators(family):
    module = importlib.import_module(family.module)
    return {name: getattr(module, name) for name in (*surface.OPERATORS[family.kind], surface.CONV_STEP)}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_contract_of_each_modelling_module(family):
    assert surface.check_surface(family) == (True, "")
    assert mixers_of(tiny(family.name))


def test_contract_of_cache_and_generation():
    assert surface.check_cache_surface() == (True, "")


@pytest.mark.parametrize("break_it", ["operator gone", "parameter renamed", "mixer gone"])
def test_a_release_that_does_not_match_is_refused_whole(break_it, monkeypatch):
    family = BY_NAME[QWEN]
    module = importlib.import_module(family.module)
    model = build(QWEN)
    if break_it == "operator gone":
        monkeypatch.delattr(module, "torch_chunk_gated_delta_rule")
    elif break_it == "parameter renamed":
        monkeypatch.setattr(module, "causal_conv1d_fn", lambda x, kernel: x @ kernel)
    else:
        monkeypatch.delattr(module, family.mixer)
    ok, reason = surface.check_surface(family)
    assert not ok
    with pytest.raises(UnsupportedError, match="does not match this adapter"):
        replayssm_transformers.enable(model)
    assert patch.installed() == {}
    assert not any(line_ok for name, line_ok, detail in doctor.report() if detail == reason)


def test_doctor_reports_every_family():
    lines = doctor.report()
    assert all(ok for _, ok, _ in lines), lines
    assert len(lines) == 2 + len(FAMILIES)


def test_enable_twice_is_one_session_and_another_config_is_refused():
    model, config = tiny(QWEN), ReplayConfig(window=4)
    session = replayssm_transformers.enable(model, config)
    try:
        assert replayssm_transformers.enable(model, ReplayConfig(window=4)) is session
        assert replayssm_transformers.session_of(model) is session
        with pytest.raises(InputError, match="call disable"):
            replayssm_transformers.enable(model, ReplayConfig(window=5))
    finally:
        replayssm_transformers.disable(model)
    assert replayssm_transformers.session_of(model) is None
    with pytest.raises(InputError, match="is not enabled"):
        replayssm_transformers.disable(model)


@pytest.mark.parametrize("config", ["dual-nvfp4", {"window": 16}, 16])
def test_a_config_of_another_type_is_refused(config):
    with pytest.raises(InputError, match=r"must be a ReplayConfig, as in ReplayConfig\(preset=\.\.\.\) or .*from_dict"):
        replayssm_transformers.enable(tiny(QWEN), config)
    assert replayssm_transformers.session_of(tiny(QWEN)) is None


@pytest.mark.parametrize("other", [None, "model", torch.nn.Linear(1, 1)])
def test_there_is_no_session_of_anything_else(other):
    assert replayssm_transformers.session_of(other) is None


def test_the_environment_configures_where_the_call_does_not(monkeypatch):
    monkeypatch.setenv("REPLAYSSM_CONFIG", '{"window": 5, "preset": "dual-nvfp4"}')
    try:
        session = replayssm_transformers.enable(tiny(QWEN))
        assert session.config == ReplayConfig(window=5, preset="dual-nvfp4")
        assert replayssm_transformers.enable(tiny(QWEN)) is session
    finally:
        replayssm_transformers.disable(tiny(QWEN))
    with enabled(tiny(QWEN), window=3) as session:
        assert session.config == ReplayConfig(window=3)
    monkeypatch.setenv("REPLAYSSM_CONFIG", '{"windows": 5}')
    with pytest.raises(InputError, match="unknown field 'windows'"):
        replayssm_transformers.enable(tiny(QWEN))
    monkeypatch.delenv("REPLAYSSM_CONFIG")
    try:
        assert replayssm_transformers.enable(tiny(QWEN)).config == ReplayConfig()
    finally:
        replayssm_transformers.disable(tiny(QWEN))


@pytest.mark.parametrize(("check", "checked"), [("auto", True), ("always", True), ("never", False)])
def test_values_are_checked_as_the_config_says(check, checked):
    with enabled(tiny(QWEN), check_inputs=check) as session:
        _, cache = forward(tiny(QWEN), prompt())
        assert cache.layers[0].handle.replay.check_inputs is checked is session.config.checks_values("cpu")


def test_disable_restores_everything():
    model, family = tiny(QWEN), BY_NAME[QWEN]
    before, names, crop = operators(family), set(model.__dict__), Cache.crop
    with enabled(model):
        assert operators(family) != before
        assert Cache.crop is not crop
    assert operators(family) == before
    assert Cache.crop is crop
    assert set(model.__dict__) == names
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with pytest.raises(ValueError, match="stateful"):
        model.generate(prompt(), max_new_tokens=2, prompt_lookup_num_tokens=2)


def test_operators_are_shared_and_go_with_the_last_model():
    first, second, family = tiny(QWEN), build(QWEN), BY_NAME[QWEN]
    with enabled(first):
        with enabled(second, window=3):
            assert patch.installed() == {family.module: 2}
        assert patch.installed() == {family.module: 1}
    assert patch.installed() == {}


def test_another_model_of_the_same_module_runs_as_ever():
    enabled_model, other = tiny(QWEN), build(QWEN)
    reference = other.generate(prompt(), max_new_tokens=8, **GREEDY)
    with enabled(enabled_model) as session:
        out = other.generate(prompt(), max_new_tokens=8, **GREEDY)
        assert session.totals()["steps"] == 0
    assert torch.equal(out.sequences, reference.sequences)
    assert torch.equal(torch.stack(out.logits), torch.stack(reference.logits))


def test_a_copy_of_an_enabled_model_is_an_ordinary_one():
    with enabled(tiny(QWEN)) as session:
        twin = copy.deepcopy(tiny(QWEN))
        out = twin.generate(prompt(), max_new_tokens=4, **GREEDY)
        with pytest.raises(ValueError, match="stateful"):
            twin.generate(prompt(), max_new_tokens=2, prompt_lookup_num_tokens=2)
        assert session.totals()["steps"] == 0
        with enabled(twin) as own:
            twin.generate(prompt(), max_new_tokens=4, **GREEDY)
            assert own.totals()["steps"] == 3 * 2
    assert torch.equal(out.sequences, tiny(QWEN).generate(prompt(), max_new_tokens=4, **GREEDY).sequences)


def test_a_model_inside_an_enabled_one_is_refused():
    with enabled(tiny(QWEN)), pytest.raises(InputError, match="enabled already through a model around"):
        replayssm_transformers.enable(tiny(QWEN).model)


def test_a_model_that_goes_takes_its_operators_along():
    model = build(QWEN)
    replayssm_transformers.enable(model)
    assert patch.installed()
    del model
    gc.collect()
    assert patch.installed() == {}


def test_compiled_around_the_replayed_layers():
    model, chunks = build("Mamba2"), [prompt(), prompt(1, seed=2)]
    with enabled(model):
        expected, _ = run(model, chunks)
        compiled = torch.compile(model, backend="eager")
        with torch.no_grad():
            out = compiled(chunks[0], use_cache=True)
            name = cache_name(model)
            step = compiled(chunks[1], use_cache=True, **{name: getattr(out, name)})
    assert torch.equal(torch.cat((out.logits, step.logits), dim=1), expected)


def test_without_a_cache_nothing_is_replayed():
    expected = tiny(QWEN).generate(prompt(), max_new_tokens=4, use_cache=False, **GREEDY).sequences
    with enabled(tiny(QWEN)) as session:
        assert torch.equal(
            tiny(QWEN).generate(prompt(), max_new_tokens=4, use_cache=False, **GREEDY).sequences, expected
        )
        assert session.totals()["steps"] == 0


def test_a_failed_forward_leaves_no_layer_in_charge():
    model, other = build(QWEN), tiny(QWEN)
    expected, _ = forward(other, prompt())
    with enabled(model):
        mixer = next(iter(mixers_of(model)))
        mixer.out_proj.forward = lambda _: (_ for _ in ()).throw(RuntimeError("boom"))
        with pytest.raises(RuntimeError, match="boom"):
            forward(model, prompt())
        logits, _ = forward(other, prompt())
    assert torch.equal(logits, expected)


def test_layers_are_described_and_logged_once(caplog):
    model = tiny("Kimi-Linear")
    options = {"window": 8, "preset": "dual-nvfp4", "max_draft": 5}
    with caplog.at_level(logging.INFO, "replayssm_transformers"), enabled(model, **options) as session:
        model.generate(prompt(), max_new_tokens=3)
    (line,) = session.layers
    for part in (
        "2 kda layers (Kimi-Linear)",
        "window 8",
        "up to 4 drafts",
        "fp32 checkpoint, nvfp4 read copy",
        "bytes",
    ):
        assert part in line
    assert [record.getMessage() for record in caplog.records if record.name.startswith("replayssm")] == [
        f"ReplaySSM in KimiLinearForCausalLM: {line}"
    ]


def test_totals_count_less_traffic_than_the_ordinary_decode():
    model = tiny("Nemotron-H")
    with enabled(model, window=16, preset="dual-nvfp4") as session:
        assert set(session.totals().values()) == {0}
        model.generate(prompt(rows=2), max_new_tokens=33, **GREEDY)
    totals = session.totals()
    assert totals["drafted"] == totals["accepted"] == 2 * 2 * 32
    assert totals["bytes_read"] + totals["bytes_written"] < totals["ordinary_bytes"]


def test_the_text_model_of_a_wrapper_can_be_enabled_alone():
    text = tiny("GLM-5-Next").model.language_model

    def last_hidden():
        with torch.no_grad():
            out = text(prompt(), use_cache=True)
            name = cache_name(text)
            return text(prompt(1), use_cache=True, **{name: getattr(out, name)}).last_hidden_state

    expected = last_hidden()
    with enabled(text) as session:
        torch.testing.assert_close(last_hidden(), expected, atol=1e-4, rtol=0)
        assert session.totals()["steps"] == 2
