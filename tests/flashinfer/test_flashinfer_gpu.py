"""The drop-in functions compiled, on a GPU: the interpreter's cases with fp32 activations, and a captured step replayed."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

import interpreted_compiled
import interpreted_delta
import interpreted_dual
import interpreted_edges
import interpreted_mamba
from oracle import STORED, MambaCall, relative

import replayssm_flashinfer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def on_cuda(monkeypatch):
    """Everything on the GPU, where products of fp32 numbers are three of TF32."""
    monkeypatch.setattr(interpreted_mamba, "EXACT", 1e-5)
    monkeypatch.setattr(interpreted_edges, "EXACT", 1e-5)
    monkeypatch.setattr(interpreted_delta, "EXACT", 2e-5)
    monkeypatch.setattr(interpreted_dual, "EXACT", 2e-5)
    monkeypatch.setitem(STORED, torch.float32, 1e-5)
    with torch.device("cuda"):
        yield


@pytest.mark.parametrize("case", ["formats", "launches", "packed", "gaps", "lives", "materialise", "many", "copies"])
def test_mamba2(case):
    getattr(interpreted_mamba, case)()


@pytest.mark.parametrize("case", ["ucache", "in_place", "replay", "formats"])
def test_gdn_and_kda(case):
    getattr(interpreted_delta, case)()


@pytest.mark.parametrize("case", ["copies", "states"])
def test_gdn_rings_with_a_read_copy(case):
    getattr(interpreted_dual, case)()


@pytest.mark.parametrize("copy", ["fp8", "nvfp4"])
def test_gdn_rings_of_bf16_with_a_read_copy(copy, monkeypatch):
    """Normalised keys, corrections and outputs are rounded to bf16: under 1e-2 in all, an NVFP4 copy itself 9e-2."""
    monkeypatch.setattr(interpreted_dual, "EXACT", 2e-2)
    interpreted_dual.lives(torch.float32, copy, 128, activation=torch.bfloat16)


@pytest.mark.parametrize("draft", [1, 4])
@pytest.mark.parametrize("dim", [64, 80, 128])
def test_bf16_activations_are_as_accurate_as_their_rounding(dim, draft):
    call = MambaCall(torch.float32, draft, 16, [draft] * 4, dim=dim, dstate=128, activation=torch.bfloat16)
    slots = torch.tensor([0, 3, 5, 6])
    before = call.snapshot()
    out = replayssm_flashinfer.checkpointing_ssu(**call.arguments(slots))
    for row, slot in enumerate(slots.tolist()):
        history = call.replayed(before, slot)
        assert relative(out[row], call.outputs(history, row)) < 3e-3
        if call.folds(row, slot):
            assert relative(call.state[slot], history) < 1e-5


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_another_gpu_than_the_current_one():
    with torch.device("cuda:1"):
        call, slots = MambaCall(torch.int8, 2, 6, [2, 0, 1]), torch.tensor([0, 3, 5])
        before = call.snapshot()
        out = replayssm_flashinfer.checkpointing_ssu(**call.arguments(slots, packed=True))[0]
        for row, first in ((0, 0), (2, 2)):
            truth = call.outputs(call.replayed(before, int(slots[row])), row)
            assert relative(out[first : first + call.lengths[row]], truth) < 1e-5


@pytest.mark.parametrize("case", ["empty", "packed", "tables", "large"])
def test_edges(case):
    getattr(interpreted_edges, case)()


@pytest.mark.parametrize("case", ["mamba2", "gdn", "replay"])
def test_graphs_that_inductor_compiles_have_the_bits_of_plain_calls(case, monkeypatch):
    monkeypatch.setattr(interpreted_compiled, "BACKENDS", ["inductor"])
    getattr(interpreted_compiled, case)()


def test_inductor_folds_tables_where_the_states_are():
    interpreted_compiled.tables_in_place("inductor")


def test_a_captured_step_serves_other_rows():
    call = MambaCall(torch.float32, 2, 6, [2, 2, 2])
    slots = torch.full((3,), -1)
    arguments = call.arguments(slots)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        replayssm_flashinfer.checkpointing_ssu(**arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayssm_flashinfer.checkpointing_ssu(**arguments)
    before = call.snapshot()
    slots.copy_(torch.tensor([0, -1, 4]))
    graph.replay()
    torch.cuda.synchronize()
    for row, slot in ((0, 0), (2, 4)):
        assert relative(arguments["out"][row], call.outputs(call.replayed(before, slot), row)) < 1e-5
    assert not arguments["out"][1].any()
