"""Published models: geometry, layer counts and bytes worked out by hand."""

from __future__ import annotations

import pytest
import torch
from published import PUBLISHED

from replayssm.errors import InputError
from replayssm.hybrid import FAMILIES, parse_hybrid, read_hybrid
from replayssm.recurrence import Recurrence

MIB = 2**20

# model → recurrence, recurrent, attention and all layers, fp32 state, conv channels, KV bytes a token and layer
EXPECTED = {
    "Nemotron-3-Super-120B": (
        Recurrence.mamba2(heads=128, head_dim=64, state_size=128, groups=8), 40, 8, 88, 4 * MIB, 10_240, 1024,
    ),
    "Nemotron-3-Nano-4B": (
        Recurrence.mamba2(heads=96, head_dim=80, state_size=128, groups=8), 21, 4, 42, 3_932_160, 9_728, 4096,
    ),
    "Qwen3.5-122B": (
        Recurrence.gdn(value_heads=64, key_heads=16, value_dim=128, key_dim=128), 36, 12, 48, 4 * MIB, 12_288, 2048,
    ),
    "Qwen3.5-4B": (
        Recurrence.gdn(value_heads=32, key_heads=16, value_dim=128, key_dim=128), 24, 8, 32, 2 * MIB, 8_192, 4096,
    ),
    "Qwen3-Next-80B": (
        Recurrence.gdn(value_heads=32, key_heads=16, value_dim=128, key_dim=128), 36, 12, 48, 2 * MIB, 8_192, 2048,
    ),
    "Kimi-Linear-48B": (Recurrence.kda(heads=32, value_dim=128, key_dim=128), 20, 7, 27, 2 * MIB, 12_288, 1152),
    "Kimi-K3": (Recurrence.kda(heads=96, value_dim=128, key_dim=128), 69, 24, 93, 6 * MIB, 36_864, 1152),
    "GLM-5.3-Flash": (Recurrence.kda(heads=64, value_dim=128, key_dim=128), 34, 11, 45, 4 * MIB, 24_576, 1024),
    "Falcon-H1-1.5B": (
        Recurrence.mamba2(heads=48, head_dim=64, state_size=256), 24, 24, 24, 3 * MIB, 3_584, 1024,
    ),
}  # fmt: skip

BAMBA = {
    "model_type": "bamba", "num_hidden_layers": 32, "attn_layer_indices": [9, 18, 27], "hidden_size": 4096,
    "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_expand": 2, "mamba_n_groups": 1, "mamba_d_state": 128,
    "mamba_d_conv": 4, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_geometry(name, config):
    model = read_hybrid(config(name))
    found = (
        model.recurrence,
        model.recurrent_layers,
        model.attention_layers,
        model.layers,
        model.state_bytes,
        model.conv_channels,
        model.kv_token_bytes,
    )
    assert found == EXPECTED[name]
    assert model.activation is torch.bfloat16


def test_a_directory_is_read_by_its_config(config):
    path = config("Qwen3-Next-80B")
    assert read_hybrid(path.parent) == read_hybrid(path)


def test_conv_bytes_keep_room_for_drafts():
    model = parse_hybrid(PUBLISHED["Nemotron-3-Super-120B"])
    assert model.conv_bytes() == 3 * 10_240 * 2
    assert model.conv_bytes(draft=4) == 6 * 10_240 * 2


def test_head_dim_auto_is_derived():
    model = parse_hybrid(BAMBA)
    assert model.recurrence == Recurrence.mamba2(heads=128, head_dim=64, state_size=128)
    assert (model.recurrent_layers, model.attention_layers) == (29, 3)
    assert model.kv_token_bytes == 2 * 8 * 128 * 2


@pytest.mark.parametrize(("tp", "heads", "groups", "kv"), [(1, 128, 8, 2), (4, 32, 2, 1), (8, 16, 1, 1), (16, 8, 1, 1)])
def test_shard_divides_then_replicates(tp, heads, groups, kv):
    part = parse_hybrid(PUBLISHED["Nemotron-3-Super-120B"]).shard(tp)
    assert (part.recurrence.heads, part.recurrence.groups, part.kv_heads) == (heads, groups, kv)


@pytest.mark.parametrize(("tp", "name"), [(3, "heads"), (0, "heads"), (12, "groups")])
def test_shard_refuses_what_does_not_divide(tp, name):
    values = {**PUBLISHED["Nemotron-3-Super-120B"], "mamba_num_heads": 96}
    with pytest.raises(InputError, match=f"tp={tp} must divide"):
        parse_hybrid(values if name == "groups" else PUBLISHED["Nemotron-3-Super-120B"]).shard(tp)


def _without(name, *keys):
    return {key: value for key, value in PUBLISHED[name].items() if key not in keys}


def _kimi(recurrent, attention):
    values = PUBLISHED["Kimi-Linear-48B"]
    lists = {"kda_layers": recurrent, "full_attn_layers": attention}
    return values | {"linear_attn_config": values["linear_attn_config"] | lists}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "holds list; expected a JSON object"),
        ({}, "model_type is None"),
        ({"model_type": "llama"}, "'llama', not a hybrid model that is known; known are bamba"),
        ({"model_type": "kimi_k25", "text_config": {"model_type": "deepseek_v3"}}, "nothing says which layers"),
        (_without("Nemotron-3-Super-120B", "mamba_num_heads"), "mamba_num_heads is missing"),
        (_without("Nemotron-3-Super-120B", "n_groups"), "mamba_n_groups or n_groups is missing"),
        (_without("Nemotron-3-Super-120B", "hybrid_override_pattern"), "layer_types or layers_block_type or"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"hybrid_override_pattern": "MX"}, "'MX'; expected a string of M"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"hybrid_override_pattern": "*E", "num_hidden_layers": 2},
         "found 1 attention, 1 moe"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"layer_types": ["mystery"]}, "holds 'mystery'; expected one of"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"layer_types": "mamba"}, "expected a list of strings"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"mamba_head_dim": "64"}, "mamba_head_dim is '64'; expected an integer"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"mamba_head_dim": 0}, "mamba_head_dim is 0"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"mamba_head_dim": True}, "mamba_head_dim is True"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"n_groups": 7}, "groups=7 must divide heads=128"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"dtype": "int8"}, "'int8'; expected one of bfloat16"),
        (PUBLISHED["Qwen3-Next-80B"] | {"layer_types": ["full_attention"] * 2, "num_hidden_layers": 2},
         "found 2 full_attention; expected at"),
        (PUBLISHED["Kimi-Linear-48B"] | {"linear_attn_config": {"kda_layers": "1", "full_attn_layers": []}}, "list of int"),
        (PUBLISHED["Qwen3.5-4B"] | {"text_config": {"model_type": "qwen3_5_text", "layer_types": ["linear_attention"]}},
         "text_config.linear_num_value_heads is missing"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"dtype": ["x"]}, "is ['x']; expected one of bfloat16"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"mamba_head_dim": 10**400}, "at most 2147483648"),
        (PUBLISHED["Nemotron-3-Super-120B"] | {"num_hidden_layers": 89},
         "describes 88 layers; expected num_hidden_layers = 89"),
        (PUBLISHED["Qwen3-Next-80B"] | {"layer_types": ["linear_attention"]}, "describes 1 layers; expected"),
        (PUBLISHED["Qwen3-Next-80B"] | {"num_hidden_layers": 2**31}, "expected an integer of at least 1 and at most 65536"),
        (PUBLISHED["Qwen3-Next-80B"] | {"head_dim": 0}, "head_dim or attention_head_dim is 0"),
        (_without("Qwen3-Next-80B", "head_dim") | {"hidden_size": 1}, "hidden_size leaves 16 attention heads no elements"),
        (_kimi([1, True], [2]), "kda_layers is [1, True]; expected a list of integers, none of them twice"),
        (_kimi([1, 1], [2]), "kda_layers is [1, 1]; expected"),
        (_kimi([1, 2], [2]), "full_attn_layers holds 2, which linear_attn_config.kda_layers holds, too"),
        (BAMBA | {"attn_layer_indices": [9, 32]}, "attn_layer_indices holds 32; expected indices from 0 to 31"),
    ],
)  # fmt: skip
def test_bad_config_names_file_and_field(values, message):
    with pytest.raises(InputError) as caught:
        parse_hybrid(values, "dir/config.json")
    assert str(caught.value).startswith("dir/config.json: ")
    assert message in str(caught.value)
    assert str(caught.value).count("dir/config.json") == 1


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("\x00\xff", "is not JSON"), ("", "is not JSON")])
def test_not_json(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        read_hybrid(path)


def test_nested_too_deeply(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(InputError, match=r"config\.json: is nested too deeply"):
        read_hybrid(path)


@pytest.mark.parametrize(("path", "message"), [("", "path=''"), ("a\0b", r"a\\x00b"), ("x" * 5000, "cannot be read")])
def test_not_a_path(path, message):
    with pytest.raises(InputError, match=message):
        read_hybrid(path)


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match=r"config\.json: cannot be read"):
        read_hybrid(tmp_path)


def test_every_family_is_an_own_line():
    assert list(FAMILIES) == sorted(FAMILIES)
