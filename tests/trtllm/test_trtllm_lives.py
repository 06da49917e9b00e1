"""Requests through their whole lives in the small engine, with the adapter in it, against the float64 truth."""

from __future__ import annotations

from types import SimpleNamespace

import fixed_step
import pytest
import torch
from lives import LAYERS, PADDING, Life
from small_engine import installed
from small_engine.base import Batch
from small_engine.earlier import ESTIMATORS

from replayssm_trtllm.rings import scratch_bytes

KINDS = ("mamba2", "gdn")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_variant = pytest.mark.parametrize("variant", installed.SERVED)


@each_kind
def test_the_small_engine_alone_decodes_as_the_truth(monkeypatch, kind):
    life = Life(monkeypatch, "C", kind)
    life.prefill(1, 7)
    life.prefill(2, 5, chunks=2, generations=[1])
    for _ in range(3):
        life.decode(1, 2, padding=1)


def a_whole_life(life):
    """Prompts of one token and of many, chunked, beside rows that decode; padding; recomputation; moves; reuse."""
    life.prefill(1, 7)
    life.prefill(2, 6, chunks=3, generations=[1])
    life.prefill(3, 1, generations=[2, 1])
    for step in range(9):
        life.decode(3, 1, 2, padding=step % 3)
    life.check_states()
    life.preempt(2, chunks=2)
    life.manager.move(life.requests[1])
    life.decode(1, 2)
    life.manager.suspend(life.requests[3])
    life.decode(2, 1, padding=1)
    life.decode(2, 3, 1)
    life.finish(1)
    life.prefill(4, 5, generations=[3])
    for _ in range(7):
        life.decode(4, 2, 3)
    life.check_states()


@each_kind
@each_variant
def test_a_life_of_ordinary_decode(monkeypatch, variant, kind):
    a_whole_life(Life(monkeypatch, variant, kind, fields={"window": 5}))


@each_kind
@each_variant
def test_a_life_of_speculation_with_random_acceptance(monkeypatch, variant, kind):
    a_whole_life(Life(monkeypatch, variant, kind, drafts=3, fields={"window": 9}))


@each_kind
@each_variant
def test_the_number_of_drafts_changes_at_run_time(monkeypatch, variant, kind):
    """Down to the token alone: a schedule of draft lengths, or a drafter that pauses."""
    life = Life(monkeypatch, variant, kind, drafts=3, fields={"window": 6})
    life.prefill(1, 3)
    life.prefill(2, 2)
    for drafts in (3, 1, 0, 0, 2, 3, 0, 1, 3, 2):
        life.drafts = drafts
        life.decode(1, 2, padding=drafts)
    life.check_states()


@each_kind
@pytest.mark.parametrize("accepted", [1, 4])
def test_acceptance_at_both_ends(monkeypatch, kind, accepted):
    life = Life(monkeypatch, "C", kind, drafts=3, fields={"window": 6})
    life.prefill(1, 3)
    life.prefill(2, 2)
    for _ in range(6):
        life.decode(1, 2, padding=2, accept=accepted)
    life.check_states()


@each_kind
@pytest.mark.parametrize(
    ("ssm", "dtype", "fields"),
    [
        (torch.float32, torch.float32, {}),
        (torch.float32, torch.bfloat16, {}),
        (torch.bfloat16, torch.float32, {"checkpoint_dtype": "bfloat16"}),
        (torch.float16, torch.float32, {"checkpoint_dtype": "float16"}),
        (torch.float16, torch.float32, {"checkpoint_dtype": "float16", "stochastic_rounding": True}),
        (torch.float32, torch.float32, {"read_copy": "fp8"}),
        (torch.float32, torch.float32, {"read_copy": "nvfp4"}),
        (torch.float16, torch.float32, {"checkpoint_dtype": "float16", "stochastic_rounding": True, "read_copy": "nvfp4"}),
    ],
    ids=["fp32", "bf16-model", "bf16", "fp16", "fp16-sr", "read-fp8", "read-nvfp4", "fp16-sr-read-nvfp4"],
)  # fmt: skip
def test_formats(monkeypatch, kind, ssm, dtype, fields):
    """The state of the first layer stays within the checkpoint's own bounds, whatever the read copy costs an output."""
    life = Life(monkeypatch, "C", kind, drafts=2, fields={"window": 6} | fields, ssm=ssm, dtype=dtype)
    life.prefill(1, 6)
    life.prefill(2, 4, generations=[1])
    for _ in range(8):
        life.decode(2, 1, padding=1)
    if dtype != torch.bfloat16:  # there the projections before the state round, too
        life.check_states()


@each_kind
@each_variant
def test_a_state_that_arrives_from_another_server(monkeypatch, variant, kind):
    """Pages of state and convolution travel, rings do not; the receiver's slot had another tenant before."""
    sender = Life(monkeypatch, variant, kind, fields={"window": 5, "read_copy": "nvfp4"})
    receiver = Life(monkeypatch, variant, kind, fields={"window": 5, "read_copy": "nvfp4"}, install=False)
    receiver.prefill(7, 3)
    for _ in range(3):
        receiver.decode(7)
    receiver.finish(7)
    receiver.manager.free.sort(reverse=True)
    receiver.manager.free.append(receiver.manager.free.pop(0))
    sender.prefill(1, 6)
    request = sender.requests[1]
    receiver.requests[1], receiver.tokens[1] = request, list(sender.tokens[1])
    receiver.manager.take(request)
    source, target = sender.manager.slot_of[1], receiver.manager.slot_of[1]
    for theirs, ours in zip(sender.manager.pools(), receiver.manager.pools(), strict=True):
        ours[target] = theirs[source]
    receiver.manager._request_id_to_state_index[1] = target
    receiver.manager.on_state_transfer_complete([1, 999])
    for _ in range(8):
        receiver.decode(1, padding=1)
    receiver.check_states()


@each_kind
@pytest.mark.parametrize("drafts", [None, 2])
def test_padding_on_a_live_slot_changes_nothing(monkeypatch, kind, drafts):
    """Rows of padding may name any slot: even that of a request whose window is full."""
    life = Life(monkeypatch, "C", kind, drafts=drafts, fields={"window": 4})
    life.prefill(1, 3)
    life.prefill(2, 3)
    for _ in range(4):
        life.decode(1, padding=1, accept=1)
    slot, layers = life.manager.slot_of[1], life.state.layers

    def bits():
        parts = [buffer[slot] for memory in layers.buffers for buffer in memory.values()]
        parts += [getattr(layers.cursors, name)[slot] for name in layers.cursors.NAMES]
        return [part.clone().reshape(-1).view(torch.uint8) for part in parts]

    before = bits()
    # A convolution state is the engine's own to write in ordinary decode, and there its padding would be wrong already.
    convolutions = [conv[slot].clone() for conv in life.manager.all_conv_states]
    life.forward([], [(2, life.step_tokens())], padding=2, alias=slot)
    assert all(torch.equal(a, b) for a, b in zip(before, bits(), strict=True))
    for conv, kept in zip(life.manager.all_conv_states, convolutions, strict=True):
        if drafts is not None:
            assert torch.equal(conv[slot], kept)
        conv[slot] = kept
    for _ in range(5):
        life.decode(1, 2)
    life.check_states()


@each_kind
def test_one_step_function_at_fixed_addresses(monkeypatch, kind):
    """As a captured graph would: the same tensors each time, other rows in them, rows beyond the batch masked."""
    life = Life(monkeypatch, "C", kind, fields={"window": 5})
    for request, count in ((1, 4), (2, 2), (3, 6)):
        life.prefill(request, count)
    rows = life.rows
    indices, ids = life.manager.cuda_state_indices, torch.zeros(rows, dtype=torch.long)
    metadata = SimpleNamespace(
        kv_cache_manager=life.manager,
        num_contexts=0,
        num_seqs=rows,
        seq_lens=torch.ones(rows, dtype=torch.int32),
        mamba_metadata=SimpleNamespace(state_indices=indices, has_initial_states=torch.ones(rows, dtype=torch.bool)),
    )

    def step():
        with torch.no_grad():
            return life.model.forward(attn_metadata=metadata, input_ids=ids)

    for batch in ((1, 2, 3), (3,), (2, 1), (1, 3, 2), (3, 2), (2,), (1, 2, 3)):
        tokens = {request: life.random(1) for request in batch}
        padded = [life.requests[request] for request in batch] + [PADDING] * (rows - len(batch))
        life.manager.prepare_resources(Batch([], padded))
        ids[: len(batch)] = torch.tensor([tokens[request][0] for request in batch])
        out = step()
        life.steps += 1
        life._compare([(request, tokens[request]) for request in batch], torch.ones(len(batch), dtype=torch.int32), out)
        for request in batch:
            life.tokens[request] += tokens[request]
    assert indices.data_ptr() == life.manager.cuda_state_indices.data_ptr()
    life.check_states()


@each_kind
def test_steps_at_fixed_addresses_are_the_eager_ones(kind):
    fixed_step.check(kind, fixed_step.Setting(), "torch", torch.device("cpu"))


@each_variant
def test_memory_is_counted_as_it_is(monkeypatch, variant):
    life = Life(monkeypatch, variant, "gdn", drafts=2, fields={"window": 6, "read_copy": "nvfp4"})
    layers = life.state.layers
    ours = [b for buffers in layers.buffers for name, b in buffers.items() if name != "checkpoint"]
    actual = sum(buffer.nbytes for buffer in ours) // layers.layout.slots
    assert life.manager.scratch_seen == actual == LAYERS * scratch_bytes(layers.layout)
    arguments = {"spec_config": life.config.spec_config, "use_separate_draft_kv_cache": False}
    if variant == "B":
        estimate = ESTIMATORS["replayssm"](life.config, None, life.config.mapping, **arguments)
    else:
        estimate = type(life.manager)._extra_state_bytes_per_rank(life.config, life.config.mapping, **arguments)
        assert type(life.manager)._extra_state_bytes_per_rank(life.config, life.config.mapping, is_draft=True) == 0
    assert estimate == actual
