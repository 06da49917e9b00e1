"""The pool: memory, price of a slot, and what happens to a slot that has records."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fake_engine import GROUPS, HEADS, LAYERS, CacheParams, K, V, make_session

from replayssm import LayerKind, TokenInputs, UnsupportedError
from replayssm_sglang import budget
from replayssm_sglang.pool import once


def decode(session, slots, steps=1):
    """Random tokens for `slots` in every layer."""
    rows = len(slots)
    for _ in range(steps):
        for index in range(len(LAYERS)):
            inputs = TokenInputs(
                q=torch.randn(rows, 1, GROUPS, K),
                k=torch.randn(rows, 1, GROUPS, K),
                v=torch.randn(rows, 1, HEADS, V),
                gate=-torch.rand(rows, 1, HEADS),
                beta=torch.rand(rows, 1, HEADS),
                qk_l2norm=True,
            )
            session.steps.decode(index, inputs, torch.tensor(slots))


def states(session, slot):
    return torch.stack([layer.state([slot])[0] for layer in session.layers])


def test_no_snapshots_and_no_states_but_ours():
    session, pool = make_session(slots=3, draft=4)
    assert pool.mamba_cache.temporal.shape == (len(LAYERS), 4, HEADS, V, K)
    assert pool.mamba_cache.temporal.data_ptr() == session.states.data_ptr()
    assert pool.mem_usage > 0


def test_layers_are_known_by_the_address_of_their_state():
    session, pool = make_session()
    assert [session.layer_of(pool.mamba_cache.temporal[i]) for i in range(2)] == [0, 1]
    with pytest.raises(UnsupportedError, match="not the pool's"):
        session.layer_of(torch.zeros(2))


def test_a_second_pool_is_refused():
    session, _ = make_session()
    with pytest.raises(UnsupportedError, match="second pool"):
        session.place(session.states, session.rings)


def test_a_copied_slot_is_folded_first_and_starts_with_an_empty_ring():
    session, pool = make_session()
    decode(session, [1, 2], steps=3)
    expected = states(session, 1)
    pool.mamba_cache.conv[0][:, 1] = 5.0
    pool.copy_from(torch.tensor([1]), torch.tensor([3]))
    assert session.layers.cursors.committed.tolist() == [0, 0, 3, 0, 0, 0]
    assert session.layers.cursors.position[3] == session.layers.cursors.position[1]
    torch.testing.assert_close(pool.mamba_cache.temporal[:, 3], expected)
    torch.testing.assert_close(states(session, 1), expected)
    assert (pool.mamba_cache.conv[0][:, 3] == 5.0).all()


def test_two_requests_that_copy_one_cached_prefix_fold_it_once():
    session, pool = make_session()
    decode(session, [1, 2], steps=3)
    expected = states(session, 1)
    pool.copy_from(torch.tensor([1, 2, 1]), torch.tensor([3, 4, 5]))
    assert session.layers.cursors.committed.tolist() == [0] * 6
    for slot in (1, 3, 5):
        torch.testing.assert_close(pool.mamba_cache.temporal[:, slot], expected)
    assert once(torch.tensor([4, 1, 4, 4, 1])).tolist() == [4, 1, -1, -1, -1]


def test_a_cleared_slot_has_zero_state_and_no_records():
    session, pool = make_session()
    decode(session, [1], steps=2)
    pool.clear_slots(torch.tensor([1]))
    assert not states(session, 1).any()
    assert session.layers.cursors.committed[1] == 0


def test_offload_and_back():
    session, pool = make_session()
    decode(session, [1], steps=3)
    expected = states(session, 1)
    saved = pool.get_cpu_copy(torch.tensor([1]))
    decode(session, [1], steps=2)
    pool.load_cpu_copy(saved, torch.tensor([4]))
    torch.testing.assert_close(states(session, 4), expected)


@pytest.mark.parametrize("draft", [1, 4])
def test_the_budget_counts_rings_and_no_snapshots(draft):
    session, _ = make_session(slots=1, draft=draft)
    session.running_requests = 7
    seen = {}

    def original(configurator, rest):
        seen.update(price=configurator.mambaish_config.mamba2_cache_params.mamba_cache_per_req, rest=rest)
        seen["speculates"] = not configurator.spec_algorithm.is_none()
        return rest

    params = CacheParams()
    configurator = SimpleNamespace(
        mambaish_config=SimpleNamespace(mamba2_cache_params=params),
        spec_algorithm=SimpleNamespace(is_none=lambda: draft == 1),
    )
    budget.fit_slots(session, original, configurator, 1.0)
    assert configurator.mambaish_config.mamba2_cache_params is params
    conv = len(LAYERS) * (HEADS * V + 2 * GROUPS * K) * 3 * 4
    assert seen["price"] == conv + len(LAYERS) * session.layout(1).slot_bytes
    assert not seen["speculates"]
    windows = 0 if draft == 1 else conv * draft * 8
    assert seen["rest"] == pytest.approx(1.0 - windows / 2**30)


def test_a_checkpoint_that_prefill_cannot_write_is_refused():
    session, _ = make_session(LayerKind.MAMBA2)
    session.check(torch.device("cpu"))
    session.config = type(session.config)(preset="shared-nvfp4")
    with pytest.raises(UnsupportedError, match="nvfp4 is not served"):
        session.check(torch.device("cpu"))
