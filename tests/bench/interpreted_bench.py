"""Parts of the benchmark under Triton's interpreter, each a function; exits with 1 where one fails.

Usage: TRITON_INTERPRET=1 python interpreted_bench.py PART LAYER
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from small import GEOMETRIES, machine

from replayssm.backends import fused
from replayssm.bench import precision
from replayssm.bench import run as bench_run
from replayssm.bench.ceilings import Ceilings, measure_ceilings
from replayssm.bench.conventional import Kind, time_best, verify
from replayssm.bench.ordinary import OurOrdinary
from replayssm.bench.results import Results
from replayssm.bench.scenario import PHASES, Scenario
from replayssm.bench.tuning import Search, table_facts, tune
from replayssm.bench.workers import Workers
from replayssm.errors import ReplaySSMError, UnsupportedError
from replayssm.kernels import tiles as shapes
from replayssm.kernels.tiles import Gpu, Table

CPU = torch.device("cpu")


def scenario(layer: str, **changes: object) -> Scenario:
    """A small one, in fp32: the interpreter's bf16 stores truncate."""
    small = Scenario(GEOMETRIES[layer], "fp32", None, 3, 1, "staggered", window=4, activation=torch.float32)
    return replace(small, **changes)


def ordinary(layer: str) -> None:
    """Our conventional kernel agrees with the reference in each state format, with and without drafts."""
    # bf16 is left out: the interpreter truncates where the hardware rounds.
    kinds = [Kind(GEOMETRIES[layer], state, draft, torch.float32) for state in ("fp32", "fp16") for draft in (1, 3)]
    for kind, verified in verify([OurOrdinary()], kinds, CPU, Workers(1)).items():
        assert not verified.refused, verified.refused
        assert len(verified.candidates) == len(OurOrdinary().variants(kind)) > 1


class Wrong(OurOrdinary):
    """One that scales its queries by 1.01."""

    def prepare(self, step, start, variant):
        inputs = replace(step.inputs, scale=1.01 * step.inputs.scale)
        return super().prepare(replace(step, inputs=inputs), start, variant)


def wrong(layer: str) -> None:
    """A conventional kernel that is wrong is not timed, and without another there is nothing to compare with."""
    kind = Kind(GEOMETRIES[layer], "fp32", 1, torch.float32)
    alone = verify([Wrong("wrong")], [kind], CPU, Workers(1))[kind]
    with pytest.raises(UnsupportedError, match="outputs are off"):
        time_best(machine(), alone, kind.step(4, CPU))
    both = verify([Wrong("wrong"), OurOrdinary()], [kind], CPU, Workers(1))[kind]
    timed = time_best(machine(), both, kind.step(4, CPU))
    assert timed.name.startswith("ours"), timed
    assert "outputs are off" in str(timed.others["wrong 16x1"]), timed


def ceilings(layer: str) -> None:
    """All three kernels run."""
    assert layer in GEOMETRIES
    found = measure_ceilings(machine(), mebibytes=0)
    assert found.read > 0
    assert found.read_write > 0
    assert found.fill > 0


def quality(layer: str) -> None:
    """Errors through the kernels: a copy leaves the state as it is, and is seen in the outputs."""
    precision.STEPS, precision.ROWS = 8, 1
    wanted = [scenario(layer, read_copy=copy, draft=2, phase="steady") for copy in (None, "fp8")]
    shapes = [bench_run.tiles_of(one, machine()) for one in wanted]
    exact, copied = precision.qualities(wanted, shapes, CPU)
    assert (exact["policy"], copied["policy"]) == ("exact", "dual-fp8")
    assert copied["state_error"] <= 1.05 * exact["state_error"] < 1e-5
    assert exact["output_error"] < 1e-3 < copied["output_error"] < 0.1


def full(layer: str) -> None:
    """A whole run: gate, ordinary, phases of standard decode, drafts."""
    here, results, lines = machine(), Results({}), []
    wanted = [scenario(layer, phase=phase) for phase in PHASES[1]]
    wanted.append(scenario(layer, checkpoint="fp16-sr", draft=2, phase="steady"))
    with Workers(2) as workers:
        assert bench_run.gate(wanted, here, workers) == 2
    kinds = dict.fromkeys(map(bench_run.ordinary_kind, wanted))
    verified = verify([OurOrdinary()], kinds, here.device, Workers(1))
    run = bench_run.Run(here, Ceilings(4000.0, 3900.0, 4100.0), verified)
    bench_run.run_all(run, wanted, results, lambda measured: lines.append(measured.ordinary.name))
    assert len(results.rows) == len(wanted)
    assert len({row.ordinary_us for row in results.rows}) == 2, "the ordinary decode is timed once for each draft"
    assert all(row.us > 0 and row.ratio == round(row.ordinary_us / row.us, 3) for row in results.rows)


def red(layer: str) -> None:
    """A step that is wrong stops everything."""
    wanted = [scenario(layer)]
    launch = fused.launch_step
    fused.launch_step = lambda *arguments: launch(*arguments) * 1.01
    with pytest.raises(bench_run.RedGateError, match="no speed is reported"):
        bench_run.gate(wanted, machine(), Workers(1))


def tuned(layer: str) -> None:
    """Candidates that run are timed at each batch; one that cannot run is left out; the fastest is written and found."""
    wanted = [scenario(layer, batch=batch) for batch in (1, 3)]
    lines: list[str] = []
    # 24 is no power of two, which a tile must be; let it through the check, as a shape that only a GPU's compiler refuses.
    shapes.ROW_CHOICES = (*shapes.ROW_CHOICES, 24)
    search = Search({"value": (16, 24, 32), "warps": (1,)})
    entries = list(tune(wanted, search, machine(), Workers(1), lines.append))
    assert [(entry.operation.batch, entry.tiles.value) for entry in entries] == [(1, 16), (3, 16)]
    assert any("24" in line and "left out" in line for line in lines), lines
    with pytest.raises(ReplaySSMError, match="no launch shape runs"):
        list(tune(wanted, Search({"value": (24,), "warps": (1,)}), machine(), Workers(1), lines.append))
    facts = table_facts(Gpu("Test GPU", 90), None, entries, {})
    table = Table.parse(facts, "here")
    assert table.nearest(entries[0].operation) == entries[0].tiles


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]](sys.argv[2])
