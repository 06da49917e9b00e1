"""What `replayssm_materialize`, `gdn_prefix_materialize` and the functions of our own refuse before they launch anything."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

import replayssm_flashinfer
from replayssm_flashinfer import gdn


def materialise_arguments(**changes):
    table, pair, request = (
        torch.zeros(2, dtype=torch.int64),
        *(torch.zeros(shape, dtype=torch.int32) for shape in ((2, 3), 3)),
    )
    names = [
        f"{name}_{part}" for name in ("state", "x_cache", "B_cache", "dt_cache") for part in ("ptrs", "slot_strides")
    ]
    return {
        **dict.fromkeys([*names, "A_ptrs", "state_scale_ptrs", "state_scale_slot_strides"], table),
        "src_slots": pair, "dst_slots": pair, "ring_start": request, "replay_prefix_len": request,
        "active_request_indices": request, "state_dtype": torch.float32, "input_dtype": torch.bfloat16,
        "matrixA_dtype": torch.float32, "dim": 64, "dstate": 128, "num_heads": 4, "heads_per_group": 2, "max_window": 16,
        "ring_buffer_len": 18, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"x_cache_ptrs": torch.zeros(2)}, "tables must be 1D int64 tensors of 2 layers on cpu"),
        ({"A_ptrs": torch.zeros(3, dtype=torch.int64)}, "tables must be 1D int64"),
        ({"src_slots": torch.zeros(0, 3, dtype=torch.int32)}, r"expected \[L, B\], L > 0"),
        ({"dst_slots": torch.zeros(2, 4, dtype=torch.int32)}, r"dst_slots must be \(2, 3\)"),
        ({"ring_start": torch.zeros(3, dtype=torch.int64)}, "must be int32"),
        ({"ring_start": torch.zeros(3, dtype=torch.int32, device="meta")}, "ring_start is on meta"),
        ({"state_dtype": torch.float64}, "state_dtype=torch.float64 is not served"),
        ({"input_dtype": torch.int8}, "input_dtype=torch.int8 is not served"),
        ({"matrixA_dtype": torch.int32}, "matrixA_dtype=torch.int32 is not served"),
        ({"dstate": 100}, "dstate=100 is not served"),
        ({"heads_per_group": 3}, "heads_per_group=3 must be a positive divisor of num_heads=4"),
        ({"max_window": 17}, r"max_window=17 must be in \[1, 16\]"),
        ({"ring_buffer_len": 0}, "ring_buffer_len=0"),
        ({"num_heads": 4.0}, "num_heads=4.0 must be a whole number"),
        ({"philox_rounds": None}, "philox_rounds=None must be a whole number"),
        ({"pad_slot_id": None}, "pad_slot_id=None must be a whole number"),
        ({"A_ptrs": None}, "table is missing; expected a tensor"),
        ({"ring_start": [0, 0, 0]}, "ring_start is list; expected a tensor"),
        ({"philox_rounds": 10}, "philox_rounds=10 needs rand_seed"),
        ({"philox_rounds": 10, "rand_seed": torch.zeros(1, dtype=torch.int32)}, "rand_seed must be int64"),
        ({"dependency_outputs": [None]}, "dependency_outputs must be tensors"),
        ({"dependency_outputs": torch.zeros(1)}, "dependency_outputs must be tensors, in a list"),
        ({"dstate": 32.0}, "dstate=32.0 must be a whole number"),
        ({"state_dtype": [1]}, r"state_dtype=\[1\] is not served; expected one of torch.float32"),
    ],
)
def test_materialise_arguments_out_of_contract(changes, match):
    with pytest.raises(replayssm_flashinfer.refusals.RefusedError, match=match):
        replayssm_flashinfer.replayssm_materialize(**materialise_arguments(**changes))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"count": torch.zeros(2)}, r"count is \(2,\) torch.float32; expected \(2,\) int32"),
        ({"dst_slots": torch.zeros(2, dtype=torch.int32, device="meta")}, "dst_slots is on meta"),
        ({"g_cache": torch.zeros(3, 2, 31)}, r"g_cache is \(3, 2, 31\)"),
        ({"active_request_indices": torch.zeros(3, dtype=torch.int32)}, r"active_request_indices must be \(2,\)"),
        ({"state": torch.zeros(3, 2, 8)}, "expected .S, HV, V, K."),
        ({"state": torch.zeros(3, 2, 8, 20), "k_cache": torch.zeros(3, 1, 32, 20)}, "K=20 is not served"),
        ({"state": torch.zeros(1, 2, 8, 16).expand(3, -1, -1, -1)}, "the state is written, and its numbers overlap"),
        ({"cache_base": None}, "cache_base is missing; expected a tensor"),
        ({"num_active": 1}, "num_active is int; expected a tensor"),
        ({"num_active": torch.zeros(5)}, r"num_active is \(5,\) torch.float32; expected one int32"),
        ({"read_copy": torch.zeros(1, device="meta")}, "read_copy is on meta"),
        ({"src_slots": [0, 1]}, "src_slots is list; expected a tensor"),
        ({"src_slots": torch.tensor(1, dtype=torch.int32)}, r"src_slots is \(\); expected \[B\] int32"),
        (
            {"read_copy": torch.zeros(3, 2, 8, 16, dtype=torch.float8_e4m3fn)},
            "a read copy needs v_cache and beta_cache",
        ),
        ({"beta_cache": torch.zeros(3, 2, 32)}, "v_cache and beta_cache belong together"),
        ({"v_cache": torch.zeros(3, 2, 32, 8), "beta_cache": torch.zeros(3, 2)}, r"beta_cache is \(3, 2\)"),
    ],
)
def test_gdn_prefixes_out_of_contract(changes, match):
    requests = {name: torch.zeros(2, dtype=torch.int32) for name in ("src_slots", "dst_slots", "cache_base", "count")}
    pools = {
        "state": torch.zeros(3, 2, 8, 16), "k_cache": torch.zeros(3, 1, 32, 16), "u_cache": torch.zeros(3, 2, 32, 8),
        "g_cache": torch.zeros(3, 2, 32),
    }  # fmt: skip
    with pytest.raises(ValueError, match=match):
        gdn.gdn_prefix_materialize(**{**requests, **pools, **changes})


def replay_arguments(**changes):
    state, (q, v, gate) = torch.randn(3, 2, 8, 16), (torch.randn(2, 1, *shape) for shape in ((1, 16), (2, 8), (2,)))
    rings = replayssm_flashinfer.allocate_delta_rings(state, 1, 5, torch.float32)
    tokens = {"q": q, "k": q, "v": v, "a": gate, "b": gate, "out": torch.empty_like(v)}
    return {"state": state, **rings, **tokens, "A_log": torch.rand(2), "dt_bias": torch.rand(2), **changes}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"state": torch.zeros(3, 2, 8, 16, dtype=torch.int8)}, "state.dtype=torch.int8 is not served"),
        ({"state": torch.zeros(3, 2, 8, 16).to(torch.float8_e4m3fn)}, "requires it"),
        (
            {"state": torch.zeros(3, 2, 8, 16).to(torch.float8_e4m3fn), "state_scale": torch.ones(3, 2)},
            r"state_scale is \(3, 2\) torch.float32; expected \(3, 2, 8\)",
        ),
        ({"k_cache": torch.zeros(3, 16)}, r"k_cache is \(3, 16\); expected \[S, H, L, K\]"),
        ({"g_cache": torch.zeros(3, 2, 6)}, r"g_cache is \(3, 2, 6\)"),
        ({"v_cache": torch.zeros(3, 2, 5, 8).bfloat16()}, "v_cache is .* torch.bfloat16; expected .* torch.float32"),
        ({"beta_cache": torch.zeros(3, 2, 5, device="meta")}, "beta_cache is on meta"),
        ({"ring_start": torch.zeros(3)}, r"ring_start is \(3,\) torch.float32; expected \(3,\) torch.int32"),
        ({"prev_num_accepted_tokens": torch.zeros(1, dtype=torch.int32).expand(3)}, "has stride 0"),
        ({"out": torch.zeros(2, 1, 2, 8, dtype=torch.int32)}, "out is .* torch.int32; expected .* torch.float32"),
        ({"a": torch.zeros(2, 1, 2, 16)}, r"a is \(2, 1, 2, 16\); expected \(2, 1, 2\)"),
        ({"dt_bias": torch.zeros(2, 16)}, r"dt_bias is \(2, 16\); expected \(2,\)"),
        ({"A_log": None}, "dt_bias belongs to raw gates"),
        ({"pad_slot_id": 0.5}, "pad_slot_id=0.5 must be a whole number"),
        ({"beta_cache": None}, "beta_cache is missing; expected a tensor"),
        ({"ring_start": None}, "ring_start is missing; expected a tensor"),
        ({"out": torch.zeros(1, 1, 2, 8).expand(2, -1, -1, -1)}, "out is written, and its numbers overlap"),
        ({"lower_bound": 1.0}, "lower_bound=1.0 must be below 0"),
        ({"lower_bound": float("nan")}, "lower_bound=nan must be below 0"),
        ({"lower_bound": "x"}, "lower_bound='x' must be below 0"),
        ({"read_copy_block_scale": torch.zeros(1, device="meta")}, "read_copy_block_scale is on meta"),
        ({"scale": float("inf")}, "scale=inf must be a finite number"),
        ({"state": None}, "state is missing; expected a tensor"),
        ({"out": None}, "out is missing; expected a tensor"),
        ({"state_batch_indices": torch.zeros(3, dtype=torch.int64)}, r"state_batch_indices must be \(2,\)"),
        ({"rand_seed": torch.zeros(2, dtype=torch.int64)}, "rand_seed must be single-element"),
    ],
)
def test_replay_arguments_out_of_contract(changes, match):
    with pytest.raises(AssertionError, match=match):
        replayssm_flashinfer.gated_delta_rule_replay(**replay_arguments(**changes))


def test_drafts_as_long_as_a_ring_and_rows_without_slots():
    long, few = torch.randn(2, 3, 1, 16), torch.randn(4, 1, 1, 16)
    for q, match in (
        (long, "rings of 5 rows; T=3 new tokens need at least 6"),
        (few, "4 rows without state_batch_indices"),
    ):
        v, gate = torch.randn(*q.shape[:2], 2, 8), torch.randn(*q.shape[:2], 2)
        with pytest.raises(ValueError, match=match):
            replayssm_flashinfer.gated_delta_rule_replay(**replay_arguments(q=q, k=q, v=v, a=gate, b=gate, out=v))


def test_rings_of_what_is_no_state():
    with pytest.raises(ValueError, match=r"expected \[S, HV, V, K\]"):
        replayssm_flashinfer.allocate_delta_rings(torch.zeros(3, 2, 8), 1, 5, torch.float32)
    for state, rest, match in (
        (torch.zeros(3, 2, 8, 20), (1, 5), "K=20 is not served; expected one of 16"),
        (None, (1, 5), "state is missing; expected a tensor"),
        (torch.zeros(3, 2, 8, 16), (1, 1), "ring_buffer_len=1 must be at least 2"),
        (torch.zeros(3, 2, 8, 16), (1.0, 5), "key_heads=1.0 must be a whole number"),
    ):
        with pytest.raises(ValueError, match=match):
            replayssm_flashinfer.allocate_delta_rings(state, *rest, torch.float32)
