"""What a life refuses, and faults put into the adapter that a life finds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lives import Life
from test_trtllm_lives import a_whole_life, each_kind, each_variant

from replayssm import StepError, UnsupportedError


@each_variant
def test_a_ring_that_was_overwritten_is_refused(monkeypatch, variant):
    life = Life(monkeypatch, variant, "mamba2", fields={"window": 5}, slots=3)
    life.prefill(1, 4)
    life.prefill(2, 4)
    life.decode(1, 2)
    life.manager.suspend(life.requests[1])
    life.manager.free.sort()
    life.prefill(3, 2)
    life.finish(3)
    with pytest.raises(StepError, match="request 1 was suspended in slot"):
        life.decode(1)


@each_variant
def test_shutdown_lets_go_of_everything_twice(monkeypatch, variant):
    life = Life(monkeypatch, variant, "mamba2", drafts=2, fields={"window": 6})
    life.prefill(1, 3)
    life.decode(1)
    state = life.state
    for _ in range(2):
        life.manager.shutdown()
    held = [value for value in vars(state).values() if isinstance(value, torch.Tensor)]
    assert not held
    assert state.layers is None
    with pytest.raises(StepError, match="outside of a forward"):
        state.step(0, None, None, standard=True)
    state.reset_slots(torch.tensor([0]), [0])
    state.relocate_slots([0], [1])


def test_a_forward_that_stops_half_way_is_no_fold(monkeypatch):
    """A forward that stops between two layers has torn its rows: refused, rather than folded twice."""
    life = Life(monkeypatch, "C", "mamba2", fields={"window": 5})
    life.prefill(1, 3)
    last = list(life.model.mixers.values())[-1]
    monkeypatch.setattr(last, "forward", lambda *_args, **_kwargs: 1 / 0)
    with pytest.raises(StepError, match="stopped between two recurrent layers"):
        life.decode(1)


@each_kind
def test_acceptance_that_is_never_reported_is_no_rejection(monkeypatch, kind):
    """A drafter outside of the forward: its tokens would vanish from the state in silence."""
    life = Life(monkeypatch, "C", kind, drafts=2, fields={"window": 6})
    life.prefill(1, 3)
    life.model.worker = lambda _metadata: None
    life.decode(1)
    with pytest.raises(StepError, match="never reported"):
        life.decode(1)


def test_a_forward_that_stops_before_the_first_layer_is_no_step(monkeypatch):
    life = Life(monkeypatch, "C", "mamba2", fields={"window": 5})
    life.prefill(1, 3)
    first = next(iter(life.model.mixers.values()))
    forward = first.forward
    monkeypatch.setattr(first, "forward", lambda *_args, **_kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        life.decode(1)
    monkeypatch.setattr(first, "forward", forward)
    for _ in range(6):
        life.decode(1)
    life.check_states()


def test_a_manager_that_was_not_extended_is_refused(monkeypatch):
    life = Life(monkeypatch, "C", "mamba2", fields={"window": 5})
    life.prefill(1, 3)
    life.manager = SimpleNamespace(
        prepare_resources=lambda _: None, cuda_state_indices=torch.zeros(5, dtype=torch.int32)
    )
    with pytest.raises(UnsupportedError, match="did not extend"):
        life.forward([], [(1, [3])])


def test_a_mixer_outside_of_a_forward_is_refused(monkeypatch):
    life = Life(monkeypatch, "C", "mamba2", fields={"window": 5})
    mixer = next(iter(life.model.mixers.values()))
    x, keys = torch.zeros(1, 4, 8), torch.zeros(1, 2, 16)
    with pytest.raises(StepError, match="outside of a forward"):
        mixer.selective_state_update_func(
            None, x, x, None, keys, keys, state_batch_indices=torch.zeros(1), dt_softplus=True
        )
    with pytest.raises(UnsupportedError, match="cu_seqlens"):
        mixer.selective_state_update_func(
            None, x, x, None, keys, keys, state_batch_indices=torch.zeros(1), dt_softplus=True, cu_seqlens=1
        )
    with pytest.raises(UnsupportedError, match="without slots"):
        mixer.selective_state_update_func(None, x, x, None, keys, keys)


FAULTS = {
    "contexts keep their old rings": ("replayssm_trtllm.rings.ReplayLayers.restart", lambda *_: None),
    "acceptance is ignored": ("replayssm_trtllm.state.ReplaySSMState.update", lambda *_: None),
    "padding is not masked": ("replayssm_trtllm.router.dummy_mask", lambda *_: None),
    "rings stay behind": ("replayssm_trtllm.rings.ReplayLayers.relocate", lambda *_: None),
    "convolutions stay behind": ("replayssm_trtllm.state.promote", lambda *_: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_adapter_is_found(monkeypatch, fault):
    """The lives above have teeth: each fault breaks one of them."""
    target, replacement = FAULTS[fault]
    life = Life(monkeypatch, "C", "mamba2", drafts=3, fields={"window": 9})
    monkeypatch.setattr(target, replacement)
    with pytest.raises((AssertionError, StepError, ValueError)):
        a_whole_life(life)


def test_mixed_batches_of_gdn_need_their_split(monkeypatch):
    """The engine's chunked operator passes a ring over; without the split the rows of a mixed batch are wrong."""
    monkeypatch.setattr("replayssm_trtllm.mixer_gdn._extend", lambda _mixer, original, *a, **k: original(*a, **k))
    life = Life(monkeypatch, "C", "gdn", fields={"window": 5})
    with pytest.raises(AssertionError, match="request"):
        a_whole_life(life)
