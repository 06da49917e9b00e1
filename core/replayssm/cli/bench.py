"""`replayssm bench`: kernels measured on this GPU, and result files as tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from replayssm.errors import InputError

if TYPE_CHECKING:
    from replayssm.bench.scenario import Scenario

HELP = "How fast kernels and engines are here, beside ordinary decode of the same run."
GROUP = "replayssm.benches"
"""Entry points of adapters: name of an engine's benchmark → its module, a `Command`."""

_LISTS = (
    ("layer", "mamba2, gdn, kda"),
    ("geometry", "super, nano4b, qwen122b, qwen4b, kimi"),
    ("batch", "rows of a step; 1 8 32 256 512 when left out"),
    ("draft", "T, new tokens of a step; 1 2 4 8 when left out"),
    ("checkpoint", "fp32, bf16, fp16, fp16-sr, fp8, fp8-sr, nvfp4; fp32 when left out"),
    ("read-copy", "none, fp8, nvfp4; none when left out"),
)

_PRECISION = {
    "geometry": ("super", "qwen122b", "kimi"),
    "batch": ("32", "128", "256", "512"),
    "draft": ("1", "4", "8"),
    "policies": ("exact", "fp16-sr", "dual-fp8", "dual-nvfp4", "dual-nvfp4-fp16", "shared-nvfp4"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    commands = parser.add_subparsers(dest="what", required=True, metavar="kernels|precision|table|ENGINE")
    kernels = commands.add_parser("kernels", help="measure", description="Measure the step on this GPU.")
    add_lists(kernels)
    kernels.add_argument(
        "--phase",
        nargs="+",
        metavar="NAME",
        help="of the window, T = 1: staggered (average), in-phase (average), nonflush, flush; of drafts: steady",
    )
    _add_run(kernels)
    kernels.add_argument("--quick", action="store_true", help="batch 256 and T = 1, 4 where they are not given")
    precision = commands.add_parser(
        "precision",
        help="measure every precision policy, speed beside errors",
        description="Speed of every precision policy on this GPU and its ratio to the ordinary decode of an fp32 state, "
        "beside the errors of its state and outputs.",
    )
    for name, default in _PRECISION.items():
        text = f"{dict(_LISTS).get(name, 'precision presets')} ({' '.join(default)} when left out)"
        precision.add_argument(f"--{name}", nargs="+", default=list(default), metavar="VALUE", help=text)
    _add_run(precision)
    table = commands.add_parser("table", help="result files as Markdown", description="Result files as Markdown.")
    table.add_argument("files", type=Path, nargs="+", metavar="file", help="what `bench kernels --json` wrote")
    for point in entry_points(group=GROUP):
        engine = point.load()
        its = commands.add_parser(point.name, help=engine.HELP, description=engine.HELP)
        engine.configure(its)
        its.set_defaults(engine=engine)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--window", type=int, default=16, metavar="N", help="W, records of a window (default 16)")
    parser.add_argument(
        "--acceptance", type=float, default=0.8, metavar="PROBABILITY", help="of each draft (default 0.8)"
    )
    add_jobs(parser)
    parser.add_argument("--ours-only", action="store_true", help="compare with our ordinary kernel, with no engine's")
    parser.add_argument("--ref", metavar="TEXT", help="git ref to record, where this is no repository")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")


def add_lists(parser: argparse.ArgumentParser) -> None:
    """Arguments that choose what is measured, each a list."""
    for name, text in _LISTS:
        parser.add_argument(f"--{name}", nargs="+", metavar="VALUE", help=text)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """The number of processes that check and compile."""
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="processes that check steps and compile them (default: half of the cores)"
    )


def jobs(args: argparse.Namespace) -> int:
    """That number.

    Raises:
        InputError: below 1.
    """
    from replayssm.bench.workers import default_jobs

    if args.jobs is not None and not 1 <= args.jobs <= 64:
        raise InputError(f"--jobs={args.jobs} must be from 1 to 64")
    return args.jobs or default_jobs()


def run(args: argparse.Namespace) -> int:
    """Measure, or print a table. Status 1 where a step is wrong: then no speed is printed."""
    if hasattr(args, "engine"):
        return int(args.engine.run(args))
    return {"table": _table, "kernels": _kernels, "precision": _precision}[args.what](args)


def chosen(args: argparse.Namespace) -> dict[str, Sequence[str] | None]:
    """The lists of `add_lists`, as typed."""
    keys = [name.replace("-", "_") for name, _ in _LISTS]
    return {key: getattr(args, key) for key in keys}


def _table(args: argparse.Namespace) -> int:
    from replayssm.bench.results import read_rows
    from replayssm.bench.tables import markdown

    print(markdown([read_rows(file) for file in args.files]), end="")
    return 0


def _kernels(args: argparse.Namespace) -> int:
    from replayssm.bench.settings import selection

    lists = {**chosen(args), "phase": args.phase}
    scenarios = selection(lists, window=args.window, acceptance=args.acceptance, quick=args.quick).scenarios()
    return _measure(args, scenarios)


def _precision(args: argparse.Namespace) -> int:
    import torch

    from replayssm.bench.precision import policy_scenarios
    from replayssm.bench.settings import selection
    from replayssm.lists import names
    from replayssm.precision import PRESETS

    policies = names("--policies", args.policies, PRESETS)
    lists = {"geometry": args.geometry, "batch": args.batch, "draft": args.draft}
    chosen_lists = selection(lists, window=args.window, acceptance=args.acceptance)
    scenarios, refused = policy_scenarios(chosen_lists, policies, torch.device("cuda"))
    for name, reason in refused.items():
        print(f"{name} is left out: {reason}", file=sys.stderr)
    return _measure(args, scenarios, with_errors=True)


def _measure(args: argparse.Namespace, scenarios: list[Scenario], *, with_errors: bool = False) -> int:
    from replayssm.bench.ceilings import measure_ceilings
    from replayssm.bench.conventional import Implementation, verify
    from replayssm.bench.ordinary import OurOrdinary
    from replayssm.bench.peers import find_peers
    from replayssm.bench.precision import qualities
    from replayssm.bench.results import Results, ceiling_facts
    from replayssm.bench.run import Measured, RedGateError, Run, gate, ordinary_kind, run_all, tiles_of
    from replayssm.bench.tables import header, line
    from replayssm.bench.timing import cuda_machine
    from replayssm.bench.workers import Workers
    from replayssm.cli.precision_text import side_by_side
    from replayssm.records import circumstances

    if args.json is not None and args.json.is_dir():
        raise InputError(f"--json={args.json} is a folder; expected a file")
    with Workers(jobs(args)) as workers:
        machine = cuda_machine()
        try:
            count = gate(scenarios, machine, workers)
        except RedGateError as error:
            print(f"replayssm bench: {error}", file=sys.stderr)
            return 1
        implementations: list[Implementation] = [OurOrdinary(), *([] if args.ours_only else find_peers())]
        verified = verify(implementations, dict.fromkeys(map(ordinary_kind, scenarios)), machine.device, workers)
    print(f"{count} operations agree with the float64 reference", flush=True)
    results = Results(circumstances(machine.device, args.ref))
    ceilings = measure_ceilings(machine)
    results.meta["ceilings"] = ceiling_facts(ceilings)
    results.meta["settings"] = {"window": args.window, "acceptance": args.acceptance}
    if with_errors:
        shapes = [tiles_of(scenario, machine) for scenario in scenarios]
        results.meta["quality"] = qualities(scenarios, shapes, machine.device)
    print(", ".join(f"{name} {value:,.0f}" for name, value in vars(ceilings).items()) + " GB/s")
    print(header(), flush=True)

    def report(measured: Measured) -> None:
        print(line(measured), flush=True)
        if args.json is not None:
            results.write(args.json)

    run_all(Run(machine, ceilings, verified), scenarios, results, report)
    if with_errors:
        print("\n".join(side_by_side(results.rows, results.meta["quality"])))
    return 0
