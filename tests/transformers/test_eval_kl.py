"""`replayssm eval kl`: policies beside the ordinary recurrence in one pass, what is written, and what is refused."""

from __future__ import annotations

import json
import math
import os
import random

import pytest
import torch
from tiny_models import BY_NAME, KINDS, VOCAB, build, prompt, tiny

from replayssm import PRESETS, InputError, PrecisionPolicy
from replayssm.cli import main
from replayssm_transformers import evaluate, patch, session_of
from replayssm_transformers.divergence import Divergence
from replayssm_transformers.evaluate import Comparison, policy_divergence, reference_logits, share_weights
from replayssm_transformers.kl import command

FLOOR = {"Nemotron-H": 1e-6, "Zamba2": 1e-6, "GLM-5-Next": 1e-3}
"""Where the model itself answers differently token by token and in chunks, without ReplaySSM: logits of these three are
2e-3, 4e-3 and 0.4 apart, the last for what its sparse attention chooses."""

WORDS = [f"w{number}" for number in range(VOCAB)]


def save(path, model, words=WORDS):
    """A model directory with a tokenizer that knows one token a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.save_pretrained(path)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=words[0]).save_pretrained(path)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories: a hybrid model, one whose tokenizer knows more tokens than it does, and one that is not hybrid."""
    from transformers import LlamaConfig, LlamaForCausalLM

    place = tmp_path_factory.mktemp("models")
    save(place / "tiny", build(KINDS["mamba2"]))
    save(place / "foreign", build(KINDS["mamba2"]), [f"w{VOCAB + 40 - number}" for number in range(VOCAB + 40)])
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    save(place / "llama", LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, **sizes)))
    return place


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch, models):
    """Work below `tmp_path`, with a text of 700 tokens."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").symlink_to(models / "tiny")
    (tmp_path / "foreign").symlink_to(models / "foreign")
    (tmp_path / "llama").symlink_to(models / "llama")
    words = random.Random(0).choices(WORDS[2:-8], k=700)
    (tmp_path / "text.txt").write_text(" ".join(words), encoding="utf-8")
    return tmp_path


def run(*options):
    return main(["eval", "kl", "--model", "tiny", "--text", "text.txt", *options])


def finish(comparison):
    """Run to the end; the predictions of a row."""
    return sum(comparison.run())


# Side by side.


@pytest.mark.parametrize("name", BY_NAME)
def test_exact_policy_has_no_divergence_in_any_family(name):
    model, tokens = tiny(name), prompt(100, rows=2)
    comparison = Comparison(model, tokens, {"exact": PrecisionPolicy()})
    assert finish(comparison) == 100 - evaluate.PREFILL
    result = comparison.results()["exact"]
    assert result.rows.shape == (2, 100 - evaluate.PREFILL)
    assert abs(result.mean) < FLOOR.get(name, 1e-10)
    assert result.cross_entropy == pytest.approx(
        comparison.reference_cross_entropy(), abs=1e-2 if name in FLOOR else 1e-4
    )
    assert session_of(model) is None
    assert patch.installed() == {}


@pytest.mark.parametrize(("kind", "window"), [("gdn", 1), ("mamba2", 16), ("kda", 70)])
def test_side_by_side_is_one_after_the_other(kind, window, monkeypatch):
    # Small chunks: what the reference hands out crosses their borders.
    monkeypatch.setattr(evaluate, "LOGITS", 0)
    model, tokens = tiny(KINDS[kind]), prompt(230 if window > 1 else 100, rows=2)
    policies = {name: PRESETS[name] for name in ("shared-nvfp4", "dual-nvfp4")}
    comparison = Comparison(model, tokens, policies, window)
    finish(comparison)
    reference = reference_logits(model, tokens)
    for name, policy in policies.items():
        alone = policy_divergence(model, tokens, reference, policy, window)
        together = comparison.results()[name]
        assert torch.equal(together.position, alone.position)
        torch.testing.assert_close(together.rows, alone.rows, rtol=1e-3, atol=1e-9)
        assert together.same_top == alone.same_top


def test_stopping_early_keeps_what_is_measured():
    comparison = Comparison(
        tiny(KINDS["gdn"]), prompt(200), {"exact": PRESETS["exact"], "dual-fp8": PRESETS["dual-fp8"]}
    )
    assert comparison.results() == {}
    steps = comparison.run()
    done = next(steps) + next(steps) + next(steps)
    steps.close()
    assert patch.installed() == {}
    assert {name: len(result.position) for name, result in comparison.results().items()} == {
        "exact": done,
        "dual-fp8": done,
    }


def test_interruption_inside_a_step_leaves_no_policy_ahead(monkeypatch):
    comparison = Comparison(
        tiny(KINDS["gdn"]), prompt(200), {"exact": PRESETS["exact"], "dual-fp8": PRESETS["dual-fp8"]}
    )
    steps = comparison.run()
    done = next(steps) + next(steps)
    add, calls = evaluate._Scores.add, []

    def interrupted(self, *args):
        calls.append(self)
        if len(calls) == 3:
            raise KeyboardInterrupt
        add(self, *args)

    monkeypatch.setattr(evaluate._Scores, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    results = comparison.results()
    assert {len(result.position) for result in results.values()} == {done}
    assert results["exact"].cross_entropy == pytest.approx(comparison.reference_cross_entropy(), abs=1e-4)
    assert patch.installed() == {}


@pytest.mark.parametrize("name", BY_NAME)
def test_twins_share_every_weight(name):
    model = tiny(name)
    twin = share_weights(model)
    ours, theirs = dict(model.named_parameters()), dict(twin.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(theirs[key] is ours[key] for key in ours)
    assert not {id(module) for module in model.modules()} & {id(module) for module in twin.modules()}


def test_cross_entropy_is_of_the_next_token():
    model, tokens = tiny(KINDS["gdn"]), prompt(90, rows=2)
    comparison = Comparison(model, tokens, {"exact": PRESETS["exact"]})
    finish(comparison)
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits[:, evaluate.PREFILL - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, evaluate.PREFILL :].flatten())
    assert comparison.reference_cross_entropy() == pytest.approx(float(expected), abs=1e-4)


# Statistics.


def made(rows):
    return Divergence(torch.arange(64, 64 + rows.shape[1]), rows, 1.0, 1.0)


def test_standard_error_covers_the_mean():
    """Of 400 samples with a known mean, about 95 % lie within two standard errors; blocks of 10 are correlated inside."""
    noise = torch.randn(400, 3, 16, dtype=torch.float64).repeat_interleave(10, dim=2)
    samples = [made(1.0 + 0.3 * rows) for rows in noise]
    inside = sum(abs(sample.mean - 1.0) <= 2 * sample.standard_error() for sample in samples)
    assert 0.90 <= inside / len(samples) <= 0.99


def test_slope_and_ratio_are_found():
    position = torch.arange(64, 64 + 3200, dtype=torch.float64)
    shape = 1.0 + torch.rand(2, 3200, dtype=torch.float64)
    rising = made(2e-3 * position.expand(2, -1) + 0.01 * shape)
    slope, error = rising.slope()
    assert slope == pytest.approx(2.0, abs=5 * error)
    ratio, error = made(3.0 * shape).ratio_to(made(shape))
    assert ratio == pytest.approx(3.0)
    assert error == pytest.approx(0.0, abs=1e-9)


def test_ratio_to_nothing_is_no_number():
    nothing = made(torch.zeros(1, 100, dtype=torch.float64))
    assert all(map(math.isnan, nothing.ratio_to(nothing)))


def test_a_few_predictions_are_still_valid_json():
    data = made(torch.full((1, 1), math.nan, dtype=torch.float64)).as_data()
    assert data["mean_kl"] is None
    assert data["slope_per_1k_tokens"] is None
    json.dumps(data, allow_nan=False)


# The command.


def test_rows_table_json_and_plot(place, capsys):
    options = [
        "--presets",
        "dual-nvfp4,shared-nvfp4",
        "exact",
        "--length",
        "160",
        "--json",
        "kl.json",
        "--plot",
        "kl.png",
    ]
    assert run(*options) == 0
    captured = capsys.readouterr()
    assert "4 rows of 96 predictions of --text='text.txt', W = 16, float32, cpu" in captured.out
    lines = captured.out.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["dual-nvfp4", "shared-nvfp4", "exact", "fp32"]
    assert "tiny: 4 rows of 160 tokens" in captured.err
    assert (place / "kl.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads((place / "kl.json").read_text(encoding="utf-8"))
    meta = facts["meta"]
    assert (meta["rows"], meta["length"], meta["predictions_of_a_row"], meta["complete"]) == (4, 160, 96, True)
    assert meta["baseline"] == "shared-nvfp4"
    assert {"device", "versions", "git", "command", "model", "text", "window", "dtype", "backend"} <= meta.keys()
    assert "transformers" in meta["versions"]
    assert list(facts["presets"]) == ["dual-nvfp4", "shared-nvfp4", "exact"]
    shared, dual, exact = (facts["presets"][name] for name in ("shared-nvfp4", "dual-nvfp4", "exact"))
    assert shared["ratio_to_baseline"] == 1.0
    assert dual["ratio_to_baseline"] == pytest.approx(dual["mean_kl"] / shared["mean_kl"])
    assert exact["mean_kl"] < 1e-6 < dual["mean_kl"] < shared["mean_kl"]
    assert dual["predictions"] == 4 * 96
    assert dual["standard_error"] > 0
    assert exact["cross_entropy"] == pytest.approx(facts["reference"]["cross_entropy"], abs=1e-4)
    assert not list(place.glob(".kl.json*"))


def test_the_text_decides_length_and_rows(place):
    text = (place / "text.txt").read_text(encoding="utf-8")
    (place / "text.txt").write_text(" ".join(text.split()[:400]), encoding="utf-8")
    assert run("--presets", "exact", "--json", "one.json") == 0
    assert run("--presets", "exact", "--rows", "3", "--json", "three.json") == 0
    shapes = []
    for name in ("one.json", "three.json"):
        meta = json.loads((place / name).read_text(encoding="utf-8"))["meta"]
        shapes.append((meta["rows"], meta["length"]))
    assert shapes == [(1, 400), (3, 133)]


def test_bfloat16_and_another_backend(place):
    options = ["--dtype", "bfloat16", "--backend", "naive", "--length", "128", "--rows", "1", "--presets", "exact"]
    assert run(*options, "--json", "kl.json") == 0
    meta = json.loads((place / "kl.json").read_text(encoding="utf-8"))["meta"]
    assert (meta["dtype"], meta["backend"]) == ("bfloat16", "naive")


def test_an_interruption_loses_nothing(place, capsys, monkeypatch):
    monkeypatch.setattr(command, "SAVE_SECONDS", 0.0)
    written = []

    def interrupt(*_):
        written.append(
            json.loads((place / "kl.json").read_text(encoding="utf-8")) if (place / "kl.json").exists() else None
        )
        if len(written) == 4:
            raise KeyboardInterrupt
        return "so far"

    monkeypatch.setattr(command, "status", interrupt)
    assert run("--length", "400", "--json", "kl.json", "--plot", "kl.png") == command.INTERRUPTED
    counts = [facts and facts["meta"]["predictions_of_a_row"] for facts in written]
    assert counts[0] is None
    assert counts[1:] == sorted(counts[1:])
    final = json.loads((place / "kl.json").read_text(encoding="utf-8"))
    done = final["meta"]["predictions_of_a_row"]
    assert counts[-1] < done < 400 - evaluate.PREFILL
    assert final["meta"]["complete"] is False
    assert final["presets"]["dual-nvfp4"]["predictions"] == done
    captured = capsys.readouterr()
    assert f"interrupted after {done} of 336 predictions a row" in captured.err
    assert f"{done} predictions of" in captured.out
    assert (place / "kl.png").exists()
    assert patch.installed() == {}


def test_bundled_model_on_its_held_out_text(place, capsys):
    options = ["--model", "gdn", "--length", "144", "--rows", "2", "--threads", "1", "--json", "kl.json"]
    assert main(["eval", "kl", *options]) == 0
    assert "of the held-out text" in capsys.readouterr().out
    facts = json.loads((place / "kl.json").read_text(encoding="utf-8"))
    means = {name: preset["mean_kl"] for name, preset in facts["presets"].items()}
    assert means["exact"] < 1e-9
    assert means["dual-nvfp4"] < means["shared-nvfp4"]
    assert facts["presets"]["dual-nvfp4"]["ratio_to_baseline"] < 1


# What is refused.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "nowhere"], "model='nowhere' is neither a bundled model"),
        (["--model", "text.txt"], "nor a directory with a config.json"),
        (["--model", "llama"], "LlamaForCausalLM is not a hybrid model"),
        (["--model", "foreign"], "but the model knows 96; expected its own tokenizer"),
        (["--presets", "fp4"], "--presets='fp4' is unknown; expected some of exact, "),
        (["--presets", ","], "--presets is empty"),
        (["--presets", "exact", "--baseline", "dual-fp8"], "--baseline='dual-fp8' is not measured; expected one of"),
        (
            ["--presets", "exact", "--backend", "triton"],
            "'exact' is not served here: backend 'triton' does not serve device",
        ),
        (["--backend", "cuda"], "--backend='cuda' is unknown; expected one of auto, naive, torch, triton"),
        (["--dtype", "fp8"], "--dtype='fp8' is unknown; expected one of float32, bfloat16, float16"),
        (["--length", "127"], "--length=127 must be from 128 to"),
        (["--length", "701"], "--text='text.txt' holds 700 tokens; --rows=1 of --length=701 needs 701"),
        (["--length", "256", "--rows", "3"], "holds 700 tokens; --rows=3 of --length=256 needs 768"),
        (["--rows", "6"], "holds 700 tokens; --rows=6 of at least 128 needs 768"),
        (["--rows", "0"], "--rows=0 must be from 1 to"),
        (["--window", "0"], "window=0"),
        (["--threads", str(os.cpu_count() + 1)], "--threads="),
        (["--device", "foo"], "--device='foo' cannot be used here; expected cpu"),
        (["--text", "none.txt"], "--text='none.txt' is not a file"),
        (["--text", "blank"], "--text='blank' is empty"),
        (["--text", "short"], "--text='short' holds 3 tokens; --rows=1 of at least 128 needs 128"),
        (["--json", "."], "--json='.' cannot be written: Is a directory"),
        (["--json", "nodir/x.json"], "--json='nodir/x.json' cannot be written"),
        (["--plot", "x.pdf"], "--plot='x.pdf' must end in .png"),
    ],
)
def test_refused_in_one_line_before_anything_is_measured(place, capsys, monkeypatch, options, words):
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("something was measured"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    (place / "blank").write_text(" \n", encoding="utf-8")
    (place / "short").write_text("w3 w4 w5", encoding="utf-8")
    assert run(*options) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("replayssm eval: ")
    assert captured.out == ""


def test_a_preset_that_the_layers_cannot_do_names_those_that_they_can(place, capsys):
    from tiny_models import config_of

    family = BY_NAME["Nemotron-H"]
    from transformers.models.nemotron_h import NemotronHForCausalLM

    save(place / "narrow", NemotronHForCausalLM(config_of(family, ssm_state_size=8)))
    capsys.readouterr()  # Saving tells how far it is.
    assert run("--model", "narrow", "--presets", "exact", "dual-nvfp4") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--presets='dual-nvfp4' is not served here: " in error
    assert "16" in error
    assert error.rstrip().endswith("expected some of exact, fp16-sr, dual-fp8, shared-fp8")


def test_logits_that_are_not_finite_are_refused(place, capsys, monkeypatch):
    step = evaluate.Stepper.step

    def poisoned(self, tokens):
        logits = step(self, tokens)
        return logits * math.nan if session_of(self.model) is not None else logits

    monkeypatch.setattr(evaluate.Stepper, "step", poisoned)
    assert run("--length", "128", "--rows", "1", "--presets", "exact", "--json", "kl.json") == 2
    assert "--presets='exact': logits are not finite after 64 tokens" in capsys.readouterr().err
    assert json.loads((place / "kl.json").read_text(encoding="utf-8"))["meta"]["complete"] is False


def test_too_short_for_a_comparison():
    with pytest.raises(InputError, match="needs at least 66"):
        Comparison(tiny(KINDS["gdn"]), prompt(65), {})
