"""Slots to files and back: bit for bit, and every foreign or damaged file refused with nothing changed."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from replayssm import LayerKind, PrecisionPolicy, Recurrence, ReplayState, StateFileError, StateLayout, StepError
from replayssm.conformance.inputs import Source
from replayssm.conformance.memory import bits
from replayssm.cursors import Cursors
from replayssm.errors import InputError
from replayssm.snapshot import digest, load_slots, save_slots


def layout_of(kind=LayerKind.GDN, **changes):
    layout = StateLayout(Recurrence(kind, 4, 2, 4, 16), 5, 6, 4, PrecisionPolicy(read_copy="nvfp4"), torch.float32)
    return dataclasses.replace(layout, **changes)


def mid_window(layout, seed=0):
    source = Source(layout.recurrence, layout.activation, seed=seed)
    state = ReplayState(layout, A=source.A)
    state.load([0, 3], source.states(2), 9)
    for _ in range(4):
        state.verify(source.tokens(2, 2), [3, 0])
        state.commit([2, 1])
    state.verify(source.tokens(2, 4), [3, 0])
    return state, source


def everything(state):
    cursors = {name: getattr(state.cursors, name) for name in Cursors.NAMES}
    return {name: bits(x) for name, x in {**state.layer.buffers, **cursors}.items()}


@pytest.mark.parametrize("kind", list(LayerKind))
def test_restored_slots_continue_bit_for_bit(kind, tmp_path):
    """Into other slots of a larger state; the drafts that were pending are gone, as if rejected."""
    state, source = mid_window(layout_of(kind))
    save_slots(state, [3, 0], tmp_path / "slots.safetensors")
    other = ReplayState(layout_of(kind, slots=9), A=source.A)
    load_slots(other, [8, 2], tmp_path / "slots.safetensors")
    assert torch.equal(other.state([8, 2]), state.state([3, 0]))
    for _ in range(6):
        inputs = source.tokens(2, 3)
        assert torch.equal(other.verify(inputs, [8, 2]), state.verify(inputs, [3, 0]))
        for one in (other, state):
            one.commit([1, 3])
    assert not (tmp_path / "slots.safetensors.partial").exists()


def test_products_are_not_part_of_a_file(tmp_path):
    path = tmp_path / "slots.safetensors"
    layout = layout_of()
    state, _ = mid_window(layout)
    save_slots(state, [3], path)
    other, _ = mid_window(dataclasses.replace(layout, precision=dataclasses.replace(layout.precision, dot="tf32x3")), 1)
    load_slots(other, [2], path)
    assert torch.equal(other.state([2]), state.state([3]))


def test_a_plan_made_before_a_restore_is_stale(tmp_path):
    state, source = mid_window(layout_of())
    save_slots(state, [3, 0], tmp_path / "slots.safetensors")
    plan = state.plan(source.tokens(1, 1), [0])
    load_slots(state, [0, 3], tmp_path / "slots.safetensors")
    with pytest.raises(StepError, match="stale"):
        state.settle(plan)


@pytest.fixture
def saved(tmp_path):
    state, _ = mid_window(layout_of())
    path = tmp_path / "slots.safetensors"
    save_slots(state, [3, 0], path)
    return path


def refused(path, match, state=None, slots=(0, 1), error=StateFileError):
    state = state or mid_window(layout_of())[0]
    before = everything(state)
    with pytest.raises(error, match=match):
        load_slots(state, list(slots), path)
    assert all(torch.equal(x, y) for x, y in zip(before.values(), everything(state).values(), strict=True))


@pytest.mark.parametrize("keep", [0, 4, 100, 2000, -1])
def test_truncated(saved, keep):
    saved.write_bytes(saved.read_bytes()[:keep])
    refused(saved, "truncated or not a safetensors file")


def test_no_such_file(tmp_path):
    refused(tmp_path / "nothing", "does not exist")


def test_directory(tmp_path):
    refused(tmp_path, "truncated or not a safetensors file|not a safetensors file")


def test_random_bytes(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 20)
    refused(path, "truncated or not a safetensors file")


def test_foreign_safetensors(tmp_path):
    save_file({"weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    refused(tmp_path / "model.safetensors", "not a ReplaySSM state file")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"window": 7}, "window"),
        ({"max_draft": 5}, "max_draft"),
        ({"precision": PrecisionPolicy()}, "precision"),
        ({"activation": torch.bfloat16}, "activation"),
        ({"recurrence": Recurrence(LayerKind.GDN, 4, 4, 4, 16)}, "recurrence"),
        ({"recurrence": Recurrence(LayerKind.KDA, 4, 2, 4, 16)}, "recurrence"),
    ],
)
def test_other_layout(saved, changes, what):
    refused(saved, f"another layout .*{what}", mid_window(layout_of(**changes))[0])


def test_other_decay_rates(tmp_path):
    state, _ = mid_window(layout_of(LayerKind.MAMBA2))
    save_slots(state, [0], tmp_path / "x")
    other, _ = mid_window(layout_of(LayerKind.MAMBA2), seed=5)
    refused(tmp_path / "x", "another layer", other, [0])


def test_other_number_of_slots(saved):
    refused(saved, "slots has 3 entries; .* holds 2 slots", slots=[0, 1, 2], error=InputError)


def rewrite(path, change, layout=None):
    """The same file with its tensors, or its layout text, changed."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    if layout is not None:
        metadata["layout"] = layout
    changed = change(load_file(path))
    save_file(changed, path, metadata={**metadata, "digest": digest(changed)})


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("checkpoint", lambda x: x.double(), "checkpoint is"),
        ("checkpoint", lambda x: x[:, :2].contiguous(), "checkpoint is"),
        ("checkpoint", lambda x: x * float("nan"), "checkpoint holds NaN"),
        ("read_copy_scale", lambda x: x / 0, "read_copy_scale holds NaN or infinity"),
        ("value_ring", lambda x: x[:1].contiguous(), "value_ring is"),
        ("cursor.origin", lambda x: x[0].clone(), "is"),
        ("cursor.origin", lambda x: x + 100, "cursor origin is out of range"),
        ("cursor.committed", lambda x: x - 100, "cursor committed is out of range"),
        ("cursor.committed", lambda x: x + 7, "cursor committed is out of range"),
        ("cursor.limit", lambda x: x * 0, "cursor limit is out of range"),
        ("cursor.position", lambda x: x - 100, "cursor position is out of range"),
        ("cursor.flushes", lambda x: x - 100, "cursor flushes is out of range"),
        ("cursor.pending", lambda x: x + 1, "cursor pending is out of range"),
    ],
)
def test_tampered(saved, name, change, match):
    rewrite(saved, lambda tensors: {**tensors, name: change(tensors[name])})
    refused(saved, match)


def test_one_flipped_bit(saved):
    data = bytearray(saved.read_bytes())
    data[-5] ^= 0x10
    saved.write_bytes(bytes(data))
    refused(saved, "damaged")


def test_decay_rates_missing(tmp_path):
    state, _ = mid_window(layout_of(LayerKind.MAMBA2))
    path = tmp_path / "x"
    save_slots(state, [0], path)
    rewrite(path, lambda tensors: {key: x for key, x in tensors.items() if key != "A"})
    refused(path, "another layer", mid_window(layout_of(LayerKind.MAMBA2))[0], [0])


def test_unwritable(tmp_path):
    state, _ = mid_window(layout_of())
    with pytest.raises(StateFileError, match="cannot be written"):
        save_slots(state, [0], tmp_path / "missing" / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["key_ring", "cursor.origin"])
def test_tensor_missing(saved, name):
    rewrite(saved, lambda tensors: {key: x for key, x in tensors.items() if key != name})
    refused(saved, f"tensors differ from the layout's.*{name}")


def test_tensor_too_many(saved):
    rewrite(saved, lambda tensors: {**tensors, "more": torch.zeros(2)})
    refused(saved, "tensors differ from the layout's.*more")


@pytest.mark.parametrize("layout", ["", "{", "[]", "null", "{}"])
def test_layout_text(saved, layout):
    rewrite(saved, lambda tensors: tensors, layout)
    refused(saved, "layout")


@pytest.mark.parametrize("slots", [[0, 5], [-1], [1, 1]])
def test_slots_to_save(slots, tmp_path):
    state, _ = mid_window(layout_of())
    with pytest.raises(InputError, match="slots="):
        save_slots(state, slots, tmp_path / "x")
    assert not list(tmp_path.iterdir())
