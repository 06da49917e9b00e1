"""`replayssm eval reads`: scalings that leave S q as it is, states and reads as the model has them."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_models import KINDS, VOCAB, build

from replayssm.cli import main
from replayssm.formats import FORMATS
from replayssm_transformers.evaluate import PREFILL
from replayssm_transformers.reads.capture import FOLLOWING, readings
from replayssm_transformers.reads.measure import read_errors
from replayssm_transformers.reads.scalings import SCALINGS, hadamard
from replayssm_transformers.stepping import Stepper


@pytest.mark.parametrize(("scaling", "name"), [(s, f) for s, way in SCALINGS.items() for f in way.formats])
def test_a_scaling_gives_the_state_back_but_for_rounding(scaling, name):
    state = torch.randn(3, 2, 32, 64) * torch.logspace(-1, 1, 64)
    state[0, 0, :, 7], state[1, 1, 3] = 0.0, 0.0
    back = SCALINGS[scaling].read_back(state, FORMATS[name])
    error = (back - state).norm() / state.norm()
    assert float(error) < {"nvfp4": 0.15, "fp8": 0.05}[name]
    assert bool(torch.isfinite(back).all())


def test_hadamard_is_its_own_inverse():
    matrix = hadamard(64)
    assert torch.allclose(matrix @ matrix, torch.eye(64, dtype=torch.float64), atol=1e-12)
    assert float(matrix.abs().max() - matrix.abs().min()) < 1e-12


def test_four_or_six_is_never_further_than_six():
    state = torch.randn(2, 2, 16, 64)
    four_or_six, block = (SCALINGS[name].read_back(state, FORMATS["nvfp4"]) - state for name in ("4 or 6", "block"))
    assert float(four_or_six.norm()) < float(block.norm())


@pytest.mark.parametrize("kind", ["mamba2", "gdn", "kda"])
def test_states_and_reads_are_the_models_own(kind, seed):
    """Two looks, the second after steps of another length, see the state of the ordinary recurrence at that token."""
    model = build(KINDS[kind])
    tokens = torch.randint(2, VOCAB, (2, 150), generator=torch.Generator().manual_seed(seed))
    positions = [PREFILL, PREFILL + 40]
    found = list(readings(model, tokens, positions))
    for position in positions:
        stepper = Stepper(model)
        stepper.step(tokens[:, :PREFILL])
        # One by one, for not every class answers alike in a prefill.
        for at in range(PREFILL, position):
            stepper.step(tokens[:, at : at + 1])
        layers = [layer for layer in stepper.cache.layers if getattr(layer, "recurrent_states", None)]
        states = [layer.recurrent_states[0] for layer in layers if layer.recurrent_states[0] is not None]
        mine = [reading for reading in found if reading.position == position]
        assert len(mine) == len(states) > 0
        for reading, state in zip(mine, states, strict=True):
            expected = state if kind == "mamba2" else state.transpose(-1, -2)
            assert torch.allclose(reading.state.float(), expected, atol=1e-4)
            assert reading.q.shape == (2, reading.state.shape[1], FOLLOWING, reading.state.shape[-1])
    by_name = {(error.format, error.scaling): error for error in read_errors(found, ["nvfp4", "fp8"])}
    assert 0.0 < by_name["fp8", "block"].query < by_name["nvfp4", "block"].query < 0.3
    assert len(by_name["nvfp4", "row"].positions) == 2


def test_the_command(tmp_path, capsys):
    file = tmp_path / "reads.json"
    assert main(["eval", "reads", "--model", "gdn", "--positions", "64", "--rows", "1", "--json", str(file)]) == 0
    assert "Hadamard" in capsys.readouterr().out
    facts = json.loads(file.read_text())
    assert {row["scaling"] for row in facts["rows"]} == set(SCALINGS)
    assert {"device", "git", "command", "positions"} <= facts["meta"].keys()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--positions", "63"], "must rise by at least 15, from 64 on"),
        (["--positions", "100,110"], "must rise by at least 15"),
        (["--formats", "int8"], "--formats='int8' is unknown"),
        (["--rows", "0"], "--rows=0 must be from 1 to 256"),
        (["--positions", "60000"], "the text holds"),
    ],
)
def test_what_the_command_refuses(capsys, argv, said):
    assert main(["eval", "reads", "--model", "gdn", *argv]) == 2
    assert said in capsys.readouterr().err
