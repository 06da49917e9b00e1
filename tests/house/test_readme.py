"""The README's table of kernels is what the command prints of the recorded rows."""

from __future__ import annotations

from pathlib import Path

from replayssm.bench.results import read_rows
from replayssm.bench.tables import markdown

ROOT = Path(__file__).parents[2]


def test_the_table_of_kernels_is_the_recorded_one():
    printed = markdown([read_rows(ROOT / "benchmarks/results/kernels-h200.json")])
    table = printed.split("\n\n")[0]
    assert table.count("\n") > 10
    assert table in (ROOT / "README.md").read_text(encoding="utf-8")
