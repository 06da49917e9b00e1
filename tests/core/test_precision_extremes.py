"""What no model's state should hold, and what rounding at random must be: unbiased, in the very states that are stored."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from nan_states import check_nan

from interpreting import interpret
from replayssm import PRESETS, InputError, LayerKind, PrecisionPolicy, Recurrence, ReplayState, StateLayout
from replayssm.capability import CAPABILITIES, supports
from replayssm.conformance.inputs import Source
from replayssm.formats import LARGEST
from replayssm.storage import read_matrix

INF, NAN = float("inf"), float("nan")
CASES = (
    "an infinity",
    "all infinite",
    "no number",
    "no numbers",
    "beyond every scale",
    "largest beside smallest",
    "zero blocks",
    "zero",
    "subnormal",
)


def recurrence_of(kind):
    return Recurrence(kind, heads=4, groups=2, value_dim=16, key_dim=32)


def extreme(state, case):
    """`state [4, H, V, K]` changed in place."""
    match case:
        case "an infinity":
            state[0, 0, 3, 5], state[1, 1, 2, 7], state[2, 2, 0, 0] = INF, -INF, INF
        case "all infinite":
            state.copy_(state.sign() * INF)
        case "no number":
            state[0, 0, 3, 5], state[1, 1, 2], state[2, 2], state[3, 3, 0, 0] = NAN, NAN, NAN, INF
        case "no numbers":
            state.fill_(NAN)
        case "beyond every scale":
            state *= 1e38
        case "largest beside smallest":
            state[0] *= 1e38
            state[1] *= 1e-38
            state[2, :, ::2] *= 1e30
        case "zero blocks":
            state[..., :16], state[1, 2], state[2, :, 3] = 0.0, 0.0, 0.0
        case "zero":
            state.zero_()
        case "subnormal":
            state *= 1e-40
    return state


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", list(LayerKind))
def test_no_state_makes_an_output_that_is_no_number(kind, preset, case, seed):
    """Unchecked: the state saturates at `LARGEST` (2^96), NaN is 0, through flushes and reads of the copy."""
    layout = StateLayout(recurrence_of(kind), 4, 3, 2, PRESETS[preset], torch.float32)
    source = Source(layout.recurrence, torch.float32, seed=seed)
    state, slots = ReplayState(layout, A=source.A, check_inputs=False), [0, 1, 2, 3]
    state.load(slots, extreme(source.states(4), case))
    assert float(state.state(slots).abs().max()) <= LARGEST
    for _ in range(5):
        assert bool(torch.isfinite(state.verify(source.tokens(4, 2), slots)).all())
        state.commit(2)
    assert bool(torch.isfinite(state.state(slots)).all())


@pytest.mark.parametrize("kind", list(LayerKind))
@pytest.mark.parametrize("backend", ["naive", "torch"])
def test_nan_is_stored_as_zero(backend, kind):
    check_nan(backend, kind)


@pytest.mark.parametrize("kind", list(LayerKind))
def test_nan_is_stored_as_zero_under_the_interpreter(kind):
    pytest.importorskip("triton")
    interpret(Path(__file__).with_name("nan_states.py"), "triton", kind)


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_checked_loads_refuse_what_is_no_number(value):
    state = ReplayState(StateLayout(recurrence_of(LayerKind.GDN), 1))
    bad = torch.zeros(1, 4, 16, 32)
    bad[0, 1, 2, 3] = value
    with pytest.raises(InputError, match="state holds NaN or infinity; expected finite values"):
        state.load([0], bad)


@pytest.mark.parametrize("checkpoint", ["fp16", "fp8"])
def test_stored_states_are_unbiased(checkpoint, seed):
    """The same state in many slots, each with noise of its own: what is stored is the state on average.

    z is the mean error over its own standard deviation, `[H, V, K]`: standard normal if nothing is biased.
    """
    slots = 400
    policy = PrecisionPolicy(checkpoint, stochastic_rounding=True)
    layout = StateLayout(recurrence_of(LayerKind.GDN), slots, precision=policy, activation=torch.float32)
    source = Source(layout.recurrence, torch.float32, seed=seed)
    state = ReplayState(layout, seed=seed)
    truth = source.states(1).float()
    state.load(range(slots), truth.expand(slots, -1, -1, -1))
    stored = read_matrix(layout, state.layer.buffers, "checkpoint", torch.arange(slots), torch.float64)
    error = stored - truth.double()
    spread = error.std(dim=0)
    # Entries that are on the grid, the largest of each row of fp8 among them, have no error at all.
    rounded = spread > 1e-3 * spread.max()
    z = (error.mean(dim=0) / (spread / slots**0.5))[rounded]
    count = rounded.sum().item()
    assert count > 1500
    assert abs(float(z.mean())) < 6 / count**0.5
    assert abs(float(z.square().mean()) - 1) < 6 * (2 / count) ** 0.5 + 0.05
    # Rounding to nearest, for comparison, leaves the same error in every slot.
    nearest = StateLayout(layout.recurrence, 1, precision=PrecisionPolicy(checkpoint), activation=torch.float32)
    plain = ReplayState(nearest)
    plain.load([0], truth)
    biased = (
        read_matrix(nearest, plain.layer.buffers, "checkpoint", torch.tensor([0]), torch.float64)[0] - truth.double()[0]
    )
    assert float(biased.norm()) > 5 * float(error.mean(dim=0).norm())


def test_folds_round_without_bias_too(seed):
    """Hundreds of folds of a state that hardly changes: to nearest it stays where it is, at random it follows on average."""
    recurrence = Recurrence(LayerKind.MAMBA2, 1, 1, 16, 32)
    slots, folds, decay = 64, 60, 1e-4
    found = {}
    for stochastic in (True, False):
        layout = StateLayout(
            recurrence, slots, 1, precision=PrecisionPolicy("fp16", stochastic), activation=torch.float32
        )
        state = ReplayState(layout, A=torch.tensor([-1.0]), seed=seed)
        state.load(range(slots), torch.full((slots, 1, 16, 32), 1.0009765625))
        token = Source(recurrence, torch.float32, seed=1).tokens(slots, 1)
        token = dataclasses.replace(token, v=torch.zeros_like(token.v), gate=torch.full_like(token.gate, decay))
        for _ in range(folds + 1):
            state.decode(token, range(slots))
        found[stochastic] = float(state.layer.buffers["checkpoint"].double().mean())
    expected = 1.0009765625 * (1 - decay) ** folds
    # A fold adds a deviation of at most half a step of the grid; 6 of the mean's, which is far below what was forgotten.
    bound = 6 * 2.0**-11 * (folds / (slots * 16 * 32)) ** 0.5
    assert bound < (1.0009765625 - expected) / 40
    assert abs(found[True] - expected) < bound
    assert found[False] == 1.0009765625


@pytest.mark.parametrize("preset", ["shared-nvfp4", "dual-nvfp4"])
def test_a_policy_that_a_backend_cannot_do_names_what_works(preset, monkeypatch):
    row = dataclasses.replace(CAPABILITIES["triton"], devices=("cpu", "cuda"))
    monkeypatch.setitem(CAPABILITIES, "triton", row)
    recurrence = Recurrence(LayerKind.GDN, 2, 1, 16, 16)
    layout = StateLayout(recurrence, 1, precision=PRESETS[preset])
    served, reason = supports("triton", layout, torch.device("cpu"))
    assert not served
    assert reason.endswith("; backend 'naive' and 'torch' serve it all")
    assert "no NVFP4 where K = 16 is below 64" in reason


def test_a_state_of_4_bits_has_no_read_copy_in_kernels(monkeypatch):
    row = dataclasses.replace(CAPABILITIES["triton"], devices=("cpu", "cuda"))
    monkeypatch.setitem(CAPABILITIES, "triton", row)
    policy = PrecisionPolicy("nvfp4", read_copy="fp8")
    layout = StateLayout(Recurrence(LayerKind.GDN, 2, 1, 16, 64), 1, precision=policy)
    served, reason = supports("triton", layout, torch.device("cpu"))
    assert not served
    assert (
        reason == "backend 'triton' has no read copy of a checkpoint of nvfp4; backend 'naive' and 'torch' serve it all"
    )
