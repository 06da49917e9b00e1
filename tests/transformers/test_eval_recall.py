"""`replayssm eval recall`: the task's own rules, Wilson's interval, answers of a model through every policy."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_models import KINDS, build

from replayssm import PRESETS
from replayssm.cli import main
from replayssm_transformers.recall.measure import REFERENCE, scores
from replayssm_transformers.recall.score import Score, wilson
from replayssm_transformers.recall.task import BLOCK, KEYS, OTHERS, VALUES, VOCABULARY, draw


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("distractors", [0, 8, 100])
def test_every_answer_was_told_once(distractors, seed):
    recall = draw(5, 7, distractors, generator(seed))
    told = recall.tokens[:, 1:15].unflatten(1, (7, 2))
    for row, answers, asked in zip(told, recall.answers, recall.tokens[:, recall.asked], strict=True):
        pairs = dict(row.tolist())
        assert len(pairs) == 7
        assert [pairs[key] for key in asked.tolist()] == answers.tolist()
        assert sorted(pairs) == sorted(asked.tolist())
    assert recall.tokens.shape[1] == 1 + 2 * 14 + distractors // BLOCK * BLOCK


def test_distractors_repeat_themselves_and_know_nothing_of_the_pairs(seed):
    recall = draw(6, 3, 80, generator(seed))
    noise = recall.tokens[:, 7:87]
    keys, values = noise[:, ::2], noise[:, 1::2]
    for found, allowed in ((keys, OTHERS), (values, VALUES), (recall.tokens[:, recall.asked], KEYS)):
        assert int(found.min()) >= allowed.start
        assert int(found.max()) < allowed.stop
    assert torch.equal(recall.tokens[:, recall.repeats], recall.tokens[:, recall.repeats - 4])
    assert torch.equal(recall.tokens[:, recall.repeats + 1], recall.tokens[:, recall.repeats - 3])
    block = keys.unflatten(1, (-1, 4))
    assert bool((block[..., 0] != block[..., 1]).all())


def test_wilson_by_hand():
    assert wilson(0, 10)[0] == 0.0
    assert wilson(0, 10)[1] == pytest.approx(0.2775, abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_score_counts_what_changed():
    answers = torch.tensor([[1, 2, 3, 4]])
    score = Score.of(torch.tensor([[1, 9, 3, 4]]), answers, torch.tensor([[9, 2, 3, 9]]))
    assert (score.asked, score.right, score.lost, score.won) == (4, 3, 1, 2)
    assert score.accuracy == 0.75


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A random model that knows the task's tokens."""
    place = tmp_path_factory.mktemp("recall")
    for kind in ("gdn", "mamba2"):
        with_words = build(KINDS[kind])
        with_words.resize_token_embeddings(VOCABULARY)
        with_words.save_pretrained(place / kind)
    build(KINDS["gdn"]).save_pretrained(place / "other")
    return place


@pytest.mark.parametrize("kind", ["gdn", "mamba2"])
def test_an_exact_state_answers_as_the_recurrence_does(directory, kind):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory / kind, dtype=torch.float32).eval()
    recall = draw(3, 5, 64, generator(1))
    found = scores(model, recall, {"exact": PRESETS["exact"]}, window=8)
    assert (found["exact"].lost, found["exact"].won) == (0, 0)
    assert found["exact"].right == found[REFERENCE].right
    logits = model(recall.tokens).logits[:, recall.asked].argmax(-1)
    assert found[REFERENCE].right == int((logits == recall.answers).sum())


def test_the_command(directory, tmp_path, capsys):
    file = tmp_path / "recall.json"
    sizes = ("--rows", "2", "--pairs", "4", "--distractors", "40", "--presets", "exact,dual-nvfp4")
    assert main(["eval", "recall", "--model", str(directory / "gdn"), *sizes, "--json", str(file)]) == 0
    assert "dual-nvfp4" in capsys.readouterr().out
    facts = json.loads(file.read_text())
    assert list(facts["presets"]) == [REFERENCE, "exact", "dual-nvfp4"]
    assert facts["presets"]["exact"]["asked"] == 8
    assert {"device", "versions", "git", "command", "model", "distractors", "seed"} <= facts["meta"].keys()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--presets", "nvfp4"], "--presets='nvfp4' is unknown"),
        (["--pairs", "0"], "--pairs=0 must be from 1 to 128"),
        (["--window", "65"], "--window=65 must be from 1 to 64"),
        (["--backend", "cuda"], "--backend='cuda' is unknown"),
        (["--model", "other"], "knows 96 tokens; the task has 257"),
    ],
)
def test_what_the_command_refuses(directory, monkeypatch, capsys, argv, said):
    monkeypatch.chdir(directory)
    assert main(["eval", "recall", "--model", "gdn", *argv]) == 2
    assert said in capsys.readouterr().err


def test_a_trained_model_remembers_through_a_copy_and_not_through_a_shared_state():
    """The bundled GDN model after 1,024 other tokens: 95 % intervals of the copy and of the shared state lie apart."""
    from replayssm_transformers.bundled import model_path
    from replayssm_transformers.loading import load_hybrid

    model = load_hybrid(model_path("recall-gdn"), "cpu")
    chosen = {name: PRESETS[name] for name in ("dual-nvfp4", "shared-nvfp4")}
    found = scores(model, draw(8, 32, 1024, generator(2)), chosen)
    assert found[REFERENCE].accuracy > 0.9
    assert found["dual-nvfp4"].lost <= 0.03 * found["dual-nvfp4"].asked
    assert found["dual-nvfp4"].interval[0] > found["shared-nvfp4"].interval[1]
