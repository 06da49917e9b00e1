"""What writes slots outside a step, under Triton's interpreter: as the torch backend, bit for bit where nothing is folded.

The kit's graph cases run there too, without graphs: the same calls on fixed tensors.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from interpreting import interpret

pytest.importorskip("triton")

HERE = Path(__file__).parent


@pytest.mark.parametrize("kind", ["mamba2", "gdn", "kda"])
def test_slot_kernels_agree_with_the_torch_backend(kind):
    interpret(HERE / "interpreted_slots.py", kind)


@pytest.mark.parametrize("kind", ["mamba2", "gdn", "kda"])
def test_rows_of_several_launches(kind):
    interpret(HERE / "interpreted_many.py", kind)


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        ("gdn", "test_replayed_steps_follow_the_model"),
        ("kda", "test_replayed_trees_follow_the_model"),
        ("mamba2", "test_replayed_calls_on_slots"),
        ("gdn", "test_padding_is_ignored_by_replayed_calls"),
        ("mamba2", "test_slot_twice_in_a_replay"),
        ("kda", "test_graph_replay"),
    ],
)
def test_graph_cases_without_graphs(kind, case):
    interpret(HERE / "interpreted_graphs.py", kind, case)


def test_whole_step_without_graphs():
    interpret(HERE / "whole_step.py", "gdn")
