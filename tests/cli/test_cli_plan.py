"""`replayssm plan`: figures worked out by hand, and what the command prints."""

from __future__ import annotations

import json
import time

import pytest
from published import PUBLISHED

from replayssm.cli import main
from replayssm.errors import InputError
from replayssm.hybrid import parse_hybrid
from replayssm.layout import MAX_WINDOW
from replayssm.planning import PlanSettings, make_plan
from replayssm.planning.traffic import best_window, replay_traffic
from replayssm.precision import PRESETS
from replayssm.traffic import StateBytes

MIB, GIB = 2**20, 2**30
SUPER = parse_hybrid(PUBLISHED["Nemotron-3-Super-120B"])


def _preset(plan, name):
    return next(fact for fact in plan.presets if fact.preset == name)


def test_super_buffers():
    plan = make_plan(SUPER, PlanSettings(window=16, draft=4))
    assert plan.rows == 20
    assert {b.name: b.bytes for b in plan.buffers} == {
        "checkpoint": 4 * MIB,
        "value_ring": 128 * 20 * 64 * 2,
        "key_ring": 8 * 20 * 128 * 2,
        "gate_ring": 128 * 20 * 4,
    }
    ring = sum(b.share for b in plan.buffers) - 1
    assert ring == pytest.approx(378_880 / 4_194_304)
    assert ring <= 0.091


def test_super_memory_goals():
    plan = make_plan(SUPER, PlanSettings(window=16, draft=4))
    assert _preset(plan, "dual-nvfp4-fp16").memory.share <= 0.75
    assert _preset(plan, "exact").memory.slots >= 3 * plan.ordinary_memory.slots


def test_super_slots_by_hand():
    plan = make_plan(SUPER, PlanSettings(window=16, draft=4, memory_gib=40, context=4096))
    conv, cache = 6 * 10_240 * 2, 8 * 1024 * 4096
    ordinary = 40 * (4 * 4 * MIB + conv) + cache
    ours = 40 * (4_573_184 + conv) + cache
    assert (plan.ordinary_memory.sequence_bytes, plan.ordinary_memory.slots) == (ordinary, 40 * GIB // ordinary)
    assert (_preset(plan, "exact").memory.sequence_bytes, _preset(plan, "exact").memory.slots) == (
        ours,
        40 * GIB // ours,
    )


def test_super_ordinary_decode_traffic_by_hand():
    plan = make_plan(SUPER, PlanSettings(window=16, draft=1, batch=256))
    record, state = 8 * 128 * 2 + 128 * 64 * 2 + 128 * 4, 4 * MIB
    assert (plan.ordinary_traffic.read, plan.ordinary_traffic.written) == (state, state)
    found = _preset(plan, "exact").traffic
    # 1 … 16 records in turn: 8.5 on average.
    assert found.read == pytest.approx(state + 8.5 * record)
    assert found.written == pytest.approx(record + state / 16)
    assert found.step_bytes == pytest.approx(256 * 40 * (found.read + found.written))


@pytest.mark.parametrize(("draft", "window"), [(1, 30), (4, 53), (8, 65), (16, 77), (64, 126)])
def test_best_window_is_the_best_of_all(draft, window):
    best = best_window(SUPER, PlanSettings(draft=draft), "dual-nvfp4")
    windows = range(1, MAX_WINDOW + 1)
    gains = {w: replay_traffic(SUPER, PlanSettings(draft=draft, window=w), "dual-nvfp4").gain for w in windows}
    assert best.gain == gains[best.window] == max(gains.values())
    assert best.window == window


@pytest.mark.parametrize("preset", ["exact", "dual-nvfp4", "dual-nvfp4-fp16", "dual-fp8"])
@pytest.mark.parametrize("name", ["Nemotron-3-Super-120B", "Qwen3.5-122B", "Kimi-Linear-48B"])
def test_best_window_of_ordinary_decode_by_calculus(name, preset):
    """A window costs (flush − quiet step) / W + record (W + 1) / 2 a step: least at the square root of their ratio."""
    model, settings = parse_hybrid(PUBLISHED[name]), PlanSettings(draft=1, preset=preset)
    cost = StateBytes.of(settings.layout(model, preset))
    flush = cost.checkpoint + cost.written_state - cost.read_state
    best = best_window(model, settings, preset)
    # The records of a flush are read as a fold reads them, a little less than an output does.
    assert best.window == pytest.approx((2 * flush / cost.output_record) ** 0.5, abs=1.0)
    assert best.gain >= replay_traffic(model, settings, preset).gain


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_preset_of_every_published_model(name):
    plan = make_plan(parse_hybrid(PUBLISHED[name]), PlanSettings())
    assert [fact.preset for fact in plan.presets] == list(PRESETS)
    assert all(fact.traffic.gain > 1 for fact in plan.presets)


def test_tensor_parallel_ranks_divide_the_work():
    whole, part = (make_plan(SUPER, PlanSettings(tp=tp)) for tp in (1, 4))
    assert part.model.state_bytes == whole.model.state_bytes / 4
    assert part.presets[0].memory.slots == pytest.approx(4 * whole.presets[0].memory.slots, rel=0.01)


def test_presets_that_k_does_not_suit_are_explained():
    odd = parse_hybrid(PUBLISHED["Nemotron-3-Super-120B"] | {"ssm_state_size": 24})
    plan = make_plan(odd, PlanSettings())
    assert "exact" in {fact.preset for fact in plan.presets}
    assert "key_dim=24 must be a multiple of 16" in plan.unserved["dual-nvfp4"]
    with pytest.raises(InputError, match="key_dim=24"):
        make_plan(odd, PlanSettings(preset="dual-nvfp4"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": 8, "draft": 12}, "window 8 is below the draft length 12: 100% of the steps flush"),
        ({"window": 16, "draft": 16, "acceptance": 0.0}, "drafts of 16 at acceptance 0 soon fill a window of 16"),
        ({"window": 1, "draft": 1}, "a window of 1 is soon full"),
        ({"window": 1, "draft": 1}, "nothing is gained"),
        ({"preset": "dual-nvfp4"}, "with preset dual-nvfp4 window 53 moves 1.54 times fewer bytes than window 16"),
        ({"batch": 256, "memory_gib": 1.0}, "a batch of 256 needs 44.8 GiB with preset exact; 1 GiB hold 5."),
    ],
)
def test_warnings(settings, words):
    assert any(words in sentence for sentence in make_plan(SUPER, PlanSettings(**settings)).warnings)


def test_no_warning_for_good_settings():
    assert make_plan(SUPER, PlanSettings(batch=64)).warnings == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch", 0), ("draft", 0), ("draft", 65), ("window", 0), ("window", 257), ("tp", -1), ("acceptance", 1.5),
     ("acceptance", float("nan")), ("memory_gib", 0.0), ("memory_gib", float("inf")), ("memory_gib", 1e300),
     ("context", -1), ("context", 2**31), ("preset", "x")],
)  # fmt: skip
def test_settings_out_of_range(name, value):
    with pytest.raises(InputError, match=name):
        PlanSettings(**{name: value})


@pytest.mark.parametrize("options", ["", "--draft 1", "--tp 8 --context 131072", "--preset dual-nvfp4-fp16"])
@pytest.mark.parametrize("name", ["Nemotron-3-Super-120B", "Kimi-K3", "Falcon-H1-1.5B"])
def test_text_is_plain_and_narrow(name, options, config, capsys):
    assert main(["plan", "--config", str(config(name)), *options.split()]) == 0
    text = capsys.readouterr().out
    assert "Counted bytes, not measured times" in text
    assert "\x1b" not in text
    # The first line is the path, as long as it is.
    assert max(map(len, text.splitlines()[1:])) <= 100


def test_json_holds_the_same_facts(config, capsys):
    path = config("Nemotron-3-Super-120B")
    assert main(["plan", "--config", str(path), "--json", "--window", "20"]) == 0
    facts = json.loads(capsys.readouterr().out)
    plan = make_plan(parse_hybrid(PUBLISHED["Nemotron-3-Super-120B"]), PlanSettings(window=20))
    assert facts["model"]["recurrence"]["kind"] == "mamba2"
    assert facts["model"]["state_bytes"] == 4 * MIB
    assert facts["settings"]["window"] == 20
    assert [b["bytes"] for b in facts["buffers"]] == [b.bytes for b in plan.buffers]
    assert [p["traffic"]["gain"] for p in facts["presets"]] == [p.traffic.gain for p in plan.presets]
    assert [f["rate"] for f in facts["flushes"]] == [f.rate for f in plan.flushes]
    assert facts["warnings"] == list(plan.warnings)
    assert "no times are measured" in facts["unit"]


def test_bad_input_is_one_line_and_status_2(tmp_path, capsys):
    assert main(["plan", "--config", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("replayssm plan: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("option", "value"), [("--config", ""), ("--memory-gib", "1e300"), ("--acceptance", "2")])
def test_bad_option_is_one_line_and_status_2(option, value, config, capsys):
    assert main(["plan", "--config", str(config("Kimi-K3")), option, value]) == 2
    error = capsys.readouterr().err
    assert option.strip("-").replace("-", "_") in error
    assert error.count("\n") == 1


def test_sizes_that_no_machine_holds_are_refused(config, capsys):
    sizes = dict.fromkeys(("mamba_num_heads", "n_groups", "mamba_head_dim", "ssm_state_size"), 2**31)
    path = config(PUBLISHED["Nemotron-3-Super-120B"] | sizes)
    assert main(["plan", "--config", str(path)]) == 2
    assert "bytes; expected at most" in capsys.readouterr().err


def test_largest_numbers_are_planned(config, capsys):
    sizes = {"conv_kernel": 2**31, "num_key_value_heads": 2**31, "head_dim": 2**31}
    path = config(PUBLISHED["Nemotron-3-Super-120B"] | sizes)
    assert main(["plan", "--config", str(path), "--memory-gib", "2147483647", "--context", "2147483647"]) == 0
    assert "slots" in capsys.readouterr().out


def test_help_says_what_acceptance_is(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    assert "--acceptance PROBABILITY" in capsys.readouterr().out


def test_a_plan_is_quick():
    start = time.perf_counter()
    make_plan(SUPER, PlanSettings(draft=7, acceptance=0.77))
    assert time.perf_counter() - start < 5
