"""`replayssm demo`: one short run, and what it refuses before anything is measured."""

from __future__ import annotations

import itertools
import json
import os
import shutil

import pytest
import torch

from replayssm import InputError, PrecisionPolicy
from replayssm.cli import main
from replayssm_transformers import evaluate
from replayssm_transformers.bundled import model_path
from replayssm_transformers.demo import command
from replayssm_transformers.demo.subject import Request, Texts, load_subject
from replayssm_transformers.loading import encode

SHORT = ["--model", "gdn", "--tokens", "8", "--prompt-tokens", "32", "--preset", "exact", "--preset", "exact"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Files are written below `tmp_path`; torch keeps the suite's one thread."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def nothing_measured(monkeypatch):
    """Fail where a refusal comes too late."""
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("something was measured"))


def refusal(capsys, *options):
    """The one line that a refused run prints."""
    assert main(["demo", *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err


def test_short_run(place, capsys):
    assert main(["demo", *SHORT, "--length", "128", "--window", "100", "--json", "facts.json", "--plot", "kl.png"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for title in ("Greedy decoding", "Prompt-lookup drafts", "teacher forced over 128 held-out tokens"):
        assert title in text
    assert (place / "kl.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads((place / "facts.json").read_text(encoding="utf-8"))
    meta, (model,) = facts["meta"], facts["models"]
    assert (meta["text"], meta["length_asked"], meta["window"]) == ("held-out", 128, 100)
    assert model["tokens"] == {"prompt": 32, "drafts_prompt": 32, "quality": 128}
    assert model["decoding"]["same"] == model["decoding"]["of"] == 8
    drafts = model["speculation"]
    assert drafts["proposed"] == drafts["accepted"] + drafts["rolled_back"]
    assert list(model["quality"]) == ["exact"]
    assert model["quality"]["exact"]["predictions"] == 128 - evaluate.PREFILL
    assert model["quality"]["exact"]["mean_kl"] < 1e-6


def test_short_prompt_file_says_so(place, capsys):
    (place / "text.txt").write_text("It came to pass in those days. " * 12, encoding="utf-8")
    assert main(["demo", *SHORT, "--prompt-file", "text.txt", "--length", "512", "--json", "facts.json"]) == 0
    facts = json.loads((place / "facts.json").read_text(encoding="utf-8"))
    count = facts["models"][0]["tokens"]["quality"]
    assert evaluate.MIN_LENGTH <= count < 512
    assert facts["meta"]["text"] == "text.txt"
    out = " ".join(capsys.readouterr().out.split())
    assert f"'text.txt' is short: 32 of 32 tokens used for the prompt, {count} of 512 for the KL" in out
    assert f"over {count} tokens of the prompt file" in out
    assert "held-out" not in out


@pytest.mark.usefixtures("nothing_measured")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tokens", "0"], "--tokens=0 must be from 1 to 65536"),
        (["--prompt-tokens", "65537"], "--prompt-tokens=65537 must be from 1 to 65536"),
        (["--length", "1"], "--length=1 must be from 66 to 65536, or 0 for none"),
        (["--length", "65"], "--length=65 must be"),
        (["--length", "-1"], "--length=-1 must be"),
        (["--threads", "0"], "--threads=0 must be from 1 to"),
        (["--threads", str(os.cpu_count() + 1)], f"must be from 1 to {os.cpu_count()}"),
        (["--window", "257"], "window=257"),
        (["--device", "foo"], "--device='foo' cannot be used here; expected cpu"),
        (["--device", "meta"], "--device='meta' cannot be used here"),
        (["--device", ""], "--device='' cannot be used here"),
        (["--device", f"cuda:{torch.cuda.device_count()}"], "cannot be used here"),
        (["--plot", "x.txt"], "--plot='x.txt' must end in .png"),
        (["--plot", "nodir/x.png"], "--plot='nodir/x.png' cannot be written: No such file"),
        (["--plot", "."], "--plot='.' must end in .png"),
        (["--plot", "folder.png"], "--plot='folder.png' cannot be written: Is a directory"),
        (["--json", "nodir/x.json"], "--json='nodir/x.json' cannot be written"),
        (["--json", "."], "--json='.' cannot be written: Is a directory"),
        (["--json", "/proc/x.json"], "--json='/proc/x.json' cannot be written"),
        (["--prompt-file", "none.txt"], "--prompt-file='none.txt' is not a file"),
        (["--prompt-file", "binary"], "--prompt-file='binary' is not UTF-8"),
        (["--prompt-file", "blank"], "--prompt-file='blank' is empty"),
        (["--prompt-file", "tiny"], "--prompt-file='tiny' holds"),
        (["--model", "llama"], "model='llama' is neither"),
    ],
)
def test_refused_before_anything_is_measured(place, capsys, options, words):
    (place / "folder.png").mkdir()
    (place / "binary").write_bytes(b"\xff\xfe\x00")
    (place / "blank").write_text(" \n", encoding="utf-8")
    (place / "tiny").write_text("In those days.", encoding="utf-8")
    assert words in refusal(capsys, *SHORT, *options)
    assert not (place / "replayssm-demo.png").exists()


def _truncate(path):
    path.write_bytes(path.read_bytes()[:1000])


BROKEN = {
    "no weights": (lambda path: (path / "model.safetensors").unlink(), "the model cannot be loaded"),
    "half the weights": (lambda path: _truncate(path / "model.safetensors"), "the model cannot be loaded"),
    "half a config": (
        lambda path: (path / "config.json").write_text('{"model_', "utf-8"),
        "the model cannot be loaded",
    ),
    "no tokenizer": (
        lambda path: [file.unlink() for file in path.glob("tokenizer*")],
        "makes no tokens of the text; expected a directory with the model's tokenizer files",
    ),
    "half a tokenizer": (lambda path: _truncate(path / "tokenizer.json"), "the tokenizer cannot be loaded"),
}


@pytest.mark.usefixtures("nothing_measured")
@pytest.mark.parametrize("name", BROKEN)
def test_broken_directory_is_named(place, capsys, name):
    path = place / "own"
    shutil.copytree(model_path("gdn"), path)
    damage, words = BROKEN[name]
    damage(path)
    message = refusal(capsys, "--model", str(path))
    assert words in message
    assert str(path) in message


@pytest.mark.usefixtures("nothing_measured")
def test_missing_weights_are_not_made_up(place, capsys):
    from safetensors.torch import load_file, save_file

    path = place / "own"
    shutil.copytree(model_path("gdn"), path)
    weights = load_file(path / "model.safetensors")
    first = min(name for name in weights if "layers" in name)
    save_file(
        {key: value for key, value in weights.items() if key != first}, path / "model.safetensors", {"format": "pt"}
    )
    assert "1 weights are missing" in refusal(capsys, "--model", str(path))


@pytest.mark.usefixtures("nothing_measured")
def test_other_models_are_refused_without_their_tokenizer(place, capsys):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)).save_pretrained(place / "llama")
    assert "not a hybrid model" in refusal(capsys, "--model", str(place / "llama"))


def test_without_kl_the_shortage_names_the_prompt():
    subject = load_subject("gdn", Texts("In those days.", "x = 1", "the text", heldout=False), Request(512, 0, "cpu"))
    assert subject.quality is None
    assert subject.shortage.startswith("gdn: the text is short: ")
    assert "KL" not in subject.shortage


def test_a_tokenizer_without_tokens_is_refused():
    with pytest.raises(InputError, match="the tokenizer in x makes no tokens"):
        encode(lambda *_, **__: {"input_ids": torch.zeros(1, 0)}, "text", 8, "the tokenizer in x")


@pytest.mark.parametrize("window", [1, 2, 16, 65, 66, 129, 256])
def test_steps_of_a_window(window):
    lengths = evaluate._step_lengths(window)
    assert sum(lengths) == window
    assert lengths[0] == 1
    assert max(lengths) <= 64


def test_wide_window_measures_what_single_tokens_do(monkeypatch):
    """Shared NVFP4 differs at each flush: pieces that flushed at other tokens would give another KL."""
    subject = load_subject("gdn", Texts.bundled(), Request(1, 330, "cpu"))
    reference = evaluate.reference_logits(subject.model, subject.quality)
    policy = PrecisionPolicy.preset("shared-nvfp4")
    pieces = evaluate.policy_divergence(subject.model, subject.quality, reference, policy, window=100)
    monkeypatch.setattr(evaluate, "cycle", lambda _: itertools.repeat(1))
    single = evaluate.policy_divergence(subject.model, subject.quality, reference, policy, window=100)
    assert pieces.mean == pytest.approx(single.mean, rel=1e-2)
    assert single.mean > 1e-7
