"""What is out of contract is refused before anything is written, with what was wrong and what is allowed."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")

from oracle import MambaCall, bits

import replayssm_flashinfer
from replayssm import InputError, UnsupportedError
from replayssm_flashinfer import gdn, tensor_checks

SLOTS = torch.tensor([0, 3])


def call(dtype=torch.float32, draft=2, window=4):
    return MambaCall(dtype, draft, window, [draft, draft])


def refused(arguments, match, **changes):
    """The call is refused as FlashInfer's callers expect it, and writes nothing."""
    arguments = {**arguments, **changes}
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    before = {name: x.clone() for name, x in tensors.items() if x.device.type != "meta"}
    with pytest.raises(InputError, match=match) as error:
        replayssm_flashinfer.checkpointing_ssu(**arguments)
    assert isinstance(error.value, AssertionError)
    for name, x in before.items():
        assert torch.equal(bits(x), bits(arguments[name])), f"{name} was written"


@pytest.mark.parametrize("draft", [17, 27, 55])
def test_more_than_16_records_are_refused_and_can_be_asked_for(draft):
    refused(call(draft=draft, window=draft).arguments(SLOTS), "at most 16 cache tokens")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"ring_start": torch.zeros(7, dtype=torch.int64)},
            r"ring_start is \(7,\) torch.int64; expected \(7,\) torch.int32",
        ),
        ({"prev_num_accepted_tokens": torch.zeros(6, dtype=torch.int32)}, r"prev_num_accepted_tokens is \(6,\)"),
        ({"state_scale": torch.ones(7, 2, 20)}, "state_scale must be None"),
        ({"A": -torch.ones(2, 20, 32)}, "A must be one number a head, expanded"),
        ({"dt": torch.ones(2, 2, 2, 20)}, "dt must be one number a head, expanded"),
        ({"B": torch.ones(2, 2, 1, 16)}, r"B is \(2, 2, 1, 16\)"),
        ({"x": torch.ones(2, 2, 2, 20, dtype=torch.bfloat16)}, "x is .* torch.bfloat16; expected .* torch.float32"),
        ({"D": torch.ones(2, 20, dtype=torch.bfloat16)}, "D.dtype .* must match"),
        ({"out": torch.ones(2, 3, 2, 20)}, r"out is \(2, 3, 2, 20\)"),
        ({"out": torch.ones(2, 2, 2, 20, dtype=torch.int32)}, "out is .* torch.int32; expected .* torch.float32"),
        ({"z": torch.ones(2, 2, 2, 20).bfloat16()}, "z is .* torch.bfloat16; expected .* torch.float32"),
        ({"dt": torch.ones(2, 2, 2, 1, dtype=torch.int32).expand(2, 2, 2, 20)}, "dt is torch.int32; expected float32"),
        ({"A": torch.ones(2, 1, 1, dtype=torch.int64).expand(2, 20, 32)}, "A is torch.int64; expected float32"),
        ({"ring_start": torch.zeros(1, dtype=torch.int32).expand(7)}, "ring_start has stride 0: each slot needs"),
        ({"state_batch_indices": torch.zeros(2, dtype=torch.int64, device="meta")}, "state_batch_indices is on meta"),
        ({"rand_seed": torch.zeros(1, dtype=torch.int64, device="meta")}, "rand_seed is on meta"),
        ({"x_cache": torch.zeros(7, 2, 6, 20, device="meta")}, "x_cache is on meta; the state is on cpu"),
        ({"state_batch_indices": torch.zeros(3, dtype=torch.int64)}, r"state_batch_indices must be \(2,\)"),
        ({"state_batch_indices": torch.zeros(2)}, "int32 or int64"),
        ({"max_seqlen": 2}, "max_seqlen is only valid with cu_seqlens"),
        ({"rand_seed": torch.zeros(2, dtype=torch.int64)}, "rand_seed must be single-element"),
        ({"rand_seed": torch.zeros(1, dtype=torch.int32)}, "rand_seed must be int64"),
        ({"rand_seed": torch.zeros(1, dtype=torch.int64), "philox_rounds": 0}, "philox_rounds must be > 0"),
        ({"rand_seed": 3}, "rand_seed is int; expected a tensor"),
        ({"rand_seed": torch.zeros(1, dtype=torch.int64), "philox_rounds": None}, "philox_rounds=None must be a whole"),
        ({"x": None}, "x is missing; expected a tensor"),
        ({"dt_cache": [1]}, "dt_cache is list; expected a tensor"),
        ({"D": 1.0}, "D is float; expected a tensor"),
        ({"read_copy": 0}, "read_copy is int; expected a tensor"),
        ({"read_copy": torch.zeros(2, device="meta")}, "read_copy is on meta; the state is on cpu"),
        ({"read_copy_scale": torch.zeros(7, 2, 20, device="meta")}, "read_copy_scale is on meta; the state is on cpu"),
        ({"state": torch.zeros(())}, r"state is \(\); expected \[slots, nheads, dim, dstate\]"),
        ({"state": torch.zeros(7, 2, 0, 32)}, "expected at least one of each of"),
        ({"pad_slot_id": 2**70}, "must be a whole number of 64 bits"),
        ({"A": -torch.ones(2, 1, 1).double().expand(2, 20, 32)}, "A is torch.float64; expected float32"),
        (
            {"dt": torch.ones(2, 2, 2, 1).to(torch.float8_e4m3fn).expand(2, 2, 2, 20)},
            "dt is torch.float8_e4m3fn; expected",
        ),
        ({"pad_slot_id": 1.5}, "pad_slot_id=1.5 must be a whole number"),
        ({"d_split": "a"}, "d_split='a' must be a whole number"),
        ({"d_split": 0}, "d_split=0 must be at least 1"),
        ({"out": torch.ones(1, 2, 2, 20).expand(2, -1, -1, -1)}, "out is written, and its numbers overlap in memory"),
        ({"x_cache": torch.zeros(1, 2, 6, 20).expand(7, -1, -1, -1)}, "x_cache is written, and its numbers overlap"),
        (
            {"state": torch.zeros(8000).as_strided((7, 2, 20, 32), (640, 640, 32, 1))},
            "state is written, and its numbers",
        ),
        ({"algorithm": "fastest"}, "must be one of auto, monolith, two-kernel"),
        ({"algorithm": "two-kernel"}, "requires cb_scaled, cumAdt_vec and cb_old"),
        ({"cb_scaled": torch.zeros(2, 2, 32, 8)}, "must be provided together"),
    ],
)
def test_arguments_out_of_contract(changes, match):
    refused(call().arguments(SLOTS), match, **changes)


def test_memory_out_of_contract():
    arguments = call().arguments(SLOTS)
    state = arguments["state"]
    refused(
        arguments,
        "dimensions inside a slot must be contiguous",
        state=state.transpose(2, 3).contiguous().transpose(2, 3),
    )
    refused(arguments, "state.dtype=torch.float64 is not served", state=state.double())
    refused(arguments, "x_cache is .* expected", x_cache=arguments["x_cache"][:, :1])
    refused(arguments, "must be divisible by ngroups", B_cache=torch.zeros(7, 3, 6, 32))
    refused(
        arguments, "dt_cache is .* torch.bfloat16; expected .* torch.float32", dt_cache=arguments["dt_cache"].bfloat16()
    )
    refused(call(draft=3, window=2).arguments(SLOTS), "T=3 new tokens must be <= max_window")
    refused(call(torch.int8).arguments(SLOTS), "requires a state_scale", state_scale=None)
    refused(call(torch.int8).arguments(SLOTS), r"state_scale is \(7, 2\)", state_scale=torch.ones(7, 2))
    refused(call(torch.int8).arguments(SLOTS), r"state_scale is \(\)", state_scale=torch.tensor(1.0))
    bytes_ = call(torch.float8_e4m3fn).arguments(SLOTS)
    odd = torch.zeros(7, bytes_["state"][0].numel() + 1, dtype=torch.uint8)[:, :-1].view(torch.float8_e4m3fn)
    refused(
        bytes_, "state: slots must start at multiples of 4 bytes", state=odd.unflatten(1, bytes_["state"].shape[1:])
    )
    refused(call(torch.int8).arguments(SLOTS), "d_split=2 with state.dtype=torch.int8", d_split=2)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter runs on a CPU")
def test_a_cpu_is_named_where_a_gpu_is_needed():
    refused(call().arguments(SLOTS), "tensors are on cpu; expected a CUDA device")


def test_launches_go_where_the_tensors_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    there, here = (tensor_checks.running_on(torch.device("cuda", index)) for index in (1, 0))
    assert isinstance(there, torch.cuda.device)
    assert there.idx == 1
    assert not isinstance(here, torch.cuda.device)


def test_read_copies_out_of_contract():
    arguments, fp8 = call().arguments(SLOTS), torch.zeros(7, 2, 20, 32, dtype=torch.float8_e4m3fn)
    refused(arguments, "read_copy, which is missing", read_copy_scale=torch.ones(7, 2, 20))
    refused(arguments, "read_copy is torch.float32; expected", read_copy=torch.zeros(7, 2, 20, 32))
    refused(arguments, "read_copy_scale is missing; expected", read_copy=fp8)
    refused(arguments, r"read_copy_scale is \(7, 2\)", read_copy=fp8, read_copy_scale=torch.ones(7, 2))
    nibbles = torch.zeros(7, 2, 20, 16, dtype=torch.uint8)
    refused(arguments, "K = 32 is below 64", read_copy=nibbles)
    quantised = call(torch.int8).arguments(SLOTS)
    refused(quantised, "an int8 state has no read copy", read_copy=fp8, read_copy_scale=torch.ones(7, 2, 20))


def test_packed_batches_out_of_contract():
    arguments = call().arguments(SLOTS, packed=True)
    refused(arguments, "requires max_seqlen", max_seqlen=None)
    refused(arguments, "max_seqlen=2.0 must be a whole number", max_seqlen=2.0)
    refused(arguments, "max_seqlen=-1 must be at least 1", max_seqlen=-1)
    refused(arguments, "cu_seqlens is list; expected a tensor", cu_seqlens=[0, 2, 4])
    refused(arguments, "must be a 1D int32", cu_seqlens=arguments["cu_seqlens"].long())
    refused(arguments, "cu_seqlens is on meta", cu_seqlens=arguments["cu_seqlens"].to("meta"))
    refused(call().arguments(SLOTS), "must be \\(1, total_tokens", cu_seqlens=arguments["cu_seqlens"], max_seqlen=2)


def test_scratch_is_checked_and_made():
    scratch = replayssm_flashinfer.allocate_checkpointing_ssu_scratch(3, 2, 6, 10, torch.bfloat16, "cpu")
    assert [tuple(x.shape) for x in scratch] == [(3, 2, 32, 8), (3, 2, 16), (3, 2, 32, 8)]
    for bad in ((0, 4, 6, 10), (1.5, 4, 6, 10), (3, 0, 6, 10), (3, 4, 17, 10), (3, 4, 6, 0)):
        with pytest.raises(ValueError, match="must be"):
            replayssm_flashinfer.allocate_checkpointing_ssu_scratch(*bad, torch.bfloat16, "cpu")
    small = dict(zip(("cb_scaled", "cumAdt_vec", "cb_old"), (x[:1] for x in scratch), strict=True))
    refused(call().arguments(SLOTS), "cb_scaled is .* expected at least", **small)
    for bad, match in (
        ([1], "cb_scaled is list; expected a tensor"),
        (scratch[0].to("meta"), "cb_scaled is on meta"),
        (scratch[0].to(torch.int8), "cb_scaled is torch.int8; expected float32"),
    ):
        given = dict(zip(("cb_scaled", "cumAdt_vec", "cb_old"), (bad, *scratch[1:]), strict=True))
        refused(call().arguments(SLOTS), match, **given)


def gdn_arguments(**changes):
    rows, zero = 2, torch.zeros(2, dtype=torch.int32)
    q, v, gate = torch.randn(rows, 4, 1, 16), torch.randn(rows, 4, 2, 8), torch.randn(rows, 4, 2)
    arguments = {
        "A_log": torch.rand(2), "a": gate, "dt_bias": torch.rand(2), "q": q, "k": q, "v": v, "b": gate,
        "initial_state_source": torch.randn(3, 2, 8, 16), "k_cache": torch.zeros(3, 1, 32, 16),
        "u_cache": torch.zeros(3, 2, 32, 8), "g_cache": torch.zeros(3, 2, 32), "hist_len": zero, "cache_base": zero.clone(),
    }  # fmt: skip
    return {**arguments, **changes}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"cache_base": None}, "caller-owned cache_base"),
        ({"cache_base": torch.zeros(2, 2, dtype=torch.int32)[:, 0]}, "contiguous"),
        ({"hist_len": torch.tensor([0, 17], dtype=torch.int32)}, "hist_len out of legal range"),
        ({"cache_base": torch.tensor([32, 0], dtype=torch.int32)}, "cache_base out of legal range"),
        ({"flush_min": 14}, r"flush_min=14 must be in \[1, 13\]"),
        ({"flush_min": 1.5}, "a whole number"),
        ({"A_log": None}, "A_log is missing; expected a tensor"),
        ({"dt_bias": None}, "dt_bias is missing; expected a tensor"),
        ({"a": None}, "a is missing; expected a tensor"),
        ({"hist_len": 0}, "hist_len is int; expected a tensor"),
        ({"cache_base": [0, 0]}, "cache_base is list; expected a tensor"),
        ({"initial_state_indices": [0, 1]}, "initial_state_indices is list; expected a tensor"),
        ({"output": torch.zeros(1, 4, 2, 8).expand(2, -1, -1, -1)}, "output is written, and its numbers overlap"),
        ({"u_cache": torch.zeros(1, 2, 32, 8).expand(3, -1, -1, -1)}, "u_cache is written, and its numbers overlap"),
        ({"scale": float("nan")}, "scale=nan must be a finite number"),
        ({"scale": "x"}, "scale='x' must be a finite number"),
        ({"scale": 10**400}, "must be a finite number"),
        ({"scale": True}, "scale=True must be a finite number"),
        ({"initial_state_source": torch.zeros(3, 2, 0, 16)}, "expected at least one of each of"),
        ({"softplus_beta": 2.0}, "softplus_beta"),
        ({"q": None}, "q is missing"),
        ({"k_cache": torch.zeros(3, 1, 32, 8)}, "k_cache is"),
        ({"g_cache": torch.zeros(3, 2, 32).bfloat16()}, "g_cache is torch.bfloat16"),
        ({"initial_state_source": torch.randn(3, 2, 8, 16).to(torch.float8_e4m3fn)}, "the state is torch.float8"),
        ({"stochastic_rounding": "lcg"}, "'philox' is"),
        ({"stochastic_rounding": "philox"}, "needs rand_seed"),
        ({"stochastic_rounding": "philox", "rand_seed": torch.zeros(1, dtype=torch.int64)}, "is for an fp16 state"),
        ({"initial_state_indices": torch.zeros(3, dtype=torch.int32)}, r"initial_state_indices must be \(2,\)"),
        ({"initial_state_indices": torch.zeros(2)}, "initial_state_indices must be .* int32 or int64"),
        ({"output": torch.zeros(2, 4, 2, 8).bfloat16()}, "output is .* torch.bfloat16; expected .* torch.float32"),
        ({"A_log": torch.ones(2, dtype=torch.int64)}, "A_log is torch.int64; expected float32"),
        ({"u_cache": torch.zeros(3, 2, 32, 8, device="meta")}, "u_cache is on meta"),
        ({"hist_len": torch.zeros(2, dtype=torch.int32, device="meta")}, "hist_len is on meta"),
        ({"backend": "cuda"}, "must be 'auto'"),
    ],
)
def test_gdn_arguments_out_of_contract(changes, match):
    with pytest.raises(AssertionError, match=match):
        gdn.gated_delta_rule_mtp_ucache_flush(**gdn_arguments(**changes))


def test_read_copies_of_gdn_rings_out_of_contract():
    exact = {"v_cache": torch.zeros(3, 2, 32, 8), "beta_cache": torch.zeros(3, 2, 32)}
    fp8 = {
        "read_copy": torch.zeros(3, 2, 8, 16, dtype=torch.float8_e4m3fn),
        "read_copy_scale": torch.zeros(3, 2, 8),
    }
    for changes, match in (
        (fp8, "a read copy needs v_cache and beta_cache: u_cache is solved from the copy"),
        ({"v_cache": exact["v_cache"]}, "v_cache and beta_cache belong together"),
        ({**exact, "v_cache": torch.zeros(3, 2, 31, 8)}, r"v_cache is \(3, 2, 31, 8\); expected \(3, 2, 32, 8\)"),
        ({**exact, "v_cache": exact["v_cache"].bfloat16()}, "v_cache is torch.bfloat16; expected torch.float32"),
        ({**exact, "beta_cache": exact["beta_cache"].half()}, "beta_cache is torch.float16; expected torch.float32"),
        ({**exact, "beta_cache": exact["beta_cache"].to("meta")}, "beta_cache is on meta"),
        ({**exact, "read_copy": torch.zeros(1, device="meta")}, "read_copy is on meta; the state is on cpu"),
        ({**exact, "read_copy_scale": fp8["read_copy_scale"]}, "are of a read_copy, which is missing"),
        ({**exact, "read_copy": fp8["read_copy"]}, "read_copy_scale is missing; expected"),
        ({**exact, **fp8, "read_copy": torch.zeros(3, 2, 8, 16)}, "read_copy is torch.float32; expected uint8"),
        ({**exact, **fp8, "read_copy_block_scale": fp8["read_copy"]}, "read_copy_block_scale is not of a read copy in"),
        ({**exact, "read_copy": torch.zeros(3, 2, 8, 8, dtype=torch.uint8)}, "K = 16 is below 64"),
    ):
        arguments = gdn_arguments(**changes)
        before = {name: x.clone() for name, x in arguments.items() if x.device.type != "meta"}
        with pytest.raises(InputError, match=match):
            gdn.gated_delta_rule_mtp_ucache_flush(**arguments)
        assert all(torch.equal(bits(x), bits(arguments[name])) for name, x in before.items())


def test_more_rows_than_slots_need_slots():
    few = {name: gdn_arguments()[name][:1] for name in ("initial_state_source", "k_cache", "u_cache", "g_cache")}
    with pytest.raises(AssertionError, match="2 rows without initial_state_indices, and the state has 1 slots"):
        gdn.gated_delta_rule_mtp_ucache_flush(**gdn_arguments(**few))


@pytest.mark.parametrize("flag", ["output_state_indices", "accepted_steps", "recovery_steps", "disable_output"])
def test_gdn_flags_that_nobody_serves(flag):
    with pytest.raises(UnsupportedError, match=flag):
        gdn.gated_delta_rule_mtp_ucache_flush(
            **gdn_arguments(**{flag: torch.ones(1) if "steps" not in flag[:8] else 1})
        )
