"""Conversions between the core's ring, TensorRT-LLM's double buffer and FlashInfer's ring, bit for bit."""

from __future__ import annotations

import pytest
import torch

from replayssm import InputError, Recurrence, StateLayout, UnsupportedError
from replayssm.cursors import Cursors
from replayssm.schedule import FlushPolicy
from replayssm_trtllm.double_buffer import DoubleBuffer, from_double_buffer, running_decay, to_double_buffer
from replayssm_trtllm.flashinfer_ring import FlashInferRing, from_flashinfer, to_flashinfer, view_of_core
from replayssm_trtllm.records import Records, from_core, to_core

SLOTS, W, T = 5, 9, 4
GEOMETRY = Recurrence.mamba2(heads=4, head_dim=8, state_size=16, groups=2)
LAYOUT = StateLayout(GEOMETRY, SLOTS, W, T)


def noise(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


def core(origin, committed):
    """Buffers full of noise: rows that hold no record, too."""
    buffers = {
        s.name: noise(SLOTS, *s.shape, dtype=s.dtype) if s.dtype.is_floating_point else None for s in LAYOUT.buffers
    }
    cursors = Cursors(SLOTS, LAYOUT.rows, W, T, FlushPolicy(), "cpu")
    cursors.origin.copy_(torch.tensor(origin))
    cursors.committed.copy_(torch.tensor(committed))
    return buffers, cursors


def double(rows=16):
    H, P, G, N = 4, 8, 2, 16
    return DoubleBuffer(
        noise(SLOTS, 2, rows, H, P),
        noise(SLOTS, 2, rows, G, N),
        noise(SLOTS, 2, H, rows, dtype=torch.float32),
        noise(SLOTS, 2, H, rows, dtype=torch.float32),
        torch.tensor([0, 3, 9, 1, 5], dtype=torch.int32),
        torch.tensor([0, 1, 1, 0, 1], dtype=torch.int32),
    )


def ring(rows):
    return FlashInferRing(
        noise(SLOTS, 4, rows, 8),
        noise(SLOTS, 2, rows, 16),
        noise(SLOTS, 4, rows, dtype=torch.float32),
        torch.tensor([0, 5, 12, 3, 7], dtype=torch.int32),
        torch.tensor([4, 0, 9, 2, 8], dtype=torch.int32),
    )


def same(left: Records, right: Records):
    assert left.count.tolist() == right.count.tolist()
    for name in ("x", "B", "dt"):
        a, b = getattr(left, name), getattr(right, name)
        assert a.dtype == b.dtype
        assert torch.equal(a, b), name


ALL = torch.arange(SLOTS)
A = -torch.rand(4) - 0.1
CORES = [([0, 3, 12, 7, 11], [0, 9, 4, 1, 6]), ([12, 12, 0, 5, 8], [9, 9, 9, 9, 9]), ([1] * 5, [0] * 5)]


@pytest.mark.parametrize(("origin", "committed"), CORES)
def test_core_to_double_buffer_and_back(origin, committed):
    buffers, cursors = core(origin, committed)
    records = from_core(LAYOUT, buffers, cursors, ALL)
    target = double()
    to_double_buffer(target, ALL, records, A)
    same(from_double_buffer(target, ALL), records)
    again, fresh = core([5] * 5, [2] * 5)
    to_core(LAYOUT, again, fresh, ALL, from_double_buffer(target, ALL))
    same(from_core(LAYOUT, again, fresh, ALL), records)


def test_double_buffer_to_core_and_back_sums_included():
    source = double()
    records = from_double_buffer(source, ALL)
    sums = running_decay(records.dt, A)
    n, j = records.live.nonzero(as_tuple=True)
    active = source.cache_buf_idx.long()
    source.old_dA_cumsum[n, active[n], :, j] = sums[n, j]
    buffers, cursors = core([0] * 5, [0] * 5)
    to_core(LAYOUT, buffers, cursors, ALL, records)
    target = double()
    to_double_buffer(target, ALL, from_core(LAYOUT, buffers, cursors, ALL), A)
    for slot, count in enumerate(source.prev_num_accepted_tokens.tolist()):
        a, b = active[slot], target.cache_buf_idx[slot]
        for name in ("old_x", "old_B"):
            assert torch.equal(getattr(source, name)[slot, a, :count], getattr(target, name)[slot, b, :count])
        for name in ("old_dt", "old_dA_cumsum"):
            assert torch.equal(getattr(source, name)[slot, a, :, :count], getattr(target, name)[slot, b, :, :count])


@pytest.mark.parametrize(("origin", "committed"), CORES)
def test_core_to_flashinfer_and_back(origin, committed):
    buffers, cursors = core(origin, committed)
    records = from_core(LAYOUT, buffers, cursors, ALL)
    same(from_flashinfer(view_of_core(LAYOUT, buffers, cursors), ALL), records)
    target = ring(LAYOUT.rows + 3)
    to_flashinfer(target, ALL, records, T)
    same(from_flashinfer(target, ALL), records)
    again, fresh = core([5] * 5, [2] * 5)
    to_core(LAYOUT, again, fresh, ALL, from_flashinfer(target, ALL))
    same(from_core(LAYOUT, again, fresh, ALL), records)


def test_flashinfer_to_double_buffer_and_back_permuted():
    order = torch.tensor([3, 0, 4])
    source = ring(13)
    records = from_flashinfer(source, order)
    middle, target = double(), ring(13)
    to_double_buffer(middle, order, records, A)
    to_flashinfer(target, order, from_double_buffer(middle, order), T)
    same(from_flashinfer(target, order), records)


def test_the_view_of_the_core_is_its_memory():
    buffers, cursors = core([0] * 5, [0] * 5)
    view = view_of_core(LAYOUT, buffers, cursors)
    to_flashinfer(view, ALL, from_double_buffer(double(), ALL), T)
    same(from_core(LAYOUT, buffers, cursors, ALL), from_double_buffer(double_like(view), ALL))


def double_like(view):
    target = double()
    to_double_buffer(target, ALL, from_flashinfer(view, ALL), A)
    return target


def test_other_slots_stay_as_they_are():
    buffers, cursors = core([3] * 5, [4] * 5)
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    to_core(LAYOUT, buffers, cursors, torch.tensor([1]), from_double_buffer(double(), torch.tensor([2])))
    rest = torch.tensor([0, 2, 3, 4])
    for name, buffer in buffers.items():
        assert torch.equal(buffer[rest], before[name][rest])
    assert cursors.committed.tolist() == [4, 9, 4, 4, 4]


def test_what_does_not_fit_is_refused_before_a_write():
    buffers, cursors = core([0] * 5, [9] * 5)
    records = from_core(LAYOUT, buffers, cursors, ALL)
    small, short = double(rows=8), ring(12)
    for write in (
        lambda: to_double_buffer(small, ALL, records, A),
        lambda: to_flashinfer(short, ALL, records, T),
        lambda: to_core(StateLayout(GEOMETRY, SLOTS, 8, T), buffers, cursors, ALL, records),
    ):
        with pytest.raises(InputError, match="drain the slots"):
            write()
    assert small.prev_num_accepted_tokens.tolist() == [0, 3, 9, 1, 5]


@pytest.mark.parametrize("name", ["gdn", "kda"])
def test_delta_rule_rings_are_refused(name):
    geometry = Recurrence(name, 4, 2, 8, 16)
    layout = StateLayout(geometry, SLOTS, W, T)
    cursors = Cursors(SLOTS, layout.rows, W, T, FlushPolicy(), "cpu")
    with pytest.raises(UnsupportedError, match="drain the slots"):
        from_core(layout, layout.allocate(), cursors, ALL)


def test_double_buffers_of_other_shapes_are_refused():
    good = double()
    bad = DoubleBuffer(**{**vars(good), "old_dt": good.old_dt.double()})
    with pytest.raises(InputError, match="old_dt"):
        from_double_buffer(bad, ALL)
    bad = DoubleBuffer(**{**vars(good), "old_dA_cumsum": good.old_dA_cumsum[:, :1]})
    with pytest.raises(InputError, match="old_dA_cumsum"):
        from_double_buffer(bad, ALL)
