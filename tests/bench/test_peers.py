"""Engines' kernels as the benchmark calls them: found, refused with a reason, checked, timed."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec

import fake_engines
import pytest
import torch
from small import GEOMETRIES, machine

from replayssm.bench.conventional import Kind, time_best, verify
from replayssm.bench.peers import PEERS, find_peers
from replayssm.bench.workers import Workers
from replayssm.errors import UnsupportedError

CPU = torch.device("cpu")
KINDS = [Kind(GEOMETRIES[layer], "fp32", draft, torch.float32) for layer in GEOMETRIES for draft in (1, 3)]
IDS = [f"{kind.geometry.name}-{kind.draft}" for kind in KINDS]


@pytest.fixture
def engines(monkeypatch):
    fake_engines.install(monkeypatch)


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_every_engine_agrees_with_the_reference_or_says_why_not(kind):
    found = verify(find_peers(), [kind], CPU, Workers(1))[kind]
    served = {str(candidate).split()[0] for candidate in found.candidates}
    expected = {
        ("mamba2", 1): {"mamba-ssm", "vllm", "sglang", "flashinfer-python"},
        ("mamba2", 3): {"vllm", "sglang", "flashinfer-python"},
        ("gdn", 1): {"vllm", "sglang", "flashinfer-python", "fla-core"},
        ("gdn", 3): {"vllm", "sglang", "flashinfer-python"},
        ("kda", 1): {"vllm", "sglang", "fla-core"},
        ("kda", 3): {"vllm", "sglang", "fla-core"},
    }[kind.geometry.name, kind.draft]
    assert served == expected, found.refused
    # A state that is laid out the other way is caught, not timed.
    assert all(reason for reason in found.refused.values())


@pytest.mark.usefixtures("engines")
def test_the_fastest_counts():
    kind = KINDS[0]
    found = verify(find_peers(), [kind], CPU, Workers(1))[kind]
    timed = time_best(machine(), found, kind.step(4, CPU))
    assert timed.us == 1.0
    assert timed.name == str(found.candidates[0])
    assert len([value for value in timed.others.values() if isinstance(value, float)]) == len(found.candidates)


@pytest.mark.usefixtures("engines")
def test_an_engine_that_moved_on_is_refused(monkeypatch):
    module = sys.modules["fla.ops.gated_delta_rule"]
    peer = next(peer for peer in PEERS if peer.function == "fused_recurrent_gated_delta_rule")
    monkeypatch.setattr(module, peer.function, lambda: None)
    with pytest.raises(UnsupportedError, match="has no parameter q, k, v, g"):
        peer.variants(KINDS[2])
    monkeypatch.delattr(module, peer.function)
    with pytest.raises(UnsupportedError, match="AttributeError"):
        peer.variants(KINDS[2])


def test_an_absent_engine_is_not_looked_into():
    peer = replace(PEERS[0], modules=("no_such_engine.kernels",))
    assert not peer.installed
    assert all(find_spec(peer.modules[0].split(".")[0]) for peer in find_peers())


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("mamba-ssm", KINDS[1], "keeps no state snapshot"),
        ("mamba-ssm", KINDS[2], "serves mamba2, not gdn"),
        ("flashinfer-python", replace(KINDS[3], state="fp16"), "serves states in fp32"),
    ],
)
def test_what_an_engine_does_not_serve(name, kind, reason):
    peers = [peer for peer in PEERS if peer.distribution == name]
    peer = peers[-1] if kind.state == "fp16" else peers[0]
    with pytest.raises(UnsupportedError, match=reason):
        peer.variants(kind)


@pytest.mark.usefixtures("engines")
def test_a_step_may_be_run_again():
    """Timing runs a step many times: outputs and state stay finite."""
    found = verify(find_peers(), KINDS, CPU, Workers(1))
    for kind, verified in found.items():
        for candidate in verified.candidates:
            step = kind.step(2, CPU)
            prepared = candidate.implementation.prepare(step, step.start(), candidate.variant)
            for _ in range(3):
                assert bool(torch.isfinite(prepared.run()).all())
            assert bool(torch.isfinite(prepared.state()).all())
