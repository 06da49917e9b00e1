"""What cannot be served says so, with the reason, before anything runs."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from tiny_models import LOGIT_TOLERANCE, VOCAB, build, enabled, forward, new_cache, prompt, run, tiny
from transformers import DynamicCache, StaticCache

import replayssm_transformers
from replayssm import InputError, ReplayConfig, UnsupportedError

NAME = "Qwen3-Next"


def small_llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config)


def small_jamba():
    config = transformers.JambaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=1, num_experts_per_tok=1,
        mamba_d_state=4, mamba_dt_rank=2, use_mamba_kernels=False,
    )  # fmt: skip
    return transformers.JambaForCausalLM(config)


def test_not_a_model():
    with pytest.raises(InputError, match="model is a str"):
        replayssm_transformers.enable("path/to/model")


def test_a_model_that_is_not_hybrid():
    with pytest.raises(UnsupportedError, match=r"LlamaForCausalLM is not a hybrid model.*Qwen3-Next"):
        replayssm_transformers.enable(small_llama())


def test_a_directory_whose_model_is_not_hybrid(tmp_path):
    small_llama().save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match="not a hybrid model"):
        replayssm_transformers.enable(model)


def test_an_unknown_recurrent_layer():
    with pytest.raises(UnsupportedError, match="JambaForCausalLM has recurrent layers of a class that is not served"):
        replayssm_transformers.enable(small_jamba())


def test_a_compiled_model():
    with pytest.raises(UnsupportedError, match="compiled"):
        replayssm_transformers.enable(torch.compile(build(NAME)))


def test_hub_kernels(monkeypatch):
    model = build(NAME)
    monkeypatch.setattr(model, "_use_kernels", True, raising=False)
    with pytest.raises(UnsupportedError, match="use_kernels=True"):
        replayssm_transformers.enable(model)


def test_dimensions_that_the_precision_does_not_serve():
    from tiny_models import BY_NAME, config_of

    config = config_of(BY_NAME[NAME], linear_key_head_dim=24)
    model = transformers.Qwen3NextForCausalLM(config)
    with pytest.raises(InputError, match="key_dim=24 must be a multiple of 16"):
        replayssm_transformers.enable(model, ReplayConfig(preset="dual-nvfp4"))
    assert replayssm_transformers.session_of(model) is None


GENERATE = {
    "beam search": ({"num_beams": 2}, "beam search is not served"),
    "beam sampling": ({"num_beams": 2, "do_sample": True}, "beam search is not served"),
    "static cache": ({"cache_implementation": "static"}, "cache_implementation='static'"),
    "offloaded cache": ({"cache_implementation": "offloaded"}, "cache_implementation='offloaded'"),
    "quantized cache": ({"cache_implementation": "quantized"}, "cache_implementation='quantized'"),
    "multi-token prediction": ({"use_mtp": True}, "use_mtp is not served"),
    "contrastive search": ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive search is not served"),
    "DoLa": ({"dola_layers": "low", "trust_remote_code": True}, "dola generation is not served"),
    "DoLa, untrusted": ({"dola_layers": "low"}, "dola generation is not served"),
    "no lookup drafts": ({"prompt_lookup_num_tokens": 0}, "prompt_lookup_num_tokens=0 drafts nothing"),
    "too many lookup drafts": ({"prompt_lookup_num_tokens": 8}, "need max_draft=9, but it is 8"),
}


@pytest.mark.parametrize("case", GENERATE)
def test_generate_modes(case, monkeypatch):
    options, reason = GENERATE[case]
    with enabled(tiny(NAME)):
        forbid_forward(monkeypatch)
        with pytest.raises((UnsupportedError, InputError), match=reason):
            tiny(NAME).generate(prompt(), max_new_tokens=4, **options)


def test_too_many_assistant_drafts(monkeypatch):
    with enabled(tiny(NAME)):
        forbid_forward(monkeypatch)
        with pytest.raises(InputError, match=r"num_assistant_tokens=20 drafts.*need max_draft=21, but it is 8"):
            tiny(NAME).generate(prompt(), max_new_tokens=4, assistant_model=build(NAME))


def test_an_assistant_that_cannot_roll_back(monkeypatch):
    assistant = build(NAME)
    assistant.generation_config.num_assistant_tokens = 3
    with enabled(tiny(NAME)):
        forbid_forward(monkeypatch)
        with pytest.raises(UnsupportedError, match=r"enable\(assistant_model\)"):
            tiny(NAME).generate(prompt(), max_new_tokens=4, assistant_model=assistant)


def test_training_mode():
    model = build(NAME)
    with enabled(model):
        model.train()
        with pytest.raises(UnsupportedError, match="training mode"):
            model.generate(prompt(), max_new_tokens=2)
        with pytest.raises(UnsupportedError, match="training mode with a cache"):
            model(prompt())
        # Without a cache there is no replay state, and training goes on as ever.
        model(prompt(), use_cache=False).logits.sum().backward()


def test_gradients():
    with enabled(tiny(NAME)):
        with pytest.raises(UnsupportedError, match=r"torch\.no_grad"):
            tiny(NAME)(prompt())
        assert tiny(NAME)(prompt(), use_cache=False).logits.requires_grad


@pytest.mark.parametrize("shape", [(1, 0), (0, 4)])
def test_an_empty_prompt(shape):
    ids = torch.zeros(shape, dtype=torch.long)
    with enabled(tiny(NAME)):
        with pytest.raises(InputError, match="input_ids is empty"):
            forward(tiny(NAME), ids)
        with pytest.raises((InputError, ValueError), match="empty"):
            tiny(NAME).generate(ids, max_new_tokens=2)


def test_caches_that_cannot_be_served(monkeypatch):
    model = tiny(NAME)
    caches = {
        "a cache of class StaticCache is not served": StaticCache(config=model.config, max_cache_len=32),
        "offloaded caches": offloading(new_cache(model)),
        "cache layer DynamicLayer is not served": DynamicCache(config=small_llama().config),
        "a cache of class tuple": (1, 2),
        "has 0 layers and none for layer 0": DynamicCache(),
    }
    with enabled(model):
        forbid_forward(monkeypatch)
        for reason, cache in caches.items():
            with pytest.raises(UnsupportedError, match=reason):
                forward(model, prompt(), cache)


def offloading(cache):
    cache.offloading = True
    return cache


def test_the_cache_of_another_enabled_model():
    other = build(NAME)
    with enabled(tiny(NAME)), enabled(other):
        _, cache = run(other, [prompt()])
        with pytest.raises(UnsupportedError, match="belongs to another enabled model"):
            forward(tiny(NAME), prompt(1), cache)


def test_nan_in_the_weights_is_named_and_touches_no_state():
    model = build(NAME)
    with enabled(model):
        _, cache = run(model, [prompt()])
        bias = model.model.layers[0].linear_attn.dt_bias
        bias.data.fill_(float("nan"))
        layer = next(iter(cache.layers))
        before = layer.handle.replay.state().clone()
        with pytest.raises(InputError, match=r"inputs.gate holds NaN"):
            forward(model, prompt(1), cache)
        assert torch.equal(layer.handle.replay.state(), before)


def poison(model, index, cache):
    """A step that layer `index` refuses, after those before it took it."""
    bias = model.model.layers[index].linear_attn.dt_bias
    kept = bias.data.clone()
    bias.data.fill_(float("nan"))
    try:
        with pytest.raises(InputError, match=r"holds NaN.*; the cache holds part of a refused step") as caught:
            forward(model, prompt(1), cache)
    finally:
        bias.data.copy_(kept)
    assert "was changed" not in str(caught.value)


def test_a_cache_with_part_of_a_refused_step_is_refused_until_reset():
    model = build(NAME)
    with enabled(model):
        _, cache = run(model, [prompt()])
        _, other = run(model, [prompt()])
        poison(model, 2, cache)
        cache.activate_past_recording()
        calls = (
            lambda: forward(model, prompt(1), cache),
            lambda: forward(model, prompt(1), copy.deepcopy(cache)),
            # The first layer, whose own numbers were fine, by itself.
            lambda: model.model.layers[0].linear_attn(torch.zeros(1, 1, 32), cache),
            lambda: cache.crop(0),
            lambda: cache.layers[0].batch_select_indices(torch.tensor([0])),
            lambda: cache.layers[0].batch_repeat_interleave(2),
        )
        length = cache.get_seq_length()
        for call in calls:
            with pytest.raises(InputError, match="part of a refused step; start again from the prompt"):
                call()
        assert cache.get_seq_length() == length
        forward(model, prompt(1), other)
        cache.reset()
        forward(model, prompt(1), cache)


def test_a_refused_prompt_breaks_its_cache_too():
    model = build(NAME)
    with enabled(model):
        cache = new_cache(model)
        poison(model, 2, cache)
        with pytest.raises(InputError, match="part of a refused step"):
            forward(model, prompt(1), cache)


def test_disable_warns_of_a_broken_cache(caplog):
    model = build(NAME)
    with enabled(model):
        _, cache = run(model, [prompt()])
        poison(model, 2, cache)
    assert "part of a refused step" in caplog.text
    assert not hasattr(cache.layers[0], "broken")


def test_another_batch_size_than_the_cache_s_changes_nothing():
    model = tiny(NAME)
    expected, _ = run(model, [prompt(), prompt(1)])
    with enabled(model):
        _, cache = run(model, [prompt()])
        for call in (
            lambda: forward(model, prompt(1, rows=2), cache),
            lambda: model.model.layers[0].linear_attn(torch.zeros(2, 1, 32), cache),
        ):
            with pytest.raises(InputError, match="batch has 2 rows, the cache holds 1"):
                call()
        logits, _ = run(model, [prompt(1)], cache, start=12)
    assert (logits - expected[:, -1:]).abs().max() < LOGIT_TOLERANCE


def test_a_state_that_the_model_computed_itself_is_refused(monkeypatch):
    from transformers.models.qwen3_next import modeling_qwen3_next as module

    with enabled(tiny(NAME)), monkeypatch.context() as patch:
        original = module.torch_chunk_gated_delta_rule.__wrapped__
        patch.setattr(module, "torch_chunk_gated_delta_rule", original)
        with pytest.raises(UnsupportedError, match="the model's own kernel computed the state"):
            forward(tiny(NAME), prompt())


def forbid_forward(monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("a layer ran before the refusal")

    layer = next(iter(tiny(NAME).model.layers))
    monkeypatch.setattr(layer, "forward", forbidden)
