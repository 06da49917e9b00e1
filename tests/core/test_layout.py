"""Bytes of published models' layouts, counted by hand."""

from __future__ import annotations

import pytest
import torch

from replayssm import PrecisionPolicy, Recurrence, StateLayout

SUPER = Recurrence.mamba2(heads=128, head_dim=64, state_size=128, groups=8)
NANO = Recurrence.mamba2(heads=96, head_dim=80, state_size=128, groups=8)
QWEN_4B = Recurrence.gdn(value_heads=32, key_heads=16, value_dim=128, key_dim=128)
QWEN_122B = Recurrence.gdn(value_heads=64, key_heads=16, value_dim=128, key_dim=128)
KIMI = Recurrence.kda(heads=32, value_dim=128, key_dim=128)
MIB = 2**20


def sizes(layout: StateLayout) -> dict[str, int]:
    return {spec.name: spec.slot_bytes for spec in layout.buffers}


@pytest.mark.parametrize(
    ("recurrence", "state", "token"),
    [(SUPER, 4 * MIB, 18_944), (NANO, 3.75 * MIB, 17_792), (QWEN_4B, 2 * MIB, 12_416), (QWEN_122B, 4 * MIB, 20_736)],
    ids=["super", "nano", "qwen-4b", "qwen-122b"],
)
def test_state_and_record_bytes_of_published_models(recurrence, state, token):
    """A record of value, key and gate in bf16 and fp32; the exact fold's part of the delta rule comes on top."""
    layout = StateLayout(recurrence, 1, 16, 1)
    by_name = sizes(layout)
    assert layout.rows == 17
    assert by_name["checkpoint"] == state
    assert sum(by_name[name] for name in ("value_ring", "key_ring", "gate_ring")) == 17 * token


def test_mamba2_ring_is_under_a_tenth_of_the_state():
    layout = StateLayout(SUPER, 1, 16, 4)
    # 20 rows of 128 · 64 values and 8 · 128 keys in bf16, and 128 Δ in fp32.
    assert layout.ring_bytes == 20 * (16_384 + 2_048 + 512) == 378_880
    assert layout.ring_bytes <= 0.091 * 4 * MIB


def test_gdn_ring_with_the_exact_fold():
    by_name = sizes(StateLayout(QWEN_122B, 1, 16, 4))
    assert by_name["raw_value_ring"] == by_name["value_ring"] == 20 * 64 * 128 * 2
    assert by_name["beta_ring"] == by_name["gate_ring"] == 20 * 64 * 4
    assert by_name["key_scale_ring"] == 20 * 16 * 4


def test_kda_gates_are_per_channel():
    assert sizes(StateLayout(KIMI, 1, 16, 4))["gate_ring"] == 20 * 32 * 128 * 4


def test_dual_precision_bytes():
    layout = StateLayout(SUPER, 1, 16, 4, PrecisionPolicy.preset("dual-nvfp4-fp16"))
    by_name = sizes(layout)
    assert by_name["checkpoint"] == 2 * MIB
    assert by_name["read_copy"] == MIB // 2
    assert by_name["read_copy_block_scale"] == 128 * 64 * 8
    assert by_name["read_copy_scale"] == 128 * (64 // 16) * 4
    assert layout.slot_bytes == 2_097_152 + 524_288 + 65_536 + 2_048 + 378_880
    assert layout.slot_bytes <= 0.75 * 4 * MIB


def test_fp8_checkpoint_bytes():
    by_name = sizes(StateLayout(SUPER, 1, precision=PrecisionPolicy("fp8")))
    assert by_name["checkpoint"] == MIB
    assert by_name["checkpoint_scale"] == 128 * 64 * 4


@pytest.mark.parametrize(("window", "draft", "rows"), [(16, 1, 17), (16, 4, 20), (5, 5, 10), (4, 16, 32), (1, 1, 2)])
def test_rows_hold_a_full_window_and_a_draft(window, draft, rows):
    assert StateLayout(SUPER, 1, window, draft).rows == rows


@pytest.mark.parametrize("preset", ["exact", "dual-nvfp4", "dual-fp8", "shared-nvfp4"])
@pytest.mark.parametrize("recurrence", [SUPER, QWEN_4B, KIMI], ids=["mamba2", "gdn", "kda"])
def test_allocation_is_what_the_layout_says(recurrence, preset):
    layout = StateLayout(recurrence, 3, 4, 2, PrecisionPolicy.preset(preset))
    buffers = layout.allocate()
    layout.check(buffers)
    assert sum(buffer.numel() * buffer.dtype.itemsize for buffer in buffers.values()) == 3 * layout.slot_bytes
    assert list(buffers) == [spec.name for spec in layout.buffers]


def test_products_are_the_policys_or_what_activations_need():
    for dot, activation, found in (
        (None, torch.bfloat16, "tf32"),
        (None, torch.float16, "tf32"),
        (None, torch.float32, "tf32x3"),
        ("tf32", torch.float16, "tf32"),
        ("tf32x3", torch.bfloat16, "tf32x3"),
        ("tf32x3", torch.float32, "tf32x3"),
    ):
        assert StateLayout(NANO, 1, precision=PrecisionPolicy(dot=dot), activation=activation).dot == found
    assert PrecisionPolicy(dot="tf32x3").describe() == "fp32 checkpoint, no read copy, tf32x3 products"


def test_fp64_activations_have_fp64_gates():
    layout = StateLayout(QWEN_4B, 1, precision=PrecisionPolicy("fp64"), activation=torch.float64)
    assert {spec.dtype for spec in layout.buffers} == {torch.float64}
