"""Ways of generating, once for each recurrence: assistants, sampling, continued and chunked prompts, precisions."""

from __future__ import annotations

import pytest
import torch
from tiny_models import GREEDY, KINDS, build, cache_name, enabled, new_cache, prompt, run, tiny

from replayssm import FlushPolicy, InputError

pytestmark = pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)


def noisy(name, drafts):
    """An assistant with the model's weights and disturbed outputs: right often, not always."""
    assistant = build(name)
    weight = assistant.get_output_embeddings().weight
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
    weight.data.add_(noise * 0.25 * weight.std())
    assistant.generation_config.num_assistant_tokens = drafts
    assistant.generation_config.assistant_confidence_threshold = 0.0
    return assistant


def test_assistant_of_the_same_class(name):
    model, assistant, ids = tiny(name), noisy(name, drafts=3), prompt()
    reference = model.generate(ids, max_new_tokens=24, **GREEDY)
    options = {"window": 5, "max_draft": 4}
    with enabled(model, **options) as main, enabled(assistant, **options) as helper:
        out = model.generate(ids, max_new_tokens=24, assistant_model=assistant, **GREEDY)
    assert torch.equal(out.sequences, reference.sequences)
    assert main.totals()["rolled_back"] > 0
    assert helper.totals()["rolled_back"] > 0
    assert main.totals()["accepted"] > main.totals()["steps"]


def test_sampling_with_a_seed(name):
    options = {"max_new_tokens": 20, "do_sample": True, "temperature": 0.9, "top_k": 20, "num_return_sequences": 2}
    torch.manual_seed(7)
    reference = tiny(name).generate(prompt(rows=2), **options)
    with enabled(tiny(name), window=4):
        torch.manual_seed(7)
        assert torch.equal(tiny(name).generate(prompt(rows=2), **options), reference)


def test_generate_goes_on_from_a_returned_cache(name):
    model, first = tiny(name), prompt()

    def two_turns():
        out = model.generate(first, max_new_tokens=9, **GREEDY)
        cache = getattr(out, cache_name(model))
        ids = torch.cat((out.sequences, prompt(5, seed=3)), dim=1)
        return model.generate(ids, max_new_tokens=12, **{cache_name(model): cache}, **GREEDY).sequences

    reference = two_turns()
    with enabled(model, window=4):
        assert torch.equal(two_turns(), reference)


def test_chunked_prefill(name):
    model, ids = tiny(name), prompt(23, rows=2)
    reference = model.generate(ids, max_new_tokens=12, **GREEDY).sequences
    with enabled(model, window=4):
        assert torch.equal(model.generate(ids, max_new_tokens=12, prefill_chunk_size=7, **GREEDY).sequences, reference)


def test_a_cache_that_was_ordinary_is_taken_over(name):
    model, chunks = tiny(name), [prompt(8), *prompt(6, seed=2).split(1, dim=1)]
    expected, _ = run(model, chunks)
    _, cache = run(model, chunks[:2])
    with enabled(model, window=4):
        logits, _ = run(model, chunks[2:], cache, start=9)
    torch.testing.assert_close(logits, expected[:, 9:], atol=1e-4, rtol=0)


def test_recording_without_crops_accepts_what_it_can_no_longer_remove(name):
    model, chunks = tiny(name), [prompt(8), *prompt(9, seed=2).split(1, dim=1), prompt(2, seed=3)]
    # The last two tokens come one by one in the reference: see the bound on Δ in operators.py.
    expected, _ = run(model, [*chunks[:-1], *chunks[-1].split(1, dim=1)])
    with enabled(model, window=3, max_draft=4):
        cache = new_cache(model)
        cache.activate_past_recording()
        logits, cache = run(model, chunks, cache)
        with pytest.raises(InputError, match="max_draft=4"):
            cache.crop(-5)
        cache.crop(-4)
        again = torch.cat((chunks[-3], chunks[-2], chunks[-1]), dim=1)
        repeated, _ = run(model, [again], cache, start=15)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(repeated, expected[:, 15:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("preset", ["exact", "dual-nvfp4", "shared-nvfp4"])
def test_bf16_runs_in_every_kind_of_precision(name, preset):
    model = tiny(name, dtype=torch.bfloat16)
    with enabled(model, window=8, preset=preset) as session:
        out = model.generate(prompt(), max_new_tokens=12, **GREEDY)
    assert torch.stack(out.logits).isfinite().all()
    assert session.totals()["flushes"] > 0


def test_low_precision_differs(name):
    tokens = [prompt(16), *prompt(24, seed=4).split(1, dim=1)]
    expected, _ = run(tiny(name), tokens)
    errors = {}
    for preset in ("exact", "dual-nvfp4", "shared-nvfp4"):
        with enabled(tiny(name), window=8, preset=preset):
            logits, _ = run(tiny(name), tokens)
        errors[preset] = (logits - expected)[:, 16:].square().mean().sqrt()
    assert errors["exact"] < 1e-5 < errors["dual-nvfp4"]
    assert errors["dual-nvfp4"] != errors["shared-nvfp4"] > 1e-5


@pytest.mark.parametrize("schedule", [FlushPolicy(stagger=True), FlushPolicy(budget=1), FlushPolicy(boundary=3)])
def test_flush_schedules_and_the_plain_backend_change_nothing(name, schedule):
    model, ids = tiny(name), prompt(rows=2)
    reference = model.generate(ids, max_new_tokens=10, **GREEDY).sequences
    with enabled(model, window=4, flush=schedule, backend="naive"):
        assert torch.equal(model.generate(ids, max_new_tokens=10, **GREEDY).sequences, reference)
