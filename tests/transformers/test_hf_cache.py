"""Our cache layers under everything that one can do to a cache."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from tiny_models import KINDS, LOGIT_TOLERANCE, enabled, forward, new_cache, prompt, run, states, tiny

from replayssm import InputError, UnsupportedError
from replayssm_transformers.layer import ReplayLayer

pytestmark = pytest.mark.parametrize("name", [*KINDS.values(), "Falcon-H1"])


def tokens(count, rows=1, seed=5):
    return prompt(count, rows=rows, seed=seed).split(1, dim=1)


@pytest.mark.parametrize("rows", [[2, 0], [1, 1, 2, 0]])
def test_batch_select_indices(name, rows):
    model, more = tiny(name), prompt(3, rows=3, seed=6)
    with enabled(model, window=4):
        expected, _ = run(model, [prompt(6, rows=3), *tokens(6, rows=3), *more.split(1, dim=1)])
        _, cache = run(model, [prompt(6, rows=3), *tokens(6, rows=3)])
        cache.batch_select_indices(torch.tensor(rows))
        logits, _ = run(model, more[rows].split(1, dim=1), cache, start=12)
    assert (logits - expected[rows, 12:]).abs().max() < LOGIT_TOLERANCE


def test_batch_repeat_interleave(name):
    model, more = tiny(name), prompt(3, rows=4, seed=6)
    with enabled(model, window=4):
        _, cache = run(model, [prompt(6, rows=2), *tokens(6, rows=2)])
        cache.batch_repeat_interleave(2)
        logits, _ = run(model, more.split(1, dim=1), cache, start=12)
    start = prompt(6, rows=2).repeat_interleave(2, dim=0)
    middle = prompt(6, rows=2, seed=5).repeat_interleave(2, dim=0)
    expected, _ = run(model, [start, *middle.split(1, dim=1), *more.split(1, dim=1)])
    assert (logits - expected[:, 12:]).abs().max() < LOGIT_TOLERANCE


def test_reset_is_a_fresh_layer_bit_for_bit(name):
    model, chunks = tiny(name), [prompt(6, seed=8), *tokens(7, seed=9)]
    if name == "Falcon-H1":
        pytest.skip("its layers hold attention too, whose reset leaves zeros in transformers 5.17")
    with enabled(model, window=4):
        fresh, _ = run(model, chunks, new_cache(model))
        _, used = run(model, [prompt(5), *tokens(6)])
        again = new_cache(model)
        for index, layer in enumerate(used.layers):
            if isinstance(layer, ReplayLayer):
                layer.reset()
                again.layers[index] = layer
        logits, _ = run(model, chunks, again)
    assert torch.equal(fresh, logits)


def test_a_copied_cache_goes_its_own_way(name):
    model, here, there = tiny(name), tokens(5, seed=1), tokens(5, seed=2)
    with enabled(model, window=4) as session:
        expected = [run(model, [prompt(6), *tokens(5), *end])[0][:, 11:] for end in (here, there)]
        _, cache = run(model, [prompt(6), *tokens(5)])
        other = copy.deepcopy(cache)
        before = session.totals()["steps"]
        for end, one, want in zip((here, there), (cache, other), expected, strict=True):
            logits, _ = run(model, end, one, start=11)
            assert torch.equal(logits, want)
        # Both are counted, and disable finds both.
        assert session.totals()["steps"] == before + 10 * len(session.layer_indices)
    for one in (cache, other):
        assert not any(isinstance(layer, ReplayLayer) for layer in one.layers)


def test_disable_gives_live_caches_their_exact_states(name):
    model = tiny(name)
    _, plain = run(model, [prompt(6), *tokens(5)])
    with enabled(model, window=4):
        _, cache = run(model, [prompt(6), *tokens(5)])
    assert [type(layer) for layer in cache.layers] == [type(layer) for layer in plain.layers]
    for ours, theirs in zip(states(cache), states(plain), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_states_die_with_their_cache(name):
    with enabled(tiny(name)) as session:
        _, cache = forward(tiny(name), prompt())
        handles = [weakref.ref(layer.handle) for layer in session.layers_alive if layer.handle is not None]
        assert handles
        del cache
        gc.collect()
        assert not [handle for handle in handles if handle() is not None]
        assert not list(session.layers_alive)


def test_refused_operations_leave_the_cache_usable(name):
    model = tiny(name)
    expected, _ = run(model, [prompt(6), *tokens(3)])
    with enabled(model, window=4):
        _, cache = run(model, [prompt(6), *tokens(2)])
        layer = next(layer for layer in cache.layers if isinstance(layer, ReplayLayer))
        for call in (lambda: layer.reorder_cache(torch.tensor([0])), layer.offload, layer.prefetch):
            with pytest.raises(UnsupportedError):
                call()
        with pytest.raises(InputError, match="batch has 2 rows, the cache holds 1"):
            layer.handle.run(_batch_of_two(layer), None, False)
        cache.activate_past_recording()
        with pytest.raises(InputError, match="crop by 1 tokens, but only the last 0"):
            cache.crop(-1)
        logits, _ = run(model, tokens(3)[2:], cache, start=8)
    assert (logits - expected[:, -1:]).abs().max() < LOGIT_TOLERANCE


def test_a_refused_crop_cuts_no_layer(name):
    model = tiny(name)
    expected, _ = run(model, [prompt(6), *tokens(6)])
    with enabled(model, window=4, max_draft=3):
        cache = new_cache(model)
        _, cache = run(model, [prompt(6), *tokens(3)], cache)
        with pytest.raises(InputError, match=r"does not record its past; call cache\.activate_past_recording"):
            cache.crop(-1)
        cache.activate_past_recording()
        run(model, [torch.cat(tokens(6)[3:5], dim=1)], cache, start=9)
        lengths = sizes(cache)
        for count, reason in ((-3, "only the last 2 await acceptance"), (1, "would keep a length")):
            # Attention first: it would be cut before ours refuse.
            kept = cache.layers
            cache.layers = sorted(kept, key=lambda layer: isinstance(layer, ReplayLayer))
            with pytest.raises(InputError, match=reason):
                cache.crop(count)
            cache.layers = kept
            assert sizes(cache) == lengths
        cache.crop(-1)
        logits, _ = run(model, [torch.cat(tokens(6)[4:], dim=1)], cache, start=10)
    assert (logits - expected[:, -2:]).abs().max() < LOGIT_TOLERANCE


def sizes(cache):
    """Tokens in the attention part of each layer and columns in the convolution part."""
    return [
        [
            state.shape
            for state in (getattr(layer, "keys", None), getattr(layer, "conv_states", {}).get(0))
            if state is not None
        ]
        for layer in cache.layers
    ]


def _batch_of_two(layer):
    from types import SimpleNamespace

    return SimpleNamespace(inputs=SimpleNamespace(draft=1, batch=2), recurrence=layer.handle.replay.layout.recurrence)
