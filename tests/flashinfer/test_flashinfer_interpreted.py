"""The drop-in functions under Triton's interpreter, against float64; random inputs, new in every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from interpreting import interpret

pytest.importorskip("triton")

HERE = Path(__file__).parent


@pytest.mark.parametrize("cases", ["formats,launches,gaps,copies", "packed,lives,materialise,many"])
def test_mamba2_functions_agree_with_the_recurrence(cases, seed):
    interpret(HERE / "interpreted_mamba.py", cases, str(seed))


@pytest.mark.parametrize("cases", ["ucache,in_place", "replay,formats"])
def test_gdn_and_kda_functions_agree_with_the_recurrence(cases, seed):
    interpret(HERE / "interpreted_delta.py", cases, str(seed))


def test_gdn_rings_with_a_read_copy(seed):
    interpret(HERE / "interpreted_dual.py", "copies,states", str(seed))


def test_edges_of_the_contract(seed):
    interpret(HERE / "interpreted_edges.py", "empty,packed,tables,large,strong,beyond,counted", str(seed))


def test_custom_operators_and_the_backend(seed):
    interpret(HERE / "interpreted_ops.py", "opchecks,bench,behind_the_core,warm", str(seed))


def test_compiled_graphs_have_the_bits_of_plain_calls(seed):
    interpret(HERE / "interpreted_compiled.py", "mamba2,gdn,replay,many_batches,tables", str(seed))
