"""Which layers a model has, and their geometry on one rank."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fake_engine import GROUPS, HEADS, CacheParams, K, Shape, V

from replayssm import LayerKind, UnsupportedError
from replayssm_sglang import facts


def arch(**found):
    """The functions of SGLang's `hybrid_arch`, each with what it finds."""
    names = ("mambaish_config", "hybrid_gdn_config", "kimi_linear_config")
    return SimpleNamespace(**{name: lambda _, name=name: found.get(name) for name in names})


def model(name="LlamaForCausalLM"):
    return SimpleNamespace(hf_config=SimpleNamespace(architectures=[name]))


NemotronHConfig = type("NemotronHConfig", (), {})
ZayaConfig = type("ZayaConfig", (), {})


def test_kinds():
    config = object()
    gdn = arch(mambaish_config=config, hybrid_gdn_config=config)
    assert facts.layer_kind(model(), gdn) is LayerKind.GDN
    kda = arch(mambaish_config=config, kimi_linear_config=config)
    assert facts.layer_kind(model(), kda) is LayerKind.KDA
    # Later releases ask one function for every KDA model.
    kda = arch(mambaish_config=config)
    kda.hybrid_kda_config = lambda _: config
    assert facts.layer_kind(model(), kda) is LayerKind.KDA
    assert facts.layer_kind(model(), arch(mambaish_config=NemotronHConfig())) is LayerKind.MAMBA2


def test_a_model_without_recurrent_layers_and_one_with_others_are_refused():
    with pytest.raises(UnsupportedError, match="LlamaForCausalLM has no recurrent layers"):
        facts.layer_kind(model(), arch())
    with pytest.raises(UnsupportedError, match="ZayaConfig are not served"):
        facts.layer_kind(model(), arch(mambaish_config=ZayaConfig()))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("JetNemotronConfig", "call a kernel of their own"), ("Qwen4ExpTextConfig", "stand beside other states")],
)
def test_a_model_whose_gdn_layers_are_more_than_that_is_refused(name, reason):
    config = type(name, (), {})()
    with pytest.raises(UnsupportedError, match=f"{name} {reason}.*; start without"):
        facts.layer_kind(model(), arch(mambaish_config=config, hybrid_gdn_config=config))


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (SimpleNamespace(linear_num_value_heads=32, linear_num_key_heads=16), "linear_num_value_heads 32"),
        (SimpleNamespace(linear_num_value_heads=48, linear_num_key_heads=16), "linear_num_key_heads 16"),
        (SimpleNamespace(mamba_num_heads=128), "mamba_num_heads 128"),
        (SimpleNamespace(linear_attn_config={"num_heads": 32, "head_dim": 128}), "num_heads 32"),
    ],
)
def test_heads_that_do_not_split_are_refused_before_a_rank_starts(config, field):
    facts.check_split(config, 1)
    facts.check_split(config, 8)
    with pytest.raises(UnsupportedError, match=f"{field} of SimpleNamespace does not split over --tp-size 3"):
        facts.check_split(config, 3)


@pytest.mark.parametrize("kind", list(LayerKind))
def test_geometry(kind):
    r = facts.read_facts(kind, CacheParams(), torch.bfloat16).recurrence
    assert (r.kind, r.heads, r.groups, r.value_dim, r.key_dim) == (kind, HEADS, GROUPS, V, K)


def test_groups_repeated_for_the_split_are_counted():
    width = HEADS * V + 2 * HEADS * K
    shape = Shape(conv=((width, 3),), num_k_heads_per_tp=1)
    assert facts.read_facts(LayerKind.MAMBA2, CacheParams(shape), torch.bfloat16).recurrence.groups == HEADS


def test_heads_that_do_not_divide_are_refused():
    shape = Shape(conv=((HEADS * V + 2 * 3 * K, 3),))
    with pytest.raises(UnsupportedError, match="4 heads and 3 groups"):
        facts.read_facts(LayerKind.GDN, CacheParams(shape), torch.bfloat16)
