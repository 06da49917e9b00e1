"""`replayssm bench flashinfer`: `checkpointing_ssu` of FlashInfer, best tactic, beside ours, in one run."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from replayssm.errors import InputError

if TYPE_CHECKING:
    from replayssm.bench.ceilings import Ceilings
    from replayssm.bench.results import Row
    from replayssm.bench.scenario import Scenario
    from replayssm.bench.timing import Machine
    from replayssm_flashinfer.bench.measure import Result

HELP = "FlashInfer's checkpointing_ssu at its best tactic beside ours, on this GPU: errors, then microseconds."

_LISTS = {
    "geometry": ("super",),
    "batch": ("1", "8", "32", "64", "128", "256", "512"),
    "draft": ("1", "2", "4", "8"),
    "checkpoint": ("fp32",),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    for name, default in _LISTS.items():
        parser.add_argument(f"--{name}", nargs="+", default=list(default), metavar="VALUE", help=" ".join(default))
    parser.add_argument("--window", type=int, default=16, metavar="N", help="W, records of a window (default 16)")
    parser.add_argument("--acceptance", type=float, default=0.8, metavar="PROBABILITY", help="of drafts (default 0.8)")
    parser.add_argument("--ours-only", action="store_true", help="leave FlashInfer out")
    parser.add_argument("--ref", metavar="TEXT", help="git ref to record, where this is no repository")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")


def run(args: argparse.Namespace) -> int:
    """Measure. Status 1 where FlashInfer has no time to compare with."""
    from replayssm.bench.ceilings import measure_ceilings
    from replayssm.bench.results import Results, ceiling_facts
    from replayssm.bench.settings import selection
    from replayssm.bench.timing import cuda_machine
    from replayssm.records import circumstances

    if args.json is not None and args.json.is_dir():
        raise InputError(f"--json={args.json} is a folder; expected a file")
    lists = {name: getattr(args, name) for name in _LISTS} | {"layer": ["mamba2"]}
    scenarios = selection(lists, window=args.window, acceptance=args.acceptance).scenarios()
    machine = cuda_machine()
    results = Results(circumstances(machine.device, args.ref))
    ceilings = measure_ceilings(machine)
    results.meta |= {
        "ceilings": ceiling_facts(ceilings),
        "settings": {"window": args.window, "acceptance": args.acceptance},
        "flashinfer": "left out" if args.ours_only else _version(),
        "details": [],
    }
    print(f"{'scenario':<44} {'ours µs':>9} {'theirs µs':>9} {'ratio':>6}  tactic; errors of outputs, states")
    complete = True
    for scenario in scenarios:
        found = _measure(scenario, machine, with_theirs=not args.ours_only)
        row, line = _row(scenario, found, ceilings)
        complete &= args.ours_only or row.ordinary_us > 0
        results.rows.append(row)
        results.meta["details"].append({result.name: asdict(result) for result in found})
        print(line, flush=True)
        if args.json is not None:
            results.write(args.json)
    return 0 if complete else 1


def _measure(scenario: Scenario, machine: Machine, *, with_theirs: bool) -> list[Result]:
    from replayssm_flashinfer.bench.calls import Checked
    from replayssm_flashinfer.bench.contestants import ours, theirs
    from replayssm_flashinfer.bench.measure import run as measure

    checked = Checked.of(scenario, machine.device)
    contestants = [ours(), *(theirs(scenario) if with_theirs else ())]
    return [measure(contestant, scenario, checked, machine) for contestant in contestants]


def _row(scenario: Scenario, found: list[Result], ceilings: Ceilings) -> tuple[Row, str]:
    from replayssm.bench.results import Row
    from replayssm.bench.run import RedGateError
    from replayssm.bench.scenario import step_bytes

    mine = found[0]
    if mine.us is None:
        raise RedGateError(f"no speed is reported: {scenario.describe()}: {mine.note}")
    timed = [(result.us, result) for result in found[1:] if result.us is not None]
    theirs_us, best = min(timed, key=lambda pair: pair[0]) if timed else (0.0, None)
    row = Row(
        layer=scenario.geometry.layer,
        geometry=scenario.geometry.name,
        checkpoint=scenario.checkpoint,
        read_copy=None,
        batch=scenario.batch,
        draft=scenario.draft,
        phase=scenario.phase,
        us=round(mine.us, 2),
        ordinary_us=round(theirs_us, 2),
        ratio=round(theirs_us / mine.us, 3),
        share_of_ceiling=round(step_bytes(scenario).floor_us(ceilings) / mine.us, 3),
    )
    errors = [f"{r.name} {r.errors.out:.1e} {r.errors.state:.1e}" for r in (mine, best) if r is not None and r.errors]
    notes = sorted({result.note for result in found[1:] if result.note}) if best is None else []
    text = "; ".join([best.name if best else "none", *errors, *notes])
    line = f"{scenario.describe():<44} {row.us:9.1f} {row.ordinary_us:9.1f} {row.ratio:6.2f}  {text}"
    return row, line


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        return "of unknown version"
