"""Prefill and tracking: slots are folded before they are read, empty once written, current where they are published."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fake_engine import GROUPS, HEADS, LAYERS, K, V, make_session

from replayssm import LayerKind, TokenInputs
from replayssm_sglang import install, prefill


class Mode:
    def __init__(self, name):
        self.name = name

    def is_extend(self):
        return self.name != "decode"

    def is_target_verify(self):
        return self.name == "verify"

    def is_draft_extend_v2(self):
        return self.name == "draft_extend"


def batch(mode, **fields):
    return SimpleNamespace(**{"forward_mode": Mode(mode), "mamba_track_mask": None, **fields})


def decode(session, slots, steps):
    rows = len(slots)
    for _ in range(steps):
        for index in range(len(LAYERS)):
            inputs = TokenInputs(
                q=torch.randn(rows, 1, GROUPS, K), k=torch.randn(rows, 1, GROUPS, K), v=torch.randn(rows, 1, HEADS, V),
                gate=-torch.rand(rows, 1, HEADS), beta=torch.rand(rows, 1, HEADS), qk_l2norm=True,
            )  # fmt: skip
            session.steps.decode(index, inputs, torch.tensor(slots))


def backend(slots, **metadata):
    return SimpleNamespace(
        is_draft_worker=False,
        forward_metadata=SimpleNamespace(mamba_cache_indices=torch.tensor(slots), **metadata),
        req_to_token_pool=SimpleNamespace(mamba_map=dict(zip(LAYERS, range(len(LAYERS)), strict=True))),
    )


def test_a_prompt_that_continues_from_a_slot_finds_its_whole_state():
    session, _ = make_session()
    decode(session, [1, 2, 3], 3)
    expected = [layer.state([1]) for layer in session.layers]
    engine = backend([1, 0])
    metadata = SimpleNamespace(mamba_cache_indices=torch.tensor([1, 0]), track_ssm_final_dst=torch.tensor([3]))
    prefill.begin(session, metadata, engine, batch("extend", seq_lens=torch.tensor([20, 1])))
    for index, state in enumerate(expected):
        torch.testing.assert_close(session.states[index, [1]], state)
    # Slot 3 is written for the prefix cache: what it held is void. Slot 2 is of nobody here.
    assert session.layers.cursors.committed.tolist()[1:4] == [0, 3, 0]
    assert session.layers.cursors.position[1] == 20


@pytest.mark.parametrize("mode", ["decode", "verify", "draft_extend"])
def test_other_batches_and_draft_models_touch_nothing(mode):
    session, _ = make_session()
    decode(session, [1], 3)
    engine = backend([1])
    prefill.begin(session, engine.forward_metadata, engine, batch(mode))
    engine.is_draft_worker = True
    prefill.begin(session, engine.forward_metadata, engine, batch("extend"))
    assert session.layers.cursors.committed[1] == 3


@pytest.mark.parametrize("kind", [LayerKind.GDN, LayerKind.MAMBA2])
def test_read_copies_are_made_after_prefill(kind):
    session, _ = make_session(kind, preset="dual-nvfp4")
    engine = backend([1, 0], num_decodes=0)
    session.states[:, 1] = torch.randn(len(LAYERS), HEADS, V, K)
    before = {name: ring.clone() for name, ring in session.rings.items() if name.startswith("read_copy")}

    def forward_extend(self, layer, forward_batch):
        return layer.layer_id

    def forward(self, mixer, layer_id, forward_batch):
        return layer_id

    for layer_id in LAYERS:
        if kind is LayerKind.GDN:
            layer = SimpleNamespace(layer_id=layer_id)
            prefill.around_delta(session, forward_extend, engine, layer, forward_batch=batch("extend"))
        else:
            prefill.around_mamba2(
                session, forward, engine, mixer=None, layer_id=layer_id, forward_batch=batch("extend")
            )
    for name, old in before.items():
        assert (session.rings[name][:, 1] != old[:, 1]).any(), name
        assert torch.equal(session.rings[name][:, 2], old[:, 2]), name


def test_states_that_are_tracked_hold_every_token():
    session, _ = make_session()
    decode(session, [1, 2], 3)
    engine = backend([1, 2], mamba_track_indices=torch.tensor([4, 5]))
    tracked = batch("decode", mamba_track_mask=torch.tensor([True, False]))
    decode(session, [5], 2)

    def track(self, forward_batch, conv_states, ssm_states, cache_indices, layer_id=None):
        ssm_states[4] = ssm_states[1]

    for index in range(len(LAYERS)):
        slots = engine.forward_metadata.mamba_cache_indices
        prefill.around_tracking(session, track, engine, tracked, None, session.states[index], slots)
    for layer in session.layers:
        torch.testing.assert_close(layer.state([4]), layer.state([1]))
    assert session.layers.cursors.committed.tolist()[1:] == [3, 3, 0, 0, 2]


def test_a_padded_row_publishes_nothing():
    session, _ = make_session()
    decode(session, [3], 3)
    engine = backend([0, 0], mamba_track_indices=torch.tensor([3, 3]))
    stale = batch("decode", mamba_track_mask=torch.tensor([True, True]))
    for index in range(len(LAYERS)):
        slots = engine.forward_metadata.mamba_cache_indices
        prefill.around_tracking(
            session, lambda self, forward_batch, conv_states, ssm_states, cache_indices: None,
            engine, stale, None, session.states[index], slots,
        )  # fmt: skip
    assert session.layers.cursors.committed[3] == 3


def test_tracked_slots_are_the_first_of_a_graphs_buffer():
    session, _ = make_session(LayerKind.MAMBA2)
    everyone = torch.tensor([5, 4, 0, 7])
    engine = backend([1, 2], mamba_track_indices=everyone, num_prefills=0, num_decodes=2, is_target_verify=False)
    tracked = batch("decode", mamba_track_mask=torch.tensor([True, True]))
    session.states[:, 1:3] = torch.randn(len(LAYERS), 2, HEADS, V, K)
    seen = []

    def forward(self, mixer, layer_id, forward_batch):
        seen.append(self.forward_metadata.mamba_track_indices[-2:].tolist())

    for layer_id in LAYERS:
        prefill.around_mamba2(session, forward, engine, mixer=None, layer_id=layer_id, forward_batch=tracked)
    assert seen == [[5, 4]] * len(LAYERS)
    assert torch.equal(session.states[:, [5, 4]], session.states[:, [1, 2]])


def test_a_fused_decode_is_declined():
    layer = SimpleNamespace(_k3_onorm_gate=torch.ones(1))

    def forward_decode(self, layer, forward_batch):
        return layer._k3_onorm_gate

    assert install.around_kda_decode(None, forward_decode, None, layer, None) is None
    assert layer._k3_onorm_gate is None
