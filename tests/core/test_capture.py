"""While a CUDA graph is captured: what needs the host is refused in one line, and no value is looked at."""

from __future__ import annotations

import pytest
import torch

from replayssm import InputError, Recurrence, ReplayState, StateLayout, UnsupportedError, checks, state
from replayssm.capture import capturing
from replayssm.conformance.inputs import Source

LAYOUT = StateLayout(Recurrence.mamba2(heads=2, head_dim=4, state_size=16), 3, max_draft=2, activation=torch.float32)
CPU = torch.device("cpu")


@pytest.fixture
def captured(monkeypatch):
    """A state made before, on a device that now captures."""
    source = Source(LAYOUT.recurrence, torch.float32)
    made = ReplayState(LAYOUT, A=source.A, backend="torch")
    for module in (checks, state):
        monkeypatch.setattr(module, "capturing", lambda device: True)  # noqa: ARG005
    return made, source


def test_cpu_captures_nothing():
    assert not capturing(CPU)


@pytest.mark.parametrize(
    "call",
    [
        lambda s, x: s.verify(x, torch.tensor([0])),
        lambda s, x: s.load(torch.tensor([0]), torch.zeros(1, 2, 4, 16)),  # noqa: ARG005
        lambda s, x: s.flush(torch.tensor([0])),  # noqa: ARG005
        lambda s, x: s.copy(torch.tensor([0]), torch.tensor([1])),  # noqa: ARG005
        lambda s, x: s.materialise(torch.tensor([0]), torch.tensor([1])),  # noqa: ARG005
        lambda s, x: s.state(torch.tensor([0])),  # noqa: ARG005
    ],
)
def test_backend_that_reads_the_host_is_refused(captured, call):
    made, source = captured
    with pytest.raises(UnsupportedError, match="backend 'torch' waits for the device; a CUDA graph cannot capture it"):
        call(made, source.tokens(1, 1))


@pytest.mark.usefixtures("captured")
def test_values_on_the_host_are_refused():
    for call in (
        lambda: checks.integers("slots", [0, 1], CPU),
        lambda: checks.check_drain([True], 1, CPU),
        lambda: checks.check_state(LAYOUT, [[0.0]], 1, CPU, False),
    ):
        with pytest.raises(InputError, match="must be a tensor on cpu while a CUDA graph is captured"):
            call()
    # A number is a constant of the graph, and a tensor on the device its input.
    assert int(checks.integers("count", 3, CPU)) == 3
    assert checks.integers("slots", torch.tensor([2]), CPU).tolist() == [2]


def test_checks_of_values_can_be_left_out():
    beyond = torch.tensor([7, -5, 7])
    assert checks.check_slots(LAYOUT, beyond, CPU, values=False).tolist() == [7, -5, 7]
    tokens = Source(LAYOUT.recurrence, torch.float32).tokens(3, 2)
    slots = torch.tensor([0, -1, 1])
    assert checks.check_lengths(LAYOUT, [9, 9, 0], tokens, slots, values=False).tolist() == [9, 9, 0]
    parents = checks.check_parents([[0, 5], [7, 7], [-1, 0]], tokens, slots, values=False)
    assert parents.tolist() == [[0, 5], [-1, -1], [-1, 0]]
    with pytest.raises(InputError, match="1-d"):
        checks.check_slots(LAYOUT, beyond[None], CPU, values=False)
